//! Output directories: a reader sees either only the new files or only the old files.

use crate::output::cannot_write;
use byoc_ir::diag::{Diagnostic, codes};
use std::io::{ErrorKind, Result};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Names of the subdirectories of the temporary directory that hold the new and the old files.
const NEW_NAME: &str = "new";
const OLD_NAME: &str = "old";

/// Directory under construction next to its target, which it replaces on commit. Without a commit, the target is
/// unchanged.
pub struct PendingDirectory {
    temporary: TempDir,
    target: PathBuf,
}

impl PendingDirectory {
    /// Creates the directory. The target may be missing, empty, or a directory that `check_replaceable` permits: all of
    /// its contents are deleted on commit. Otherwise, `check_replaceable` returns what else was found.
    ///
    /// # Errors
    /// E0513 if the target is a file or a directory that may not be replaced, or its parent is missing or not writable.
    pub fn begin(
        target: &Path,
        check_replaceable: impl FnOnce(&Path) -> std::result::Result<(), String>,
    ) -> std::result::Result<PendingDirectory, Diagnostic> {
        let refusal = |message: &str| {
            Diagnostic::error(codes::frontends::CANNOT_WRITE, format!("{}: {message}", target.display()))
                .help("choose a directory that does not exist, is empty, or was written by the same command")
        };
        match std::fs::read_dir(target) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    check_replaceable(target)
                        .map_err(|found| refusal(&format!("expected an empty directory, found {found}")))?;
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                return Err(refusal("expected a directory, found a file"));
            }
            Err(error) => return Err(cannot_write(target, &error)),
        }
        let create = || {
            // `..` and symlinks are resolved first, so that the rename stays within one directory.
            let target = match target.canonicalize() {
                Ok(dir_contents) => dir_contents,
                Err(_) => std::path::absolute(target)?,
            };
            let parent = target.parent().unwrap_or(&target);
            let temporary = tempfile::Builder::new().prefix(".byoc-").tempdir_in(parent)?;
            std::fs::create_dir(temporary.path().join(NEW_NAME))?;
            Ok(PendingDirectory { temporary, target })
        };
        create().map_err(|error| cannot_write(target, &error))
    }

    /// Returns the directory to fill.
    pub fn path(&self) -> PathBuf {
        self.temporary.path().join(NEW_NAME)
    }

    /// Replaces the target with the directory.
    ///
    /// # Errors
    /// E0513 if the system cannot rename the directories, in which case the target is unchanged.
    pub fn commit(self) -> std::result::Result<(), Diagnostic> {
        self.replace().map_err(|error| cannot_write(&self.target, &error))
    }

    fn replace(&self) -> Result<()> {
        let backup = self.temporary.path().join(OLD_NAME);
        let has_backup = match std::fs::rename(&self.target, &backup) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        std::fs::rename(self.path(), &self.target).inspect_err(|_| {
            if has_backup {
                let _ = std::fs::rename(&backup, &self.target);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn other_files(_: &Path) -> std::result::Result<(), String> {
        Err("other files".into())
    }

    #[test]
    fn appears_as_a_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        let pending = PendingDirectory::begin(&target, other_files).unwrap();
        std::fs::write(pending.path().join("a"), "1").unwrap();
        assert!(!target.exists());
        pending.commit().unwrap();
        assert_eq!((names(&target), names(dir.path())), (vec!["a".to_owned()], vec!["out".to_owned()]));
        // A non-replaceable target is an error; dropping an uncommitted directory leaves the target unchanged.
        let error = PendingDirectory::begin(&target, other_files).err().unwrap();
        assert_eq!(error.code, codes::frontends::CANNOT_WRITE);
        drop(PendingDirectory::begin(&target, |_| Ok(())).unwrap());
        assert_eq!(names(dir.path()), ["out"]);
        let pending = PendingDirectory::begin(&target, |_| Ok(())).unwrap();
        std::fs::write(pending.path().join("b"), "2").unwrap();
        pending.commit().unwrap();
        assert_eq!((names(&target), names(dir.path())), (vec!["b".to_owned()], vec!["out".to_owned()]));
    }

    #[test]
    fn refuses_files_and_missing_parents() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        for name in ["file", "missing/out"] {
            let error = PendingDirectory::begin(&dir.path().join(name), |_| Ok(())).err().unwrap();
            assert_eq!(error.code, codes::frontends::CANNOT_WRITE, "{name}");
        }
        assert_eq!(names(dir.path()), ["file"]);
        // An empty directory is replaced.
        let empty_dir = dir.path().join("empty");
        std::fs::create_dir(&empty_dir).unwrap();
        PendingDirectory::begin(&empty_dir, other_files).unwrap().commit().unwrap();
        assert_eq!(names(dir.path()), ["empty", "file"]);
    }
}
