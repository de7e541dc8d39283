//! Discovery of plugin files: the directories searched, their order, and the candidates in them.

use crate::invocation;
use std::path::{Path, PathBuf};

/// Directory searched for plugins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchDir {
    /// Path of the directory.
    pub path: PathBuf,
    /// Reason for searching the directory, for messages.
    pub reason: &'static str,
    /// True if only files named `libbyoc_*` are candidates, because the directory also holds other libraries.
    pub prefixed_only: bool,
}

/// Returns the directories that the caller names, without duplicates.
pub fn given_dirs(plugin_dirs: &[PathBuf], reason: &'static str) -> Vec<SearchDir> {
    let mut dirs = Vec::new();
    plugin_dirs.iter().for_each(|path| add(&mut dirs, path.clone(), reason, false));
    dirs
}

/// Adds a directory unless it is already listed.
fn add(dirs: &mut Vec<SearchDir>, path: PathBuf, reason: &'static str, prefixed_only: bool) {
    let is_known = dirs.iter().any(|dir| is_same_dir(&dir.path, &path));
    if !path.as_os_str().is_empty() && !is_known {
        dirs.push(SearchDir { path, reason, prefixed_only });
    }
}

/// Returns the directories in order of precedence: `plugin_dirs`, `BYOC_PLUGIN_PATH`, `plugins/` beside the binary, the
/// binary's own directory, the user's data directory. The list contains no duplicates.
pub fn search_dirs(plugin_dirs: &[PathBuf]) -> Vec<SearchDir> {
    let mut dirs = given_dirs(plugin_dirs, "--plugin-dir");
    let mut add = |path, reason, prefixed_only| add(&mut dirs, path, reason, prefixed_only);
    if let Some(path) = std::env::var_os("BYOC_PLUGIN_PATH") {
        for dir in std::env::split_paths(&path) {
            add(dir, "BYOC_PLUGIN_PATH", false);
        }
    }
    if let Some(installed_dir) = invocation::directory() {
        add(installed_dir.join("plugins"), "beside the binary", false);
        add(installed_dir, "the binary's directory", true);
    }
    if let Some(data) = dirs::data_dir() {
        add(data.join("byoc").join("plugins"), "the user's data directory", false);
    }
    dirs
}

fn is_same_dir(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

/// Returns the candidate files of a directory, sorted by name: the files with the shared library extension.
///
/// # Errors
/// If the directory exists and cannot be read. A missing directory has no files.
pub fn candidates(dir: &SearchDir) -> std::io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(&dir.path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let is_library = path.extension().is_some_and(|e| e == std::env::consts::DLL_EXTENSION);
        if is_library && (!dir.prefixed_only || name.starts_with("libbyoc_")) && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
