//! Builds plugins for tests and benches.
//!
//! A plugin is a `cdylib`, which cargo does not build for a test that needs one: it is built here, by a cargo of its own, the
//! first time that it is asked for (nothing is built twice, a repeated call costs some 35 ms). The profile is that of the
//! test itself. Every function panics when it fails, as tests do.

pub mod artifact;
pub mod schema;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use tempfile::TempDir;

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this crate lies in the workspace")
}

/// The library of the plugin `plugins/<name>`.
///
/// # Panics
/// When it does not build.
pub fn plugin(name: &str) -> PathBuf {
    // A crate's name has hyphens where the library's has underscores.
    build(&["--package", &format!("byoc-{}", name.replace('_', "-")), "--lib"])
}

/// The library of a plugin that exists for tests: `tests/plugins/examples/<name>.rs`. Most of them misbehave.
///
/// # Panics
/// When it does not build.
pub fn test_plugin(name: &str) -> PathBuf {
    build(&["--package", "byoc-test-plugins", "--example", name])
}

/// The library of a plugin in C or C++, `plugins/samples/<name>.*`, built by the line that the README shows for it.
///
/// # Panics
/// When the README shows none, or it does not build.
pub fn sample(name: &str) -> PathBuf {
    once(&format!("sample {name}"), || {
        let readme = std::fs::read_to_string(workspace().join("README.md")).expect("the README");
        let line = readme
            .lines()
            .find(|line| line.contains(&format!(" plugins/samples/{name}.")))
            .unwrap_or_else(|| panic!("the README does not say how to build {name}"));
        let library = built_folder().join(format!("libbyoc_{name}.so"));
        let shown = format!("-o plugins/libbyoc_{name}.so");
        assert!(line.contains(&shown), "{line}");
        shell(&line.replace(&shown, &format!("-o '{}'", library.display())));
        library
    })
}

/// The library of a plugin in C that exists for tests: `tests/plugins/c/<name>.c`.
///
/// # Panics
/// When it does not build.
pub fn c_plugin(name: &str) -> PathBuf {
    once(&format!("c {name}"), || {
        let library = built_folder().join(format!("libbyoc_test_{name}.so"));
        shell(&format!(
            "cc -std=c11 -g -O1 -Wall -Wextra -Werror -shared -fPIC -I plugin-api/include -o '{}' tests/plugins/c/{name}.c",
            library.display()
        ));
        library
    })
}

/// The library of `tests/abi_first/plugin`, which is built against the boundary as it was when it was frozen: in a
/// workspace of its own, with the versions that its own lock file names.
///
/// # Panics
/// When it does not build.
pub fn first_plugin() -> PathBuf {
    once("first", || {
        let target = workspace().join("target/abi_first");
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(workspace().join("tests/abi_first"))
            .args(["build", "--quiet", "--locked", "--package", "byoc-first", "--target-dir"])
            .arg(&target)
            .output()
            .expect("cargo starts");
        assert!(output.status.success(), "the first plugin:\n{}", String::from_utf8_lossy(&output.stderr));
        target.join("debug").join(format!("libbyoc_first{}", std::env::consts::DLL_SUFFIX))
    })
}

/// Where this process puts what a C compiler makes; it goes away with the system's temporary files.
fn built_folder() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(temporary_folder).path()
}

fn shell(line: &str) {
    let output = Command::new("sh").current_dir(workspace()).args(["-c", line]).output().expect("sh starts");
    assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// An empty folder that goes away with the value.
///
/// # Panics
/// When there is no place for it.
pub fn temporary_folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// A folder with copies of these plugins, as `libbyoc_<name>.so`, and with the oneDNN of this checkout if it is there.
///
/// # Panics
/// When one does not build.
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

/// oneDNN: `BYOC_DNNL_LIB`, or what `cargo xtask fetch-onednn` put into `vendor/onednn`. Without it tests leave out what needs it.
pub fn onednn() -> Option<PathBuf> {
    let named = std::env::var_os("BYOC_DNNL_LIB").map(PathBuf::from);
    named.or_else(|| Some(workspace().join("vendor/onednn/libdnnl.so.3"))).filter(|file| file.is_file())
}

/// Returns true if the CPU has instructions for sums of products of bytes (VNNI), without which oneDNN is not given any. Says
/// so where it has none, as tests then leave out what needs them.
#[expect(clippy::print_stdout, reason = "a test says what it leaves out")]
pub fn multiplies_bytes() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    if !has {
        println!("left out: this CPU has no instructions for products of bytes");
    }
    has
}

/// Copies a file.
///
/// # Panics
/// When it cannot.
pub fn copy(from: &Path, to: &Path) {
    if let Err(error) = std::fs::copy(from, to) {
        panic!("copy {from:?} to {to:?}: {error}");
    }
}

/// What `make` gives, made the first time that it is asked for.
fn once(key: &str, make: impl FnOnce() -> PathBuf) -> PathBuf {
    static MADE: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = made.get(key) {
        return path.clone();
    }
    let path = make();
    made.insert(key.to_owned(), path.clone());
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
            .expect("cargo starts");
        assert!(output.status.success(), "cargo build {key}:\n{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
        let is_library = |message: &serde_json::Value| {
            message["reason"] == "compiler-artifact" && message["target"]["crate_types"][0] == "cdylib"
        };
        text.lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(is_library)
            .filter_map(|message| message["filenames"][0].as_str().map(PathBuf::from))
            .next_back()
            .unwrap_or_else(|| panic!("cargo build {key} gave no library"))
    })
}
