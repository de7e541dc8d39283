//! Template plugin: a backend defined by a JSON file.

use crate::{byoc, data_text};
use byoc_test_support::{copy, plugin, temporary_folder};
use tempfile::TempDir;

fn with_file(json: &str) -> (TempDir, String) {
    let folder = temporary_folder();
    copy(&plugin("template"), &folder.path().join("libbyoc_target.so"));
    std::fs::write(folder.path().join("libbyoc_target.json"), json).unwrap();
    let dir = folder.path().display().to_string();
    (folder, dir)
}

#[test]
fn file_defines_backend_that_logs_each_call() {
    let json = r#"{"name": "byoc-target", "patterns": ["conv_relu: nn.relu(nn.conv2d(*, const) ? nn.bias_add ? add)"],
                   "operators": ["reshape", "add"]}"#;
    let (_folder, dir) = with_file(json);
    let model = data_text("digits/digits.onnx");
    let common = ["--dim", "batch=1", "--backend", "byoc-target", "--plugin-dir", &dir];
    let mut args = vec!["run", &model, "--input", "image=random:1", "-v"];
    args.extend(common);
    let offloaded = byoc(&args).ok().stderr_contains(&["byoc-target", "tvmgen_default_byoc_target_main_0", "Tensor["]);
    let host = byoc(["run", &model, "--input", "image=random:1", "--dim", "batch=1"]).ok();
    // The backend and the host print the same classes in the same order.
    let classes = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.split_whitespace().next().map(String::from)).collect()
    };
    assert_eq!(classes(&offloaded.out), classes(&host.out));
    let output = byoc(["plugins", "show", "byoc-target", "--plugin-dir", &dir]).ok();
    assert!(output.out.contains("conv_relu") && output.out.contains("reshape, add"), "{}", output.out);
}

#[test]
fn reports_mistakes_in_file() {
    let reason = |json: &str| {
        let (_folder, dir) = with_file(json);
        let output = byoc(["plugins", "list", "--json", "--plugin-dir", &dir]).ok();
        let rows = output.json();
        let row = rows.iter().find(|r| r["file"].as_str().unwrap().starts_with(&dir)).unwrap();
        assert_eq!(row["status"], "refused", "{row}");
        assert!(row["reason"].as_str().unwrap().contains("libbyoc_target.json"), "{row}");
        format!("{}: {}", row["code"].as_str().unwrap(), row["reason"].as_str().unwrap())
    };
    let unknown = reason("{\n  \"name\": \"x\",\n  \"pattrens\": []\n}");
    for word in ["E0418", "unknown key \"pattrens\"", "did you mean \"patterns\"?"] {
        assert!(unknown.contains(word), "expected {word} in {unknown}");
    }
    let broken = reason("{\"name\": ");
    assert!(broken.contains("E0418") && broken.contains("line 1"), "{broken}");
    let kind = reason("{\"operators\": \"nn.relu\"}");
    assert!(kind.contains("\"operators\"") && kind.contains("a list"), "{kind}");
    let name = reason("{\"name\": \"my chip\"}");
    assert!(name.contains("\"my chip\"") && name.contains("letters, digits"), "{name}");
}

const CONVOLUTION: &str = "#[version = \"0.0.5\"]\n\
    def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32]) {\n  \
    nn.relu(nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=4, kernel_size=[3, 3]))\n}\n";

#[test]
fn converts_layout_before_backend_is_asked() {
    let (folder, dir) =
        with_file(r#"{"name": "chip", "operators": ["nn.conv2d"], "layouts": {"nn.conv2d": ["NHWC", "HWIO"]}}"#);
    let model = folder.path().join("model.relay");
    std::fs::write(&model, CONVOLUTION).unwrap();
    let model = model.display().to_string();
    let on = ["--backend", "chip", "--plugin-dir", &dir];
    let partitioned = byoc([&["compile", &model, "--emit", "partitioned"], &on[..]].concat()).ok().out;
    let region = partitioned.split("Compiler=\"chip\"").nth(1).unwrap_or_default();
    assert!(region.contains("data_layout=\"NHWC\"") && region.contains("kernel_layout=\"HWIO\""), "{partitioned}");
    let verified = byoc(
        [&["verify", &data_text("models/unet_small"), "--max-rel-err", "5e-4", "--require-offload"], &on[..]].concat(),
    );
    verified.ok();
}

#[test]
fn reports_unsupported_layout_and_uses_rest() {
    let json = r#"{"name": "chip", "operators": ["nn.conv2d"],
                   "layouts": {"nn.conv2d": ["NCHW1n16c", "OIHW16o16i"], "nn.dense": ["NC"], "nn.max_pool2d": []}}"#;
    let (folder, dir) = with_file(json);
    let model = folder.path().join("model.relay");
    std::fs::write(&model, CONVOLUTION).unwrap();
    let explained = byoc(["explain", &model.display().to_string(), "--backend", "chip", "--plugin-dir", &dir]).ok();
    assert!(explained.out.contains("tvmgen_default_chip_main_0"), "{}", explained.out);
    assert_eq!(explained.err.matches("E0408").count(), 3, "{}", explained.err);
    for words in [
        "plugin chip, describe: unsupported request: layouts [\"NCHW1n16c\", \"OIHW16o16i\"] of nn.conv2d",
        "expected a layout of N, C, H and W",
        "convert_layout cannot change the layout of \"nn.dense\"",
        "the operator keeps its layout",
    ] {
        assert!(explained.err.contains(words), "expected {words} in {}", explained.err);
    }
}

#[test]
fn reports_bad_patterns_and_operators_and_uses_rest() {
    let json = r#"{"name": "chip", "patterns": ["a: nn.rleu(*)", "b: nn.relu(add(*, *))", "c nn.relu(*)"],
                   "operators": ["nn.conv2d", "nn.maxpool2d"]}"#;
    let (_folder, dir) = with_file(json);
    let model = data_text("digits/digits.onnx");
    let output = byoc(["explain", &model, "--dim", "batch=1", "--backend", "chip", "--plugin-dir", &dir]).ok();
    for word in ["plugin chip", "entry \"a\"", "column", "nn.maxpool2d", "did you mean \"nn.max_pool2d\"?"] {
        assert!(output.err.contains(word), "expected {word} in {}", output.err);
    }
    assert_eq!(output.err.matches("E0407").count(), 2, "{}", output.err);
    assert!(output.out.contains("tvmgen_default_chip_main_0"), "{}", output.out);
}

#[test]
fn omitted_entries_have_defaults() {
    let (_folder, dir) = with_file("{}");
    let output = byoc(["plugins", "show", "template", "--plugin-dir", &dir]).ok();
    assert!(output.out.contains("conv2d_bias_relu") && output.out.contains("nn.dense"), "{}", output.out);
}
