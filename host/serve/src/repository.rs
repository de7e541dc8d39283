//! Models by name and version, and the directory or files from which they are loaded.
//!
//! A version is replaced atomically: requests hold a reference to their version, so a reload loses no request, and a
//! failed reload leaves the old version in place. Models are loaded beside each other, each within a time limit; only
//! the loads and unloads of one model wait for each other.

use crate::config::{self, ConfigFile};
use crate::error::{Result, ServeError, Status};
use crate::load::{self, Engine, VersionSource};
use crate::proto::{ModelIndex, VersionPolicyChoice};
use crate::served::{ServedModel, clip};
use crate::stats::Stats;
use byoc::Source;
use byoc::runtime::cancel::{Cancel, CancelReason};
use byoc_ir::diag::codes::{runtime, serving};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};

/// Names of model files in a version's directory, in search order.
const MODEL_FILES: [&str; 3] = ["model.byoc", "model.onnx", "model.relay"];
/// Maximum size of a configuration file in bytes.
const MAX_CONFIG: u64 = 1 << 20;
/// Maximum number of models.
const MAX_MODELS: usize = 1000;

/// Reason reported for a version that was unloaded by a client.
const UNLOADED: &str = "unloaded";

/// Origin of a model.
#[derive(Clone, Debug)]
enum Origin {
    /// Single file, served as version 1.
    File(PathBuf),
    /// Directory in a repository.
    Folder(PathBuf),
}

/// State of a model version.
#[derive(Clone, Debug)]
pub enum State {
    Ready(Arc<ServedModel>),
    Loading,
    Unavailable(String),
}

#[derive(Debug, Default)]
struct Entry {
    origin: Option<Origin>,
    versions: BTreeMap<u64, State>,
    stats: BTreeMap<u64, Arc<Stats>>,
}

/// Models of the server.
pub struct Repository {
    engine: Engine,
    folder: Option<PathBuf>,
    entries: RwLock<BTreeMap<String, Entry>>,
    /// Cancellation of all loads.
    loads: Cancel,
    /// Loads and unloads in progress, by name.
    changes: Mutex<BTreeMap<String, Cancel>>,
    /// Signalled when a load or an unload ends.
    change_ended: Condvar,
}

/// Load or unload of a model in progress, the only one of its model.
struct Change<'a> {
    repository: &'a Repository,
    name: &'a str,
    cancel: Cancel,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.repository.changes.lock().unwrap_or_else(PoisonError::into_inner).remove(self.name);
        self.repository.change_ended.notify_all();
    }
}

/// Configuration and files that a client sent with a load request.
#[derive(Debug, Default)]
pub struct Overrides {
    /// Configuration in JSON.
    pub config: Option<String>,
    /// Contents of files, by `VERSION/NAME`.
    pub files: BTreeMap<String, Bytes>,
}

impl Repository {
    /// Creates a repository of the models on the command line and in a directory, without loading models.
    ///
    /// # Errors
    /// If a name is invalid or duplicate, or the directory does not exist.
    pub fn new(engine: Engine, models: &[(String, PathBuf)], dir: Option<PathBuf>) -> Result<Repository> {
        let option_error = |message: String| ServeError::new(Status::InvalidArgument, serving::SERVE_OPTIONS, message);
        let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
        for (name, path) in models {
            check_name(name).map_err(|error| option_error(error.message))?;
            let entry = Entry { origin: Some(Origin::File(path.clone())), ..Entry::default() };
            if entries.insert(name.clone(), entry).is_some() {
                let message =
                    format!("expected unique model names, found '{name}' twice; rename one model with NAME=FILE");
                return Err(option_error(message));
            }
        }
        if let Some(dir) = dir.as_ref().filter(|dir| !dir.is_dir()) {
            return Err(option_error(format!("--repository: expected a directory, found {}", dir.display())));
        }
        let loads = engine.session.cancel.part(None);
        let (changes, change_ended) = (Mutex::default(), Condvar::new());
        Ok(Repository { engine, folder: dir, entries: RwLock::new(entries), loads, changes, change_ended })
    }

