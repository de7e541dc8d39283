//! Private temporary directories, in which the C compiler works and from which objects are loaded.
//!
//! A directory is locked while it is in use. An unlocked directory was left by a killed process; the next process that
//! creates a directory removes abandoned directories.

use byoc_plugin_support::cache::{MIN_STALE_AGE, open_directory};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::geteuid;
use std::fs::{File, TryLockError};
use std::io::{Error, Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use tempfile::TempDir;

const PREFIX: &str = "byoc-cc-";

/// Temporary directory that only the user can access; removed on drop.
pub struct Scratch {
    dir: TempDir,
    handle: File,
}

impl Scratch {
    /// Creates a directory in the system's temporary directory.
    ///
    /// # Errors
    /// If the directory cannot be created, or another directory replaced it.
    pub fn new() -> Result<Scratch> {
        static SWEEP: Once = Once::new();
        SWEEP.call_once(|| sweep(&std::env::temp_dir()));
        let mut builder = tempfile::Builder::new();
        let dir = builder.prefix(PREFIX).permissions(PermissionsExt::from_mode(0o700)).tempdir()?;
        let handle = open_directory(CWD, dir.path())?;
        let metadata = handle.metadata()?;
        if metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
            return Err(Error::other(format!("{} was replaced by another directory", dir.path().display())));
        }
        // If the file system does not support locks, only the directory's age protects it from removal.
        let _ = handle.try_lock();
        Ok(Scratch { dir, handle })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a library to a file and returns its path, which no other library of the process has used: the dynamic
    /// loader identifies libraries by path and would otherwise return one that is already loaded. The path names this
    /// directory by its file descriptor, so it refers to this file even if a parent directory is replaced.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn library(&self, bytes: &[u8]) -> Result<PathBuf> {
        let stem = self.path().file_name().unwrap_or_default();
        let name = Path::new(stem).with_extension("so");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        File::from(openat(&self.handle, &name, flags, Mode::RUSR | Mode::WUSR)?).write_all(bytes)?;
        let handle_path = PathBuf::from(format!("/proc/self/fd/{}", self.handle.as_raw_fd())).join(&name);
        Ok(if handle_path.exists() { handle_path } else { self.path().join(name) })
    }
}

/// Removes the directories that killed processes of this user left in `dir`. Errors are ignored: other processes may
/// remove the same directories, and stale directories are harmless.
fn sweep(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) && is_stale(&entry.path()).unwrap_or(false) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_stale(path: &Path) -> Result<bool> {
    let dir = open_directory(CWD, path)?;
    let metadata = dir.metadata()?;
    let is_old = metadata.modified()?.elapsed().is_ok_and(|age| age > MIN_STALE_AGE);
    let is_held = matches!(dir.try_lock(), Err(TryLockError::WouldBlock));
    Ok(metadata.uid() == geteuid().as_raw() && is_old && !is_held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn sweep_removes_stale_folders_only() {
        let temporary_dir = tempfile::tempdir().unwrap();
        let stale_time = SystemTime::now() - 2 * MIN_STALE_AGE;
        let create_dir = |name: &str| {
            let path = temporary_dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("region.c"), "int x;").unwrap();
            File::open(path).unwrap()
        };
        for name in ["byoc-cc-left", "byoc-cc-held", "byoc-cc-new", "other"] {
            let dir = create_dir(name);
            if name != "byoc-cc-new" {
                dir.set_modified(stale_time).unwrap();
            }
        }
        let held_dir = File::open(temporary_dir.path().join("byoc-cc-held")).unwrap();
        held_dir.lock().unwrap();
        sweep(temporary_dir.path());
        let are_present =
            ["byoc-cc-left", "byoc-cc-held", "byoc-cc-new", "other"].map(|n| temporary_dir.path().join(n).exists());
        assert_eq!(are_present, [false, true, true, true]);
    }
}
