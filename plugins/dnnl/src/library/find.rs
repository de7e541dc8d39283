//! Search for the oneDNN library.

use byoc_plugin_api::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Hint for installing the library.
pub const INSTALL_HINT: &str = "in a checkout, run `cargo xtask fetch-onednn`; elsewhere, run `pip install onednn-cpu-gomp==2023.2.0` \
into an environment and set BYOC_DNNL_LIB to its lib/libdnnl.so.3";

/// File name of the library, with its major version.
pub const FILE_NAME: &str = "libdnnl.so.3";

static PLUGIN_PATH: OnceLock<PathBuf> = OnceLock::new();

/// Sets the plugin path. Only the first call has an effect.
pub fn set_plugin_path(path: &Path) {
    let _ = PLUGIN_PATH.set(path.to_owned());
}

/// Returns the library path. Candidates, in order: `BYOC_DNNL_LIB`; the plugin's directory; `vendor/onednn` in the
/// plugin's directory or in one of its three closest ancestors; the bare file name, for the dynamic loader to search.
///
/// # Errors
/// If the file named by `BYOC_DNNL_LIB`, or the file found, is not a complete shared library.
pub fn find() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("BYOC_DNNL_LIB").filter(|value| !value.is_empty()) {
        let file = PathBuf::from(path);
        return check(&file).map(|()| file).map_err(|problem| {
            Error::new(format!(
                "{} (BYOC_DNNL_LIB): {problem}",
                Path::new(&std::env::var_os("BYOC_DNNL_LIB").unwrap_or_default()).display()
            ))
            .hint(INSTALL_HINT)
        });
    }
    for file in candidates(PLUGIN_PATH.get().map(PathBuf::as_path)) {
        if file.is_file() {
            return check(&file)
                .map(|()| file.clone())
                .map_err(|problem| Error::new(format!("{}: {problem}", file.display())).hint(INSTALL_HINT));
        }
    }
    Ok(PathBuf::from(FILE_NAME))
}

/// Returns the candidates in the plugin's directory and the directories above it.
fn candidates(plugin: Option<&Path>) -> Vec<PathBuf> {
    let plugin = plugin.map(|path| path.canonicalize().unwrap_or_else(|_| path.to_owned()));
    let Some(dir) = plugin.as_deref().and_then(Path::parent) else { return Vec::new() };
    let mut candidates = vec![dir.join(FILE_NAME)];
    candidates.extend(dir.ancestors().take(4).map(|ancestor| ancestor.join("vendor").join("onednn").join(FILE_NAME)));
    candidates
}

/// Returns the path of the loaded library: `file`, or the path that the dynamic loader mapped if `file` is a bare name.
///
/// # Errors
/// If `/proc/self/maps` does not list the library, or the current directory is not accessible.
pub fn mapped_path(file: &Path) -> Result<PathBuf> {
    if file.parent().is_some_and(|dir| !dir.as_os_str().is_empty()) {
        return Ok(std::path::absolute(file)?);
    }
    let library_path = file.display();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let suffix = format!("/{FILE_NAME}");
    let path =
        maps.lines().filter_map(|line| line.find('/').map(|start| &line[start..])).find(|path| path.contains(&suffix));
    path.map(PathBuf::from)
        .ok_or_else(|| Error::new(format!("{library_path}: /proc/self/maps does not list the library")))
}

/// Checks that a file is a complete shared library, because loading a truncated library would kill the process.
fn check(file: &Path) -> std::result::Result<(), String> {
    use std::io::Read;
    let mut header = [0u8; 64];
    let mut handle = std::fs::File::open(file).map_err(|error| format!("cannot open the file: {error}"))?;
    handle
        .read_exact(&mut header)
        .map_err(|_| "expected a shared library, found a file without an ELF header".to_owned())?;
    if header[..5] != *b"\x7fELF\x02" {
        return Err("expected a 64-bit ELF shared library, found another kind of file".into());
    }
    let read_u64 = |offset: usize| u64::from_le_bytes(header[offset..offset + 8].try_into().unwrap_or_default());
    let read_u16 = |offset: usize| u64::from(u16::from_le_bytes([header[offset], header[offset + 1]]));
    // The section header table is at the end of the file.
    let end = read_u64(40).saturating_add(read_u16(58) * read_u16(60));
    let length = handle.metadata().map_err(|error| error.to_string())?.len();
    if length < end {
        return Err(format!("truncated shared library: expected {end} bytes, found {length}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_plugin_folder_and_vendor_folders_above() {
        let actual = candidates(Some(Path::new("/a/b/c/d/libbyoc_dnnl.so")));
        let expected = [
            "/a/b/c/d/libdnnl.so.3",
            "/a/b/c/d/vendor/onednn/libdnnl.so.3",
            "/a/b/c/vendor/onednn/libdnnl.so.3",
            "/a/b/vendor/onednn/libdnnl.so.3",
            "/a/vendor/onednn/libdnnl.so.3",
        ];
        assert_eq!(actual, expected.map(PathBuf::from));
        assert!(candidates(None).is_empty());
    }

    #[test]
    fn rejects_truncated_library() {
        let dir = tempfile::tempdir().unwrap();
        let executable = std::env::current_exe().unwrap();
        assert_eq!(check(&executable), Ok(()));
        let bytes = std::fs::read(executable).unwrap();
        let truncated_file = dir.path().join("part.so");
        std::fs::write(&truncated_file, &bytes[..bytes.len() / 2]).unwrap();
        assert!(check(&truncated_file).unwrap_err().starts_with("truncated shared library"));
        std::fs::write(&truncated_file, "text").unwrap();
        assert_eq!(
            check(&truncated_file).unwrap_err(),
            "expected a shared library, found a file without an ELF header"
        );
        assert!(check(&dir.path().join("none")).unwrap_err().starts_with("cannot open the file"));
    }
}
