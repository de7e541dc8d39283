//! Models out: `compile --emit onnx`, `opt -o`, `quantize -o` to ONNX and to Relay text with its weights.

use crate::{byoc, command, data_text};
use std::path::Path;

const PROGRAM: &str = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(n, 4), float32], %y: Tensor[(n, 4), float32]) {
  %0 = add(%x, %y);
  (nn.relu(%0), bitwise_not(less(%0, 0f)))
}
";

fn file(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

#[test]
fn every_stage_of_a_model_gives_its_results() {
    let dir = tempfile::tempdir().unwrap();
    let model = data_text("models/mobilenet_v2_025");
    for stage in ["imported", "quantized", "simplified", "partitioned"] {
        let folder = dir.path().join(stage);
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(
            data_text("models/mobilenet_v2_025/test_data_set_0"),
            folder.join("test_data_set_0"),
        )
        .unwrap();
        let output = file(&folder, "model.onnx");
        byoc(["compile", &model, "--emit", "onnx", "--stage", stage, "-o", &output]).ok();
        let folder = folder.display().to_string();
        byoc(["verify", &folder, "--max-rel-err", "1e-4"]).ok();
        let described = byoc(["run", &folder, "--describe"]).ok().out;
        assert!(described.contains("input.1") && described.contains("537"), "{described}");
    }
}

#[test]
fn regions_become_local_functions() {
    let dir = tempfile::tempdir().unwrap();
    let output = file(dir.path(), "model.onnx");
    let plugins = byoc_test_support::plugin_dir(&["ccompiler"]);
    let plugin_dir = plugins.path().display().to_string();
    let model = data_text("digits/digits.onnx");
    let args = ["compile", &model, "--plugin-dir", &plugin_dir, "--backend", "ccompiler", "--dim", "batch=1"];
    byoc(args.iter().copied().chain(["--emit", "onnx", "--stage", "partitioned", "-o", &output])).ok();
    let bytes = std::fs::read(&output).unwrap();
    let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("byoc.region.ccompiler") && has("tvmgen_"));
    byoc(["run", &output, "--input", "image=random"]).ok();
}

#[test]
fn constants_of_regions_are_inputs_of_functions() {
    let dir = tempfile::tempdir().unwrap();
    let (program, model) = (file(dir.path(), "p.relay"), file(dir.path(), "p.onnx"));
    let text = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(2), float32]) { (@a(%x), add(%x, add(1f, 2f))) }
def @a(%x: Tensor[(2), float32], Compiler=\"t\", Primitive=1, global_symbol=\"a\") { add(%x, add(1f, 2f)) }
";
    std::fs::write(&program, text).unwrap();
    byoc(["opt", &program, "-o", &model]).ok();
    let again = file(dir.path(), "again.relay");
    byoc(["opt", &model, "--pass", "fold_constant", "-o", &again]).ok();
    let text = std::fs::read_to_string(&again).unwrap();
    assert!(text.contains("add(%x, 3f)"), "{text}");
}

#[test]
fn programs_become_models_and_models_programs() {
    let dir = tempfile::tempdir().unwrap();
    let (program, model, again) =
        (file(dir.path(), "p.relay"), file(dir.path(), "p.onnx"), file(dir.path(), "again.relay"));
    std::fs::write(&program, PROGRAM).unwrap();
    byoc(["opt", &program, "-o", &model]).ok();
    byoc(["opt", &model, "-o", &again]).ok();
    let text = std::fs::read_to_string(&again).unwrap();
    assert!(text.contains("nn.relu") && text.contains("(n, 4)"), "{text}");
    let inputs = ["--dim", "n=2", "--input", "x=random:1", "--input", "y=random:2"];
    let results = |model: &str| byoc(["run", model].into_iter().chain(inputs)).ok().out;
    assert_eq!(results(&model), results(&again));
}

#[test]
fn relay_text_keeps_weights_and_names() {
    let dir = tempfile::tempdir().unwrap();
    let (model, text) = (data_text("models/resnet18_w16/model.onnx"), file(dir.path(), "m.relay"));
    byoc(["opt", &model, "-o", &text]).ok();
    assert!(dir.path().join("m.relay.safetensors").exists());
    let described = |model: &str| byoc(["run", model, "--describe"]).ok().out;
    let (original, written) = (described(&model), described(&text));
    assert!(original.contains("input.1") && written.contains("input.1") && written.contains("191"), "{written}");
    let run = |model: &str| byoc(["run", model, "--input", "input.1=random:3"]).ok().out;
    assert_eq!(run(&model), run(&text));
    byoc(["explain", &text]).ok();
    let second = file(dir.path(), "second.relay");
    byoc(["compile", &text, "--emit", "relay", "-o", &second]).ok();
    assert!(described(&second).contains("input.1"));
    byoc(["compile", &model, "-o", &text]).fails_with("E0513").stderr_contains(&["byoc opt"]);
}

