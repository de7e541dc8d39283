//! PyTorch exports of known architectures, verified on byoc at several input sizes.

use crate::process::{self, cargo, root, target_dir};
use std::process::Command;

/// Python packages for the exporters and the reference.
const PACKAGES: &[&str] =
    &["torch", "torchvision", "transformers", "onnx==1.23.2", "onnxscript", "onnxruntime==1.32.*", "numpy"];

/// Runs `cargo xtask exports [--backend NAME,...] [NAME..]`.
pub fn run(args: &[&str]) -> Result<(), String> {
    let (backends, names) = match args {
        ["--backend", backends, names @ ..] => (backends.split(',').collect(), names),
        names => (Vec::new(), names),
    };
    let packages = target_dir().join("python").join("exports");
    let dir = target_dir().join("exports");
    process::install_packages(&packages, PACKAGES)?;
    let scripts = root().join("xtask").join("onnx");
    let python = |script: &str| {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", &packages).env("PYTHONDONTWRITEBYTECODE", "1").arg(scripts.join(script)).arg(&dir);
        python
    };
    process::run(python("exports.py").args(names))?;
    process::run(&mut cargo(&["build", "--workspace"]))?;
    let byoc = target_dir().join("debug").join("byoc");
    let mut failed_targets = Vec::new();
    for backend in std::iter::once(None).chain(backends.into_iter().map(Some)) {
        if process::run(python("exports_check.py").arg(&byoc).args(backend)).is_err() {
            failed_targets.push(backend.unwrap_or("host"));
        }
    }
    if failed_targets.is_empty() { Ok(()) } else { Err(format!("exports failed on {}", failed_targets.join(", "))) }
}
