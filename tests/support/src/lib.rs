//! Support for tests and benches: builds plugins, draws random numbers, reads file tests, and is a host for plugins.
//!
//! A plugin is a `cdylib`, which cargo does not build as a dependency of a test. A separate cargo process, with the
//! profile of the test, builds each plugin on first use; if nothing has changed, this takes about 35 ms per test
//! process. `cargo xtask test`, which builds the whole workspace first, sets `BYOC_TEST_BUILT` to its output directory
//! instead: a package built separately enables different dependency features, so the package and its dependencies would
//! be compiled again. Every function panics on failure, as tests do.

pub mod artifact;
#[cfg(feature = "filetest")]
pub mod filetest;
#[cfg(feature = "plugin")]
pub mod plugin;
pub mod random;
pub mod schema;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use tempfile::TempDir;

/// Returns the root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is two levels below the workspace root")
}

/// Returns the library of the plugin `plugins/<name>`.
///
/// # Panics
/// If the plugin does not build.
pub fn plugin(name: &str) -> PathBuf {
    // Crate names have hyphens where library names have underscores.
    build(&format!("byoc-{}", name.replace('_', "-")), Product::Library)
}

/// Returns the library of a test plugin: `tests/plugins/examples/<name>.rs`. Most test plugins misbehave.
///
/// # Panics
/// If the plugin does not build.
pub fn test_plugin(name: &str) -> PathBuf {
    build("byoc-test-plugins", Product::ExampleLibrary(name))
}

/// Returns the shared library of the C interface; the static library is in the same directory.
///
/// # Panics
/// If the library does not build.
pub fn c_library() -> PathBuf {
    build("byoc-capi", Product::Library)
}

/// Returns the runtime example `run`, an executable that links no other workspace crate directly.
///
/// # Panics
/// If the example does not build.
pub fn runtime_example() -> PathBuf {
    build("byoc-runtime", Product::ExampleProgram("run"))
}

/// Returns the stand-in for a vendor's compiler and run time, `host/examples/onnx_compiler.rs`.
///
/// # Panics
/// If the example does not build.
pub fn onnx_compiler() -> PathBuf {
    build("byoc", Product::ExampleProgram("onnx_compiler"))
}

/// Returns the bundle runner, `byoc-run`.
///
/// # Panics
/// If the runner does not build.
pub fn bundle_runner() -> PathBuf {
    build("byoc-bundle", Product::Program("byoc-run"))
}

/// Returns the library of a plugin in C or C++, `plugins/samples/<name>.*`, built by the command in the README.
///
/// # Panics
/// If the README has no such command, or the command fails.
pub fn sample(name: &str) -> PathBuf {
    build_once(&format!("sample {name}"), || {
        let readme = std::fs::read_to_string(workspace().join("README.md")).expect("cannot read the README");
        let line = readme
            .lines()
            .find(|line| line.contains(&format!(" plugins/samples/{name}.")))
            .unwrap_or_else(|| panic!("expected a command in the README that builds {name}, found none"));
        let library = output_dir().join(format!("libbyoc_{name}.so"));
        let output_option = format!("-o plugins/libbyoc_{name}.so");
        assert!(line.contains(&output_option), "expected {output_option} in the command, found {line}");
        run_shell(&line.replace(&output_option, &format!("-o '{}'", library.display())));
        library
    })
}

/// Returns the library of a test plugin in C: `tests/plugins/c/<name>.c`.
///
/// # Panics
/// If the plugin does not build.
pub fn c_plugin(name: &str) -> PathBuf {
    build_once(&format!("c {name}"), || {
        let library = output_dir().join(format!("libbyoc_test_{name}.so"));
        run_shell(&format!(
            "cc -std=c11 -g -O1 -Wall -Wextra -Werror -shared -fPIC -I plugin-api/include -o '{}' tests/plugins/c/{name}.c",
            library.display()
        ));
        library
    })
}

/// Returns the plugin in C of release 0.1.0, built for this machine with the header of that release: `tests/compat/c`.
///
/// # Panics
/// If the plugin does not build.
pub fn release_c_plugin() -> PathBuf {
    build_once("c of release 0.1", || {
        let library = output_dir().join("libbyoc_frozen_c.so");
        run_shell(&format!(
            "cc -std=c11 -O1 -Wall -Wextra -Werror -shared -fPIC -o '{}' tests/compat/c/frozen.c",
            library.display()
        ));
        library
    })
}

/// Returns `tests/compat`, whose libraries are of earlier versions of the boundary, or `None` on machines other than
/// x86-64 Linux, for which they are not built. Then prints a note, because tests skip these libraries.
#[expect(clippy::print_stdout, reason = "a test reports skipped parts")]
pub fn earlier_plugins() -> Option<PathBuf> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        println!("skipped: the libraries in tests/compat are built for x86-64 Linux");
        return None;
    }
    Some(workspace().join("tests/compat"))
}

/// Returns the output directory for C compilers, in the system's temporary directory.
fn output_dir() -> &'static Path {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    DIR.get_or_init(temporary_folder).path()
}

