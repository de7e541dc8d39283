//! Names in a bundle, its description, and its list of digests.

use serde::{Deserialize, Serialize};
use std::path::{Component, Path};

/// Version of the layout. A runner rejects every other version.
pub const FORMAT: u32 = 1;

/// Description of the bundle, [`Description`] as JSON.
pub const DESCRIPTION: &str = "bundle.json";
/// Digests of all other files, in the format of `b3sum`.
pub const CHECKSUMS: &str = "checksums.b3";
/// Artifact.
pub const MODEL: &str = "model.byoc";
/// Program that runs the artifact.
pub const RUNNER: &str = "bin/byoc-run";
/// Script that starts the runner through the loader of the bundle.
pub const START: &str = "run";
/// Folder of the plugins, and of files that they find beside themselves.
pub const PLUGINS: &str = "plugins";
/// Folder of the regions that are shared libraries.
pub const REGIONS: &str = "regions";
/// Folder of the C library, its loader, and all other libraries.
pub const LIBRARIES: &str = "lib";
/// Folder of the licenses.
pub const LICENSES: &str = "licenses";

/// Contents of a bundle. Paths are relative to the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Version of the layout, [`FORMAT`].
    pub format: u32,
    /// Name and version of the program that wrote the bundle.
    pub producer: String,
    /// Processor, in the words of Rust: `x86_64`.
    pub processor: String,
    /// CPU features that regions require. A region that requires more than a machine has runs on the host there.
    pub cpu_features: Vec<String>,
    /// Loader of the C library.
    pub loader: String,
    /// Plugins.
    pub plugins: Vec<Plugin>,
    /// Files of the regions, in the order of the artifact; `null` for a region that is not a library.
    pub regions: Vec<Option<String>>,
    /// Libraries, sorted by file.
    pub libraries: Vec<Library>,
}

/// Plugin of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plugin {
    /// Name of the plugin.
    pub name: String,
    /// Version of the plugin.
    pub version: String,
    /// Library of the plugin.
    pub file: String,
    /// Files that the plugin finds beside itself.
    pub files: Vec<String>,
}

/// Library of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Library {
    /// File of the library.
    pub file: String,
    /// License: a file of the bundle, or an SPDX expression; `null` if unknown.
    pub license: Option<String>,
}

/// Tests for a relative path that stays below its folder, with `/` between names.
pub fn is_inside(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Tests for the name of a file, without a folder.
pub fn is_file_name(name: &str) -> bool {
    is_inside(name) && !name.contains('/')
}

/// Returns the list of digests as text: a line for each file, with its digest in hexadecimal, two spaces, and its path.
pub fn checksums<'a>(files: impl IntoIterator<Item = (&'a str, blake3::Hash)>) -> String {
    files.into_iter().map(|(path, digest)| format!("{}  {path}\n", digest.to_hex())).collect()
}

/// Returns the digests by path.
///
/// # Errors
/// A malformed line, which the message names.
pub fn parse_checksums(text: &str) -> Result<Vec<(String, blake3::Hash)>, String> {
    let mut files = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let (digest, path) = line.split_once("  ").unwrap_or((line, ""));
        let digest = blake3::Hash::from_hex(digest).map_err(|_| format!("line {number}: expected a digest"))?;
        if !is_inside(path) {
            return Err(format!("line {number}: expected a path inside the bundle"));
        }
        files.push((path.to_owned(), digest));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_round_trip_and_name_only_files_inside() {
        let digest = blake3::hash(b"text");
        let text = checksums([("lib/a b.so", digest), ("run", digest)]);
        let files = parse_checksums(&text).unwrap();
        assert_eq!(files, [("lib/a b.so".to_owned(), digest), ("run".to_owned(), digest)]);
        for path in ["", "/etc/passwd", "../a", "lib/../../a"] {
            let error = parse_checksums(&checksums([("run", digest), (path, digest)])).unwrap_err();
            assert_eq!(error, "line 2: expected a path inside the bundle");
        }
        assert_eq!(parse_checksums(&text[1..]).unwrap_err(), "line 1: expected a digest");
    }
}