    /// Returns the engine, which holds the threads and backends shared by all models.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Loads all models, several at a time. A model that fails to load is listed with its error and does not affect
    /// other models.
    pub fn load_all(&self) {
        /// Maximum number of models that are loaded at the same time.
        const MAX_LOADS: usize = 4;
        self.scan();
        let names: Vec<String> = self.read(|entries| entries.keys().cloned().collect());
        let next_name = AtomicUsize::new(0);
        let load_names = || {
            while let Some(name) = names.get(next_name.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = self.load(name, &Overrides::default()) {
                    tracing::error!(target: "byoc::serve", model = name, "cannot load the model: {error}");
                }
            }
        };
        std::thread::scope(|scope| {
            for index in 1..names.len().min(MAX_LOADS) {
                let thread = std::thread::Builder::new().name(format!("serve-load-{index}"));
                // Without further threads, this one loads all models.
                let _ = thread.spawn_scoped(scope, load_names);
            }
            load_names();
        });
    }

    /// Returns the names of the models that are being loaded or unloaded.
    pub fn loading(&self) -> Vec<String> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Cancels all loads in progress, and those that follow.
    pub fn cancel_loads(&self) {
        self.loads.set(true);
    }

    /// Waits until no load or unload of the model is in progress, and begins one with a time limit.
    fn begin_change<'a>(&'a self, name: &'a str) -> Result<Change<'a>> {
        let cancel = self.loads.part(Some(self.engine.load_timeout));
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        while changes.contains_key(name) {
            let Some(remaining_time) = cancel.remaining().filter(|time| !time.is_zero() && !self.loads.is_set()) else {
                return Err(self.unfinished_error(name, &cancel));
            };
            changes = self.change_ended.wait_timeout(changes, remaining_time).unwrap_or_else(PoisonError::into_inner).0;
        }
        changes.insert(name.to_owned(), cancel.clone());
        Ok(Change { repository: self, name, cancel })
    }

    /// Returns the error for a load that was cancelled.
    fn unfinished_error(&self, name: &str, cancel: &Cancel) -> ServeError {
        match cancel.reason() {
            Some(CancelReason::TimedOut(limit)) => {
                let message = format!(
                    "failed to load '{}': expected an end within {} s, found none; raise the limit with --load-timeout",
                    clip(name),
                    limit.as_secs_f64()
                );
                ServeError::new(Status::DeadlineExceeded, runtime::TIMED_OUT, message)
            }
            _ => {
                let reason = if self.loads.is_set() { "the server is stopping" } else { "the model is being unloaded" };
                let message = format!("failed to load '{}': {reason}", clip(name));
                ServeError::new(Status::Cancelled, runtime::CANCELLED, message)
            }
        }
    }

