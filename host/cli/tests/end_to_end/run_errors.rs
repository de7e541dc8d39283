//! Run-time errors of the `byoc` binary: each has the expected code and message.

use crate::{CommandOutput, byoc};
use byoc_test_support::temporary_folder;
use std::process::Command;

fn run(program: &str, extra_args: &[&str]) -> CommandOutput {
    let dir = temporary_folder();
    let model = dir.path().join("model.relay");
    std::fs::write(&model, format!("#[version = \"0.0.5\"]\n{program}\n")).unwrap();
    let model = model.display().to_string();
    let mut args = vec!["run", &model];
    args.extend(extra_args);
    byoc(args)
}

#[test]
fn reports_index_out_of_range() {
    let program =
        "def @main(%x: Tensor[(1, 2), float32], %i: Tensor[(1), int64]) {\n  take(%x, %i, axis=0, mode=\"fast\")\n}";
    run(program, &["--input", "x=ones", "--input", "i=ones"])
        .fails_with("E0601")
        .stderr_contains(&["take", "index 1 is out of range for an axis of length 1"]);
    run(program, &["--input", "x=ones", "--input", "i=zeros"]).ok();
}

#[test]
fn reports_axis_out_of_range() {
    let program = "def @main(%x: Tensor[(3), float32], %axis: int64) {\n  dyn.cumsum(%x, %axis)\n}";
    run(program, &["--input", "x=ones", "--input", "axis=ones"])
        .fails_with("E0601")
        .stderr_contains(&["dyn.cumsum", "axis 1 is out of range for rank 1"]);
    run(program, &["--input", "x=ones", "--input", "axis=zeros"]).ok();
}

#[test]
fn reports_tensor_that_exceeds_memory() {
    let program =
        "def @main(%x: Tensor[(1), float32]) {\n  add(%x, zeros(shape=[70368744177664], dtype=\"float32\"))\n}";
    run(program, &["--input", "x=ones"]).fails_with("E0609").stderr_contains(&["cannot allocate", "bytes"]);
}

#[test]
fn reports_failure_to_start_threads() {
    let dir = temporary_folder();
    let model = dir.path().join("model.relay");
    std::fs::write(&model, "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2), float32]) { nn.relu(%x) }\n").unwrap();
    // The thread stacks exceed the address space.
    let output = Command::new("sh")
        .args(["-c", "ulimit -v 400000; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_byoc"), "run"])
        .arg(&model)
        .args(["--input", "x=ones", "--threads", "1024"])
        .output()
        .unwrap();
    crate::to_command_output(output).fails_with("E0612").stderr_contains(&["cannot start 1024 threads"]);
}
