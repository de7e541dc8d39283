//! File names, description and digest list of a bundle.

use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// Version of the bundle layout. A runner rejects all versions except its own.
pub const FORMAT: u32 = 1;

/// Name of the description file, which contains [`Description`] as JSON.
pub const DESCRIPTION: &str = "bundle.json";
/// Name of the list with the digests of all files except the list itself, in the format of `b3sum`.
pub const CHECKSUMS: &str = "checksums.b3";
/// Name of the artifact.
pub const MODEL: &str = "model.byoc";
/// Path of the runner, the executable that runs the artifact.
pub const RUNNER: &str = "bin/byoc-run";
/// Name of the script that starts the runner through the dynamic loader of the bundle.
pub const START: &str = "run";
/// Directory of the plugins and their accompanying files.
pub const PLUGINS: &str = "plugins";
/// Directory of the regions that are compiled to shared libraries.
pub const REGIONS: &str = "regions";
/// Directory of the dynamic loader and all shared libraries, including the C library.
pub const LIBRARIES: &str = "lib";
/// Directory of the licenses.
pub const LICENSES: &str = "licenses";

/// Description of a bundle's contents. Paths are relative to the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Version of the bundle layout, [`FORMAT`].
    pub format: u32,
    /// Name and version of the program that wrote the bundle.
    pub producer: String,
    /// Processor architecture in Rust's spelling, such as `x86_64`.
    pub processor: String,
    /// CPU features that regions require. On a machine without a required feature, the region falls back to the host.
    pub cpu_features: Vec<String>,
    /// Path of the dynamic loader.
    pub loader: String,
    /// Plugins of the bundle.
    pub plugins: Vec<Plugin>,
    /// Paths of the region libraries, in the order of the artifact; `null` for a region that is not a library.
    pub regions: Vec<Option<String>>,
    /// Shared libraries, sorted by path.
    pub libraries: Vec<Library>,
}

/// Plugin in a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plugin {
    /// Name of the plugin.
    pub name: String,
    /// Version of the plugin.
    pub version: String,
    /// Path of the plugin's shared library.
    pub file: String,
    /// Paths of the files that the plugin opens in its own directory.
    pub files: Vec<String>,
}

/// Shared library in a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Library {
    /// Path of the library.
    pub file: String,
    /// License: the path of a file in the bundle, or an SPDX expression; `null` if unknown.
    pub license: Option<String>,
}

/// Tests for a relative path without `.` and `..` components; such a path stays inside its base directory.
pub fn is_inside(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Tests for a file name without directory components.
pub fn is_file_name(name: &str) -> bool {
    is_inside(name) && !name.contains('/')
}

/// Returns the target of the link at `path` to the libraries of the bundle. Programs name the dynamic loader by a path
/// such as `/lib64/ld-linux-x86-64.so.2`.
pub fn library_link(path: &Path) -> PathBuf {
    let parents: PathBuf = std::iter::repeat_n("..", path.components().count().saturating_sub(1)).collect();
    parents.join(LIBRARIES)
}

/// Formats the digest list: one line per file, with the hexadecimal digest, two spaces, and the path.
pub fn checksums<'a>(files: impl IntoIterator<Item = (&'a str, blake3::Hash)>) -> String {
    files.into_iter().map(|(path, digest)| format!("{}  {path}\n", digest.to_hex())).collect()
}

/// Parses a digest list into (path, digest) pairs.
///
/// # Errors
/// If a line has an invalid digest or a path outside the bundle. The message contains the line number.
pub fn parse_checksums(text: &str) -> Result<Vec<(String, blake3::Hash)>, String> {
    let mut files = Vec::new();
    for (line_number, line) in (1..).zip(text.lines()) {
        let (digest, path) = line.split_once("  ").unwrap_or((line, ""));
        let digest = blake3::Hash::from_hex(digest)
            .map_err(|_| format!("line {line_number}: expected a digest, found \"{digest}\""))?;
        if !is_inside(path) {
            return Err(format!("line {line_number}: expected a path inside the bundle, found \"{path}\""));
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
            assert_eq!(error, format!("line 2: expected a path inside the bundle, found \"{path}\""));
        }
        let error = parse_checksums(&text[1..]).unwrap_err();
        assert_eq!(error, format!("line 1: expected a digest, found \"{}\"", &digest.to_hex()[1..]));
    }
}
