//! Tests of the Python package, assembled from the checkout and the cargo build.

use crate::process::{self, cargo, environment, install_packages, root, target_dir};
use crate::wheel;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Python packages for the tests, with their versions.
const PACKAGES: [&str; 8] = [
    "jsonschema==4.26.0",
    "ml_dtypes==0.5.4",
    "numpy==2.4.6",
    "onnx==1.23.2",
    "onnxruntime==1.32.0",
    "pillow==13.0.0",
    "pytest==9.2.0",
    "pyyaml==6.0.4",
];

/// Additional Python packages for the tests with PyTorch, which `cargo xtask test` skips.
const TORCH: [&str; 3] = ["torch==2.15.0", "transformers", "torchvision"];

/// Additional Python packages for the tests with Ray and with the classes of KServe.
const RAY: [&str; 2] = ["ray[data,serve]==2.60.0", "kserve==0.21.0"];

/// Command that installs the requirements of the tests.
pub const INSTALL: &str = "apt-get install python3 python3-pip";

/// Runs the tests of the package, whose extension and plugins must already be built. Returns false if Python or the
/// packages are unavailable.
pub fn test(library: Option<&Path>) -> Result<bool, String> {
    if !has_python() {
        return Ok(false);
    }
    let packages = target_dir().join("python-packages");
    if let Err(problem) = install_packages(&packages, &PACKAGES) {
        println!("{problem}");
        return Ok(false);
    }
    run(Path::new("python3"), &[packages], &["-m", "not torch and not ray"], library)?;
    Ok(true)
}

/// Runs `cargo xtask test-python`.
pub fn test_alone(library: Option<&Path>) -> Result<(), String> {
    build()?;
    if test(library)? {
        Ok(())
    } else {
        Err(format!("expected Python 3.10 or later with pip, found none; install it with `{INSTALL}`"))
    }
}

/// Runs `cargo xtask test-torch`: downloads PyTorch, and runs the tests that need it.
pub fn test_torch(library: Option<&Path>) -> Result<(), String> {
    build()?;
    run(Path::new("python3"), &torch_packages()?, &["-m", "torch"], library)
}

/// Files of TVM 0.14's tests of Relay's Python layer that `cargo xtask test-tvm` runs.
const TVM_TESTS: [&str; 24] = [
    "test_pass_merge_composite",
    "test_pass_annotate_target",
    "test_pass_merge_compiler_regions",
    "test_pass_partition_graph",
    "test_dataflow_pattern",
    "test_ir_parser",
    "test_ir_text_printer",
    "test_ir_nodes",
    "test_ir_structural_equal_hash",
    "test_ir_op",
    "test_type_infer",
    "test_pass_fold_constant",
    "test_pass_fold_scale_axis",
    "test_pass_simplify_inference",
    "test_pass_convert_op_layout",
    "test_pass_dead_code_elimination",
    "test_pass_eliminate_common_subexpr",
    "test_pass_to_a_normal_form",
    "test_external_codegen",
    "test_json_runtime",
    "test_op_level1",
    "test_op_level2",
    "test_op_level3",
    "test_op_level5",
];

