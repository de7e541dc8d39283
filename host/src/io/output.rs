//! Files that are written: a reader never sees half of one, and what is no regular file stays what it is.
//!
//! | at the path is | what happens |
//! |---|---|
//! | nothing, or a regular file | a temporary file beside it is renamed when it is complete |
//! | a symbolic link | the same for its target, which need not exist yet |
//! | a device, a FIFO, a socket | it is opened when the content is complete, and written |
//! | a folder | an error |
//!
//! A new file has the permissions that the umask leaves; one that replaces another has those of the other.

use byoc_core::diag::{Diagnostic, codes};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Result, Seek, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, fchown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Maximum number of links in a chain, which is the system's.
const MAX_LINKS: usize = 40;

/// Writes a file: whoever reads `path` sees the old file or the whole new one. A device, a FIFO or a socket gets the
/// content when it is complete.
///
/// # Errors
/// E0513 when `path` is a folder, its folder is missing or not writable, or `fill` fails. Nothing is left behind then.
pub fn write_atomically(
    path: &Path,
    fill: impl FnOnce(&mut File) -> Result<()>,
) -> std::result::Result<(), Diagnostic> {
    let write = || {
        let mut pending = Pending::begin(path)?;
        fill(pending.file())?;
        pending.commit()
    };
    write().map_err(|e| cannot_write(path, &e))
}

/// Writes files that belong together: all of them under temporary names, and only when that went well are they renamed,
/// in the order given. The last should be the one that readers look for.
///
/// # Errors
/// As [`write_atomically`]; nothing has changed then, unless the system fails between two renames.
pub fn write_together(files: &[(&Path, &[u8])]) -> std::result::Result<(), Diagnostic> {
    let mut ready = Vec::with_capacity(files.len());
    for (path, bytes) in files {
        let write = || {
            let mut pending = Pending::begin(path)?;
            pending.file().write_all(bytes)?;
            Ok(pending)
        };
        ready.push((path, write().map_err(|e| cannot_write(path, &e))?));
    }
    for (path, pending) in ready {
        pending.commit().map_err(|e| cannot_write(path, &e))?;
    }
    Ok(())
}

/// Writes to `out` what `fill` writes to a file of its own, which has no name. A product that is written out of order, such
/// as an archive, goes to a pipe in this way.
///
/// # Errors
/// When `fill` fails, and nothing has been written then, or `out` does.
pub fn write_through(out: &mut dyn Write, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let mut buffer = tempfile::tempfile()?;
    fill(&mut buffer)?;
    copy(&mut buffer, out)
}

/// Checks whether [`write_atomically`] can be expected to succeed, before long work starts.
///
/// # Errors
/// E0513 when the folder is missing or not writable, or `path` is a folder.
pub fn check_writable(path: &Path) -> std::result::Result<(), Diagnostic> {
    let check = || match Target::of(path)? {
        Target::Regular { path, .. } => temporary_beside(&path).map(drop),
        Target::Special { .. } => match accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS) {
            Err(error @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => Err(error.into()),
            // An older system cannot be asked; it says so when the time has come.
            _ => Ok(()),
        },
    };
    check().map_err(|e| cannot_write(path, &e))
}

/// A file that is being written.
pub struct Pending(Place);

enum Place {
    /// A file beside its target, which is renamed.
    Beside { temporary: NamedTempFile, target: PathBuf, replaced: Option<Rights> },
    /// A file without a name, which is copied.
    Unnamed { buffer: File, target: PathBuf, socket: bool },
}

impl Pending {
    /// Looks at what is at `path` and opens a temporary file for the content.
    ///
    /// # Errors
    /// When `path` is a folder, or its folder is missing or not writable.
    pub fn begin(path: &Path) -> Result<Pending> {
        Ok(Pending(match Target::of(path)? {
            Target::Regular { path, replaced } => {
                Place::Beside { temporary: temporary_beside(&path)?, target: path, replaced }
            }
            Target::Special { socket } => {
                Place::Unnamed { buffer: tempfile::tempfile()?, target: path.to_owned(), socket }
            }
        }))
    }

    /// The temporary file.
    pub fn file(&mut self) -> &mut File {
        match &mut self.0 {
            Place::Beside { temporary, .. } => temporary.as_file_mut(),
            Place::Unnamed { buffer, .. } => buffer,
        }
    }

    /// Brings the content to its place.
    ///
    /// # Errors
    /// When that cannot be replaced, or written.
    pub fn commit(self) -> Result<()> {
        match self.0 {
            Place::Beside { temporary, target, replaced } => {
                if let Some(old) = replaced {
                    old.give_to(temporary.as_file())?;
                }
                temporary.persist(target).map_err(|e| e.error)?;
                Ok(())
            }
            Place::Unnamed { mut buffer, target, socket: true } => copy(&mut buffer, &mut UnixStream::connect(target)?),
            // Truncation is for the descriptor of a regular file; devices and FIFOs have no length.
            Place::Unnamed { mut buffer, target, socket: false } => {
                copy(&mut buffer, &mut OpenOptions::new().write(true).truncate(true).open(target)?)
            }
        }
    }
}

/// Owner and mode of a file.
struct Rights {
    user: u32,
    group: u32,
    mode: u32,
}

