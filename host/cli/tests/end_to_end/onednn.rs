//! Recorded models on oneDNN. The tests are skipped if oneDNN is not installed.

use crate::{byoc, data, data_text, models};
use byoc::io;
use byoc_ir::tensor::Tensor;

/// Returns a directory with the backend, or `None` if oneDNN is not installed.
fn plugins() -> Option<tempfile::TempDir> {
    byoc_test_support::onednn()?;
    Some(byoc_test_support::plugin_dir(&["dnnl"]))
}

#[test]
fn runs_every_model() {
    let Some(plugins) = plugins() else { return };
    let mut args: Vec<String> =
        ["verify", "--json", "--max-rel-err", "5e-4", "--require-offload=0.95"].map(String::from).to_vec();
    args.extend(["--backend", "dnnl", "--plugin-dir", &plugins.path().display().to_string()].map(String::from));
    args.extend(models().iter().map(|model| model.display().to_string()));
    let output = byoc(&args).ok();
    let lines = output.json();
    assert_eq!(lines.last().unwrap()["summary"]["pass"], 15, "{}", output.out);
    let share = |line: &serde_json::Value| line["offload_flops"].as_f64().unwrap();
    assert!(
        lines[..15].iter().all(|line| (0.95..=1.0).contains(&share(line))),
        "expected shares from 0.95 to 1: {}",
        output.out
    );
}

/// Tests that the unrolled steps of each recurrent layer, as imported from a PyTorch export, are lowered to one loop.
#[test]
fn lowers_recurrent_steps_to_loops() {
    let Some(plugins) = plugins() else { return };
    let dir = plugins.path().display().to_string();
    for (model, name) in [("gru", "GRU cell"), ("lstm_bidirectional", "LSTM cell")] {
        let model = data_text(&format!("models/{model}"));
        let mut command = crate::command(["run", &model, "--backend", "dnnl", "--plugin-dir", &dir]);
        let output = crate::to_command_output(command.env("BYOC_LOG", "trace").output().expect("cannot start byoc"));
        let loops = output.err.lines().filter(|line| line.contains(name)).count();
        // Sequences have nine steps; a region is lowered when it is compiled and again when it is loaded.
        assert!(loops > 0 && loops % 9 == 0, "{name}: expected a positive multiple of 9 lines, found {loops}");
    }
}

