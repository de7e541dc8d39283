//! Compiled models in the cache directory, so that a server that starts again does not compile them again.
//!
//! A file of the cache is found by what it was compiled from: the contents of the model file, the options, the plugins
//! that were found, and the version of this program. Only ONNX files that hold their weights themselves are kept, as the
//! other files of a model would have to be read as well. A file that does not load is compiled anew and replaced.

use byoc::{Compilation, CompileOptions, Model, Session, Source};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Folder in the cache directory.
const FOLDER: &str = "serve";
/// Key of the entries by which an ONNX file names its tensors in other files.
const EXTERNAL: &[u8] = b"location";

/// Place of a compiled model in the cache.
#[derive(Debug)]
pub struct Slot {
    folder: PathBuf,
    /// Begins the names of all files that were compiled from the same path.
    origin: String,
    key: String,
}

impl Slot {
    /// Returns the place for a model; `None` for a model that is not kept.
    pub fn of(session: &Session, options: &CompileOptions, source: &Source) -> Option<Slot> {
        let Source::Path(path) = source else { return None };
        let folder = session.cache_dir.as_ref()?.join(FOLDER);
        if path.extension().is_none_or(|extension| extension != "onnx") {
            return None;
        }
        let contents = byoc::io::map_file(path).ok()?;
        if memchr::memmem::find(&contents, EXTERNAL).is_some() {
            return None;
        }
        let mut hasher = blake3::Hasher::new();
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        part(env!("CARGO_PKG_VERSION").as_bytes());
        part(std::env::consts::ARCH.as_bytes());
        part(format!("{options:?}").as_bytes());
        part(&program_stamp());
        for dir in &session.registry.dirs {
            part(&plugin_stamps(&dir.path));
        }
        part(&contents);
        let key = hasher.finalize().to_hex().to_string();
        let absolute = fs::canonicalize(path).ok()?;
        let origin = blake3::hash(absolute.as_os_str().as_encoded_bytes()).to_hex()[..16].to_owned();
        Some(Slot { folder, origin, key })
    }

    fn file(&self) -> PathBuf {
        self.folder.join(format!("{}-{}.byoc", self.origin, self.key))
    }

    /// Loads the model from the cache; `None` if it is not there, or does not load as it was compiled.
    pub fn load(&self, session: &Session) -> Option<Model> {
        let file = self.file();
        if !file.is_file() {
            return None;
        }
        match Compilation::open(file.clone()).and_then(|compilation| Model::of(session, compilation)) {
            // A region that its plugin refuses would run on the host.
            Ok(model) if model.warnings().is_empty() => Some(model),
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(target: "byoc::serve", file = %file.display(), "the compiled model does not load: {error}");
                None
            }
        }
    }

    /// Keeps a compiled model, and removes those that were compiled from an older file of the same path. A cache that
    /// cannot be written costs time at the next start and nothing else.
    pub fn store(&self, compilation: &Compilation) {
        let stored = fs::create_dir_all(&self.folder)
            .map_err(|error| error.to_string())
            .and_then(|()| compilation.save(self.file()).map_err(|error| error.to_string()));
        if let Err(error) = stored {
            tracing::warn!(target: "byoc::serve", folder = %self.folder.display(), "cannot keep the compiled model: {error}");
            return;
        }
        let own = format!("{}-{}.byoc", self.origin, self.key);
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_older = name.to_str().is_some_and(|name| name.starts_with(&self.origin) && name != own);
            if is_older {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Identity of this program's file: another build compiles models in other ways.
fn program_stamp() -> Vec<u8> {
    std::env::current_exe().ok().map(|path| stamp(&path)).unwrap_or_default()
}

/// Names, sizes and times of the plugins of a folder, in the order of their names.
fn plugin_stamps(folder: &Path) -> Vec<u8> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|name| name == "so")).collect();
    files.sort();
    files.iter().flat_map(|path| stamp(path)).collect()
}

fn stamp(path: &Path) -> Vec<u8> {
    let mut stamp = path.as_os_str().as_encoded_bytes().to_vec();
    if let Ok(data) = fs::metadata(path) {
        for number in [data.len() as i64, data.mtime(), data.mtime_nsec()] {
            stamp.extend_from_slice(&number.to_le_bytes());
        }
    }
    stamp
}
