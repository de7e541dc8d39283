//! The registry of `relay.ext.<name>` and `loadbinary_<key>`: the plugin files that there are, and what those turned out to be
//! that were needed.

use super::discover::{SearchDir, candidates, search_dirs};
use crate::error::Failure;
use byoc_core::diag::{Code, Diagnostic, codes, nearest};
use byoc_plugin_api::host::{self, LoadedPlugin, Offer, Registration, Rejection};
use byoc_plugin_api::{CODEGEN_PREFIX, Codegen, LOADER_PREFIX, Loader, Services};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What became of a file.
#[derive(Debug)]
pub enum Status {
    /// It is in use.
    Loaded(LoadedPlugin),
    /// It cannot be used.
    Refused(Rejection),
    /// A file in an earlier directory registers the same name.
    Shadowed {
        /// The plugin's name.
        name: String,
        /// The plugin's version.
        version: String,
        /// The file that wins.
        by: PathBuf,
    },
}

/// A plugin file.
#[derive(Debug)]
pub struct Found {
    /// Where it is.
    pub path: PathBuf,
    /// What became of it.
    pub status: Status,
    digest: OnceLock<String>,
}

impl Found {
    fn new(path: PathBuf, status: Status) -> Found {
        Found { path, status, digest: OnceLock::new() }
    }

    /// The BLAKE3 digest of the file; empty when it cannot be read any more.
    pub fn digest(&self) -> &str {
        self.digest.get_or_init(|| {
            std::fs::read(&self.path).map(|bytes| blake3::hash(&bytes).to_hex().to_string()).unwrap_or_default()
        })
    }

    /// The plugin, if it is in use.
    pub fn plugin(&self) -> Option<&LoadedPlugin> {
        match &self.status {
            Status::Loaded(plugin) => Some(plugin),
            _ => None,
        }
    }
}

/// A file that may be a plugin, and what became of it if anybody wanted to know.
struct File {
    path: PathBuf,
    /// The number of its directory.
    dir: usize,
    found: OnceLock<Found>,
}

/// What is registered under which name, by the number of the file.
#[derive(Default)]
struct Names {
    codegens: BTreeMap<String, usize>,
    loaders: BTreeMap<String, usize>,
}

/// The plugin files of the directories searched, and what is registered under which name.
///
/// A file is loaded when something of it is wanted, so that a plugin which misbehaves harms those who ask for it and nobody
/// else. What a file registers is known when it is loaded and not before; so a name is looked for
///
/// 1. directory by directory, in files named `libbyoc_<name>` and in those whose bytes hold the name;
/// 2. then, where none of them registers it, directory by directory in all files that are left.
///
/// An earlier directory comes first and a name that stands twice in one is refused, as far as the files are loaded.
pub struct Registry {
    /// The directories searched, in order.
    pub dirs: Vec<SearchDir>,
    services: Option<Services>,
    files: OnceLock<Vec<File>>,
    names: Mutex<Names>,
}

/// What is looked for.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    Codegen(&'a str),
    Loader(&'a str),
}

impl<'a> Wanted<'a> {
    fn name(self) -> &'a str {
        match self {
            Wanted::Codegen(name) | Wanted::Loader(name) => name,
        }
    }
}

impl Names {
    fn get(&self, wanted: Wanted<'_>) -> Option<usize> {
        match wanted {
            Wanted::Codegen(name) => self.codegens.get(name).copied(),
            Wanted::Loader(key) => self.loaders.get(key).copied(),
        }
    }

    fn owner(&self, registration: &str) -> Option<usize> {
        self.get(match registration.strip_prefix(CODEGEN_PREFIX) {
            Some(name) => Wanted::Codegen(name),
            None => Wanted::Loader(registration.strip_prefix(LOADER_PREFIX)?),
        })
    }

    fn add(&mut self, registration: &Registration, file: usize) {
        let (map, prefix) = match registration.offer {
            Offer::Codegen(_) => (&mut self.codegens, CODEGEN_PREFIX),
            Offer::Loader(_) => (&mut self.loaders, LOADER_PREFIX),
            Offer::Data(_) => return,
        };
        let name = registration.name.strip_prefix(prefix).unwrap_or(&registration.name);
        map.entry(name.to_owned()).or_insert(file);
    }
}

