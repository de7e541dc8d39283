//! Compilations that models keep for saving and pickling, in memory or in a file.

use byoc::{Compilation, Error};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of the constants of regions from which on they are kept in a file.
const MIN_BYTES: usize = 16 << 20;

/// Compilation of a model.
pub enum Kept {
    /// In memory, where the model shares it.
    Memory(Compilation),
    /// In an artifact: the backends have packed the constants, and nothing else reads them.
    File(Artifact),
}

/// File that is removed with its owner.
pub struct Artifact {
    path: PathBuf,
    /// Process that wrote the file; its forked children leave the file alone.
    process: u32,
}

impl Drop for Artifact {
    fn drop(&mut self) {
        if self.process == process::id() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Kept {
    /// Keeps a compilation. Where backends take large constants, it is written to a file of one of the folders; where none
    /// of them can be written to, it stays in memory.
    pub fn new(compilation: &Compilation, folders: &[PathBuf]) -> Kept {
        if compilation.region_constant_bytes() < MIN_BYTES {
            return Kept::Memory(compilation.clone());
        }
        let written = folders.iter().find_map(|folder| write(compilation, folder));
        written.map_or_else(|| Kept::Memory(compilation.clone()), Kept::File)
    }

    fn compilation(&self) -> Result<Compilation, Error> {
        match self {
            Kept::Memory(compilation) => Ok(compilation.clone()),
            Kept::File(artifact) => Compilation::open(artifact.path.as_path()),
        }
    }

    /// Writes an artifact.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        self.compilation()?.save(path)
    }

    /// Returns the bytes of an artifact.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        self.compilation()?.to_bytes()
    }

    /// Returns true if the compilation is in a file.
    pub fn is_in_file(&self) -> bool {
        matches!(self, Kept::File(_))
    }
}

/// Writes the artifact under a name that nothing else has.
fn write(compilation: &Compilation, folder: &Path) -> Option<Artifact> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let folder = folder.join("models");
    std::fs::create_dir_all(&folder).ok()?;
    let (process, number) = (process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let path = folder.join(format!("{process}-{number}.byoc"));
    let artifact = Artifact { path, process };
    // A process that was killed may have left a file of this name.
    compilation.save(&artifact.path).ok()?;
    Some(artifact)
}
