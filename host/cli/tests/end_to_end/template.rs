//! Template plugin: a backend defined by a JSON file.

use crate::{byoc, data_text};
use byoc_test_support::{copy, plugin, temporary_folder};
use tempfile::TempDir;

fn plugin_with_file(json: &str) -> (TempDir, String) {
    let temp_dir = temporary_folder();
    copy(&plugin("template"), &temp_dir.path().join("libbyoc_target.so"));
    std::fs::write(temp_dir.path().join("libbyoc_target.json"), json).unwrap();
    let dir = temp_dir.path().display().to_string();
    (temp_dir, dir)
}

#[test]
fn file_defines_backend_that_logs_each_call() {
    let json = r#"{"name": "byoc-target", "patterns": ["conv_relu: nn.relu(nn.conv2d(*, const) ? nn.bias_add ? add)"],
                   "operators": ["reshape", "add"]}"#;
    let (_dir, dir) = plugin_with_file(json);
    let model = data_text("digits/digits.onnx");
    let common_args = ["--dim", "batch=1", "--backend", "byoc-target", "--plugin-dir", &dir];
    let mut args = vec!["run", &model, "--input", "image=random:1", "-v"];
    args.extend(common_args);
    let offload_output =
        byoc(&args).ok().stderr_contains(&["byoc-target", "tvmgen_default_byoc_target_main_0", "Tensor["]);
    let host_output = byoc(["run", &model, "--input", "image=random:1", "--dim", "batch=1"]).ok();
    // The backend and the host print the same classes in the same order.
    let classes = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.split_whitespace().next().map(String::from)).collect()
    };
    assert_eq!(classes(&offload_output.out), classes(&host_output.out));
    let output = byoc(["plugins", "show", "byoc-target", "--plugin-dir", &dir]).ok();
    assert!(output.out.contains("conv_relu") && output.out.contains("reshape, add"), "{}", output.out);
}

#[test]
fn reports_mistakes_in_file() {
    let reason = |json: &str| {
        let (_dir, dir) = plugin_with_file(json);
        let output = byoc(["plugins", "list", "--json", "--plugin-dir", &dir]).ok();
        let rows = output.json();
        let row = rows.iter().find(|r| r["file"].as_str().unwrap().starts_with(&dir)).unwrap();
        assert_eq!(row["status"], "refused", "{row}");
        assert!(row["reason"].as_str().unwrap().contains("libbyoc_target.json"), "{row}");
        format!("{}: {}", row["code"].as_str().unwrap(), row["reason"].as_str().unwrap())
    };
    let unknown = reason("{\n  \"name\": \"x\",\n  \"pattrens\": []\n}");
    for fragment in ["E0418", "unknown key \"pattrens\"", "did you mean \"patterns\"?"] {
        assert!(unknown.contains(fragment), "expected {fragment} in {unknown}");
    }
    let failure = reason("{\"name\": ");
    assert!(failure.contains("E0418") && failure.contains("line 1"), "{failure}");
    let kind = reason("{\"operators\": \"nn.relu\"}");
    assert!(kind.contains("\"operators\"") && kind.contains("a list"), "{kind}");
    let name = reason("{\"name\": \"my chip\"}");
    assert!(name.contains("\"my chip\"") && name.contains("letters, digits"), "{name}");
}

/// Tests that the file may have every key of a description, and the devices.
#[test]
fn file_takes_every_key_of_a_description() {
    let json = r#"{"name": "npu", "about": "an int8 chip that does not exist", "operators": ["nn.dense"], "patterns": [],
                   "cost": {"min_region_flops": 1000}, "max_blob_bytes": 1000000, "finite_math": true,
                   "quantization": {"activation": "int8", "weight": "int8", "accumulator": "int32", "symmetric": true},
                   "pre_passes": ["canonicalize_ops"], "precision": {"nn.dense": {"computes": "f16", "ulps": 1}},
                   "options": {"half": {"about": "halves", "values": ["no", "yes"], "precision": {"yes": "f16"}}},
                   "devices": [{"id": "0", "name": "core 0"}]}"#;
    let (_dir, dir) = plugin_with_file(json);
    let show = byoc(["plugins", "show", "npu", "--plugin-dir", &dir]).ok();
    let lines =
        ["an int8 chip that does not exist", "halves", "0: core 0", "precision of nn.dense: f16, 1 ulp", "1000"];
    for line in lines {
        assert!(show.out.contains(line), "expected {line} in {}", show.out);
    }
    let description = byoc(["plugins", "show", "npu", "--plugin-dir", &dir, "--json"]).ok().json().remove(0);
    assert_eq!(description["quantization"]["activation"], "int8");
    let model = data_text("digits/digits.onnx");
    let on = ["--dim", "batch=1", "--backend", "npu", "--plugin-dir", &dir, "--device", "npu=0"];
    let regions = |extra_args: &[&str]| {
        let output = byoc([&["explain", &model, "--json"], &on[..], extra_args].concat()).ok();
        output.json().remove(0)["totals"]["regions"].as_u64().unwrap()
    };
    assert_eq!(regions(&[]), 0);
    assert!(regions(&["--backend-option", "npu.half=yes"]) > 0);
    assert!(regions(&["--precision", "f16"]) > 0);
}