/// Tests that no step of a recorded model or operator runs on the library's reference code or general loops.
#[test]
fn no_step_is_slow() {
    let Some(plugins) = plugins() else { return };
    let dir = plugins.path().display().to_string();
    let mut counted = 0;
    for folder in ["models", "open", "operators"] {
        let entries = std::fs::read_dir(data(folder)).unwrap().map(|entry| entry.unwrap().path());
        for model in entries.map(|path| path.display().to_string()) {
            let output = byoc(["bench", &model, "--runs", "1", "--json", "--backend", "dnnl", "--plugin-dir", &dir]);
            // Some cases need bound dimensions or have strings as inputs, and most operators are too small for a region.
            let line = output.out.lines().last().and_then(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            let Some(metrics) = line.map(|line| line["metrics"].clone()) else { continue };
            if metrics["dnnl.steps"].is_null() {
                continue;
            }
            assert_eq!(metrics["dnnl.slow_steps"], 0.0, "{model}: {metrics}");
            counted += 1;
        }
    }
    assert!(counted >= 30, "expected at least 30 cases with regions, found {counted}");
}

/// Tests the forms in which tools write low precision. Convolutional networks are one region; those in float16 are
/// computed in float32.
#[test]
fn low_precision() {
    let Some(plugins) = plugins() else { return };
    let dir = plugins.path().display().to_string();
    models::verify_low_precision(&["--backend", "dnnl", "--plugin-dir", &dir]);
    let forms = ["f16", "qdq", "qdq_s8", "qop"];
    for name in ["fire", "mbconv", "swish"].iter().flat_map(|network| forms.map(|form| format!("{network}_{form}"))) {
        let model = data_text(&format!("lowprec/{name}/model.onnx"));
        let explanation =
            &byoc(["explain", &model, "--json", "--backend", "dnnl", "--plugin-dir", &dir]).ok().json()[0];
        assert_eq!(explanation["regions"].as_array().unwrap().len(), 1, "{name}");
        assert_eq!(explanation["totals"]["offload_share"], 1.0, "{name}");
    }
}

#[test]
fn runs_models_with_open_dimensions() {
    let Some(plugins) = plugins() else { return };
    let dir = plugins.path().display().to_string();
    models::verify_open(&["--backend", "dnnl", "--plugin-dir", &dir, "--require-offload=0.95"]);
}

#[test]
fn network_is_one_region_and_artifact_runs() {
    let Some(plugins) = plugins() else { return };
    let dir = plugins.path().display().to_string();
    let model = data_text("models/resnet50_w8/model.onnx");
    let backend = ["--backend", "dnnl", "--plugin-dir", &dir];
    let output = byoc([&["explain", &model, "--json"], &backend[..]].concat()).ok();
    let explanation = &output.json()[0];
    assert_eq!(explanation["regions"].as_array().unwrap().len(), 1);
    let host_nodes: Vec<&serde_json::Value> = explanation["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|node| node["placement"]["kind"] == "host" && node["flops"] != 0)
        .collect();
    assert!(host_nodes.is_empty(), "{host_nodes:?}");
    let text = byoc([&["source", &model], &backend[..]].concat()).ok().out;
    assert!(text.contains("\"version\":1") && text.contains("dnnl.conv2d_bias_sum_relu"), "{}", &text[..200]);

    let file = plugins.path().join("model.byoc").display().to_string();
    byoc([&["compile", &model, "-o", &file], &backend[..]].concat()).ok();
    let out = plugins.path().join("out.npz").display().to_string();
    byoc(["run", &file, "--plugin-dir", &dir, "--input", "input.1=ones", "--output", &out]).ok();
}

/// Tests that the bfloat16 option affects the results of a model, is recorded in its artifact, and is off by default.
/// Some networks with random weights amplify rounding errors; the two used here do not.
#[test]
fn computes_bfloat16_on_request() {
    let Some(plugins) = plugins() else { return };
    let dir = plugins.path().display().to_string();
    let models = ["vit_small", "unet_small"].map(|name| data_text(&format!("models/{name}")));
    let bf16_option = |value: &str| ["--backend-option".to_owned(), format!("dnnl.bf16={value}")];
    let verify = |value: &str, max_error: &str| {
        let args = ["verify", "--json", "--max-rel-err", max_error, "--backend", "dnnl", "--plugin-dir", &dir];
        let args = args.iter().map(|arg| (*arg).to_owned()).chain(bf16_option(value)).chain(models.iter().cloned());
        byoc(args).ok()
    };
    let errors = |output: &crate::CommandOutput| -> Vec<f64> {
        output.json().iter().filter_map(|case| case["max_rel_err"].as_f64()).collect()
    };
    let float_output = verify("false", "1e-4");
    let bf16_output = verify("true", "1e-2");
    let run = |args: &[&str]| {
        let out = plugins.path().join("out.npz").display().to_string();
        let output = byoc([args, &["--plugin-dir", &dir, "--output", &out]].concat()).ok();
        (std::fs::read(&out).expect("cannot read the outputs"), output.err)
    };
    let model = &models[0];
    let options = [bf16_option("false"), bf16_option("true")];
    let [off_option, on_option] = options.each_ref().map(|option| option.each_ref().map(String::as_str));
    let model_run = ["run", model, "--backend", "dnnl"];
    let float_result = run(&model_run).0;
    assert!(float_result == run(&[&model_run[..], &off_option].concat()).0);
    let (bf16_result, log) = run(&[&model_run[..], &on_option].concat());

    let file = plugins.path().join("narrow.byoc").display().to_string();
    let onnx = format!("{model}/model.onnx");
    let compile = ["compile", &onnx, "-o", &file, "--backend", "dnnl", "--plugin-dir", &dir];
    byoc([&compile[..], &on_option].concat()).ok();
    let listing = byoc(["inspect", &file]).ok().out;
    assert!(listing.contains(r#""backend_options":{"dnnl":{"bf16":"true"}}"#), "{listing}");
    byoc([&["run", &file, "--plugin-dir", &dir], &on_option[..]].concat()).fails_with("E0427");
    let input = format!("{model}/test_data_set_0/input_0.pb");
    let description = byoc(["run", &file, "--describe", "--json", "--plugin-dir", &dir]).ok().json().remove(0);
    let input = format!("{}={input}", description["name"].as_str().expect("expected a name"));
    assert!(
        bf16_result == run(&["run", &file, "--input", &input]).0,
        "expected the artifact to use the options it was compiled with"
    );

    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512bf16") {
        assert!(float_result != bf16_result && !log.contains("ignored"), "{log}");
        // Rounding to bfloat16, with its 8-bit significand, dominates all other errors.
        assert!(
            errors(&bf16_output)
                .iter()
                .zip(errors(&float_output))
                .all(|(bf16_output, float_output)| *bf16_output > 10.0 * float_output),
            "{}{}",
            bf16_output.out,
            float_output.out
        );
        return;
    }
    assert!(float_result == bf16_result && errors(&bf16_output) == errors(&float_output));
    assert!(log.contains("the option bf16 is ignored"), "{log}");
}

/// Tests that an unknown option is reported before the build starts, together with the known options.
#[test]
fn reports_unknown_options() {
    let plugins = byoc_test_support::plugin_dir(&["dnnl"]);
    let dir = plugins.path().display().to_string();
    let model = data_text("models/resnet18_w16/model.onnx");
    let explain = |backend: &str, option: &str| {
        byoc(["explain", &model, "--backend", backend, "--plugin-dir", &dir, "--backend-option", option])
    };
    for (backend, option, expected) in [
        ("dnnl", "dnnl.bf1=true", "did you mean \"bf16\"?"),
        ("dnnl", "dnnl.bf16=yes", "supported values: false, true"),
        ("dnnl", "dnll.bf16=true", "backends of this build: dnnl"),
        ("", "dnnl.bf16=true", "--backend dnnl"),
    ] {
        let output = explain(backend, option).fails_with("E0427");
        assert!(output.err.contains(expected), "{}", output.err);
    }
    assert_eq!(explain("dnnl", "bf16").code, 2);
    let text = byoc(["plugins", "show", "dnnl", "--plugin-dir", &dir]).ok().out;
    assert!(text.contains("bf16 (false or true; false unless set; set at compilation): "), "{text}");
}

/// Tests that without oneDNN the plugin loads, refuses every operator, and reports how to install oneDNN.
#[test]
fn missing_library_reports_install_command() {
    let plugins = byoc_test_support::plugin_dir(&["dnnl"]);
    let dir = plugins.path().display().to_string();
    let model = data_text("models/resnet18_w16/model.onnx");
    let missing_library = plugins.path().join("none.so").display().to_string();
    let mut command = crate::command(["explain", &model, "--backend", "dnnl", "--plugin-dir", &dir, "--json"]);
    let output =
        crate::to_command_output(command.env("BYOC_DNNL_LIB", &missing_library).output().expect("cannot start byoc"));
    let text = output.out;
    assert!(
        text.contains("Unavailable") && text.contains("onednn-cpu-gomp==2023.2.0"),
        "{}",
        &text[..text.len().min(2000)]
    );
}

/// Tests that the NaN guard that exporters write after a softmax does not split a region, and that the pattern table
/// causes no warnings.
#[test]
fn guard_after_softmax_stays_in_region() {
    let Some(plugins) = plugins() else { return };
    let dir = plugins.path().display().to_string();
    let model = plugins.path().join("guard.relay").display().to_string();
    let program = "#[version = \"0.0.5\"]\n\
        def @main(%x: Tensor[(?, 16, 32), float32], %w: Tensor[(?, 8, 32), float32], %m: Tensor[(?, 16, 8), float32]) {\n  \
        %0 = nn.batch_matmul(%x, %w, transpose_b=True);\n  %1 = nn.softmax(add(%0, %m));\n  \
        %2 = where(isnan(%1), 0f, %1);\n  nn.batch_matmul(%2, %w, transpose_b=False)\n}\n";
    std::fs::write(&model, program).unwrap();
    let backend = ["--backend", "dnnl", "--plugin-dir", &dir];
    let output = byoc([&["explain", &model, "--json"], &backend[..]].concat()).ok();
    assert!(!output.err.contains("warning"), "{}", output.err);
    let explanation = &output.json()[0];
    assert_eq!(explanation["regions"].as_array().unwrap().len(), 1, "{explanation}");
    let host_nodes = explanation["nodes"].as_array().unwrap().iter().filter(|node| node["placement"]["kind"] == "host");
    assert_eq!(host_nodes.count(), 0, "{explanation}");
}

/// Tests a product whose result is read with permuted axes: the views between the product and the next operator require
/// a copy, unless the product writes its result in the permuted order.
#[test]
fn function_after_views_of_product_stays_in_region() {
    let Some(plugins) = plugins() else { return };
    let dir = plugins.path().display().to_string();
    let file = plugins.path().join("heads.relay").display().to_string();
    for axes in ["1, 0, 2", "2, 1, 0"] {
        let program = format!(
            "#[version = \"0.0.5\"]\n\
            def @main(%a: Tensor[(4, 16, 16), float32], %v: Tensor[(4, 16, 8), float32], %w: Tensor[(64, 32), float32]) {{\n  \
            %0 = nn.batch_matmul(%a, %v, transpose_b=False);\n  %1 = transpose(%0, axes=[{axes}]);\n  %2 = nn.relu(reshape(%1, newshape=[16, 32]));\n  \
            nn.dense(%2, %w)\n}}\n"
        );
        std::fs::write(&file, program).unwrap();
        let backend = ["--backend", "dnnl", "--plugin-dir", &dir];
        let explanation = &byoc([&["explain", &file, "--json"], &backend[..]].concat()).ok().json()[0];
        let mut nodes = explanation["nodes"].as_array().unwrap().iter();
        assert!(nodes.all(|node| node["placement"]["kind"] != "host"), "{explanation}");
        let run = |extra_args: &[&str]| {
            let inputs = ["a", "v", "w"].map(|name| format!("{name}=random:1"));
            let inputs: Vec<&str> = inputs.iter().flat_map(|input| ["--input", input]).skip(1).collect();
            outputs(&file, inputs[0], &[&inputs[1..], extra_args].concat()).view().to_f64s()
        };
        for (actual, expected) in run(&backend).iter().zip(run(&[])) {
            assert!((actual - expected).abs() <= 1e-4 * expected.abs().max(1.0), "expected {expected}, found {actual}");
        }
    }
}

/// Returns the first output of a run with the given input.
fn outputs(model: &str, input: &str, extra_args: &[&str]) -> Tensor {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("y.npz");
    let results_text = results.display().to_string();
    byoc([&["run", model, "--input", input, "--output", &results_text], extra_args].concat()).ok();
    io::npz::read(&results).unwrap().remove(0).1
}

/// Checks that a quantized network forms one region with no operator on the host, and that its result is bit-identical
/// to the host's.
fn assert_quantized_is_one_region(model: &str, input: &str, quantize: &[&str], expected_contractions: usize) {
    let Some(plugins) = plugins().filter(|_| byoc_test_support::has_vnni()) else { return };
    let dir = plugins.path().display().to_string();
    let backend = ["--backend", "dnnl", "--plugin-dir", &dir];
    let file = plugins.path().join("int8.relay").display().to_string();
    byoc([&["quantize", model, "-o", &file], quantize].concat()).ok();

    let explanation = &byoc([&["explain", &file, "--json"], &backend[..]].concat()).ok().json()[0];
    assert_eq!(explanation["regions"].as_array().unwrap().len(), 1);
    let nodes = explanation["nodes"].as_array().unwrap();
    let count = |predicate: &dyn Fn(&serde_json::Value) -> bool| nodes.iter().filter(|node| predicate(node)).count();
    assert_eq!(count(&|node| node["placement"]["kind"] == "host"), 0, "{explanation}");
    let contraction_count = count(&|node| {
        let is_contraction = node["op"] == "qnn.conv2d" || node["op"] == "qnn.dense";
        is_contraction && node["placement"]["backend"] == "dnnl"
    });
    assert_eq!(contraction_count, expected_contractions, "{explanation}");

    let (expected, actual) = (outputs(&file, input, &[]), outputs(&file, input, &backend));
    assert_eq!(actual.shape(), expected.shape());
    assert_eq!(actual.bytes(), expected.bytes(), "expected results bit-identical to the host");
}

#[test]
fn quantized_digits_match_host_in_one_region() {
    let (model, calibration) = (data_text("digits/digits.onnx"), data_text("digits/calibration.npz"));
    let dir = tempfile::tempdir().unwrap();
    let array = dir.path().join("x.npy");
    let images = io::npz::read_entry(&data("digits/test.npz"), Some("image")).unwrap();
    assert_eq!(images.shape()[0], 360);
    io::npy::write(&array, &images).unwrap();
    let input = format!("image={}", array.display());
    for scheme in [&["--keep", "none"][..], &["--keep", "none", "--scheme", "asymmetric,uint8"]] {
        assert_quantized_is_one_region(&model, &input, &[&["--calibrate", &calibration], scheme].concat(), 5);
    }
}

#[test]
fn quantized_residual_network_matches_host_in_one_region() {
    let model = data_text("models/resnet50_w8/model.onnx");
    let quantize = ["--calibrate", "random:1", "--samples", "2"];
    assert_quantized_is_one_region(&model, "input.1=random:3", &quantize, 53);
}

/// Tests that a quantized convolution is one composite even if a pass expanded its scales to float operators.
#[test]
fn convolution_with_expanded_scales_is_one_composite() {
    let Some(plugins) = plugins().filter(|_| byoc_test_support::has_vnni()) else { return };
    let dir = plugins.path().display().to_string();
    let file = plugins.path().join("written_out.relay");
    std::fs::write(
        &file,
        r#"#[version = "0.0.5"]
def @main(%x: Tensor[(1, 8, 12, 12), uint8], %r: Tensor[(1, 16, 12, 12), uint8]) {
  %0 = qnn.conv2d(%x, ones(shape=[16, 8, 3, 3], dtype="int8"), 0, 0, 0.5f, 0.25f,
    padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]);
  %1 = add(cast(%0, dtype="float32"), 3.5f);
  %2 = multiply(clip(multiply(%1, 0.37f), a_min=0f, a_max=255f), 0.7f);
  %3 = add(add(%2, multiply(0.3f, cast(%r, dtype="float32"))), 4f);
  cast(%3, dtype="uint8")
}
"#,
    )
    .unwrap();
    let file = file.display().to_string();
    let backend = ["--backend", "dnnl", "--plugin-dir", &dir];
    let text = byoc([&["source", &file], &backend[..]].concat()).ok().out;
    assert!(text.contains("dnnl.qnn.conv2d"), "{text}");
    let run = |extra_args: &[&str]| {
        let results = plugins.path().join("y.npz").display().to_string();
        let inputs = ["--input", "x=random:1", "--input", "r=random:2", "--output", &results];
        byoc([&["run", &file], &inputs[..], extra_args].concat()).ok();
        io::npz::read(results.as_ref()).unwrap().remove(0).1
    };
    assert_eq!(run(&backend).bytes(), run(&[]).bytes(), "expected results bit-identical to the host");
}

/// Tests that a concatenation of tensors with different scales is one composite that includes the scale tuples.
#[test]
fn quantized_concatenation_stays_in_region() {
    let Some(plugins) = plugins().filter(|_| byoc_test_support::has_vnni()) else { return };
    let dir = plugins.path().display().to_string();
    let file = plugins.path().join("joined.relay");
    std::fs::write(
        &file,
        r#"#[version = "0.0.5"]
def @main(%x: Tensor[(1, 8, 12, 12), int8]) {
  %0 = qnn.conv2d(%x, ones(shape=[16, 8, 3, 3], dtype="int8"), 0, 0, 0.5f, 0.25f,
    padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]);
  %1 = qnn.requantize(%0, 0.125f, 0, 1.5f, 3);
  %2 = qnn.concatenate((%1, %x), (1.5f, 0.5f), (3, 0), 1.2f, 1, axis=1);
  nn.max_pool2d(%2, pool_size=[2, 2], strides=[2, 2])
}
"#,
    )
    .unwrap();
    let file = file.display().to_string();
    let backend = ["--backend", "dnnl", "--plugin-dir", &dir];
    let explanation = &byoc([&["explain", &file, "--json"], &backend[..]].concat()).ok().json()[0];
    let concat = explanation["nodes"].as_array().unwrap().iter().find(|node| node["op"] == "qnn.concatenate");
    assert_eq!(concat.unwrap()["placement"]["backend"], "dnnl", "{explanation}");
    assert_eq!(explanation["regions"].as_array().unwrap().len(), 1);
    let (expected, actual) = (outputs(&file, "x=random:1", &[]), outputs(&file, "x=random:1", &backend));
    assert_eq!(actual.bytes(), expected.bytes(), "expected results bit-identical to the host");
}
