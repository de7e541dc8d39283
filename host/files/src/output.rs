//! Output files: readers never see a partial file, and only regular files are ever replaced.
//!
//! | at the path | action |
//! |---|---|
//! | nothing, or a regular file | a temporary file in the same directory is completed, then renamed |
//! | a symbolic link | the link's target, which need not exist yet, is created or replaced in the same way |
//! | a device, a FIFO, a socket | opened and written once the content is complete |
//! | a directory | an error |
//!
//! A new file has the permissions allowed by the umask; a replacement keeps the permissions of the replaced file.

use byoc_ir::diag::{Diagnostic, codes};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Result, Seek, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, fchown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Maximum number of symbolic links in a chain, as in Linux.
const MAX_LINKS: usize = 40;

/// Writes a file atomically: a reader of `path` sees either the old file or the complete new file. A device, a FIFO or
/// a socket receives the content only after all of it has been produced.
///
/// # Errors
/// E0513 if `path` is a directory, its directory is missing or not writable, or `write_contents` fails. No temporary
/// file remains.
pub fn write_atomically(
    path: &Path,
    write_contents: impl FnOnce(&mut File) -> Result<()>,
) -> std::result::Result<(), Diagnostic> {
    let write = || {
        let mut pending = Pending::begin(path)?;
        write_contents(pending.file())?;
        pending.commit()
    };
    write().map_err(|e| cannot_write(path, &e))
}

/// Writes a group of files. All are written to temporary files, which are renamed in the given order only if every
/// write succeeds. The file by which readers detect the group should be last.
///
/// # Errors
/// See [`write_atomically`]. On error, no file has changed, unless a rename fails after an earlier rename succeeded.
pub fn write_together(files: &[(&Path, &[u8])]) -> std::result::Result<(), Diagnostic> {
    let mut pending_files = Vec::with_capacity(files.len());
    for (path, bytes) in files {
        let write = || {
            let mut pending = Pending::begin(path)?;
            pending.file().write_all(bytes)?;
            Ok(pending)
        };
        pending_files.push((path, write().map_err(|e| cannot_write(path, &e))?));
    }
    for (path, pending) in pending_files {
        pending.commit().map_err(|e| cannot_write(path, &e))?;
    }
    Ok(())
}

/// Lets `write` write to an unnamed temporary file, then copies the content to `out`. Content that requires seeking,
/// such as an archive, can thus be written to a pipe.
///
/// # Errors
/// If `write` fails, in which case nothing has been written to `out`, or `out` cannot be written.
pub fn write_through(out: &mut dyn Write, write: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let mut buffer = tempfile::tempfile()?;
    write(&mut buffer)?;
    copy(&mut buffer, out)
}

/// Checks whether [`write_atomically`] is likely to succeed, so that an error is reported before long computations.
///
/// # Errors
/// E0513 if the directory is missing or not writable, or `path` is a directory.
pub fn check_writable(path: &Path) -> std::result::Result<(), Diagnostic> {
    let check = || match Target::of(path)? {
        Target::Regular { path, .. } => adjacent_temporary(&path).map(drop),
        Target::Special { .. } => match accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS) {
            Err(error @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => Err(error.into()),
            // An older system does not support the check; the write itself then reports the error.
            _ => Ok(()),
        },
    };
    check().map_err(|e| cannot_write(path, &e))
}

/// Output file under construction.
pub struct Pending(Destination);

enum Destination {
    /// Temporary file next to its target, renamed on commit.
    Adjacent { temporary: NamedTempFile, target: PathBuf, replaced: Option<FileOwnership> },
    /// Unnamed temporary file, copied on commit.
    Unnamed { buffer: File, target: PathBuf, socket: bool },
}

impl Pending {
    /// Determines the kind of file at `path` and opens a temporary file for the content.
    ///
    /// # Errors
    /// If `path` is a directory, or its directory is missing or not writable.
    pub fn begin(path: &Path) -> Result<Pending> {
        Ok(Pending(match Target::of(path)? {
            Target::Regular { path, replaced } => {
                Destination::Adjacent { temporary: adjacent_temporary(&path)?, target: path, replaced }
            }
            Target::Special { socket } => {
                Destination::Unnamed { buffer: tempfile::tempfile()?, target: path.to_owned(), socket }
            }
        }))
    }

    /// Returns the temporary file.
    pub fn file(&mut self) -> &mut File {
        match &mut self.0 {
            Destination::Adjacent { temporary, .. } => temporary.as_file_mut(),
            Destination::Unnamed { buffer, .. } => buffer,
        }
    }

    /// Moves or copies the content to its target.
    ///
    /// # Errors
    /// If the target cannot be replaced or written.
    pub fn commit(self) -> Result<()> {
        match self.0 {
            Destination::Adjacent { temporary, target, replaced } => {
                if let Some(owner) = replaced {
                    owner.apply_to(temporary.as_file())?;
                }
                temporary.persist(target).map_err(|e| e.error)?;
                Ok(())
            }
            Destination::Unnamed { mut buffer, target, socket: true } => {
                copy(&mut buffer, &mut UnixStream::connect(target)?)
            }
            // Truncation matters if the path denotes the descriptor of a regular file; devices and FIFOs have no
            // length.
            Destination::Unnamed { mut buffer, target, socket: false } => {
                copy(&mut buffer, &mut OpenOptions::new().write(true).truncate(true).open(target)?)
            }
        }
    }
}

/// Owner and mode of a file.
struct FileOwnership {
    user: u32,
    group: u32,
    mode: u32,
}

impl FileOwnership {
    fn of(file: &Metadata) -> FileOwnership {
        FileOwnership { user: file.uid(), group: file.gid(), mode: file.mode() & 0o777 }
    }

