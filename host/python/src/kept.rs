//! Compilations that models retain for saving and pickling, with their constants in memory or in a file.

use byoc::Compilation;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// Minimum total size, in bytes, of the region constants for a compilation to be stored in a file.
const MIN_BYTES: usize = 16 << 20;

/// Retained compilation of a model.
pub struct StoredCompilation {
    compilation: Compilation,
    is_in_file: bool,
}

impl StoredCompilation {
    /// Retains a compilation in memory.
    pub fn in_memory(compilation: Compilation) -> StoredCompilation {
        StoredCompilation { compilation, is_in_file: false }
    }

    /// Retains a compilation. If the region constants are large, the compilation is written to a file in the first
    /// writable directory and mapped: backends repack constants, so the originals are rarely read, and the system can
    /// evict their pages. If no directory is writable, the constants stay in memory.
    pub fn new(compilation: &Compilation, dirs: &[PathBuf]) -> StoredCompilation {
        let is_large = compilation.region_constant_bytes() >= MIN_BYTES;
        match dirs.iter().filter(|_| is_large).find_map(|dir| spill(compilation, dir)) {
            Some(compilation) => StoredCompilation { compilation, is_in_file: true },
            None => StoredCompilation::in_memory(compilation.clone()),
        }
    }

    pub fn compilation(&self) -> &Compilation {
        &self.compilation
    }

    /// Returns true if the constants are in a file.
    pub fn is_in_file(&self) -> bool {
        self.is_in_file
    }
}

/// Writes a compilation to a file, opens the file, and unlinks it; its storage is freed with the last mapping. Returns
/// `None` if the file cannot be written or opened.
fn spill(compilation: &Compilation, dir: &Path) -> Option<Compilation> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    std::fs::create_dir_all(dir).ok()?;
    let file_number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!("model-{}-{file_number}.byoc", process::id()));
    compilation.save(&path).ok()?;
    let reopened = Compilation::open(path.as_path());
    let _ = std::fs::remove_file(&path);
    reopened.ok()
}
