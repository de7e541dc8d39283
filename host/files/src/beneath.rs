//! Files whose names come from other files, opened beneath a directory that is held open.
//!
//! A name that is checked and then opened may mean another file the second time. Here nothing is checked by name: a
//! file is opened from the descriptor of its directory, without following a link, and what was opened is examined.
//! Links are resolved before, so that a link to a file inside works; a link that changes in between is an error.

use crate::input::{expect_regular, map};
use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// Open directory.
#[derive(Debug)]
pub struct Directory {
    descriptor: OwnedFd,
    /// Path of the directory, with symlinks resolved.
    path: PathBuf,
}

/// Function that opens a path of names beneath a directory.
type Open = fn(BorrowedFd<'_>, &Path, OFlags) -> rustix::io::Result<OwnedFd>;

impl Directory {
    /// Opens a directory.
    ///
    /// # Errors
    /// If the directory cannot be opened.
    pub fn open(path: &Path) -> Result<Directory> {
        let path = path.canonicalize()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Directory { descriptor: openat(CWD, &path, flags, Mode::empty())?, path })
    }

    /// Opens a regular file beneath the directory, without blocking. No component of `path` may be a symlink.
    ///
    /// # Errors
    /// If `path` is not a path of names, or the file cannot be opened or is not a regular file.
    pub fn open_regular(&self, path: &Path) -> Result<File> {
        self.open_by(open_beneath, path)
    }

    fn open_by(&self, open: Open, path: &Path) -> Result<File> {
        if !is_path_of_names(path) {
            return Err(Error::other("expected a file inside of the directory, found another path"));
        }
        // Opening a device or a FIFO may have side effects, so the kind of file is first read from a descriptor that
        // opens nothing.
        let place = File::from(open(self.descriptor.as_fd(), path, OFlags::PATH)?);
        expect_regular(place.metadata()?.file_type())?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(open(self.descriptor.as_fd(), path, flags)?);
        expect_regular(file.metadata()?.file_type())?;
        Ok(file)
    }
}