    /// Adds new directories of the repository to the entries.
    fn scan(&self) {
        let Some(dir) = &self.folder else { return };
        let dir_entries = match std::fs::read_dir(dir) {
            Ok(dir_entries) => dir_entries,
            Err(error) => {
                tracing::error!(target: "byoc::serve", dir = %dir.display(), "cannot read the repository: {error}");
                return;
            }
        };
        for path in dir_entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if check_name(name).is_ok() && !name.starts_with('.') {
                self.write(|entries| {
                    if entries.len() < MAX_MODELS {
                        entries.entry(name.to_owned()).or_default().origin.get_or_insert(Origin::Folder(path.clone()));
                    }
                });
            }
        }
    }

    fn read<T>(&self, body: impl FnOnce(&BTreeMap<String, Entry>) -> T) -> T {
        body(&self.entries.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, body: impl FnOnce(&mut BTreeMap<String, Entry>) -> T) -> T {
        body(&mut self.entries.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a ready version; the highest ready version if `version` is empty.
    ///
    /// # Errors
    /// If the model or the version is unknown or not ready.
    pub fn find(&self, name: &str, version: &str) -> Result<Arc<ServedModel>> {
        let not_found = |message: String| Err(ServeError::new(Status::NotFound, serving::UNKNOWN_MODEL, message));
        self.read(|entries| {
            let Some(entry) = entries.get(name) else {
                return not_found(format!("Request for unknown model: '{}' is not found", clip(name)));
            };
            if version.is_empty() {
                let ready_model = entry.versions.values().rev().find_map(|state| match state {
                    State::Ready(model) => Some(model.clone()),
                    _ => None,
                });
                return match ready_model {
                    Some(model) => Ok(model),
                    None => not_found(format!(
                        "Request for unknown model: '{name}' has no available versions{}",
                        unavailable_reason(entry)
                    )),
                };
            }
            let version_number = parse_version(version);
            match version_number.and_then(|version_number| entry.versions.get(&version_number)) {
                Some(State::Ready(model)) => Ok(model.clone()),
                Some(State::Loading) => Err(not_ready_error(name, version, "it is being loaded")),
                Some(State::Unavailable(reason)) => Err(not_ready_error(name, version, reason)),
                None => {
                    let known_versions: Vec<String> = entry.versions.keys().map(u64::to_string).collect();
                    not_found(format!(
                        "Request for unknown model: '{name}' version {} is not found; it has version(s) [{}]",
                        clip(version),
                        known_versions.join(", ")
                    ))
                }
            }
        })
    }

    /// Returns the ready versions of a model.
    pub fn ready_versions(&self, name: &str) -> Vec<String> {
        self.read(|entries| {
            let versions = entries.get(name).into_iter().flat_map(|entry| &entry.versions);
            versions
                .filter(|(_, state)| matches!(state, State::Ready(_)))
                .map(|(version, _)| version.to_string())
                .collect()
        })
    }

    /// Returns all ready versions of all models.
    pub fn ready_models(&self) -> Vec<Arc<ServedModel>> {
        self.read(|entries| {
            let states = entries.values().flat_map(|entry| entry.versions.values());
            states
                .filter_map(|state| match state {
                    State::Ready(model) => Some(model.clone()),
                    _ => None,
                })
                .collect()
        })
    }

    /// Returns the names of the models with a ready version.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.ready_models().iter().map(|model| model.name.clone()).collect();
        names.dedup();
        names
    }

    /// Returns true if every version is ready or was unloaded by a client.
    pub fn is_ready(&self) -> bool {
        self.read(|entries| {
            entries.values().flat_map(|entry| entry.versions.values()).all(|state| match state {
                State::Ready(_) => true,
                State::Loading => false,
                State::Unavailable(reason) => reason == UNLOADED,
            })
        })
    }

    /// Checks a repository name, which must be the directory from the command line or its last component. An empty name
    /// is always accepted.
    ///
    /// # Errors
    /// If the name differs, or the server has no repository directory.
    pub fn check_repository(&self, name: &str) -> Result<()> {
        let is_own =
            |dir: &PathBuf| dir.as_os_str() == name || dir.file_name().is_some_and(|file_name| file_name == name);
        if name.is_empty() || self.folder.as_ref().is_some_and(is_own) {
            return Ok(());
        }
        let expected = match &self.folder {
            Some(dir) => format!("repository named '{}'", dir.display()),
            None => "request without a repository, because the models are named on the command line".to_owned(),
        };
        let message = format!("repository_name: expected a {expected}, found '{}'", clip(name));
        Err(ServeError::new(Status::NotFound, serving::UNKNOWN_MODEL, message))
    }

    /// Returns true if the model is known, regardless of its state.
    pub fn is_known(&self, name: &str) -> bool {
        self.read(|entries| entries.contains_key(name))
    }

    /// Lists the models with their states.
    pub fn index(&self, lists_only_ready: bool) -> Vec<ModelIndex> {
        self.scan();
        let mut index = Vec::new();
        self.read(|entries| {
            for (name, entry) in entries {
                if entry.versions.is_empty() && !lists_only_ready {
                    index.push(ModelIndex { name: name.clone(), ..ModelIndex::default() });
                }
                for (version, state) in &entry.versions {
                    let (state, reason) = match state {
                        State::Ready(_) => ("READY", ""),
                        State::Loading => ("LOADING", ""),
                        State::Unavailable(reason) => ("UNAVAILABLE", reason.as_str()),
                    };
                    if state == "READY" || !lists_only_ready {
                        index.push(ModelIndex {
                            name: name.clone(),
                            version: version.to_string(),
                            state: state.to_owned(),
                            reason: reason.to_owned(),
                        });
                    }
                }
            }
        });
        index
    }

    /// Loads or reloads a model.
    ///
    /// # Errors
    /// If the model is not in the repository, or cannot be loaded within the time limit. Ready versions then remain ready.
    pub fn load(&self, name: &str, overrides: &Overrides) -> Result<()> {
        check_name(name)?;
        let change = self.begin_change(name)?;
        let load = || change.cancel.within(|| self.load_versions(name, overrides, &change.cancel));
        let outcome = catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|_| {
            let message =
                format!("failed to load '{name}': the load panicked; this is a bug in byoc: please report it");
            Err(ServeError::new(Status::Internal, runtime::BAD_PROGRAM, message))
        });
        let (versions, failure) = match outcome {
            Ok(loaded_versions) => loaded_versions,
            Err(error) => {
                // A model without versions is listed as version 1 with its error.
                self.write(|entries| {
                    if let Some(entry) = entries.get_mut(name).filter(|entry| !entry.has_ready_version()) {
                        entry.versions.retain(|_, state| !matches!(state, State::Loading));
                        if entry.versions.is_empty() {
                            entry.versions.insert(1, State::Unavailable(error.to_string()));
                        }
                        for state in entry.versions.values_mut() {
                            *state = State::Unavailable(error.to_string());
                        }
                    }
                });
                return Err(error);
            }
        };
        // The old versions are dropped outside the lock, because their instances end with their last request.
        let old_versions = self.write(|entries| {
            let entry = entries.entry(name.to_owned()).or_default();
            if failure.is_some() && entry.has_ready_version() {
                return versions;
            }
            let mut old_versions = std::mem::replace(&mut entry.versions, versions);
            for (version, state) in &mut old_versions {
                if matches!(state, State::Ready(_)) {
                    entry.versions.entry(*version).or_insert_with(|| State::Unavailable(UNLOADED.to_owned()));
                }
            }
            old_versions
        });
        drop(old_versions);
        match failure {
            Some(failure) => Err(failure),
            None => {
                tracing::info!(target: "byoc::serve", model = name, versions = ?self.ready_versions(name), "loaded the model");
                Ok(())
            }
        }
    }

    /// Loads the versions selected by the model's version policy. Returns their states and the first error.
    fn load_versions(
        &self,
        name: &str,
        overrides: &Overrides,
        cancel: &Cancel,
    ) -> Result<(BTreeMap<u64, State>, Option<ServeError>)> {
        self.scan();
        let origin = self.read(|entries| entries.get(name).and_then(|entry| entry.origin.clone()));
        if origin.is_none() && overrides.files.is_empty() {
            let message = format!(
                "failed to load '{}': expected a model in the repository, found none with this name",
                clip(name)
            );
            return Err(ServeError::new(Status::NotFound, serving::UNKNOWN_MODEL, message));
        }
        if self.read(|entries| entries.len()) >= MAX_MODELS && !self.is_known(name) {
            let message = format!("expected at most {MAX_MODELS} models, found {}", MAX_MODELS + 1);
            return Err(ServeError::repository(message));
        }
        let file = match (&overrides.config, &origin) {
            (Some(text), _) => config::parse_json(text)?,
            (None, _) if !overrides.files.is_empty() => {
                return Err(ServeError::repository(
                    "expected the parameter 'config' along with the files, found files alone",
                ));
            }
            (None, Some(Origin::Folder(dir))) => read_config(dir)?,
            (None, _) => ConfigFile::default(),
        };
        let sources = sources(origin.as_ref(), &file, overrides)?;
        self.write(|entries| {
            let entry = entries.entry(name.to_owned()).or_default();
            if !entry.has_ready_version() {
                entry.versions = sources.iter().map(|source| (source.version, State::Loading)).collect();
            }
        });
        let mut versions = BTreeMap::new();
        let mut failure = None;
        for source in sources {
            let version = source.version;
            let stats = self.write(|entries| {
                let entry = entries.entry(name.to_owned()).or_default();
                entry.stats.entry(version).or_default().clone()
            });
            let loaded = load::load(&self.engine, name, &file, source, stats, cancel);
            let state = match loaded
                .map_err(|error| if cancel.is_set() { self.unfinished_error(name, cancel) } else { error })
            {
                Ok(model) => State::Ready(Arc::new(model)),
                Err(error) if cancel.is_set() => {
                    let reason = error.to_string();
                    failure.get_or_insert(error);
                    State::Unavailable(reason)
                }
                Err(error) => {
                    let reason = error.to_string();
                    failure.get_or_insert(ServeError {
                        message: format!("failed to load '{name}' version {version}: {}", error.message),
                        status: Status::InvalidArgument,
                        ..error
                    });
                    State::Unavailable(reason)
                }
            };
            versions.insert(version, state);
        }
        Ok((versions, failure))
    }

    /// Unloads a model, and cancels a load of it that is in progress. Requests in progress are still completed.
    ///
    /// # Errors
    /// If the model is unknown.
    pub fn unload(&self, name: &str) -> Result<()> {
        if let Some(load) = self.changes.lock().unwrap_or_else(PoisonError::into_inner).get(name) {
            load.set(true);
        }
        let _change = self.begin_change(name)?;
        let old_versions = self.write(|entries| {
            let entry = entries.get_mut(name)?;
            let unloaded_versions =
                entry.versions.keys().map(|version| (*version, State::Unavailable(UNLOADED.to_owned()))).collect();
            Some(std::mem::replace(&mut entry.versions, unloaded_versions))
        });
        if old_versions.is_none() {
            let message =
                format!("failed to unload '{}': expected a known model, found none with this name", clip(name));
            return Err(ServeError::new(Status::NotFound, serving::UNKNOWN_MODEL, message));
        }
        tracing::info!(target: "byoc::serve", model = name, "unloaded the model");
        Ok(())
    }
}

