//! Registry of `relay.ext.<name>` and `loadbinary_<key>`: the plugin files found, and the results of loading them on
//! demand.

use super::discover::{SearchDir, candidates, search_dirs};
use crate::error::Failure;
use byoc_ir::diag::{Code, Diagnostic, codes, nearest};
use byoc_plugin_api::host::{self, LoadedPlugin, RegisteredObject, Registration, Rejection};
use byoc_plugin_api::{CODEGEN_PREFIX, Codegen, LOADER_PREFIX, Loader, Services};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Result of loading a file.
#[derive(Debug)]
pub enum Status {
    /// The plugin is loaded, and its registrations are available.
    Loaded(LoadedPlugin),
    /// The plugin was rejected for this reason.
    Rejected(Rejection),
    /// The plugin is unused because a file in an earlier directory registers the same name.
    Shadowed {
        /// Name of the plugin.
        name: String,
        /// Version of the plugin.
        version: String,
        /// File that takes precedence.
        by: PathBuf,
    },
}

/// Plugin file that was loaded or rejected.
#[derive(Debug)]
pub struct PluginFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Result of loading the file.
    pub status: Status,
    digest: OnceLock<String>,
}

impl PluginFile {
    fn new(path: PathBuf, status: Status) -> PluginFile {
        PluginFile { path, status, digest: OnceLock::new() }
    }

    /// Returns the BLAKE3 digest of the file; empty if it is no longer readable.
    pub fn digest(&self) -> &str {
        self.digest.get_or_init(|| {
            std::fs::read(&self.path).map(|bytes| blake3::hash(&bytes).to_hex().to_string()).unwrap_or_default()
        })
    }

    /// Returns the plugin, if the file is loaded.
    pub fn plugin(&self) -> Option<&LoadedPlugin> {
        match &self.status {
            Status::Loaded(plugin) => Some(plugin),
            _ => None,
        }
    }
}

/// Candidate file, and the result of loading it on demand.
struct CandidateFile {
    path: PathBuf,
    /// Index of the directory in [`Registry::dirs`].
    dir: usize,
    found: OnceLock<PluginFile>,
}

/// Registered names, each with the index of its file.
#[derive(Default)]
struct Names {
    codegens: BTreeMap<String, usize>,
    loaders: BTreeMap<String, usize>,
}

/// Plugin files of the directories searched, and the names that they register.
///
/// A file is loaded on demand, so that a misbehaving plugin affects only its users. The names that a file registers are
/// unknown until it is loaded, so a name is looked up in two stages:
///
/// 1. directory by directory, in files named `libbyoc_<name>` and in files whose bytes contain the name;
/// 2. then, if no such file registers it, directory by directory in all remaining files.
///
/// Among the loaded files, an earlier directory takes precedence, and a name registered twice in one directory is
/// rejected.
pub struct Registry {
    /// Directories searched, in order.
    pub dirs: Vec<SearchDir>,
    services: Option<Services>,
    files: OnceLock<Vec<CandidateFile>>,
    names: Mutex<Names>,
}

/// Kind and name of the registration to look up.
#[derive(Clone, Copy)]
enum Lookup<'a> {
    Codegen(&'a str),
    Loader(&'a str),
}

impl<'a> Lookup<'a> {
    fn name(self) -> &'a str {
        match self {
            Lookup::Codegen(name) | Lookup::Loader(name) => name,
        }
    }
}

impl Names {
    fn get(&self, lookup: Lookup<'_>) -> Option<usize> {
        match lookup {
            Lookup::Codegen(name) => self.codegens.get(name).copied(),
            Lookup::Loader(key) => self.loaders.get(key).copied(),
        }
    }

    fn owner(&self, registration: &str) -> Option<usize> {
        self.get(match registration.strip_prefix(CODEGEN_PREFIX) {
            Some(name) => Lookup::Codegen(name),
            None => Lookup::Loader(registration.strip_prefix(LOADER_PREFIX)?),
        })
    }

    fn add(&mut self, registration: &Registration, file: usize) {
        let (map, prefix) = match registration.object {
            RegisteredObject::Codegen(_) => (&mut self.codegens, CODEGEN_PREFIX),
            RegisteredObject::Loader(_) => (&mut self.loaders, LOADER_PREFIX),
            RegisteredObject::Data(_) => return,
        };
        let name = registration.name.strip_prefix(prefix).unwrap_or(&registration.name);
        map.entry(name.to_owned()).or_insert(file);
    }
}