/// Runs `cargo xtask test-tvm --source DIR [FILE..]`: TVM's own tests, from the checkout `source` of TVM 0.14. Prints the
/// result of each file, and fails only if a file cannot be run.
pub fn test_tvm(source: &Path, files: &[&str]) -> Result<(), String> {
    build()?;
    let (packages, dir) = (target_dir().join("python-tvm"), target_dir().join("python"));
    // The tests use functions that later versions of NumPy lack.
    install_packages(&packages, &["numpy==1.26.4", "scipy==1.14.1", "pytest==9.2.0", "ml_dtypes==0.5.4"])?;
    assemble(&dir, "debug")?;
    let source = source.canonicalize().map_err(|e| format!("{}: {e}", source.display()))?;
    let path = std::env::join_paths([&dir, &packages]).map_err(|e| e.to_string())?;
    let qnn = fs::read_dir(source.join("tests/python/relay")).map_err(|e| format!("{}: {e}", source.display()))?;
    let qnn = qnn.flatten().filter_map(|entry| entry.path().file_stem()?.to_str().map(str::to_owned));
    let mut names: Vec<String> = files.iter().map(|name| (*name).to_owned()).collect();
    if names.is_empty() {
        names = TVM_TESTS.iter().map(|name| (*name).to_owned()).collect();
        let mut qnn: Vec<String> = qnn.filter(|name| name.starts_with("test_op_qnn_")).collect();
        qnn.sort();
        names.extend(qnn);
    }
    for name in names {
        let mut pytest = Command::new("python3");
        pytest.args(["-m", "pytest", "--quiet", "--no-header", "--noconftest", "-p", "byoc.tvm._pytest"]);
        pytest.args(["-p", "no:cacheprovider", "--tb=no", "-W", "ignore", "-rf"]).arg(format!("{name}.py"));
        pytest.current_dir(source.join("tests/python/relay"));
        pytest.env("PYTHONPATH", &path).env("PYTHONDONTWRITEBYTECODE", "1").env("BYOC_TVM_SOURCE", &source);
        let output = pytest.output().map_err(|e| format!("pytest: {e}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let failed = text.lines().filter(|line| line.starts_with("FAILED"));
        failed.for_each(|line| println!("  {line}"));
        println!("{name}: {}", text.lines().last().unwrap_or("no result"));
    }
    Ok(())
}

/// Runs `cargo xtask test-torch --networks [NAME..]`: networks on the release build of the package, compared with
/// eager PyTorch.
pub fn test_networks(names: &[&str], library: Option<&Path>) -> Result<(), String> {
    let dir = assemble_release()?;
    let path = std::env::join_paths(std::iter::once(dir).chain(torch_packages()?)).map_err(|e| e.to_string())?;
    let mut python = Command::new("python3");
    python.arg(root().join("xtask/packages/torch_networks.py")).args(names).env("PYTHONPATH", path);
    process::run(with_library(&mut python, library))
}

/// Installs PyTorch and what its exporter needs, and returns the search path.
fn torch_packages() -> Result<[PathBuf; 2], String> {
    let (packages, torch) = (target_dir().join("python-packages"), target_dir().join("python-torch"));
    install_packages(&packages, &PACKAGES)?;
    install_packages(&torch, &[&TORCH[..], &["onnxscript"]].concat())?;
    Ok([packages, torch])
}

/// Runs `cargo xtask test-ray`: downloads Ray, and runs the tests that need it.
pub fn test_ray(library: Option<&Path>) -> Result<(), String> {
    build()?;
    run(&ray_environment()?, &[], &["-m", "ray"], library)
}

/// Runs `cargo xtask bench scaling` and `cargo xtask bench ray`: measurements of the release build of the package. The
/// remaining arguments are passed to the script.
pub fn bench(script: &str, args: &[&str], library: Option<&Path>) -> Result<(), String> {
    let dir = assemble_release()?;
    let script = wheel::sources().join("benches").join(script);
    let mut python = Command::new(ray_environment()?);
    python.arg(script).args(args).current_dir(root()).env("PYTHONPATH", dir);
    process::run(with_library(&mut python, library))
}

/// Builds the package for release, and returns its directory.
fn assemble_release() -> Result<PathBuf, String> {
    let mut build = cargo(&["build", "--release", "--quiet", "--package", "byoc-python"]);
    process::run(build.args(wheel::PLUGINS.iter().flat_map(|(package, _)| ["--package", *package])))?;
    let dir = target_dir().join("python-release");
    assemble(&dir, "release")?;
    Ok(dir)
}

/// Returns the Python interpreter of the Ray environment.
fn ray_environment() -> Result<PathBuf, String> {
    environment(&target_dir().join("python-ray"), &[&PACKAGES[..], &RAY].concat())
}

/// Builds the extension and the plugins of the package.
fn build() -> Result<(), String> {
    let mut build = cargo(&["build", "--package", "byoc-python"]);
    for (package, _) in wheel::PLUGINS {
        build.args(["--package", package]);
    }
    process::run(&mut build)
}

/// Returns true if pip and a Python version that the package supports are installed.
fn has_python() -> bool {
    let mut version = Command::new("python3");
    version.args(["-c", "import sys, pip; sys.exit(sys.version_info < (3, 10))"]);
    version.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn run(python: &Path, packages: &[PathBuf], arguments: &[&str], library: Option<&Path>) -> Result<(), String> {
    let dir = target_dir().join("python");
    assemble(&dir, "debug")?;
    let path = std::env::join_paths(std::iter::once(&dir).chain(packages)).map_err(|e| e.to_string())?;
    let mut pytest = Command::new(python);
    pytest.args(["-m", "pytest", "--quiet", "--no-header", "-p", "no:cacheprovider"]).args(arguments);
    pytest.arg(wheel::sources().join("tests")).current_dir(root()).env("PYTHONPATH", path);
    pytest.env("PYTHONDONTWRITEBYTECODE", "1");
    process::run(with_library(&mut pytest, library))
}

/// Adds the path of oneDNN to the environment of a command.
fn with_library<'a>(command: &'a mut Command, library: Option<&Path>) -> &'a mut Command {
    match library {
        Some(library) => command.env("BYOC_DNNL_LIB", library),
        None => command,
    }
}

/// Assembles the package in the layout of the wheel, from the build of a cargo profile.
fn assemble(dir: &Path, profile: &str) -> Result<(), String> {
    let package = dir.join("byoc");
    let _ = fs::remove_dir_all(&package);
    copy_tree(&wheel::sources().join("python/byoc"), &package)?;
    let build_dir = target_dir().join(profile);
    let (source, target) = (build_dir.join("lib_byoc.so"), package.join("_byoc.abi3.so"));
    fs::copy(&source, &target).map_err(|e| format!("cannot copy {} to {}: {e}", source.display(), target.display()))?;
    write_dist_info(dir)?;
    wheel::place_plugins(&build_dir, &package.join("plugins"))
}

/// Writes the metadata through which PyTorch finds the backend.
fn write_dist_info(dir: &Path) -> Result<(), String> {
    let version = env!("CARGO_PKG_VERSION");
    let info = dir.join(format!("byoc_ml-{version}.dist-info"));
    let metadata = format!("Metadata-Version: 2.1\nName: byoc-ml\nVersion: {version}\n");
    let entries = "[torch_dynamo_backends]\nbyoc = byoc.torch:backend\n";
    let result = fs::create_dir_all(&info)
        .and_then(|()| fs::write(info.join("METADATA"), metadata))
        .and_then(|()| fs::write(info.join("entry_points.txt"), entries));
    result.map_err(|e| format!("{}: {e}", info.display()))
}

/// Copies the sources of a package.
fn copy_tree(source: &Path, target: &Path) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("cannot copy {} to {}: {e}", source.display(), target.display());
    fs::create_dir_all(target).map_err(fail)?;
    for entry in fs::read_dir(source).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let Some(name) = path.file_name() else { continue };
        match path.is_dir() {
            true if name == "__pycache__" || name == "plugins" => {}
            true => copy_tree(&path, &target.join(name))?,
            false => drop(fs::copy(&path, target.join(name)).map_err(fail)?),
        }
    }
    Ok(())
}