    /// Sets the mode of `file`, and its owner if permitted.
    fn apply_to(&self, file: &File) -> Result<()> {
        let new = FileOwnership::of(&file.metadata()?);
        let other = (new.user, new.group) != (self.user, self.group);
        let mode = match other && fchown(file, Some(self.user), Some(self.group)).is_err() {
            // The permissions of the old group must not extend to a different group.
            true => self.mode & 0o707,
            false => self.mode,
        };
        file.set_permissions(PermissionsExt::from_mode(mode))
    }
}

fn copy(content: &mut File, out: &mut dyn Write) -> Result<()> {
    content.rewind()?;
    std::io::copy(content, out)?;
    out.flush()
}

/// Kind of the file at a path, which determines how the file is written.
enum Target {
    /// Regular file, or no file; all symlinks in the path are resolved.
    Regular { path: PathBuf, replaced: Option<FileOwnership> },
    /// Device, FIFO, socket or descriptor: opened and written.
    Special { socket: bool },
}

impl Target {
    fn of(path: &Path) -> Result<Target> {
        // The operating system follows the symlinks first, so that it can deny access according to its policy
        // (`fs.protected_symlinks`).
        let target_metadata = match std::fs::metadata(path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if target_metadata.as_ref().is_some_and(Metadata::is_dir) {
            return Err(Error::new(ErrorKind::IsADirectory, "expected a file, found a directory"));
        }
        if let Some(metadata) = &target_metadata
            && !metadata.is_file()
        {
            return Ok(Target::Special { socket: metadata.file_type().is_socket() });
        }
        match follow(path)? {
            Some(path) => Ok(Target::Regular { path, replaced: target_metadata.as_ref().map(FileOwnership::of) }),
            None => Ok(Target::Special { socket: false }),
        }
    }
}

/// Returns the path at the end of a chain of symlinks; `None` if the chain contains a file descriptor of a process,
/// such as `/dev/stderr`: replacing the file would leave the descriptor open on the old file.
fn follow(path: &Path) -> Result<Option<PathBuf>> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        if !std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
            return Ok(Some(path));
        }
        let dir = folder_of(&path);
        if dir.canonicalize()?.starts_with("/proc") {
            return Ok(None);
        }
        path = dir.join(std::fs::read_link(&path)?);
    }
    Err(Error::other(format!("expected a chain of at most {MAX_LINKS} symbolic links, found more")))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

fn adjacent_temporary(path: &Path) -> Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    // Mode of a newly created file, to which the umask of the process applies.
    builder.prefix(".byoc-").permissions(PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder_of(path))
}

/// Returns the diagnostic for a file that cannot be written.
pub fn cannot_write(path: &Path, error: &Error) -> Diagnostic {
    Diagnostic::error(codes::frontends::CANNOT_WRITE, format!("cannot write {}: {error}", path.display()))
        .help("choose a path in an existing, writable directory")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(dir: &Path) -> usize {
        std::fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.bin");
        write_atomically(&path, |f| f.write_all(b"old")).unwrap();
        let error = write_atomically(&path, |f| {
            f.write_all(b"half of the n")?;
            Err(Error::other("disk full"))
        })
        .unwrap_err();
        assert_eq!(error.code, codes::frontends::CANNOT_WRITE);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(entries(dir.path()), 1, "no temporary file remains");
    }

    #[test]
    fn write_together_is_all_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        write_together(&[(&a, b"1"), (&b, b"2")]).unwrap();
        // The second target is a directory, so the first file must stay unchanged.
        std::fs::remove_file(&b).unwrap();
        std::fs::create_dir(&b).unwrap();
        assert_eq!(write_together(&[(&a, b"new"), (&b, b"new")]).unwrap_err().code, codes::frontends::CANNOT_WRITE);
        assert_eq!(std::fs::read(&a).unwrap(), b"1");
        assert_eq!(entries(dir.path()), 2, "no temporary file remains");
    }

    #[test]
    fn check_writable_detects_unwritable_targets() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check_writable(&dir.path().join("a.byoc")).is_ok());
        assert!(check_writable(&dir.path().join("missing/a.byoc")).is_err());
        assert!(check_writable(dir.path()).is_err());
        assert_eq!(entries(dir.path()), 0);
    }

    #[test]
    fn follows_a_chain_of_links() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("there")).unwrap();
        symlink("second", path("first")).unwrap();
        symlink("there/target", path("second")).unwrap();
        write_atomically(&path("first"), |f| f.write_all(b"1")).unwrap();
        assert_eq!(std::fs::read(path("there/target")).unwrap(), b"1");
        assert!(path("first").is_symlink() && path("second").is_symlink());
        symlink("loop", path("loop")).unwrap();
        assert!(write_atomically(&path("loop"), |f| f.write_all(b"1")).is_err());
        assert!(path("loop").is_symlink());
    }

    #[test]
    fn keeps_the_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for mode in [0o600, 0o640, 0o755] {
            std::fs::write(&path, "old").unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            write_atomically(&path, |f| f.write_all(b"new")).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, mode);
        }
        if std::fs::metadata(&path).unwrap().uid() == 0 {
            std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
            write_atomically(&path, |f| f.write_all(b"newer")).unwrap();
            assert_eq!(
                std::fs::metadata(&path).unwrap().uid(),
                65534,
                "expected the owner to be preserved where permitted"
            );
        }
    }

    #[test]
    fn writes_to_a_socket() {
        use std::io::Read;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        check_writable(&path).unwrap();
        write_atomically(&path, |f| f.write_all(b"content")).unwrap();
        let mut content = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut content).unwrap();
        assert_eq!(content, b"content");
    }
}
