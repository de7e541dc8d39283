//! Files as such: mapped into memory, and written so that a reader never sees half of one.

use super::mapped::MappedFile;
use byoc_core::diag::{Diagnostic, codes};
use prost::bytes::Bytes;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

/// The bytes of a file, mapped into memory.
///
/// # Errors
/// When it cannot be opened or mapped.
pub fn map_file(path: &Path) -> std::io::Result<Bytes> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    if metadata.len() == 0 {
        return Ok(Bytes::new());
    }
    Ok(Bytes::from_owner(MappedFile::open(path)?))
}

/// The longest text that is read, in bytes: programs with their weights are longer only where the weights belong in a file of
/// their own.
pub const MAX_TEXT: usize = 256 << 20;

/// The text in a file of at most [`MAX_TEXT`] bytes, whatever kind of file it is.
///
/// # Errors
/// When it cannot be read, is longer, or is no text.
pub fn read_text(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_TEXT as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_TEXT {
        return Err(std::io::Error::other(format!("it has more than {MAX_TEXT} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is no UTF-8 text"))
}

/// Writes a file under a temporary name beside its place and renames it: whoever reads `path` sees the old file or the
/// whole new one.
///
/// # Errors
/// When the folder is missing or not writable, or `fill` fails.
pub fn write_atomically(path: &Path, fill: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<(), Diagnostic> {
    let write = || -> std::io::Result<()> {
        let mut temporary = temporary_beside(path)?;
        fill(temporary.as_file_mut())?;
        temporary.as_file_mut().flush()?;
        temporary.persist(path).map_err(|e| e.error)?;
        Ok(())
    };
    write().map_err(|e| cannot_write(path, &e))
}

/// Writes files that belong together: all of them under temporary names, and only when that went well are they renamed,
/// in the order given. The last should be the one that readers look for.
///
/// # Errors
/// As [`write_atomically`]; nothing has changed then, unless the system fails between two renames.
pub fn write_together(files: &[(&Path, &[u8])]) -> Result<(), Diagnostic> {
    let mut ready = Vec::with_capacity(files.len());
    for (path, bytes) in files {
        check_writable(path)?;
        let write = || -> std::io::Result<tempfile::NamedTempFile> {
            let mut temporary = temporary_beside(path)?;
            temporary.write_all(bytes)?;
            temporary.flush()?;
            Ok(temporary)
        };
        ready.push((path, write().map_err(|e| cannot_write(path, &e))?));
    }
    for (path, temporary) in ready {
        temporary.persist(path).map_err(|e| cannot_write(path, &e.error))?;
    }
    Ok(())
}

/// Whether [`write_atomically`] can be expected to succeed: asked before long work starts.
///
/// # Errors
/// When the folder is missing or not writable, or `path` is a folder.
pub fn check_writable(path: &Path) -> Result<(), Diagnostic> {
    if path.is_dir() {
        return Err(cannot_write(path, &std::io::Error::other("it is a folder")));
    }
    temporary_beside(path).map(drop).map_err(|e| cannot_write(path, &e))
}

fn temporary_beside(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".byoc-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // What a plain create asks for; the process's umask takes its share.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// A file that cannot be written.
pub(crate) fn cannot_write(path: &Path, error: &std::io::Error) -> Diagnostic {
    Diagnostic::error(codes::frontends::CANNOT_WRITE, format!("cannot write {}: {error}", path.display()))
        .help("name a file in a folder that exists and that you may write to")
}

/// What is wrong with a tensor file.
pub(crate) fn bad_file(path: &Path, why: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::error(codes::frontends::BAD_TENSOR_FILE, format!("cannot read {}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.bin");
        write_atomically(&path, |f| f.write_all(b"old")).unwrap();
        let error = write_atomically(&path, |f| {
            f.write_all(b"half of the n")?;
            Err(std::io::Error::other("disk full"))
        })
        .unwrap_err();
        assert_eq!(error.code, codes::frontends::CANNOT_WRITE);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left behind");
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
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left behind");
    }

    #[test]
    fn an_unwritable_place_is_found_before_the_work() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check_writable(&folder.path().join("a.byoc")).is_ok());
        assert!(check_writable(&folder.path().join("missing/a.byoc")).is_err());
        assert!(check_writable(folder.path()).is_err());
    }
}
