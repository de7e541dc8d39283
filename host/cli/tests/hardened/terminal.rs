//! Output to a terminal: control characters in names are escaped, and write errors on standard output are reported.

use crate::{CommandOutput, byoc, command, data, data_text, to_command_output};
use byoc::frontend::onnx::proto::ModelProto;
use byoc_ir::tensor::{DType, Tensor};
use prost::Message;
use std::fs::OpenOptions;
use std::path::Path;

/// Names in the model, with control characters escaped.
const ESCAPED_NAMES: [&str; 2] = ["x\\u{1b}[2J", "y\\u{1b}]0;pwn\\u{7}"];

/// Asserts that the text contains no control characters except line feeds.
#[track_caller]
fn assert_escaped(text: &str) {
    let control_char = text.chars().find(|c| c.is_control() && *c != '\n');
    assert_eq!(control_char, None, "{text:?}");
}

#[track_caller]
fn assert_shows(output: CommandOutput, names: &[&str]) -> CommandOutput {
    assert_escaped(&output.out);
    assert_escaped(&output.err);
    for name in names {
        assert!(
            output.out.contains(name) || output.err.contains(name),
            "expected {name} in\n{}\n{}",
            output.out,
            output.err
        );
    }
    output
}

#[test]
fn escapes_names_of_models() {
    let model = data_text("hardened/esc.onnx");
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let x = "x\u{1b}[2J";
    let input = format!("{x}=ones");
    assert_shows(byoc(["run", &model, "--describe"]).ok(), &ESCAPED_NAMES);
    assert_shows(byoc(["run", &model, "--input", &input, "-vv"]).ok(), &ESCAPED_NAMES[1..]);
    assert_shows(byoc(["run", &model, "--input", "z=ones"]).fails_with("E0602"), &ESCAPED_NAMES[..1]);
    assert_shows(byoc(["run", &model]).fails_with("E0603"), &ESCAPED_NAMES[..1]);
    assert_shows(byoc(["bench", &model, "--runs", "1"]).ok(), &[]);
    for stage in ["relay", "partitioned", "graph-json", "region-json"] {
        assert_shows(byoc(["compile", &model, "--emit", stage, "--print-after", "all"]).ok(), &[]);
    }
    let artifact = path("m.byoc");
    byoc(["compile", &model, "-o", &artifact]).ok();
    assert_shows(byoc(["inspect", &artifact]).ok(), &ESCAPED_NAMES);
    assert_shows(byoc(["run", &artifact, "--describe"]).ok(), &ESCAPED_NAMES);
    // In JSON output, control characters have JSON escapes.
    let description = byoc(["run", &artifact, "--describe", "--json"]).ok();
    assert_escaped(&description.out);
    assert_eq!(description.json()[0]["name"], x);
}

#[test]
fn escapes_names_of_operators() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let mut model = ModelProto::decode(&*std::fs::read(data("hardened/esc.onnx")).unwrap()).unwrap();
    model.graph.as_mut().unwrap().node[0].name = "n\u{1b}[2J<b>\ncc\u{9b}2J\u{7f}".into();
    std::fs::write(path("m.onnx"), model.encode_to_vec()).unwrap();
    assert_shows(byoc(["explain", &path("m.onnx"), "--html", &path("page.html")]).ok(), &["n\\u{1b}[2J<b>\\ncc"]);
    let page = std::fs::read_to_string(path("page.html")).unwrap();
    assert_escaped(&page);
    assert!(page.contains("n\\u{1b}[2J&lt;b&gt;"), "{page}");
    assert_shows(byoc(["compile", &path("m.onnx"), "--emit", "relay", "--print-after", "all", "-vv"]).ok(), &[]);
    let explanation = assert_shows(byoc(["explain", &path("m.onnx"), "--json"]).ok(), &["cc\\u009b2J\\u007f"]);
    explanation.json();
    // The diagnostic contains the escaped name of an unknown operator.
    model.graph.as_mut().unwrap().node[0].op_type = "Re\u{1b}[2Jlu".into();
    std::fs::write(path("m.onnx"), model.encode_to_vec()).unwrap();
    assert_shows(byoc(["explain", &path("m.onnx")]).fails_with("E0503"), &["Re\\u{1b}[2Jlu"]);
}

#[test]
fn escapes_names_in_tables() {
    let dir = tempfile::tempdir().unwrap();
    let test_set_dir = dir.path().join("test_data_set_0");
    std::fs::create_dir(&test_set_dir).unwrap();
    std::fs::copy(data("hardened/esc.onnx"), dir.path().join("model.onnx")).unwrap();
    byoc::io::pb::write(&test_set_dir.join("input_0.pb"), "x", &Tensor::zeros(DType::F32, &[2]).unwrap()).unwrap();
    byoc::io::pb::write(&test_set_dir.join("output_0.pb"), "y", &Tensor::from_slice(&[2], &[1f32, 2.0])).unwrap();
    let output = byoc(["verify", &dir.path().display().to_string()]);
    assert_eq!(output.code, 1);
    assert_shows(output, &ESCAPED_NAMES[1..]);
}

#[test]
fn escapes_text_of_users() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let labels: String = (0..10).map(|i| format!("class {i}\u{1b}[31m\u{202e}\n")).collect();
    std::fs::write(path("labels.txt"), labels).unwrap();
    let digits = data_text("digits/digits.onnx");
    let options = ["--dim", "batch=1", "--input", "image=ones", "--labels", &path("labels.txt")];
    let output = assert_shows(byoc([&["run", &digits], &options[..]].concat()).ok(), &["\\u{1b}[31m\\u{202e}"]);
    assert!(!output.out.contains('\u{202e}'));
    // The diagnostic shows a source line with control characters.
    let program = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(4), float32]) { foo(%x, \"\u{1b}[2J\") }\n";
    std::fs::write(path("p.relay"), program).unwrap();
    let output = byoc(["opt", &path("p.relay")]);
    assert_eq!(output.code, 1);
    assert_shows(output, &[]);
}

/// Runs `byoc` with a full device as standard output.
fn run_to_full_device(args: &[&str]) -> CommandOutput {
    let full_device = OpenOptions::new().write(true).open(Path::new("/dev/full")).expect("cannot open /dev/full");
    to_command_output(command(args).stdout(full_device).output().unwrap())
}

#[test]
fn reports_full_standard_output() {
    let model = data_text("hardened/esc.onnx");
    let input = "x\u{1b}[2J=ones";
    let cases: &[&[&str]] = &[
        &["ops"],
        &["ops", "--json"],
        &["error", "E0517"],
        &["--help"],
        &["run", &model, "--input", input],
        &["run", &model, "--input", input, "--output", "-"],
        &["explain", &model],
        &["explain", &model, "--html", "-"],
        &["compile", &model, "-o", "-"],
        &["compile", &model, "--emit", "relay"],
    ];
    for args in cases {
        let output = run_to_full_device(args)
            .fails_with("E0517")
            .stderr_contains(&["standard output", "No space left on device"]);
        assert!(!output.err.contains("has a bug"), "{}", output.err);
    }
}
