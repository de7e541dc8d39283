//! Cache of compiled models, so that a restarted server does not recompile them.
//!
//! The key of a cache file covers the inputs of the compilation: the contents of the model file, the options, the
//! available plugins, and the server build. Only ONNX files without external data are cached, because the key does not
//! cover external files. A cache file that does not load is replaced after recompilation.

use byoc::{Compilation, CompileOptions, Model, Session, Source};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Subdirectory of the cache directory for compiled models.
const FOLDER: &str = "serve";
/// ONNX key of the entry that names the file of external tensor data.
const EXTERNAL_DATA_KEY: &[u8] = b"location";

/// Cache slot of a compiled model.
#[derive(Debug)]
pub struct Slot {
    folder: PathBuf,
    /// File name prefix shared by all cache files of models at the same path.
    origin: String,
    key: String,
}

impl Slot {
    /// Returns the slot for a model; `None` for a model that is not cached.
    pub fn of(session: &Session, options: &CompileOptions, source: &Source) -> Option<Slot> {
        let Source::Path(path) = source else { return None };
        let cache_dir = session.cache_dir.as_ref()?.join(FOLDER);
        if path.extension().is_none_or(|extension| extension != "onnx") {
            return None;
        }
        let contents = byoc::io::map_file(path).ok()?;
        if memchr::memmem::find(&contents, EXTERNAL_DATA_KEY).is_some() {
            return None;
        }
        let mut hasher = blake3::Hasher::new();
        let mut hash_part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        hash_part(env!("CARGO_PKG_VERSION").as_bytes());
        hash_part(std::env::consts::ARCH.as_bytes());
        hash_part(format!("{options:?}").as_bytes());
        hash_part(&program_stamp());
        for dir in &session.registry.dirs {
            hash_part(&plugin_stamps(&dir.path));
        }
        hash_part(&contents);
        let key = hasher.finalize().to_hex().to_string();
        let absolute_path = fs::canonicalize(path).ok()?;
        let origin = blake3::hash(absolute_path.as_os_str().as_encoded_bytes()).to_hex()[..16].to_owned();
        Some(Slot { folder: cache_dir, origin, key })
    }

    fn file(&self) -> PathBuf {
        self.folder.join(format!("{}-{}.byoc", self.origin, self.key))
    }

    /// Loads the model from the cache; `None` if the cache file is absent or corrupt, or the model loads with warnings.
    pub fn load(&self, session: &Session) -> Option<Model> {
        let file = self.file();
        if !file.is_file() {
            return None;
        }
        match Compilation::open(file.clone()).and_then(|compilation| Model::of(session, compilation)) {
            // A warning may report a refused region, which would run on the host.
            Ok(model) if model.warnings().is_empty() => Some(model),
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(target: "byoc::serve", file = %file.display(), "cannot load the cached model: {error}");
                None
            }
        }
    }

    /// Stores a compiled model, and removes all other cache files for the same path. A write failure only causes a
    /// recompilation at the next start.
    pub fn store(&self, compilation: &Compilation) {
        let store_result = fs::create_dir_all(&self.folder)
            .map_err(|error| error.to_string())
            .and_then(|()| compilation.save(self.file()).map_err(|error| error.to_string()));
        if let Err(error) = store_result {
            tracing::warn!(target: "byoc::serve", folder = %self.folder.display(), "cannot cache the compiled model: {error}");
            return;
        }
        let own_name = format!("{}-{}.byoc", self.origin, self.key);
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_older = name.to_str().is_some_and(|name| name.starts_with(&self.origin) && name != own_name);
            if is_older {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Returns the identity of this executable. It is part of the key, because different builds may compile a model
/// differently.
fn program_stamp() -> Vec<u8> {
    std::env::current_exe().ok().map(|path| stamp(&path)).unwrap_or_default()
}

/// Returns the names, sizes and modification times of the plugins in a directory, sorted by name.
fn plugin_stamps(dir: &Path) -> Vec<u8> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|name| name == "so")).collect();
    files.sort();
    files.iter().flat_map(|path| stamp(path)).collect()
}

fn stamp(path: &Path) -> Vec<u8> {
    let mut bytes = path.as_os_str().as_encoded_bytes().to_vec();
    if let Ok(data) = fs::metadata(path) {
        for value in [data.len() as i64, data.mtime(), data.mtime_nsec()] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}