impl Entry {
    fn has_ready_version(&self) -> bool {
        self.versions.values().any(|state| matches!(state, State::Ready(_)))
    }
}

fn unavailable_reason(entry: &Entry) -> String {
    let reason = entry.versions.values().rev().find_map(|state| match state {
        State::Unavailable(reason) => Some(reason),
        _ => None,
    });
    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
}

fn not_ready_error(name: &str, version: &str, reason: &str) -> ServeError {
    let message = format!("Request for model '{name}' version {version} is not at ready state: {reason}");
    ServeError::new(Status::Unavailable, serving::NOT_READY, message)
}

/// Parses a version number: digits without a leading 0.
fn parse_version(text: &str) -> Option<u64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    is_number.then(|| text.parse().ok()).flatten().filter(|version| *version <= i64::MAX as u64)
}

/// Checks a model name, which is also a directory name.
fn check_name(name: &str) -> Result<()> {
    let is_plain = !name.is_empty()
        && name.len() <= 255
        && name != "."
        && name != ".."
        && !name.contains(|c: char| c == '/' || c == '\\' || c.is_control());
    if is_plain {
        return Ok(());
    }
    let message = format!("expected a model name without slashes or control characters, found {:?}", clip(name));
    Err(ServeError::bad_request(message))
}

fn read_config(dir: &Path) -> Result<ConfigFile> {
    let path = dir.join("config.pbtxt");
    let read_error = |error| ServeError::repository(format!("cannot read {}: {error}", path.display()));
    let file = match byoc::io::open_regular(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(ConfigFile::default()),
        Err(error) => return Err(read_error(error)),
    };
    let size = file.metadata().map_err(read_error)?.len();
    if size > MAX_CONFIG {
        let message = format!("{}: expected at most {MAX_CONFIG} bytes, found {size}", path.display());
        return Err(ServeError::repository(message));
    }
    let text = byoc::io::text_of(&file, MAX_CONFIG as usize).map_err(read_error)?;
    config::parse_text(&text).map_err(|mut error| {
        error.message = format!("{}: {}", path.display(), error.message);
        error
    })
}