/// Plugins of this process that come from no file. They are never unloaded, so their files live as long as the process.
static IN_PROCESS: Mutex<BTreeMap<String, &'static PluginFile>> = Mutex::new(BTreeMap::new());

fn in_process() -> MutexGuard<'static, BTreeMap<String, &'static PluginFile>> {
    IN_PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a plugin of this process with every registry, in place of an earlier one of the same name. It takes
/// precedence over files.
pub fn register_in_process(plugin: LoadedPlugin) {
    let (name, path) = (plugin.name.clone(), plugin.path.clone());
    let file: &'static PluginFile = Box::leak(Box::new(PluginFile::new(path, Status::Loaded(plugin))));
    in_process().insert(name, file);
}

/// Removes a plugin of this process. Programs that were compiled with it keep it.
pub fn unregister_in_process(name: &str) {
    in_process().remove(name);
}

impl Registry {
    /// Returns a registry without plugins.
    pub fn empty() -> Registry {
        Registry { dirs: Vec::new(), services: None, files: OnceLock::from(Vec::new()), names: Mutex::default() }
    }

    /// Returns a registry of the plugins in the search directories. No plugin is loaded yet.
    pub fn discover(plugin_dirs: &[PathBuf], services: &Services) -> Registry {
        Registry::of_dirs(search_dirs(plugin_dirs), services)
    }

    /// Returns a registry of the plugins in exactly the given directories. No plugin is loaded yet.
    pub fn of_dirs(dirs: Vec<SearchDir>, services: &Services) -> Registry {
        Registry { dirs, services: Some(services.clone()), files: OnceLock::new(), names: Mutex::default() }
    }

    /// Returns a registry of one file, loaded as if it were the only file in a plugin directory.
    pub fn of_file(path: &Path, services: &Services) -> Registry {
        let file = CandidateFile { path: path.to_owned(), dir: 0, found: OnceLock::new() };
        let registry =
            Registry { services: Some(services.clone()), files: OnceLock::from(vec![file]), ..Registry::empty() };
        registry.load_all();
        registry
    }

    /// Returns the candidate files, in order. A directory that cannot be read appears as one rejected file.
    fn files(&self) -> &[CandidateFile] {
        self.files.get_or_init(|| {
            let mut files = Vec::new();
            for (index, dir) in self.dirs.iter().enumerate() {
                let file = |path| CandidateFile { path, dir: index, found: OnceLock::new() };
                match candidates(dir) {
                    Ok(paths) => files.extend(paths.into_iter().map(file)),
                    Err(error) => {
                        let reason = format!("cannot read the directory: {error}");
                        let code = host::code::UNREADABLE;
                        let status = Status::Rejected(Rejection { code, reason, hint: None, details: Vec::new() });
                        let plugin_file = OnceLock::from(PluginFile::new(dir.path.clone(), status));
                        files.push(CandidateFile { path: dir.path.clone(), dir: index, found: plugin_file });
                    }
                }
            }
            files
        })
    }

    /// Returns the files loaded or rejected so far, in search order.
    pub fn found(&self) -> impl Iterator<Item = &PluginFile> {
        let in_process: Vec<&'static PluginFile> = in_process().values().copied().collect();
        self.files().iter().filter_map(|file| file.found.get()).chain(in_process)
    }

    /// Loads every plugin.
    pub fn load_all(&self) {
        let mut names = self.names();
        for dir in 0..self.dirs.len().max(1) {
            self.load(&mut names, dir, |_| true);
        }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the index of the file that registers `lookup`. `plugin` is the name of the plugin that probably
    /// registers it.
    fn find(&self, lookup: Lookup<'_>, plugin: &str) -> Option<usize> {
        let mut names = self.names();
        if let Some(file) = names.get(lookup) {
            return Some(file);
        }
        let file_names = [format!("libbyoc_{plugin}"), format!("libbyoc_{}", lookup.name())];
        let is_likely = |path: &Path| {
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            file_names.iter().any(|name| name == stem) || host::contains_text(path, lookup.name())
        };
        let (files, dirs) = (&is_likely as &dyn Fn(&Path) -> bool, 0..self.dirs.len().max(1));
        for filter in [files, &|_| true] {
            for dir in dirs.clone() {
                self.load(&mut names, dir, filter);
                if let Some(file) = names.get(lookup) {
                    return Some(file);
                }
            }
        }
        None
    }

    /// Loads the selected files of one directory that are not loaded yet. A file is shadowed if a file in another
    /// directory has registered one of its names. If a name is registered twice in this directory, both files are
    /// rejected, or only the later file if the earlier file is already loaded.
    fn load(&self, names: &mut Names, dir: usize, filter: impl Fn(&Path) -> bool) {
        let Some(services) = &self.services else { return };
        let files = self.files();
        let new =
            |file: &&(usize, &CandidateFile)| file.1.dir == dir && file.1.found.get().is_none() && filter(&file.1.path);
        let numbered_files: Vec<(usize, &CandidateFile)> = files.iter().enumerate().collect();
        let loaded_plugins: Vec<(usize, Result<LoadedPlugin, Rejection>)> =
            numbered_files.iter().filter(new).map(|&(index, file)| (index, load_file(&file.path, services))).collect();
        let mut owners: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, plugin) in &loaded_plugins {
            // Only code generators and loaders are selected by name; data objects are read under names that their
            // readers choose.
            let is_named = |r: &&Registration| !matches!(r.object, RegisteredObject::Data(_));
            for registration in plugin.iter().flat_map(|p| &p.registrations).filter(is_named) {
                owners.entry(registration.name.clone()).or_default().push(*index);
            }
        }
        let mut files_in_use = Vec::new();
        for (index, plugin) in loaded_plugins {
            let status = match plugin {
                Err(rejection) => Status::Rejected(rejection),
                Ok(plugin) => {
                    let owner = |r: &Registration| Some((r.name.clone(), names.owner(&r.name)?));
                    let earlier_owner = plugin.registrations.iter().find_map(owner);
                    let duplicate = plugin.registrations.iter().find_map(|r| {
                        let other = owners.get(&r.name)?.iter().find(|other| **other != index)?;
                        Some((r.name.clone(), *other))
                    });
                    match (earlier_owner, duplicate) {
                        (Some((_, owner_index)), _) if files[owner_index].dir != dir => Status::Shadowed {
                            name: plugin.name.clone(),
                            version: plugin.version.clone(),
                            by: files[owner_index].path.clone(),
                        },
                        (Some((name, other)), _) | (None, Some((name, other))) => Status::Rejected(Rejection {
                            code: "E0409",
                            reason: format!("{} also registers {name}", files[other].path.display()),
                            hint: Some("remove one of the two files from the directory".into()),
                            details: Vec::new(),
                        }),
                        (None, None) => Status::Loaded(plugin),
                    }
                }
            };
            let file = &files[index];
            let plugin_file = file.found.get_or_init(|| PluginFile::new(file.path.clone(), status));
            files_in_use.push((index, plugin_file));
        }
        for (index, plugin_file) in files_in_use {
            for registration in plugin_file.plugin().iter().flat_map(|p| &p.registrations) {
                names.add(registration, index);
            }
        }
    }

    /// Returns the names of all code generators, sorted. Loads every plugin.
    pub fn backends(&self) -> Vec<String> {
        self.load_all();
        let mut backends: Vec<String> = self.names().codegens.keys().cloned().collect();
        backends.extend(in_process().keys().cloned());
        backends.sort();
        backends.dedup();
        backends
    }

    /// Returns the code generator `relay.ext.<name>` and its file.
    ///
    /// # Errors
    /// E0401 if no plugin registers `name`. The notes list the directories searched and the files loaded or rejected;
    /// the help suggests the nearest name.
    pub fn codegen(&self, name: &str) -> Result<(Arc<dyn Codegen>, &PluginFile), Failure> {
        if let Some((codegen, file)) =
            in_process().values().find_map(|file| Some((file.plugin()?.codegen(name)?, *file)))
        {
            return Ok((codegen, file));
        }
        let entry = self.find(Lookup::Codegen(name), name).and_then(|index| {
            let plugin_file = self.files()[index].found.get()?;
            Some((plugin_file.plugin()?.codegen(name)?, plugin_file))
        });
        entry.ok_or_else(|| {
            let backend_names = self.backends();
            let backend_names: Vec<&str> = backend_names.iter().map(String::as_str).collect();
            let bare = name.strip_prefix(CODEGEN_PREFIX).unwrap_or(name);
            let message = match bare == name {
                true => format!("no plugin registers the code generator \"{CODEGEN_PREFIX}{name}\""),
                false => format!("expected the name of a backend without \"{CODEGEN_PREFIX}\", found \"{name}\""),
            };
            let mut diagnostic = self.inventory(Diagnostic::error(codes::plugins::NO_CODEGEN, message));
            diagnostic = match nearest_backend(bare, &backend_names) {
                Some(suggestion) => diagnostic.help(format!("did you mean --backend {suggestion}?")),
                None if backend_names.is_empty() => {
                    diagnostic.help("copy the backend's shared library to one of these directories, or add another with --plugin-dir DIR")
                }
                None => diagnostic.help(format!("select one of the available backends: {}", backend_names.join(", "))),
            };
            diagnostic.into()
        })
    }

    /// Returns the loader `loadbinary_<key>`. `plugin` is the name of the plugin that compiled the region.
    pub fn loader(&self, key: &str, plugin: &str) -> Option<Arc<dyn Loader>> {
        self.loader_file(key, plugin)?.plugin()?.loader(key)
    }

    /// Returns the plugin file that registers `loadbinary_<key>`. The arguments are the same as for
    /// [`Registry::loader`].
    pub fn loader_file(&self, key: &str, plugin: &str) -> Option<&PluginFile> {
        let has_loader = |file: &PluginFile| file.plugin().is_some_and(|plugin| plugin.loader(key).is_some());
        if let Some(file) = in_process().values().copied().find(|file| has_loader(file)) {
            return Some(file);
        }
        let index = self.find(Lookup::Loader(key), plugin)?;
        self.files()[index].found.get()
    }

    /// Adds notes on the directories searched and the files loaded and rejected.
    pub fn inventory(&self, mut diagnostic: Diagnostic) -> Diagnostic {
        for dir in &self.dirs {
            let state = if dir.path.is_dir() { "" } else { ", does not exist" };
            diagnostic = diagnostic.note(format!("searched {} ({}{state})", dir.path.display(), dir.reason));
        }
        for plugin_file in self.found() {
            let path = plugin_file.path.display();
            diagnostic = diagnostic.note(match &plugin_file.status {
                Status::Loaded(plugin) => {
                    let names: Vec<&str> = plugin.registrations.iter().map(|r| r.name.as_str()).collect();
                    format!("loaded {path}: {} {} ({})", plugin.name, plugin.version, names.join(", "))
                }
                Status::Rejected(rejection) => format!("rejected {path}: {rejection}"),
                Status::Shadowed { name, by: owner_index, .. } => {
                    format!("shadowed {path}: {} already registers {name}", owner_index.display())
                }
            });
        }
        if self.found().next().is_none() {
            diagnostic = diagnostic.note("found no plugin files in these directories");
        }
        diagnostic
    }
}

/// Loads a plugin, and logs the time.
fn load_file(path: &Path, services: &Services) -> Result<LoadedPlugin, Rejection> {
    let start = Instant::now();
    let result = host::load(path, services);
    let (path, millis) = (path.display(), start.elapsed().as_secs_f64() * 1e3);
    match &result {
        Ok(plugin) => {
            tracing::info!(target: "byoc::plugin", "loaded {path}: {} {} in {millis:.1} ms", plugin.name, plugin.version);
        }
        Err(rejection) => tracing::info!(target: "byoc::plugin", "rejected {path} in {millis:.1} ms: {rejection}"),
    }
    result
}

/// Returns the backend that a name probably means: the case of the letters aside, the nearest, or the only one that begins
/// with it.
fn nearest_backend<'n>(name: &str, backends: &[&'n str]) -> Option<&'n str> {
    let lower = name.to_lowercase();
    let mut beginning =
        backends.iter().filter(|backend| !lower.is_empty() && backend.to_lowercase().starts_with(&lower));
    let only = beginning.next().filter(|_| beginning.next().is_none());
    let same = backends.iter().find(|backend| backend.to_lowercase() == lower);
    same.or(only).copied().or_else(|| nearest(&lower, backends.iter().copied()))
}

/// Converts a rejection to a diagnostic about its file.
pub fn rejection_diagnostic(path: &Path, rejection: &Rejection) -> Diagnostic {
    let index = rejection.code.trim_start_matches('E').parse().unwrap_or(codes::plugins::UNREADABLE_PLUGIN.0);
    let mut diagnostic = Diagnostic::error(Code(index), format!("{}: {}", path.display(), rejection.reason));
    for detail in &rejection.details {
        diagnostic = diagnostic.note(detail.clone());
    }
    diagnostic.help = rejection.hint.clone();
    diagnostic
}
