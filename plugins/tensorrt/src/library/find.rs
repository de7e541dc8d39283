//! Search for the library's files.

use byoc_plugin_api::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Hint for installing the library.
pub const INSTALL_HINT: &str = "in a checkout, run `cargo xtask tensorrt`; elsewhere, run `pip install \
onnxruntime-ep-nv-tensorrt-rtx-cu13==0.5.0` into the environment of byoc, or set BYOC_TENSORRT_LIB to its libtensorrt_rtx.so.1.7.1";

/// Beginning of the library's file name; its version follows.
pub const LIBRARY: &str = "libtensorrt_rtx.so";
/// Beginning of the parser's file name, which stands beside the library.
const PARSER: &str = "libtensorrt_onnxparser_rtx.so";
/// Beginning of the file name of CUDA's run time, which stands beside the library or in a directory of the system.
const CUDA_RUNTIME: &str = "libcudart.so";
/// File names of full TensorRT, whose tables have not been run.
const FULL: [&str; 3] = ["libnvinfer.so.11", "libnvinfer.so.10", "libnvinfer.so"];
/// Directory of the package that carries the library.
const PACKAGE: &str = "onnxruntime_ep_nv_tensorrt_rtx";

static PLUGIN_PATH: OnceLock<PathBuf> = OnceLock::new();

/// Sets the plugin path. Only the first call has an effect.
pub fn set_plugin_path(path: &Path) {
    let _ = PLUGIN_PATH.set(path.to_owned());
}

/// Files of one installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    pub library: PathBuf,
    pub parser: PathBuf,
}

/// Returns the files of the library: those that `BYOC_TENSORRT_LIB` names (the library, or its directory), otherwise the
/// first found in the plugin's directory, in `vendor/tensorrt` in one of its ancestors, and in the package beside the
/// package of byoc.
///
/// # Errors
/// If there are none; the message names full TensorRT if that stands there.
pub fn find() -> Result<Files> {
    let chosen = std::env::var_os("BYOC_TENSORRT_LIB").filter(|value| !value.is_empty()).map(PathBuf::from);
    find_in(chosen, PLUGIN_PATH.get().map(PathBuf::as_path))
}

fn find_in(chosen: Option<PathBuf>, plugin: Option<&Path>) -> Result<Files> {
    if let Some(path) = chosen {
        let shown = path.display();
        let problem = |text: &str| Error::new(format!("BYOC_TENSORRT_LIB={shown}: {text}")).hint(INSTALL_HINT);
        let (dir, library) = match path.is_dir() {
            true => (path.clone(), newest(&path, LIBRARY)),
            false => (path.parent().unwrap_or(Path::new(".")).to_owned(), path.is_file().then(|| path.clone())),
        };
        let library = match (library, full_library(&path)) {
            (Some(library), found) if found.as_ref() != Some(&library) => library,
            (_, Some(found)) => return Err(full(&found).hint(INSTALL_HINT)),
            (_, None) => return Err(problem("expected libtensorrt_rtx.so.1 or its directory, found none")),
        };
        let parser = newest(&dir, PARSER);
        let parser = parser.ok_or_else(|| problem("expected libtensorrt_onnxparser_rtx.so.1 beside it, found none"))?;
        return Ok(Files { library, parser });
    }
    let dirs = directories(plugin);
    for dir in &dirs {
        if let (Some(library), Some(parser)) = (newest(dir, LIBRARY), newest(dir, PARSER)) {
            return Ok(Files { library, parser });
        }
    }
    match dirs.iter().find_map(|dir| full_library(dir)) {
        Some(found) => Err(full(&found).hint(INSTALL_HINT)),
        None => {
            Err(Error::new("expected the library TensorRT for RTX (libtensorrt_rtx.so.1), found none")
                .hint(INSTALL_HINT))
        }
    }
}

fn full(found: &Path) -> Error {
    let found = found.display();
    Error::new(format!(
        "expected TensorRT for RTX (libtensorrt_rtx.so.1), found full TensorRT, {found}, which has not been run"
    ))
}