impl Registry {
    /// No plugins.
    pub fn empty() -> Registry {
        Registry { dirs: Vec::new(), services: None, files: OnceLock::from(Vec::new()), names: Mutex::default() }
    }

    /// The plugins of the directories that are searched. None is loaded yet.
    pub fn discover(given: &[PathBuf], services: &Services) -> Registry {
        let (dirs, services) = (search_dirs(given), Some(services.clone()));
        Registry { dirs, services, files: OnceLock::new(), names: Mutex::default() }
    }

    /// One file, loaded as if it lay in a plugin directory of its own.
    pub fn of_file(path: &Path, services: &Services) -> Registry {
        let file = File { path: path.to_owned(), dir: 0, found: OnceLock::new() };
        let registry =
            Registry { services: Some(services.clone()), files: OnceLock::from(vec![file]), ..Registry::empty() };
        registry.load_all();
        registry
    }

    /// The files that are looked at, in order. A directory that cannot be read stands for its files.
    fn files(&self) -> &[File] {
        self.files.get_or_init(|| {
            let mut files = Vec::new();
            for (number, dir) in self.dirs.iter().enumerate() {
                let file = |path| File { path, dir: number, found: OnceLock::new() };
                match candidates(dir) {
                    Ok(paths) => files.extend(paths.into_iter().map(file)),
                    Err(error) => {
                        let reason = format!("the directory cannot be read: {error}");
                        let code = host::code::UNREADABLE;
                        let status = Status::Refused(Rejection { code, reason, hint: None, details: Vec::new() });
                        let found = OnceLock::from(Found::new(dir.path.clone(), status));
                        files.push(File { path: dir.path.clone(), dir: number, found });
                    }
                }
            }
            files
        })
    }