/// Returns the sources of the versions selected by the version policy.
fn sources(origin: Option<&Origin>, file: &ConfigFile, overrides: &Overrides) -> Result<Vec<VersionSource>> {
    if !overrides.files.is_empty() {
        return sent_sources(file, overrides);
    }
    match origin {
        Some(Origin::File(path)) => {
            let file_name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let dir = path.parent().map(Path::to_owned);
            Ok(vec![VersionSource { version: 1, source: Source::Path(path.clone()), file_name, folder: dir }])
        }
        Some(Origin::Folder(dir)) => {
            let mut found_versions: Vec<u64> = std::fs::read_dir(dir)
                .map_err(|error| ServeError::repository(format!("cannot read {}: {error}", dir.display())))?
                .flatten()
                .filter(|entry| entry.path().is_dir())
                .filter_map(|entry| entry.file_name().to_str().and_then(parse_version))
                .collect();
            found_versions.sort_unstable();
            let versions = select_versions(file, &found_versions)?;
            if versions.is_empty() {
                let message = format!(
                    "{}: expected a directory per version, such as 1, found {}",
                    dir.display(),
                    if found_versions.is_empty() {
                        "none".to_owned()
                    } else {
                        format!("{found_versions:?}, none of which version_policy selects")
                    }
                );
                return Err(ServeError::repository(message));
            }
            versions.into_iter().map(|version| stored_source(dir, version, file)).collect()
        }
        None => Ok(Vec::new()),
    }
}