/// Returns the library of full TensorRT that a path is, or that a directory holds.
fn full_library(path: &Path) -> Option<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name.starts_with("libnvinfer.so") && path.is_file() {
        return Some(path.to_owned());
    }
    FULL.iter().map(|name| path.join(name)).find(|file| file.is_file())
}

/// Returns the directories that are searched, in order.
fn directories(plugin: Option<&Path>) -> Vec<PathBuf> {
    let plugin = plugin.map(|path| path.canonicalize().unwrap_or_else(|_| path.to_owned()));
    let Some(dir) = plugin.as_deref().and_then(Path::parent) else { return Vec::new() };
    let mut directories = vec![dir.to_owned()];
    directories.extend(dir.ancestors().take(4).map(|ancestor| ancestor.join("vendor").join("tensorrt")));
    // In a Python environment the plugin is in `site-packages/byoc/plugins`.
    directories.extend(dir.ancestors().skip(1).take(2).map(|ancestor| ancestor.join(PACKAGE)));
    directories
}

/// Returns the file of a directory whose name begins with `name` and goes on with a version; the last one in order.
fn newest(dir: &Path, name: &str) -> Option<PathBuf> {
    let files = std::fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let is_named = |file: &PathBuf| {
        let rest = file.file_name().and_then(|file| file.to_str()).and_then(|file| file.strip_prefix(name));
        rest.is_some_and(|rest| rest.chars().all(|c| c == '.' || c.is_ascii_digit())) && file.is_file()
    };
    let mut files: Vec<PathBuf> = files.filter(is_named).collect();
    files.sort();
    files.pop()
}

/// Returns the files that CUDA's run time may be: that of `BYOC_CUDART_LIB`, those beside the library, then names that the
/// dynamic loader searches.
pub fn cuda_runtimes(library: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("BYOC_CUDART_LIB").filter(|value| !value.is_empty()) {
        return vec![PathBuf::from(path)];
    }
    let beside = library.and_then(Path::parent).and_then(|dir| newest(dir, CUDA_RUNTIME));
    beside.into_iter().chain(["libcudart.so.13", "libcudart.so.12", "libcudart.so"].map(PathBuf::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(dir: &Path, name: &str) -> PathBuf {
        std::fs::create_dir_all(dir).unwrap();
        let file = dir.join(name);
        std::fs::write(&file, "").unwrap();
        file
    }

    #[test]
    fn finds_library_beside_plugin_in_vendor_and_in_package() {
        let root = tempfile::tempdir().unwrap();
        let plugins = root.path().join("byoc").join("plugins");
        let plugin = touch(&plugins, "libbyoc_tensorrt.so");
        let missing = find_in(None, Some(&plugin)).unwrap_err();
        assert!(
            missing.message.ends_with("(libtensorrt_rtx.so.1), found none") && missing.hint.contains("pip install")
        );
        for dir in [root.path().join(PACKAGE), root.path().join("vendor/tensorrt"), plugins.clone()] {
            let dir = if dir.exists() { dir } else { touch(&dir, "x").parent().unwrap().to_owned() };
            let library = touch(&dir, "libtensorrt_rtx.so.1.7.1");
            touch(&dir, "libtensorrt_rtx.so.1.7.1.txt");
            let parser = touch(&dir, "libtensorrt_onnxparser_rtx.so.1.7.1");
            let found = find_in(None, Some(&plugin)).unwrap();
            let canonical = |path: &Path| path.canonicalize().unwrap();
            assert_eq!(canonical(&found.library), canonical(&library));
            assert_eq!(canonical(&found.parser), canonical(&parser));
        }
    }

    #[test]
    fn full_library_is_refused_by_name() {
        let root = tempfile::tempdir().unwrap();
        let file = touch(root.path(), "libnvinfer.so.10");
        for chosen in [root.path().to_owned(), file] {
            let error = find_in(Some(chosen), None).unwrap_err();
            assert!(error.message.contains("full TensorRT") && error.message.contains("libnvinfer.so.10"), "{error}");
        }
        let error = find_in(Some(root.path().join("none")), None).unwrap_err();
        assert!(error.message.ends_with("expected libtensorrt_rtx.so.1 or its directory, found none"), "{error}");
    }
}
