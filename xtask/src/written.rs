//! Models that byoc writes, checked by `onnx.checker` and by ONNX Runtime: the cases of the ONNX backend suite, and any other
//! folder of models in test-data layout.

use crate::onnx_suite;
use crate::process::{self, cargo, root, target_dir};
use std::path::PathBuf;
use std::process::Command;

/// Packages that check and run written models.
const PACKAGES: &[&str] = &["onnx==1.23.2", "onnxruntime==1.32.0", "numpy"];

/// Runs `cargo xtask test-written [--models DIR] [ARGS]`; ARGS are those of `xtask/onnx/written.py`.
pub fn run(args: &[&str]) -> Result<(), String> {
    process::run(&mut cargo(&["build", "--workspace"]))?;
    let python = process::environment(&target_dir().join("python").join("test-written"), PACKAGES)?;
    let script = root().join("xtask").join("onnx").join("written.py");
    let (cases, rest) = match args {
        ["--models", dir, rest @ ..] => (PathBuf::from(dir), rest),
        rest => (onnx_suite::cases()?, rest),
    };
    let mut check = Command::new(python);
    check.arg(script).arg(target_dir().join("debug").join("byoc")).arg(&cases).arg(target_dir().join("test-written"));
    if !matches!(args, ["--models", ..]) {
        check.arg("--list").arg(root().join("tests").join("onnx-suite.txt"));
    }
    process::run(check.args(rest))
}