impl Rights {
    fn of(file: &Metadata) -> Rights {
        Rights { user: file.uid(), group: file.gid(), mode: file.mode() & 0o777 }
    }

    /// Gives `file` this mode, and this owner where that is allowed.
    fn give_to(&self, file: &File) -> Result<()> {
        let new = Rights::of(&file.metadata()?);
        let other = (new.user, new.group) != (self.user, self.group);
        let mode = match other && fchown(file, Some(self.user), Some(self.group)).is_err() {
            // What was allowed to the old group is not for another one.
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

/// Kind of file at a path, which says how it is written.
enum Target {
    /// A regular file or nothing yet, at the end of all links.
    Regular { path: PathBuf, replaced: Option<Rights> },
    /// A device, a FIFO, a socket, or a descriptor: opened and written.
    Special { socket: bool },
}

impl Target {
    fn of(path: &Path) -> Result<Target> {
        // The system follows the links first, and says no where its policy is against it (`fs.protected_symlinks`).
        let found = match std::fs::metadata(path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if found.as_ref().is_some_and(Metadata::is_dir) {
            return Err(Error::new(ErrorKind::IsADirectory, "expected a file, found a folder"));
        }
        if let Some(metadata) = &found
            && !metadata.is_file()
        {
            return Ok(Target::Special { socket: metadata.file_type().is_socket() });
        }
        match follow(path)? {
            Some(path) => Ok(Target::Regular { path, replaced: found.as_ref().map(Rights::of) }),
            None => Ok(Target::Special { socket: false }),
        }
    }
}

/// Returns the path at the end of a chain of links; `None` where one is the descriptor of a process, such as `/dev/stderr`: a
/// file that replaces the one behind it would not be what the descriptor is of.
fn follow(path: &Path) -> Result<Option<PathBuf>> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        if !std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
            return Ok(Some(path));
        }
        let folder = folder_of(&path);
        if folder.canonicalize()?.starts_with("/proc") {
            return Ok(None);
        }
        path = folder.join(std::fs::read_link(&path)?);
    }
    Err(Error::other("too many symbolic links"))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn temporary_beside(path: &Path) -> Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    // What a plain create asks for; the process's umask takes its share.
    builder.prefix(".byoc-").permissions(PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder_of(path))
}

/// Diagnostic of a file that cannot be written.
pub(crate) fn cannot_write(path: &Path, error: &Error) -> Diagnostic {
    Diagnostic::error(codes::frontends::CANNOT_WRITE, format!("cannot write {}: {error}", path.display()))
        .help("name a file in a folder that exists and that you may write to")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.bin");
        write_atomically(&path, |f| f.write_all(b"old")).unwrap();
        let error = write_atomically(&path, |f| {
            f.write_all(b"half of the n")?;
            Err(Error::other("disk full"))
        })
        .unwrap_err();
        assert_eq!(error.code, codes::frontends::CANNOT_WRITE);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(entries(folder.path()), 1, "no temporary file is left behind");
    }

    #[test]
    fn files_that_belong_together_are_written_both_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        write_together(&[(&a, b"1"), (&b, b"2")]).unwrap();
        // The second place is a folder: the first file stays as it was.
        std::fs::remove_file(&b).unwrap();
        std::fs::create_dir(&b).unwrap();
        assert_eq!(write_together(&[(&a, b"new"), (&b, b"new")]).unwrap_err().code, codes::frontends::CANNOT_WRITE);
        assert_eq!(std::fs::read(&a).unwrap(), b"1");
        assert_eq!(entries(folder.path()), 2, "no temporary file is left behind");
    }

    #[test]
    fn an_unwritable_place_is_found_before_the_work() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check_writable(&folder.path().join("a.byoc")).is_ok());
        assert!(check_writable(&folder.path().join("missing/a.byoc")).is_err());
        assert!(check_writable(folder.path()).is_err());
        assert_eq!(entries(folder.path()), 0);
    }

    #[test]
    fn a_chain_of_links_ends_at_its_target() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        std::fs::create_dir(place("there")).unwrap();
        symlink("second", place("first")).unwrap();
        symlink("there/target", place("second")).unwrap();
        write_atomically(&place("first"), |f| f.write_all(b"1")).unwrap();
        assert_eq!(std::fs::read(place("there/target")).unwrap(), b"1");
        assert!(place("first").is_symlink() && place("second").is_symlink());
        symlink("loop", place("loop")).unwrap();
        assert!(write_atomically(&place("loop"), |f| f.write_all(b"1")).is_err());
        assert!(place("loop").is_symlink());
    }

    #[test]
    fn a_mode_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        for mode in [0o600, 0o640, 0o755] {
            std::fs::write(&path, "old").unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            write_atomically(&path, |f| f.write_all(b"new")).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, mode);
        }
        if std::fs::metadata(&path).unwrap().uid() == 0 {
            std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
            write_atomically(&path, |f| f.write_all(b"newer")).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().uid(), 65534, "an owner is kept where that is allowed");
        }
    }

    #[test]
    fn a_socket_is_written() {
        use std::io::Read;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        check_writable(&path).unwrap();
        write_atomically(&path, |f| f.write_all(b"content")).unwrap();
        let mut got = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"content");
    }
}