const CONVOLUTION: &str = "#[version = \"0.0.5\"]\n\
    def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32]) {\n  \
    nn.relu(nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=4, kernel_size=[3, 3]))\n}\n";

#[test]
fn converts_layout_before_backend_is_asked() {
    let (temp_dir, dir) =
        plugin_with_file(r#"{"name": "chip", "operators": ["nn.conv2d"], "layouts": {"nn.conv2d": ["NHWC", "HWIO"]}}"#);
    let model = temp_dir.path().join("model.relay");
    std::fs::write(&model, CONVOLUTION).unwrap();
    let model = model.display().to_string();
    let backend_args = ["--backend", "chip", "--plugin-dir", &dir];
    let partitioned_module = byoc([&["compile", &model, "--emit", "partitioned"], &backend_args[..]].concat()).ok().out;
    let region = partitioned_module.split("Compiler=\"chip\"").nth(1).unwrap_or_default();
    assert!(
        region.contains("data_layout=\"NHWC\"") && region.contains("kernel_layout=\"HWIO\""),
        "{partitioned_module}"
    );
    let verify_output = byoc(
        [&["verify", &data_text("models/unet_small"), "--max-rel-err", "5e-4", "--require-offload"], &backend_args[..]]
            .concat(),
    );
    verify_output.ok();
}

#[test]
fn reports_unsupported_layout_and_uses_rest() {
    let json = r#"{"name": "chip", "operators": ["nn.conv2d"],
                   "layouts": {"nn.conv2d": ["NCHW1n16c", "OIHW16o16i"], "nn.dense": ["NC"], "nn.max_pool2d": []}}"#;
    let (temp_dir, dir) = plugin_with_file(json);
    let model = temp_dir.path().join("model.relay");
    std::fs::write(&model, CONVOLUTION).unwrap();
    let explanation = byoc(["explain", &model.display().to_string(), "--backend", "chip", "--plugin-dir", &dir]).ok();
    assert!(explanation.out.contains("tvmgen_default_chip_main_0"), "{}", explanation.out);
    assert_eq!(explanation.err.matches("E0408").count(), 3, "{}", explanation.err);
    for fragments in [
        "plugin chip, describe: unsupported request: layouts NCHW1n16c, OIHW16o16i of nn.conv2d",
        "expected a layout of N, C, H and W",
        "convert_layout cannot change the layout of \"nn.dense\"",
        "the operator keeps its layout",
    ] {
        assert!(explanation.err.contains(fragments), "expected {fragments} in {}", explanation.err);
    }
}

#[test]
fn reports_bad_patterns_and_operators_and_uses_rest() {
    let json = r#"{"name": "chip", "patterns": ["a: nn.rleu(*)", "b: nn.relu(add(*, *))", "c nn.relu(*)"],
                   "operators": ["nn.conv2d", "nn.maxpool2d"]}"#;
    let (_dir, dir) = plugin_with_file(json);
    let model = data_text("digits/digits.onnx");
    let output = byoc(["explain", &model, "--dim", "batch=1", "--backend", "chip", "--plugin-dir", &dir]).ok();
    for fragment in ["plugin chip", "entry \"a\"", "column", "nn.maxpool2d", "did you mean \"nn.max_pool2d\"?"] {
        assert!(output.err.contains(fragment), "expected {fragment} in {}", output.err);
    }
    assert_eq!(output.err.matches("E0407").count(), 2, "{}", output.err);
    assert!(output.out.contains("tvmgen_default_chip_main_0"), "{}", output.out);
}

#[test]
fn omitted_entries_have_defaults() {
    let (_dir, dir) = plugin_with_file("{}");
    let output = byoc(["plugins", "show", "template", "--plugin-dir", &dir]).ok();
    assert!(output.out.contains("conv2d_bias_relu") && output.out.contains("nn.dense"), "{}", output.out);
}
