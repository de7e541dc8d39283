//! Folders of this process alone: the C compiler works in one, an object is loaded from one.
//!
//! Each is locked as long as it is in use. What is not locked any more was left by a process that was killed, and goes when
//! the next one compiles.

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::geteuid;
use std::fs::{File, TryLockError};
use std::io::{Error, Result, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;
use tempfile::TempDir;

const PREFIX: &str = "byoc-cc-";

/// A folder that is not locked yet is not taken for one that was left behind.
pub const LEFT_BEHIND: Duration = Duration::from_secs(600);

/// A folder that nobody else may look into. It goes with the value.
pub struct Scratch {
    folder: TempDir,
    handle: File,
}

impl Scratch {
    /// Makes a folder where temporary files are.
    ///
    /// # Errors
    /// Where that is not possible, or another folder has taken its place.
    pub fn new() -> Result<Scratch> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| sweep(&std::env::temp_dir()));
        let mut builder = tempfile::Builder::new();
        let folder = builder.prefix(PREFIX).permissions(PermissionsExt::from_mode(0o700)).tempdir()?;
        let handle = open_folder(CWD, folder.path())?;
        let found = handle.metadata()?;
        if found.uid() != geteuid().as_raw() || found.mode() & 0o077 != 0 {
            return Err(Error::other(format!("{} was exchanged for another folder", folder.path().display())));
        }
        // Where the system has no locks, the folder's age has to do.
        let _ = handle.try_lock();
        Ok(Scratch { folder, handle })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a library to a file, and gives a path to it that no other library of the process ever had: the system's
    /// loader takes paths that it knows for libraries that it has. The path leads through this folder's descriptor, so that
    /// it is this file whatever happens to the folders above.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn library(&self, bytes: &[u8]) -> Result<PathBuf> {
        let stem = self.path().file_name().unwrap_or_default();
        let name = Path::new(stem).with_extension("so");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        File::from(openat(&self.handle, &name, flags, Mode::RUSR | Mode::WUSR)?).write_all(bytes)?;
        let through = PathBuf::from(format!("/proc/self/fd/{}", self.handle.as_raw_fd())).join(&name);
        Ok(if through.exists() { through } else { self.path().join(name) })
    }
}

/// Opens a folder, and nothing that a link leads to.
pub fn open_folder(within: impl AsFd, name: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(within, name, flags, Mode::empty())?))
}

/// Removes what killed processes of this user left in `folder`. Errors are somebody else's doing and cost nothing here.
fn sweep(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) && is_left_behind(&entry.path()).unwrap_or(false) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_left_behind(path: &Path) -> Result<bool> {
    let folder = open_folder(CWD, path)?;
    let found = folder.metadata()?;
    let old = found.modified()?.elapsed().is_ok_and(|age| age > LEFT_BEHIND);
    let held = matches!(folder.try_lock(), Err(TryLockError::WouldBlock));
    Ok(found.uid() == geteuid().as_raw() && old && !held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn what_nobody_holds_any_more_is_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - 2 * LEFT_BEHIND;
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
