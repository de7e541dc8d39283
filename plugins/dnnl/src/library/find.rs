//! Where oneDNN is looked for.

use byoc_plugin_api::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What to do where the library is missing.
pub const INSTALL: &str = "in a checkout run `cargo xtask fetch-onednn`; elsewhere `pip install onednn-cpu-gomp==2023.2.0` \
into an environment and set BYOC_DNNL_LIB to its lib/libdnnl.so.3";

/// The library's name, by version.
const NAME: &str = "libdnnl.so.3";

static PLUGIN: OnceLock<PathBuf> = OnceLock::new();

/// Says where the plugin lies. The first call counts.
pub fn set_plugin_path(path: &Path) {
    let _ = PLUGIN.set(path.to_owned());
}

/// The file to open: `BYOC_DNNL_LIB`; beside the plugin; `vendor/onednn` beside the plugin or up to three folders above it;
/// the name alone, for the system's loader.
///
/// # Errors
/// Where `BYOC_DNNL_LIB` names no file, or the file that was found is not whole.
pub fn find() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("BYOC_DNNL_LIB").filter(|value| !value.is_empty()) {
        let file = PathBuf::from(named);
        return check(&file).map(|()| file).map_err(|what| {
            Error::new(format!(
                "BYOC_DNNL_LIB is {}, {what}",
                Path::new(&std::env::var_os("BYOC_DNNL_LIB").unwrap_or_default()).display()
            ))
            .hint(INSTALL)
        });
    }
    for file in places(PLUGIN.get().map(PathBuf::as_path)) {
        if file.is_file() {
            return check(&file)
                .map(|()| file.clone())
                .map_err(|what| Error::new(format!("{}: {what}", file.display())).hint(INSTALL));
        }
    }
    Ok(PathBuf::from(NAME))
}

/// The places beside and above the plugin.
fn places(plugin: Option<&Path>) -> Vec<PathBuf> {
    let plugin = plugin.map(|path| path.canonicalize().unwrap_or_else(|_| path.to_owned()));
    let Some(folder) = plugin.as_deref().and_then(Path::parent) else { return Vec::new() };
    let mut places = vec![folder.join(NAME)];
    places.extend(folder.ancestors().take(4).map(|above| above.join("vendor").join("onednn").join(NAME)));
    places
}

/// Returns true if a file is a whole shared library: mapping a part of one ends the process.
fn check(file: &Path) -> std::result::Result<(), String> {
    use std::io::Read;
    let mut header = [0u8; 64];
    let mut open = std::fs::File::open(file).map_err(|error| format!("which cannot be opened: {error}"))?;
    open.read_exact(&mut header).map_err(|_| "which is no shared library".to_owned())?;
    if header[..5] != *b"\x7fELF\x02" {
        return Err("which is no 64-bit shared library".into());
    }
    let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
    let short = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
    // The section headers stand at the end of the file.
    let end = long(40).saturating_add(short(58) * short(60));
    let length = open.metadata().map_err(|error| error.to_string())?.len();
    if length < end {
        return Err(format!("which is cut off: {length} bytes of {end}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_beside_the_plugin_and_in_the_vendor_folders_above() {
        let found = places(Some(Path::new("/a/b/c/d/libbyoc_dnnl.so")));
        let wanted = [
            "/a/b/c/d/libdnnl.so.3",
            "/a/b/c/d/vendor/onednn/libdnnl.so.3",
            "/a/b/c/vendor/onednn/libdnnl.so.3",
            "/a/b/vendor/onednn/libdnnl.so.3",
            "/a/vendor/onednn/libdnnl.so.3",
        ];
        assert_eq!(found, wanted.map(PathBuf::from));
        assert!(places(None).is_empty());
    }

    #[test]
    fn a_library_that_is_cut_off_is_not_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        assert_eq!(check(&own), Ok(()));
        let bytes = std::fs::read(own).unwrap();
        let part = folder.path().join("part.so");
        std::fs::write(&part, &bytes[..bytes.len() / 2]).unwrap();
        assert!(check(&part).unwrap_err().starts_with("which is cut off"));
        std::fs::write(&part, "text").unwrap();
        assert_eq!(check(&part).unwrap_err(), "which is no shared library");
        assert!(check(&folder.path().join("none")).unwrap_err().starts_with("which cannot be opened"));
    }
}
