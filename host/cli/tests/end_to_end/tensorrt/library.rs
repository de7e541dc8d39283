//! TensorRT for RTX itself, without a GPU: engines of the recorded models, refusals, artifacts. Skipped without the library.

use super::Fixture;
use crate::models;
use byoc_test_support::tensorrt;
use serde_json::Value;

/// Operators that the parser refuses on uint8, as programs over %x: Tensor[(2, 3, 4, 4), uint8].
const REFUSED: [(&str, &str); 20] = [
    ("abs", "abs(%x)"),
    ("add", "add(%x, %x)"),
    ("argmax", "argmax(%x, axis=[1])"),
    ("clip", "clip(%x, a_min=0f64, a_max=1f64)"),
    ("concatenate", "concatenate((%x, %x), axis=1)"),
    ("divide", "divide(%x, %x)"),
    ("floor_divide", "floor_divide(%x, %x)"),
    ("max", "max(%x, axis=[1])"),
    ("maximum", "maximum(%x, %x)"),
    ("min", "min(%x, axis=[1])"),
    ("mod", "mod(%x, %x)"),
    ("multiply", "multiply(%x, %x)"),
    ("nn.max_pool2d", "nn.max_pool2d(%x, pool_size=[2, 2])"),
    ("nn.relu", "nn.relu(%x)"),
    ("repeat", "repeat(%x, repeats=2, axis=1)"),
    ("reshape", "reshape(%x, newshape=[6, 16])"),
    ("reverse", "reverse(%x, axis=1)"),
    ("sign", "sign(%x)"),
    ("split", "split(%x, indices_or_sections=3, axis=1)"),
    ("transpose", "transpose(%x)"),
];

#[expect(clippy::print_stdout, reason = "reports a skipped test")]
fn fixture() -> Option<Fixture> {
    let Some(library) = tensorrt() else {
        println!("skipped: TensorRT for RTX is not installed; fetch it with `cargo xtask tensorrt`");
        return None;
    };
    Some(Fixture::new(&library))
}

#[test]
fn engines_of_the_recorded_models_for_two_capabilities() {
    let Some(fixture) = fixture() else { return };
    let (mut built, mut missing) = (0, Vec::new());
    for model in models() {
        let name = model.file_name().unwrap().to_string_lossy().into_owned();
        let file = model.join("model.onnx").display().to_string();
        let artifact = fixture.text_path(&format!("{name}.byoc"));
        let option = "--backend-option=tensorrt.capability=8.9,12.0";
        let args = ["compile", &file, "--backend", "tensorrt", option, "-o", &artifact];
        let output = fixture.byoc(&args, &[]);
        let inspected = fixture.byoc(&["inspect", &artifact], &[]).out;
        let has_both =
            ["8.9", "12.0"].iter().all(|number| inspected.contains(&format!("engine for capability {number}")));
        if output.code == 0 && has_both { built += 1 } else { missing.push((name, output.err)) }
    }
    assert!(built >= 12, "engines of {built} of 15 models; none of {missing:?}");
}

#[test]
fn compilation_is_reproducible() {
    let Some(fixture) = fixture() else { return };
    let model = crate::data_text("models/resnet18_w16/model.onnx");
    let compile = |name: &str| {
        let artifact = fixture.text_path(name);
        let option = "--backend-option=tensorrt.capability=8.9";
        fixture.byoc(&["compile", &model, "--backend", "tensorrt", option, "-o", &artifact], &[]).ok();
        std::fs::read(&artifact).unwrap()
    };
    assert!(compile("a.byoc") == compile("b.byoc"), "expected equal artifacts of two compilations");
}

#[test]
fn artifact_without_a_gpu_gives_the_hosts_answer() {
    let Some(fixture) = fixture() else { return };
    let model = crate::data_text("models/resnet18_w16/model.onnx");
    let artifact = fixture.text_path("model.byoc");
    let args =
        ["compile", &model, "--backend", "tensorrt", "--backend-option=tensorrt.capability=8.9", "-o", &artifact];
    fixture.byoc(&args, &[]).ok();
    let input = "--input=input.1=random:1";
    let output = fixture.byoc(&["run", &artifact, input], &[]).ok();
    let host = fixture.byoc(&["run", &model, "--backend", "none", input], &[]).ok();
    assert_eq!(output.out, host.out);
}

