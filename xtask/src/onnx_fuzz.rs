//! Differential fuzzer of the ONNX frontend: random graphs on byoc and on ONNX Runtime.
//!
//! Generation, comparison and minimization are in `xtask/onnx/fuzz.py`.

use crate::process::{self, cargo, root, target_dir};
use std::process::Command;

/// Python packages for the generator and the references.
const PACKAGES: &[&str] = &["onnx==1.23.2", "onnxruntime==1.32.*", "numpy", "ml_dtypes"];

/// Runs `cargo xtask onnx-fuzz [--seed N] [--count M] [--backend NAME,...] [--out DIR] [--op NAME,...] ...`, which passes
/// its arguments to the script.
pub fn run(args: &[&str]) -> Result<(), String> {
    let packages = target_dir().join("python").join("onnx-fuzz");
    process::install_packages(&packages, PACKAGES)?;
    process::run(&mut cargo(&["build", "--workspace"]))?;
    let mut script = Command::new("python3");
    script.env("PYTHONDONTWRITEBYTECODE", "1");
    script.env("PYTHONPATH", &packages).arg(root().join("xtask").join("onnx").join("fuzz.py"));
    script.arg("--byoc").arg(target_dir().join("debug").join("byoc"));
    script.arg("--out").arg(target_dir().join("onnx-fuzz"));
    process::run(script.args(args))
}
