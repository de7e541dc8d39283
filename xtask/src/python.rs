//! Tests of the Python package, from the files of the checkout and what cargo built.

use crate::process::{self, cargo, install_packages, root, target_dir};
use crate::wheel;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Packages of the tests, by version.
const PACKAGES: [&str; 5] =
    ["ml_dtypes==0.5.4", "numpy==2.4.6", "onnx==1.23.2", "onnxruntime==1.32.0", "pytest==9.2.0"];

/// Further packages of the tests that `cargo xtask test` leaves out.
const TORCH: [&str; 3] = ["torch==2.15.0", "transformers", "torchvision"];

/// Remedy where the tests are left out.
pub const INSTALL: &str = "apt-get install python3 python3-pip";

/// Runs the tests of the package, whose extension and plugins have been built. Returns false if there is no Python for
/// them.
pub fn test(library: Option<&Path>) -> Result<bool, String> {
    if !has_python() {
        return Ok(false);
    }
    let packages = target_dir().join("python-packages");
    if let Err(problem) = install_packages(&packages, &PACKAGES) {
        println!("{problem}");
        return Ok(false);
    }
    run(&[packages], &["-m", "not torch"], library)?;
    Ok(true)
}

/// Runs `cargo xtask test-python`.
pub fn test_alone(library: Option<&Path>) -> Result<(), String> {
    build()?;
    if test(library)? { Ok(()) } else { Err(format!("expected Python 3.10 with pip; install it with `{INSTALL}`")) }
}

/// Runs `cargo xtask test-torch`: the tests with PyTorch, which is fetched.
pub fn test_torch(library: Option<&Path>) -> Result<(), String> {
    build()?;
    let (packages, torch) = (target_dir().join("python-packages"), target_dir().join("python-torch"));
    install_packages(&packages, &PACKAGES)?;
    install_packages(&torch, &[&TORCH[..], &["onnxscript"]].concat())?;
    run(&[packages, torch], &["-m", "torch"], library)
}

/// Builds the extension and the plugins of the package.
fn build() -> Result<(), String> {
    let mut build = cargo(&["build", "--package", "byoc-python"]);
    for (package, _) in wheel::PLUGINS {
        build.args(["--package", package]);
    }
    process::run(&mut build)
}

/// Returns true if there is an interpreter that the package supports.
fn has_python() -> bool {
    let mut version = Command::new("python3");
    version.args(["-c", "import sys, pip; sys.exit(sys.version_info < (3, 10))"]);
    version.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn run(packages: &[PathBuf], arguments: &[&str], library: Option<&Path>) -> Result<(), String> {
    let folder = target_dir().join("python");
    assemble(&folder)?;
    let path = std::env::join_paths(std::iter::once(&folder).chain(packages)).map_err(|e| e.to_string())?;
    let mut pytest = Command::new("python3");
    pytest.args(["-m", "pytest", "--quiet", "--no-header", "-p", "no:cacheprovider"]).args(arguments);
    pytest.arg(wheel::sources().join("tests")).current_dir(root()).env("PYTHONPATH", path);
    pytest.env("PYTHONDONTWRITEBYTECODE", "1");
    if let Some(library) = library {
        pytest.env("BYOC_DNNL_LIB", library);
    }
    process::run(&mut pytest)
}

/// Puts the package together as the wheel has it.
fn assemble(folder: &Path) -> Result<(), String> {
    let package = folder.join("byoc");
    let _ = fs::remove_dir_all(&package);
    copy_tree(&wheel::sources().join("python/byoc"), &package)?;
    let built = target_dir().join("debug");
    let (from, to) = (built.join("lib_byoc.so"), package.join("_byoc.abi3.so"));
    fs::copy(&from, &to).map_err(|e| format!("cannot copy {} to {}: {e}", from.display(), to.display()))?;
    describe(folder)?;
    wheel::place_plugins(&built, &package.join("plugins"))
}

/// Writes the metadata by which PyTorch finds the backend.
fn describe(folder: &Path) -> Result<(), String> {
    let version = env!("CARGO_PKG_VERSION");
    let info = folder.join(format!("byoc_ml-{version}.dist-info"));
    let metadata = format!("Metadata-Version: 2.1\nName: byoc-ml\nVersion: {version}\n");
    let entries = "[torch_dynamo_backends]\nbyoc = byoc.torch:backend\n";
    let written = fs::create_dir_all(&info)
        .and_then(|()| fs::write(info.join("METADATA"), metadata))
        .and_then(|()| fs::write(info.join("entry_points.txt"), entries));
    written.map_err(|e| format!("{}: {e}", info.display()))
}

/// Copies the sources of a package.
fn copy_tree(from: &Path, to: &Path) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("cannot copy {} to {}: {e}", from.display(), to.display());
    fs::create_dir_all(to).map_err(fail)?;
    for entry in fs::read_dir(from).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let Some(name) = path.file_name() else { continue };
        match path.is_dir() {
            true if name == "__pycache__" || name == "plugins" => {}
            true => copy_tree(&path, &to.join(name))?,
            false => drop(fs::copy(&path, to.join(name)).map_err(fail)?),
        }
    }
    Ok(())
}