/// Tests for a path of one or more names, without `.`, `..` and `/` at its beginning.
fn is_path_of_names(path: &Path) -> bool {
    let mut parts = path.components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Opens a path in one system call that stays beneath the directory, or step by step where the kernel does not have the
/// call, or a filter of system calls denies it.
fn open_beneath(dir: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    match openat2(dir, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => open_in_steps(dir, path, flags),
        result => result,
    }
}

/// Opens a path of names one component at a time, each without following a symlink.
fn open_in_steps(dir: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let mut names = path.components();
    let last = names.next_back().ok_or(Errno::NOENT)?;
    let mut parent = None;
    for name in names {
        let dir = parent.as_ref().map_or(dir, OwnedFd::as_fd);
        parent = Some(step(dir, name, OFlags::PATH | OFlags::DIRECTORY)?);
    }
    step(parent.as_ref().map_or(dir, OwnedFd::as_fd), last, flags)
}

fn step(dir: BorrowedFd<'_>, name: Component<'_>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat(dir, name.as_os_str(), flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Files beside a file that names them: those beneath its directory, after resolving symlinks. If the file itself is a
/// symlink, the directory of its target is permitted as well: model caches store each file under its digest, and
/// provide directories of symlinks to these files.
#[derive(Debug)]
pub struct Siblings {
    dir: PathBuf,
    allowed_dirs: Vec<Directory>,
}

impl Siblings {
    /// Returns the files beside `file`, which is open as `opened` if it was read from there. A file that was never
    /// opened, such as a model in memory, need not exist.
    pub fn of(file: &Path, opened: Option<&File>) -> Siblings {
        let dir = match file.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
            _ => PathBuf::from("."),
        };
        let own_dir = Directory::open(&dir).ok();
        let target_dir = file.canonicalize().ok().and_then(|target| {
            let target_dir = Directory::open(target.parent()?).ok()?;
            // A link that was changed after the file had been opened does not permit another directory.
            if let Some(opened) = opened {
                let found = statat(&target_dir.descriptor, target.file_name()?, AtFlags::SYMLINK_NOFOLLOW).ok()?;
                let opened = fstat(opened).ok()?;
                if (found.st_dev, found.st_ino) != (opened.st_dev, opened.st_ino) {
                    return None;
                }
            }
            Some(target_dir)
        });
        Siblings { dir, allowed_dirs: own_dir.into_iter().chain(target_dir).collect() }
    }

    /// Opens the regular file with a name, which is a path below the directory.
    ///
    /// # Errors
    /// If the name or a symlink leads outside, or the file cannot be opened.
    pub fn open(&self, name: &str) -> std::result::Result<File, SiblingError> {
        let path = Path::new(name);
        let is_inside = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !is_inside || name.is_empty() || name.contains('\\') {
            return Err(SiblingError::Outside(None));
        }
        let target = self.dir.join(path).canonicalize().map_err(SiblingError::Unreadable)?;
        let inside = self.allowed_dirs.iter().find_map(|dir| Some((dir, target.strip_prefix(&dir.path).ok()?)));
        match inside {
            Some((dir, path)) => dir.open_regular(path).map_err(SiblingError::Unreadable),
            None => Err(SiblingError::Outside(Some(target))),
        }
    }

    /// Maps the regular file with a name into memory.
    ///
    /// # Errors
    /// See [`Siblings::open`].
    pub fn map(&self, name: &str) -> std::result::Result<Bytes, SiblingError> {
        map(&self.open(name)?).map_err(SiblingError::Unreadable)
    }
}

/// Reason why a file beside another one is not read.
#[derive(Debug)]
pub enum SiblingError {
    /// The name leads outside the directory, or is a symlink to the given path outside.
    Outside(Option<PathBuf>),
    /// The system cannot open the file, or it is not a regular file.
    Unreadable(Error),
}

impl fmt::Display for SiblingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SiblingError::Outside(None) => write!(f, "the path leads outside the directory"),
            SiblingError::Outside(Some(target)) => {
                write!(f, "a symlink to {}, which is outside the directory", target.display())
            }
            SiblingError::Unreadable(error) => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    const OPEN: [Open; 2] = [open_beneath, open_in_steps];

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn text(file: File) -> String {
        let mut text = String::new();
        (&file).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn opens_no_link_and_nothing_outside() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(&root.join("secret"), "secret");
        write(&root.join("in/a/b"), "b");
        symlink("b", root.join("in/a/link")).unwrap();
        symlink("a", root.join("in/dir")).unwrap();
        symlink("..", root.join("in/up")).unwrap();
        rustix::fs::mkfifoat(CWD, root.join("in/fifo"), Mode::RUSR).unwrap();
        let dir = Directory::open(&root.join("in")).unwrap();
        for open in OPEN {
            assert_eq!(text(dir.open_by(open, "a/b".as_ref()).unwrap()), "b");
            for path in
                ["a/link", "dir/b", "up/secret", "../secret", "a/../../secret", "/etc/passwd", "", ".", "a", "a/b/c"]
            {
                dir.open_by(open, path.as_ref()).expect_err(path);
            }
            let error = dir.open_by(open, "fifo".as_ref()).unwrap_err();
            assert_eq!(error.to_string(), "expected a regular file, found a FIFO");
            let missing = dir.open_by(open, "a/missing".as_ref()).unwrap_err();
            assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
        }
        // The directory is the one that was opened, whatever its path means later.
        std::fs::rename(root.join("in"), root.join("moved")).unwrap();
        write(&root.join("in/a/b"), "another b");
        assert_eq!(OPEN.map(|open| text(dir.open_by(open, "a/b".as_ref()).unwrap())), ["b", "b"]);
    }

    /// Swaps a directory for a link that leads outside, between the resolution of the name and the opening.
    #[test]
    fn a_directory_that_becomes_a_link_is_not_left() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(&root.join("out/w"), "outside");
        write(&root.join("in/d/w"), "inside");
        let dir = Directory::open(&root.join("in")).unwrap();
        let target = root.join("in/d/w").canonicalize().unwrap();
        std::fs::rename(root.join("in/d"), root.join("in/old")).unwrap();
        symlink("../out", root.join("in/d")).unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "outside");
        for open in OPEN {
            dir.open_by(open, target.strip_prefix(&dir.path).unwrap()).unwrap_err();
        }
    }

    #[test]
    fn links_may_lead_to_files_inside_and_beside_the_target() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        // The layout of a model cache.
        write(&root.join("blobs/1"), "model");
        write(&root.join("blobs/2"), "data");
        write(&root.join("secret"), "secret");
        write(&root.join("snapshot/sub/own"), "own");
        let snapshot = |name: &str| root.join("snapshot").join(name);
        symlink("../blobs/1", snapshot("model")).unwrap();
        symlink("../blobs/2", snapshot("data")).unwrap();
        symlink("../secret", snapshot("out")).unwrap();
        symlink("sub/own", snapshot("relative")).unwrap();
        symlink(snapshot("sub/own"), snapshot("absolute")).unwrap();
        let siblings = Siblings::of(&snapshot("model"), Some(&File::open(snapshot("model")).unwrap()));
        for (name, expected) in
            [("data", "data"), ("./sub/own", "own"), ("relative", "own"), ("absolute", "own"), ("model", "model")]
        {
            assert_eq!(&siblings.map(name).unwrap()[..], expected.as_bytes(), "{name}");
        }
        assert!(matches!(siblings.open("out").unwrap_err(), SiblingError::Outside(Some(_))));
        for name in ["", "../secret", "sub/../../secret", "/etc/passwd", "sub\\own"] {
            assert!(matches!(siblings.open(name).unwrap_err(), SiblingError::Outside(None)), "{name}");
        }
        // A model that is no link has no second directory, nor has a link that changed after the model was opened.
        for opened in [snapshot("sub/own"), root.join("secret")] {
            let siblings = Siblings::of(&snapshot("model"), Some(&File::open(opened).unwrap()));
            assert!(matches!(siblings.open("data").unwrap_err(), SiblingError::Outside(Some(_))));
        }
        assert_eq!(&Siblings::of(&snapshot("none"), None).map("relative").unwrap()[..], b"own");
    }
}
