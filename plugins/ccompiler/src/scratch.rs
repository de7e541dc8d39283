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
    folder: TempDir,
    handle: File,
}

impl Scratch {
    /// Creates a directory in the system's temporary directory.
    ///
    /// # Errors
    /// If the directory cannot be created, or another directory replaced it.
    pub fn new() -> Result<Scratch> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| sweep(&std::env::temp_dir()));
        let mut builder = tempfile::Builder::new();
        let folder = builder.prefix(PREFIX).permissions(PermissionsExt::from_mode(0o700)).tempdir()?;
        let handle = open_directory(CWD, folder.path())?;
        let found = handle.metadata()?;
        if found.uid() != geteuid().as_raw() || found.mode() & 0o077 != 0 {
            return Err(Error::other(format!("{} was replaced by another directory", folder.path().display())));
        }
        // If the file system has no locks, only its age protects the directory from removal.
        let _ = handle.try_lock();
        Ok(Scratch { folder, handle })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a library to a file and returns its path, which no other library of the process has used: the dynamic
    /// loader identifies libraries by path and would otherwise return one that is already loaded. The path goes through
    /// the file descriptor of this directory, so it refers to this file even if a parent directory is replaced.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn library(&self, bytes: &[u8]) -> Result<PathBuf> {
        let stem = self.path().file_name().unwrap_or_default();
        let name = Path::new(stem).with_extension("so");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        File::from(openat(&self.handle, &name, flags, Mode::RUSR | Mode::WUSR)?).write_all(bytes)?;
        let through = PathBuf::from(format!("/proc/self/fd/{}", self.handle.as_raw_fd())).join(&name);
        Ok(if through.exists() { through } else { self.path().join(name) })
    }
}

/// Removes the directories that killed processes of this user left in `folder`. Errors are ignored: other processes may
/// remove the same directories, and stale directories are harmless.
fn sweep(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) && is_stale(&entry.path()).unwrap_or(false) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_stale(path: &Path) -> Result<bool> {
    let folder = open_directory(CWD, path)?;
    let found = folder.metadata()?;
    let old = found.modified()?.elapsed().is_ok_and(|age| age > MIN_STALE_AGE);
    let held = matches!(folder.try_lock(), Err(TryLockError::WouldBlock));
    Ok(found.uid() == geteuid().as_raw() && old && !held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn sweep_removes_stale_folders_only() {
        let temporary = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - 2 * MIN_STALE_AGE;
        let make = |name: &str| {
            let path = temporary.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("region.c"), "int x;").unwrap();
            File::open(path).unwrap()
        };
        for name in ["byoc-cc-left", "byoc-cc-held", "byoc-cc-new", "other"] {
            let folder = make(name);
            if name != "byoc-cc-new" {
                folder.set_modified(old).unwrap();
            }
        }
        let held = File::open(temporary.path().join("byoc-cc-held")).unwrap();
        held.lock().unwrap();
        sweep(temporary.path());
        let left = ["byoc-cc-left", "byoc-cc-held", "byoc-cc-new", "other"].map(|n| temporary.path().join(n).exists());
        assert_eq!(left, [false, true, true, true]);
    }
}
