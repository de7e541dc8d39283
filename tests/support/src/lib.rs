//! Support for tests and benches: builds plugins.
//!
//! A plugin is a `cdylib`, which cargo does not build for a test that needs one: it is built here, by a separate cargo
//! process, on first use (nothing is built twice; a repeated call in a new process costs some 35 ms). The profile is
//! that of the test itself. Every function panics on failure, as tests do.

pub mod artifact;
pub mod schema;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use tempfile::TempDir;

/// Root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this crate is part of the workspace")
}

/// Returns the library of the plugin `plugins/<name>`.
///
/// # Panics
/// If it does not build.
pub fn plugin(name: &str) -> PathBuf {
    // A crate's name has hyphens where the library's has underscores.
    build(&["--package", &format!("byoc-{}", name.replace('_', "-")), "--lib"])
}

/// Returns the library of a test plugin: `tests/plugins/examples/<name>.rs`. Most of them misbehave.
///
/// # Panics
/// If it does not build.
pub fn test_plugin(name: &str) -> PathBuf {
    build(&["--package", "byoc-test-plugins", "--example", name])
}

/// Returns the example `run` of the runtime: a program that links nothing else of ours.
///
/// # Panics
/// If it does not build.
pub fn runtime_example() -> PathBuf {
    build(&["--package", "byoc-runtime", "--example", "run"])
}

/// Returns the library of a plugin in C or C++, `plugins/samples/<name>.*`, built by the command in the README.
///
/// # Panics
/// If the README has no such command, or it fails.
pub fn sample(name: &str) -> PathBuf {
    once(&format!("sample {name}"), || {
        let readme = std::fs::read_to_string(workspace().join("README.md")).expect("the README");
        let line = readme
            .lines()
            .find(|line| line.contains(&format!(" plugins/samples/{name}.")))
            .unwrap_or_else(|| panic!("expected a command in the README that builds {name}"));
        let library = output_folder().join(format!("libbyoc_{name}.so"));
        let output_option = format!("-o plugins/libbyoc_{name}.so");
        assert!(line.contains(&output_option), "{line}");
        shell(&line.replace(&output_option, &format!("-o '{}'", library.display())));
        library
    })
}

/// Returns the library of a test plugin in C: `tests/plugins/c/<name>.c`.
///
/// # Panics
/// If it does not build.
pub fn c_plugin(name: &str) -> PathBuf {
    once(&format!("c {name}"), || {
        let library = output_folder().join(format!("libbyoc_test_{name}.so"));
        shell(&format!(
            "cc -std=c11 -g -O1 -Wall -Wextra -Werror -shared -fPIC -I plugin-api/include -o '{}' tests/plugins/c/{name}.c",
            library.display()
        ));
        library
    })
}

/// Returns the library of `tests/abi_first/plugin`, which is built against the first frozen version of the boundary: in
/// a workspace of its own, with the versions of its own lock file.
///
/// # Panics
/// If it does not build.
pub fn first_plugin() -> PathBuf {
    once("first", || {
        let target = workspace().join("target/abi_first");
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(workspace().join("tests/abi_first"))
            .args(["build", "--quiet", "--locked", "--package", "byoc-first", "--target-dir"])
            .arg(&target)
            .output()
            .expect("cargo can be started");
        assert!(output.status.success(), "the first plugin:\n{}", String::from_utf8_lossy(&output.stderr));
        target.join("debug").join(format!("libbyoc_first{}", std::env::consts::DLL_SUFFIX))
    })
}

/// Directory for the output of C compilers, in the system's temporary files.
fn output_folder() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(temporary_folder).path()
}

fn shell(line: &str) {
    let output = Command::new("sh").current_dir(workspace()).args(["-c", line]).output().expect("sh can be started");
    assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Creates an empty directory that is deleted when the value is dropped.
///
/// # Panics
/// If it cannot be created.
pub fn temporary_folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Creates a directory with copies of these plugins, as `libbyoc_<name>.so`, and with the oneDNN of this checkout if
/// present.
///
/// # Panics
/// If one does not build.
pub fn plugin_dir(names: &[&str]) -> TempDir {
    let dir = temporary_folder();
    for name in names {
        copy(&plugin(name), &dir.path().join(format!("libbyoc_{name}.so")));
    }
    if let Some(library) = onednn() {
        let link = dir.path().join("libdnnl.so.3");
        std::os::unix::fs::symlink(&library, link).expect("a link to oneDNN");
    }
    dir
}

/// Returns oneDNN: `BYOC_DNNL_LIB`, or the copy that `cargo xtask fetch-onednn` put into `vendor/onednn`. Tests that
/// need it are skipped without it.
pub fn onednn() -> Option<PathBuf> {
    let named = std::env::var_os("BYOC_DNNL_LIB").map(PathBuf::from);
    named.or_else(|| Some(workspace().join("vendor/onednn/libdnnl.so.3"))).filter(|file| file.is_file())
}

/// Returns true if the CPU has dot-product instructions for bytes (VNNI); without them oneDNN is not used for bytes.
/// Prints a note if it has none, as tests then skip the parts that need them.
#[expect(clippy::print_stdout, reason = "a test reports skipped parts")]
pub fn has_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    let detected = is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    let detected = false;
    if !detected {
        println!("skipped: this CPU has no dot-product instructions for bytes");
    }
    detected
}

/// Copies a file.
///
/// # Panics
/// If it cannot be copied.
pub fn copy(from: &Path, to: &Path) {
    if let Err(error) = std::fs::copy(from, to) {
        panic!("copy {from:?} to {to:?}: {error}");
    }
}

/// Returns the result of `build`, which is called once per key.
fn once(key: &str, build: impl FnOnce() -> PathBuf) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built.get(key) {
        return path.clone();
    }
    let path = build();
    built.insert(key.to_owned(), path.clone());
    path
}

fn build(arguments: &[&str]) -> PathBuf {
    let key = arguments.join(" ");
    once(&key, || {
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(workspace())
            .args(["build", "--quiet", "--message-format=json-render-diagnostics", "--profile", profile])
            .args(arguments)
            .output()
            .expect("cargo can be started");
        assert!(output.status.success(), "cargo build {key}:\n{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
        let is_artifact = |message: &serde_json::Value| {
            let target = &message["target"];
            let is_program = target["kind"][0] == "example" && target["crate_types"][0] == "bin";
            message["reason"] == "compiler-artifact" && (is_program || target["crate_types"][0] == "cdylib")
        };
        text.lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(is_artifact)
            .filter_map(|message| message["filenames"][0].as_str().map(PathBuf::from))
            .next_back()
            .unwrap_or_else(|| panic!("cargo build {key} produced no library and no program"))
    })
}
