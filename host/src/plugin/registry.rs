//! The registry of `relay.ext.<name>` and `loadbinary_<key>`: what every plugin file that was found turned out to be.

use super::discover::{SearchDir, candidates, search_dirs};
use crate::error::Failure;
use byoc_core::diag::{Code, Diagnostic, codes, nearest};
use byoc_plugin_api::host::{self, LoadedPlugin, Offer, Registration, Rejection};
use byoc_plugin_api::{CODEGEN_PREFIX, Codegen, LOADER_PREFIX, Loader, Services};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

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

/// Every plugin file that was found, and what is registered under which name.
pub struct Registry {
    /// The directories searched, in order.
    pub dirs: Vec<SearchDir>,
    /// The files, in the order in which they were looked at.
    pub found: Vec<Found>,
    codegens: BTreeMap<String, usize>,
    loaders: BTreeMap<String, usize>,
}

impl Registry {
    /// No plugins.
    pub fn empty() -> Registry {
        Registry { dirs: Vec::new(), found: Vec::new(), codegens: BTreeMap::new(), loaders: BTreeMap::new() }
    }

    /// Looks at every plugin file and loads those that can be used.
    pub fn discover(given: &[PathBuf], services: &Services) -> Registry {
        let dirs = search_dirs(given);
        let mut registry = Registry { dirs: dirs.clone(), ..Registry::empty() };
        for dir in &dirs {
            registry.search(dir, services);
        }
        registry
    }

    /// Looks at one file as if it lay in a plugin directory of its own.
    pub fn of_file(path: &Path, services: &Services) -> Registry {
        let mut registry = Registry::empty();
        registry.admit(vec![(path.to_owned(), host::load(path, services))]);
        registry
    }

    fn search(&mut self, dir: &SearchDir, services: &Services) {
        match candidates(dir) {
            Ok(files) => {
                let loaded = files.into_iter().map(|path| {
                    let result = host::load(&path, services);
                    (path, result)
                });
                self.admit(loaded.collect());
            }
            Err(error) => {
                let reason = format!("the directory cannot be read: {error}");
                let rejection = Rejection { code: host::code::UNREADABLE, reason, hint: None, details: Vec::new() };
                self.push(dir.path.clone(), Status::Refused(rejection));
            }
        }
    }

    /// Takes in the files of one directory. A name that an earlier directory has registered shadows the file; a name
    /// registered twice here refuses both.
    fn admit(&mut self, files: Vec<(PathBuf, Result<LoadedPlugin, Rejection>)>) {
        let mut owners: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for (path, plugin) in &files {
            // Data goes by the names of those who read it; only code generators and loaders are picked by name.
            let named = |r: &&Registration| !matches!(r.offer, Offer::Data(_));
            for registration in plugin.iter().flat_map(|p| &p.registrations).filter(named) {
                owners.entry(registration.name.clone()).or_default().push(path.clone());
            }
        }
        for (path, plugin) in files {
            let status = match plugin {
                Err(rejection) => Status::Refused(rejection),
                Ok(plugin) => {
                    let twice = plugin.registrations.iter().find_map(|r| {
                        let other = owners.get(&r.name)?.iter().find(|other| **other != path)?;
                        Some((r.name.clone(), other.clone()))
                    });
                    let shadow = plugin.registrations.iter().find_map(|r| self.owner(&r.name));
                    match (shadow, twice) {
                        (Some(by), _) => Status::Shadowed {
                            name: plugin.name.clone(),
                            version: plugin.version.clone(),
                            by: self.found[by].path.clone(),
                        },
                        (None, Some((name, other))) => Status::Refused(Rejection {
                            code: "E0409",
                            reason: format!("{name} is registered by {} as well", other.display()),
                            hint: Some("keep one of the two files in this directory".into()),
                            details: Vec::new(),
                        }),
                        (None, None) => Status::Loaded(plugin),
                    }
                }
            };
            self.push(path, status);
        }
        for (index, found) in self.found.iter().enumerate() {
            for registration in found.plugin().iter().flat_map(|p| &p.registrations) {
                let (map, prefix) = match registration.offer {
                    Offer::Codegen(_) => (&mut self.codegens, CODEGEN_PREFIX),
                    Offer::Loader(_) => (&mut self.loaders, LOADER_PREFIX),
                    Offer::Data(_) => continue,
                };
                let name = registration.name.strip_prefix(prefix).unwrap_or(&registration.name);
                map.entry(name.to_owned()).or_insert(index);
            }
        }
    }

    fn push(&mut self, path: PathBuf, status: Status) {
        self.found.push(Found { path, status, digest: OnceLock::new() });
    }

    fn owner(&self, registration: &str) -> Option<usize> {
        match registration.strip_prefix(CODEGEN_PREFIX) {
            Some(name) => self.codegens.get(name).copied(),
            None => self.loaders.get(registration.strip_prefix(LOADER_PREFIX)?).copied(),
        }
    }

    /// The names of the code generators, sorted.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        self.codegens.keys().map(String::as_str)
    }

    /// The code generator `relay.ext.<name>` and the file that it is in.
    ///
    /// # Errors
    /// E0401 with the directories searched, the plugins loaded, the files refused, and the nearest name.
    pub fn codegen(&self, name: &str) -> Result<(Arc<dyn Codegen>, &Found), Failure> {
        let entry = self.codegens.get(name).and_then(|&index| {
            let found = &self.found[index];
            Some((found.plugin()?.codegen(name)?, found))
        });
        entry.ok_or_else(|| {
            let known: Vec<&str> = self.backends().collect();
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

    /// The loader `loadbinary_<key>`.
    pub fn loader(&self, key: &str) -> Option<Arc<dyn Loader>> {
        self.found[*self.loaders.get(key)?].plugin()?.loader(key)
    }

    /// Adds to a diagnostic what was searched, loaded and refused.
    pub fn inventory(&self, mut diagnostic: Diagnostic) -> Diagnostic {
        for dir in &self.dirs {
            let state = if dir.path.is_dir() { "" } else { ", does not exist" };
            diagnostic = diagnostic.note(format!("searched {} ({}{state})", dir.path.display(), dir.reason));
        }
        for found in &self.found {
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
        if self.found.is_empty() {
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
