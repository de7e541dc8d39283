//! Operators that a plugin declares, on the command line.

use crate::byoc;
use byoc::frontend::onnx::proto::{
    AttributeProto, AttributeType, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use byoc_test_support::{copy, sample, test_plugin};
use prost::Message;
use std::path::Path;
use tempfile::TempDir;

const TEXT: &str = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, 4), float32]) {\n  \
                    vendor.pairs(vendor.swish(%x, beta=2f))\n}\n";

/// Creates a directory with the plugin that declares `vendor.swish` and `vendor.pairs`, and a program with both.
fn fixture() -> (TempDir, String, String) {
    let dir = tempfile::tempdir().unwrap();
    copy(&test_plugin("operators"), &dir.path().join("libbyoc_operators.so"));
    let model = dir.path().join("model.relay");
    std::fs::write(&model, TEXT).unwrap();
    let texts = [dir.path(), &model].map(|path| path.display().to_string());
    let [plugins, model] = texts;
    (dir, plugins, model)
}

#[test]
fn relay_text_runs_on_the_backend_and_in_artifacts() {
    let (dir, plugins, model) = fixture();
    let on = ["--backend", "operators", "--plugin-dir", &plugins];
    let text = byoc([&["compile", &model, "--emit", "relay"], &on[..]].concat()).ok().out;
    assert!(text.contains("vendor.pairs(") && text.contains("vendor.swish(%x, beta=2f)"), "{text}");
    let explained = byoc([&["explain", &model, "--json"], &on[..]].concat()).ok().json().remove(0);
    assert_eq!(explained["regions"].as_array().unwrap().len(), 2, "{explained}");
    let artifact = dir.path().join("model.byoc").display().to_string();
    byoc([&["compile", &model, "-o", &artifact], &on[..]].concat()).ok();
    let inspected = byoc(["inspect", &artifact]).ok().out;
    assert!(inspected.contains("needs vendor.pairs of plugin operators"), "{inspected}");
    let run = |file: &str, extra: &[&str]| {
        byoc([&["run", file, "--input", "x=ones", "--plugin-dir", &plugins], extra].concat()).ok().out
    };
    assert_eq!(run(&artifact, &[]), run(&model, &["--backend", "operators"]));
    // Without the plugin, the artifact cannot compute the operator that has no decomposition, and names it.
    let empty = tempfile::tempdir().unwrap();
    let output = byoc(["run", &artifact, "--input", "x=ones", "--plugin-dir", &empty.path().display().to_string()]);
    assert!(output.code == 1 && output.err.contains("operator of plugin operators"), "{} {}", output.code, output.err);
}

#[test]
fn models_without_the_plugin_say_what_to_select() {
    let (_dir, _, model) = fixture();
    byoc(["run", &model, "--input", "x=ones"]).fails_with("E0204").stderr_contains(&["vendor.swish"]);
    let dir = tempfile::tempdir().unwrap();
    let shape = Some(TensorShapeProto { dim: vec![DimensionProto { value: Some(DimensionValue::DimValue(4)) }] });
    let tensor_type = Some(TensorTypeProto { elem_type: 1, shape });
    let r#type = Some(TypeProto { tensor_type, ..TypeProto::default() });
    let value = |name: &str| ValueInfoProto { name: name.into(), r#type: r#type.clone(), ..ValueInfoProto::default() };
    let beta = AttributeProto {
        name: "beta".into(),
        r#type: AttributeType::Float as i32,
        f: Some(1.0),
        ..AttributeProto::default()
    };
    let node = NodeProto {
        op_type: "Swish".into(),
        domain: "com.vendor".into(),
        name: "act".into(),
        input: vec!["x".into()],
        output: vec!["y".into()],
        attribute: vec![beta],
        ..NodeProto::default()
    };
    let graph =
        GraphProto { node: vec![node], input: vec![value("x")], output: vec![value("y")], ..Default::default() };
    let import = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
    let opset_import = vec![import("", 17), import("com.vendor", 1)];
    let model = ModelProto { ir_version: 8, graph: Some(graph), opset_import, ..ModelProto::default() };
    let file = dir.path().join("model.onnx");
    std::fs::write(&file, model.encode_to_vec()).unwrap();
    byoc(["run", &file.display().to_string()]).fails_with("E0503").stderr_contains(&[
        "Swish (domain com.vendor, opset 1), once in node \"act\"",
        "select the backend whose plugin declares the operators of com.vendor with --backend NAME",
    ]);
}

/// Runs the conformance test of a plugin in a directory of its own.
fn passes_conformance(library: &Path) {
    let out = tempfile::tempdir().unwrap();
    let out = out.path().display().to_string();
    let args = ["plugins", "test", &library.display().to_string(), "--cases", "6", "--threads", "2", "--out", &out];
    let report = byoc(args).ok().out;
    assert!(report.contains("vendor."), "{report}");
    byoc(["plugins", "check", &library.display().to_string()]).ok();
}

#[test]
fn samples_pass_the_conformance_run() {
    passes_conformance(&test_plugin("operators"));
    passes_conformance(&sample("gate"));
}