    /// The files that were loaded or refused so far, in the order in which they are looked at.
    pub fn found(&self) -> impl Iterator<Item = &Found> {
        self.files().iter().filter_map(|file| file.found.get())
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

    /// The number of the file that registers what is wanted. `plugin` is the name of the plugin that is likely to.
    fn find(&self, wanted: Wanted<'_>, plugin: &str) -> Option<usize> {
        let mut names = self.names();
        if let Some(file) = names.get(wanted) {
            return Some(file);
        }
        let named = [format!("libbyoc_{plugin}"), format!("libbyoc_{}", wanted.name())];
        let likely = |path: &Path| {
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            named.iter().any(|name| name == stem) || host::mentions(path, wanted.name())
        };
        let (files, dirs) = (&likely as &dyn Fn(&Path) -> bool, 0..self.dirs.len().max(1));
        for which in [files, &|_| true] {
            for dir in dirs.clone() {
                self.load(&mut names, dir, which);
                if let Some(file) = names.get(wanted) {
                    return Some(file);
                }
            }
        }
        None
    }

    /// Loads files of one directory that are not loaded yet. A name that another directory has registered shadows the file; a
    /// name registered twice in this one refuses both, or the one that comes after the other has been taken into use.
    fn load(&self, names: &mut Names, dir: usize, which: impl Fn(&Path) -> bool) {
        let Some(services) = &self.services else { return };
        let files = self.files();
        let new = |file: &&(usize, &File)| file.1.dir == dir && file.1.found.get().is_none() && which(&file.1.path);
        let numbered: Vec<(usize, &File)> = files.iter().enumerate().collect();
        let loaded: Vec<(usize, Result<LoadedPlugin, Rejection>)> =
            numbered.iter().filter(new).map(|&(number, file)| (number, host::load(&file.path, services))).collect();
        let mut owners: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (number, plugin) in &loaded {
            // Data goes by the names of those who read it; only code generators and loaders are picked by name.
            let named = |r: &&Registration| !matches!(r.offer, Offer::Data(_));
            for registration in plugin.iter().flat_map(|p| &p.registrations).filter(named) {
                owners.entry(registration.name.clone()).or_default().push(*number);
            }
        }
        let mut in_use = Vec::new();
        for (number, plugin) in loaded {
            let status = match plugin {
                Err(rejection) => Status::Refused(rejection),
                Ok(plugin) => {
                    let owner = |r: &Registration| Some((r.name.clone(), names.owner(&r.name)?));
                    let before = plugin.registrations.iter().find_map(owner);
                    let twice = plugin.registrations.iter().find_map(|r| {
                        let other = owners.get(&r.name)?.iter().find(|other| **other != number)?;
                        Some((r.name.clone(), *other))
                    });
                    match (before, twice) {
                        (Some((_, by)), _) if files[by].dir != dir => Status::Shadowed {
                            name: plugin.name.clone(),
                            version: plugin.version.clone(),
                            by: files[by].path.clone(),
                        },
                        (Some((name, other)), _) | (None, Some((name, other))) => Status::Refused(Rejection {
                            code: "E0409",
                            reason: format!("{name} is registered by {} as well", files[other].path.display()),
                            hint: Some("keep one of the two files in this directory".into()),
                            details: Vec::new(),
                        }),
                        (None, None) => Status::Loaded(plugin),
                    }
                }
            };
            let file = &files[number];
            let found = file.found.get_or_init(|| Found::new(file.path.clone(), status));
            in_use.push((number, found));
        }
        for (number, found) in in_use {
            for registration in found.plugin().iter().flat_map(|p| &p.registrations) {
                names.add(registration, number);
            }
        }
    }

    /// The names of all code generators, sorted. Loads every plugin.
    pub fn backends(&self) -> Vec<String> {
        self.load_all();
        self.names().codegens.keys().cloned().collect()
    }

    /// The code generator `relay.ext.<name>` and the file that it is in.
    ///
    /// # Errors
    /// E0401 with the directories searched, the plugins loaded, the files refused, and the nearest name.
    pub fn codegen(&self, name: &str) -> Result<(Arc<dyn Codegen>, &Found), Failure> {
        let entry = self.find(Wanted::Codegen(name), name).and_then(|number| {
            let found = self.files()[number].found.get()?;
            Some((found.plugin()?.codegen(name)?, found))
        });
        entry.ok_or_else(|| {
            let known = self.backends();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let message = format!("no code generator \"{CODEGEN_PREFIX}{name}\": no plugin found registers it");
            let mut diagnostic = self.inventory(Diagnostic::error(codes::plugins::NO_CODEGEN, message));
            diagnostic = match nearest(name, known.iter().copied()) {
                Some(near) => diagnostic.help(format!("did you mean --backend {near}?")),
                None if known.is_empty() => {
                    diagnostic.help("drop the backend's shared library into one of these directories, or name another with --plugin-dir DIR")
                }
                None => diagnostic.help(format!("backends that can be named: {}", known.join(", "))),
            };
            diagnostic.into()
        })
    }

    /// The loader `loadbinary_<key>`. `plugin` is the name of the plugin that made what it is to load.
    pub fn loader(&self, key: &str, plugin: &str) -> Option<Arc<dyn Loader>> {
        let number = self.find(Wanted::Loader(key), plugin)?;
        self.files()[number].found.get()?.plugin()?.loader(key)
    }

    /// Adds to a diagnostic what was searched, loaded and refused.
    pub fn inventory(&self, mut diagnostic: Diagnostic) -> Diagnostic {
        for dir in &self.dirs {
            let state = if dir.path.is_dir() { "" } else { ", does not exist" };
            diagnostic = diagnostic.note(format!("searched {} ({}{state})", dir.path.display(), dir.reason));
        }
        for found in self.found() {
            let path = found.path.display();
            diagnostic = diagnostic.note(match &found.status {
                Status::Loaded(plugin) => {
                    let names: Vec<&str> = plugin.registrations.iter().map(|r| r.name.as_str()).collect();
                    format!("loaded {path}: {} {} ({})", plugin.name, plugin.version, names.join(", "))
                }
                Status::Refused(rejection) => format!("refused {path}: {rejection}"),
                Status::Shadowed { name, by, .. } => format!("shadowed {path}: {name} is {} already", by.display()),
            });
        }
        if self.found().next().is_none() {
            diagnostic = diagnostic.note("no plugin file in any of them");
        }
        diagnostic
    }
}

/// A rejection as a diagnostic about its file.
pub fn rejection_diagnostic(path: &Path, rejection: &Rejection) -> Diagnostic {
    let number = rejection.code.trim_start_matches('E').parse().unwrap_or(codes::plugins::UNREADABLE_PLUGIN.0);
    let mut diagnostic = Diagnostic::error(Code(number), format!("{}: {}", path.display(), rejection.reason));
    for detail in &rejection.details {
        diagnostic = diagnostic.note(detail.clone());
    }
    diagnostic.help = rejection.hint.clone();
    diagnostic
}
