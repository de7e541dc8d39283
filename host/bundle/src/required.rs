//! Files that plugins and regions need at run time, as reported by their loaders.

use crate::contents;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_plugin_api::Loader;
use byoc_runtime::Session;
use byoc_runtime::compiled::CompiledRegion;
use byoc_runtime::error::fault;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Loader query key for the files that a loader requires at run time in addition to its plugin.
const FILES: &str = "byoc.files.1";

/// Loader query key for the shared library in a blob.
const LIBRARY: &str = "blob.library";

/// File that a plugin opens at run time.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RequiredFile {
    /// Path on this machine.
    pub path: PathBuf,
    /// Name under which the plugin opens the file in its own directory; by default the file name of `path`.
    #[serde(default)]
    pub name: String,
    /// License, as an SPDX expression.
    #[serde(default)]
    pub license: Option<String>,
}

/// Plugin required by an artifact.
#[derive(Clone, Debug)]
pub struct RequiredPlugin {
    /// Name of the plugin.
    pub name: String,
    /// Version of the plugin.
    pub version: String,
    /// Path of the plugin's shared library.
    pub path: PathBuf,
    /// Files that the plugin opens in its own directory.
    pub files: Vec<RequiredFile>,
}

/// Plugins and region libraries required by an artifact.
#[derive(Clone, Debug, Default)]
pub struct Requirements {
    /// Plugins, sorted by path.
    pub plugins: Vec<RequiredPlugin>,
    /// Shared libraries of the regions, in order; `None` for a region whose blob contains no library.
    pub regions: Vec<Option<Vec<u8>>>,
}

/// Returns the plugins, files and libraries required by the regions.
///
/// # Errors
/// E0709 if a plugin is missing, reports that it cannot be part of a bundle, or returns an invalid response.
pub fn required_files<'a>(
    session: &Session,
    regions: impl IntoIterator<Item = &'a CompiledRegion>,
) -> Result<Requirements, Diagnostic> {
    let mut requirements = Requirements::default();
    let mut queries: BTreeSet<(&Path, &str)> = BTreeSet::new();
    for region in regions {
        let missing_plugin = || {
            let (key, plugin) = (&region.loader, &region.plugin);
            let message = format!("region {}: no plugin registers the loader \"loadbinary_{key}\"", region.symbol);
            let origin = format!("compiled by plugin {} {}", plugin.name, plugin.version);
            session
                .registry
                .inventory(refusal(message).note(origin))
                .help("pass the plugin's directory with --plugin-dir")
        };
        let file = session.registry.loader_file(&region.loader, &region.plugin.name).ok_or_else(missing_plugin)?;
        let plugin = file.plugin().ok_or_else(missing_plugin)?;
        let loader: Arc<dyn Loader> = plugin.loader(&region.loader).ok_or_else(missing_plugin)?;
        // A plugin may have several loaders, each with its own files.
        if queries.insert((file.path.as_path(), region.loader.as_str())) {
            let files = files(loader.as_ref(), &file.path, &plugin.name)?;
            match requirements.plugins.iter_mut().find(|plugin| plugin.path == file.path) {
                Some(known_plugin) => {
                    let new: Vec<RequiredFile> =
                        files.into_iter().filter(|file| !known_plugin.files.contains(file)).collect();
                    known_plugin.files.extend(new);
                }
                None => {
                    let (name, version) = (plugin.name.clone(), plugin.version.clone());
                    requirements.plugins.push(RequiredPlugin { name, version, path: file.path.clone(), files });
                }
            }
        }
        let library = loader.query(LIBRARY, &region.blob);
        requirements.regions.push(library.map_err(|error| loader_error(&plugin.name, &fault(&error)))?);
    }
    requirements.plugins.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(requirements)
}

/// Returns the files that a plugin needs in its directory: the files named by the loader, and the configuration file
/// with the base name of the plugin's library.
fn files(loader: &dyn Loader, plugin: &Path, name: &str) -> Result<Vec<RequiredFile>, Diagnostic> {
    let reply = loader.query(FILES, &[]).map_err(|error| loader_error(name, &fault(&error)))?;
    let response_error = |reason: String| refusal(format!("plugin {name}: {FILES}: {reason}"));
    let mut files: Vec<RequiredFile> = match &reply {
        Some(reply) => serde_json::from_slice(reply).map_err(|error| response_error(error.to_string()))?,
        None => Vec::new(),
    };
    let configuration = plugin.with_extension("json");
    if configuration.is_file() {
        files.push(RequiredFile { path: configuration, name: String::new(), license: None });
    }
    for file in &mut files {
        if file.name.is_empty() {
            file.name = file.path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        }
        if !contents::is_file_name(&file.name) {
            return Err(response_error(format!("expected a file name, found \"{}\"", file.name)));
        }
        if !file.path.is_file() {
            let path = file.path.display();
            return Err(refusal(format!("plugin {name} requires {path}, which is not a regular file")));
        }
    }
    Ok(files)
}

/// Returns the libraries that are mapped into this process; empty if the system does not report mappings.
pub fn mapped_libraries() -> BTreeSet<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let paths = maps.lines().filter_map(|line| line.find('/').map(|start| &line[start..]));
    let is_library = |path: &&str| path.ends_with(".so") || path.contains(".so.");
    paths.filter(is_library).map(PathBuf::from).collect()
}

/// Returns the diagnostic for an artifact that cannot be bundled.
pub fn refusal(message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(codes::artifacts::NOT_BUNDLABLE, message)
}

/// Returns the diagnostic for a plugin that cannot be bundled, with the plugin's reason.
fn loader_error(plugin: &str, reason: &Diagnostic) -> Diagnostic {
    let refusal = refusal(format!("plugin {plugin} cannot be bundled: {}", reason.message));
    match &reason.help {
        Some(help) => refusal.help(help.clone()),
        None => refusal,
    }
}