#[test]
fn refusals_carry_a_reason() {
    let Some(fixture) = fixture() else { return };
    for (operator, expression) in REFUSED {
        let program = format!("fn (%x: Tensor[(2, 3, 4, 4), uint8]) {{ {expression} }}");
        let model = fixture.write("refused.relay", &program);
        let output = fixture.byoc(
            &["explain", &model, "--backend", "tensorrt", "--backend-option=tensorrt.capability=8.9", "--json"],
            &[],
        );
        let explained: Value = serde_json::from_str(output.out.lines().next().unwrap_or_default()).unwrap_or_default();
        let nodes = explained["nodes"].as_array().cloned().unwrap_or_default();
        let refusals = nodes.iter().flat_map(|node| node["refusals"].as_array().cloned().unwrap_or_default());
        let details: Vec<String> =
            refusals.map(|refusal| refusal["detail"].as_str().unwrap_or_default().to_owned()).collect();
        let start = format!("{operator}: TensorRT's parser: ");
        let has_reason = |detail: &String| detail.strip_prefix(&start).is_some_and(|reason| reason.len() > 20);
        assert!(details.iter().any(has_reason), "{operator}: {details:?} {}", output.err);
    }
}

#[test]
fn zoo_models_are_partitioned_in_seconds() {
    let Some(fixture) = fixture() else { return };
    for (name, on_host) in [("ssd_resnet50", 5), ("resnet50", 0), ("mobilenet_v2", 0)] {
        let model = fixture.text_path(&format!("{name}.onnx"));
        crate::byoc(["zoo", name, "-o", &model]).ok();
        let option = "--backend-option=tensorrt.capability=8.9,12.0";
        let start = std::time::Instant::now();
        let output = fixture.byoc(&["explain", &model, "--backend", "tensorrt", option, "--json"], &[]).ok();
        let seconds = start.elapsed().as_secs_f64();
        let explained: Value = serde_json::from_str(output.out.lines().next().unwrap()).unwrap();
        let nodes = explained["nodes"].as_array().unwrap();
        let hosted = nodes.iter().filter(|node| node["placement"]["kind"] == "host").count();
        assert_eq!((hosted, explained["regions"].as_array().unwrap().len()), (on_host, 1), "{name}: {}", output.err);
        // Measured: 3 to 5 s on two cores; the bound is for a busy machine.
        assert!(seconds < 30.0, "{name}: {seconds} s");
    }
}

#[test]
fn quantized_models_are_compiled_from_bytes() {
    let Some(fixture) = fixture() else { return };
    let model = fixture.text_path("digits.onnx");
    let args = [
        "quantize",
        &crate::data_text("digits/digits.onnx"),
        "--calibrate",
        &crate::data_text("digits/calibration.npz"),
    ];
    fixture.byoc(&[&args[..], &["--backend", "tensorrt", "-o", &model]].concat(), &[]).ok();
    let artifact = fixture.text_path("digits.byoc");
    let options = ["--dim", "batch=1", "--backend", "tensorrt", "--backend-option=tensorrt.capability=8.9"];
    fixture.byoc(&[&["compile", &model, "-o", &artifact, "--require-offload=0.95"], &options[..]].concat(), &[]).ok();
}

#[test]
fn timing_cache_is_written_and_read() {
    let Some(fixture) = fixture() else { return };
    let model = crate::data_text("models/resnet18_w16/model.onnx");
    let (cache, artifact) = (fixture.path("cache"), fixture.text_path("model.byoc"));
    let option = format!("--backend-option=tensorrt.timing_cache={}", cache.display());
    let args = ["compile", &model, "--backend", "tensorrt", &option, "-o", &artifact, "--require-offload"];
    for _ in 0..2 {
        fixture.byoc(&args, &[]).ok();
        assert!(std::fs::metadata(&cache).unwrap().len() > 0);
    }
    std::fs::write(&cache, "no cache").unwrap();
    let output = fixture.byoc(&args[..7], &[]).ok();
    output.stderr_contains(&["tensorrt.timing_cache: ", "expected timings of the library, found another file"]);
    assert_eq!(std::fs::read(&cache).unwrap(), b"no cache");
}