#[test]
fn quantized_models_are_onnx() {
    let dir = tempfile::tempdir().unwrap();
    let output = file(dir.path(), "digits.int8.onnx");
    let (model, calibration) = (data_text("digits/digits.onnx"), data_text("digits/calibration.npz"));
    byoc(["quantize", &model, "--calibrate", &calibration, "-o", &output]).ok();
    let described = byoc(["run", &output, "--describe"]).ok().out;
    assert!(described.contains("image") && described.contains("logits"), "{described}");
    let simplified = byoc(["compile", &output, "--dim", "batch=1", "--emit", "relay"]).ok().out;
    assert!(simplified.contains("qnn.conv2d") && !simplified.contains("nn.max_pool2d(%x"), "{simplified}");
    byoc(["quantize", &model, "--calibrate", &calibration, "-o", &file(dir.path(), "x.txt")])
        .fails_with("E0513")
        .stderr_contains(&["FILE.onnx"]);
}

#[test]
fn what_onnx_lacks_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (program, output) = (file(dir.path(), "p.relay"), file(dir.path(), "p.onnx"));
    let emit = |text: &str, extra: &[&str]| {
        std::fs::write(&program, format!("#[version = \"0.0.5\"]\n{text}")).unwrap();
        byoc(["opt", program.as_str(), "-o", output.as_str()].iter().chain(extra))
    };
    let bits = "def @main(%x: Tensor[(4), int32]) { bitwise_and(%x, %x) }";
    emit(bits, &["--opset", "17"]).fails_with("E0526").stderr_contains(&[
        "bitwise_and",
        "BitwiseAnd is in operator set 18",
        "--opset 18",
    ]);
    emit(bits, &[]).ok();
    emit(bits, &["--opset", "12"]).fails_with("E0508").stderr_contains(&["13 to"]);
    std::fs::remove_file(&output).unwrap();
    emit("def @main(%x: Tensor[(4, 32), float32]) { nn.bitpack(cast(%x, dtype=\"uint32\"), bits=1, pack_type=\"uint32\") }", &[])
        .fails_with("E0526")
        .stderr_contains(&["nn.bitpack", "no such operator"]);
    emit("def @main(%x: Tensor[(4), float32]) { ref_read(ref(%x)) }", &[])
        .fails_with("E0526")
        .stderr_contains(&["mutable references"]);
    let recursive = "def @f(%n: int32) -> int32 { if (less(%n, 1)) { 1 } else { multiply(%n, @f(subtract(%n, 1))) } }
def @main(%n: int32) { @f(%n) }";
    let padded = "def @main(%x: Tensor[(1, 1, 2, 1), float32]) { nn.max_pool2d(%x, pool_size=[3, 1], strides=[4, 2], \
                  padding=[1, 0, 5, 0], ceil_mode=True) }";
    emit(padded, &["--opset", "17"]).fails_with("E0526").stderr_contains(&["a last window in the padding"]);
    emit(recursive, &[]).fails_with("E0526").stderr_contains(&["calls itself"]);
    assert!(!dir.path().join("p.onnx").exists());
}

#[test]
fn outputs_fit_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let model = data_text("digits/digits.onnx");
    let path = |name: &str| file(dir.path(), name);
    byoc(["compile", &model, "--emit", "onnx"]).fails_with("E0513").stderr_contains(&["-o FILE.onnx"]);
    byoc(["compile", &model, "--emit", "onnx", "-o", &path("x.byoc")]).fails_with("E0513");
    byoc(["compile", &model, "-o", &path("x.onnx")]).fails_with("E0513").stderr_contains(&["--emit onnx"]);
    byoc(["compile", &model, "--emit", "source", "-o", &path("x.c")]).fails_with("E0513");
    std::fs::create_dir(path("folder.onnx")).unwrap();
    byoc(["compile", &model, "--emit", "onnx", "-o", &path("folder.onnx")]).fails_with("E0513");
    let written = command(["compile", &model, "--emit", "onnx", "-o", "-"]).output().unwrap();
    assert!(written.status.success() && !written.stdout.is_empty());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