fn run_shell(line: &str) {
    let output = Command::new("sh").current_dir(workspace()).args(["-c", line]).output().expect("cannot start sh");
    assert!(output.status.success(), "cannot run {line}:\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Creates an empty directory that is deleted when the value is dropped.
///
/// # Panics
/// If the directory cannot be created.
pub fn temporary_folder() -> TempDir {
    tempfile::tempdir().expect("cannot create a temporary directory")
}

/// Creates a directory with copies of the named plugins, as `libbyoc_<name>.so`, and with a symlink to oneDNN if it is
/// installed.
///
/// # Panics
/// If a plugin does not build.
pub fn plugin_dir(names: &[&str]) -> TempDir {
    let dir = temporary_folder();
    for name in names {
        copy(&plugin(name), &dir.path().join(format!("libbyoc_{name}.so")));
    }
    if let Some(library) = onednn() {
        let link = dir.path().join("libdnnl.so.3");
        std::os::unix::fs::symlink(&library, link).expect("cannot create a symlink to oneDNN");
    }
    dir
}

/// Returns the path of oneDNN: `BYOC_DNNL_LIB`, or the copy in `vendor/onednn` from `cargo xtask fetch-onednn`. Without
/// oneDNN, tests that need it are skipped.
pub fn onednn() -> Option<PathBuf> {
    let library = std::env::var_os("BYOC_DNNL_LIB").map(PathBuf::from);
    library.or_else(|| Some(workspace().join("vendor/onednn/libdnnl.so.3"))).filter(|file| file.is_file())
}

/// Returns the directory of TensorRT for RTX: `BYOC_TENSORRT_LIB`, or the copy in `vendor/tensorrt` from `cargo xtask
/// tensorrt`. Without it, tests that need it are skipped.
pub fn tensorrt() -> Option<PathBuf> {
    let library = std::env::var_os("BYOC_TENSORRT_LIB").map(PathBuf::from);
    library.or_else(|| Some(workspace().join("vendor/tensorrt"))).filter(|path| path.exists())
}

/// Returns true if the CPU has int8 dot-product instructions (VNNI), without which oneDNN is not used for int8.
/// Otherwise prints a note, because tests then skip the parts that need VNNI.
#[expect(clippy::print_stdout, reason = "a test reports skipped parts")]
pub fn has_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has_feature = [is_x86_feature_detected!("avx512vnni"), is_x86_feature_detected!("avxvnni")].contains(&true);
    #[cfg(not(target_arch = "x86_64"))]
    let has_feature = false;
    if !has_feature {
        println!("skipped: this CPU has no int8 dot-product instructions");
    }
    has_feature
}

/// Copies a file.
///
/// # Panics
/// If the file cannot be copied.
pub fn copy(source: &Path, destination: &Path) {
    if let Err(error) = std::fs::copy(source, destination) {
        panic!("cannot copy {source:?} to {destination:?}: {error}");
    }
}

/// Returns the result of `build`, which is called once per key and process.
fn build_once(key: &str, build: impl FnOnce() -> PathBuf) -> PathBuf {
    static BUILT_PRODUCTS: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built_products = BUILT_PRODUCTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built_products.get(key) {
        return path.clone();
    }
    let path = build();
    built_products.insert(key.to_owned(), path.clone());
    path
}

/// Crate build product that tests load or start.
#[derive(Clone, Copy)]
enum Product<'a> {
    Library,
    Program(&'a str),
    ExampleLibrary(&'a str),
    ExampleProgram(&'a str),
}

/// Returns a file that cargo builds for a package.
fn build(package: &str, product: Product<'_>) -> PathBuf {
    if let Some(dir) = std::env::var_os("BYOC_TEST_BUILT") {
        let file_name = |name: &str| format!("{}{name}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let file = Path::new(&dir).join(match product {
            Product::Library if package == "byoc-capi" => file_name("byocapi"),
            Product::Library => file_name(&package.replace('-', "_")),
            Product::Program(name) => name.to_owned(),
            Product::ExampleLibrary(name) => format!("examples/{}", file_name(name)),
            Product::ExampleProgram(name) => format!("examples/{name}"),
        });
        assert!(file.is_file(), "expected the workspace build to contain {}, found none", file.display());
        return file;
    }
    let mut arguments = vec!["--package", package];
    match product {
        Product::Library => arguments.push("--lib"),
        Product::Program(name) => arguments.extend(["--bin", name]),
        Product::ExampleLibrary(name) | Product::ExampleProgram(name) => arguments.extend(["--example", name]),
    }
    let key = arguments.join(" ");
    build_once(&key, || {
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let output = cargo(workspace())
            .args(["build", "--quiet", "--message-format=json-render-diagnostics", "--profile", profile])
            .args(&arguments)
            .output()
            .expect("cannot start cargo");
        assert!(output.status.success(), "cannot build {key}:\n{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("expected UTF-8 output from cargo");
        let is_artifact = |message: &serde_json::Value| {
            let target = &message["target"];
            let kind = target["kind"][0].as_str();
            let is_program = matches!(kind, Some("example" | "bin")) && target["crate_types"][0] == "bin";
            message["reason"] == "compiler-artifact" && (is_program || target["crate_types"][0] == "cdylib")
        };
        text.lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(is_artifact)
            .filter_map(|message| message["filenames"][0].as_str().map(PathBuf::from))
            .next_back()
            .unwrap_or_else(|| panic!("cargo build {key}: expected a library or an executable, found none"))
    })
}

/// Returns a `cargo` command that runs in a directory. It compiles with rustc even if the caller was started by clippy.
fn cargo(dir: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(dir).env_remove("RUSTC_WORKSPACE_WRAPPER");
    command
}