fn select_versions(file: &ConfigFile, available_versions: &[u64]) -> Result<Vec<u64>> {
    let version_policy = file.config.version_policy.as_ref().and_then(|policy| policy.choice.as_ref());
    match version_policy {
        Some(VersionPolicyChoice::All(_)) => Ok(available_versions.to_vec()),
        Some(VersionPolicyChoice::Specific(specific)) => {
            let requested_versions: BTreeSet<u64> = specific.versions.iter().map(|&version| version as u64).collect();
            match requested_versions.iter().find(|version| !available_versions.contains(version)) {
                Some(missing_version) => Err(ServeError::repository(format!(
                    "version_policy.specific: expected one of the versions {available_versions:?}, found {missing_version}"
                ))),
                None => Ok(requested_versions.into_iter().collect()),
            }
        }
        Some(VersionPolicyChoice::Latest(latest_versions)) => {
            let count = (latest_versions.num_versions as usize).max(1);
            Ok(available_versions[available_versions.len().saturating_sub(count)..].to_vec())
        }
        None => Ok(available_versions.last().copied().into_iter().collect()),
    }
}

fn file_names(file: &ConfigFile) -> Result<Vec<&str>> {
    let name = file.config.default_model_filename.as_str();
    if name.is_empty() {
        return Ok(MODEL_FILES.to_vec());
    }
    if Path::new(name).components().count() != 1 || name == ".." || name == "." {
        let message = format!("default_model_filename: expected a file name, found {name:?}");
        return Err(ServeError::repository(message));
    }
    Ok(vec![name])
}

fn stored_source(dir: &Path, version: u64, file: &ConfigFile) -> Result<VersionSource> {
    let version_dir = dir.join(version.to_string());
    let names = file_names(file)?;
    let model_file = names
        .iter()
        .find(|name| version_dir.join(name).exists())
        .ok_or_else(|| load::missing_file_error(&version_dir, &names))?;
    let mut path = version_dir.join(model_file);
    // A directory with this name contains a model and its external data.
    if path.is_dir() {
        path = path.join("model.onnx");
    }
    let file_name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(VersionSource { version, source: Source::Path(path), file_name, folder: Some(dir.to_owned()) })
}

/// Returns the sources sent by a client.
fn sent_sources(file: &ConfigFile, overrides: &Overrides) -> Result<Vec<VersionSource>> {
    let names = file_names(file)?;
    let mut sent_files: BTreeMap<u64, (&str, &Bytes)> = BTreeMap::new();
    for (path, bytes) in &overrides.files {
        let (version, name) = path.split_once('/').unwrap_or_default();
        match parse_version(version) {
            Some(version) if names.contains(&name) => sent_files.insert(version, (name, bytes)),
            _ => {
                let message = format!("expected files file:VERSION/{}, found file:{}", names.join(" or "), clip(path));
                return Err(ServeError::repository(message));
            }
        };
    }
    let available_versions: Vec<u64> = sent_files.keys().copied().collect();
    let versions = select_versions(file, &available_versions)?;
    let source = |version: u64| {
        let (name, bytes) = sent_files.get(&version)?;
        let source = Source::Bytes { bytes: (*bytes).clone(), folder: None };
        Some(VersionSource { version, source, file_name: (*name).to_owned(), folder: None })
    };
    Ok(versions.into_iter().filter_map(source).collect())
}
