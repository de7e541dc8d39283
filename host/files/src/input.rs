//! Input files. An input must be a regular file: a FIFO would block, and a device may be endless.

use super::mapped::MappedFile;
use byoc_ir::cancel;
use byoc_ir::diag::{Diagnostic, codes};
use bytes::Bytes;
use rustix::fs::OFlags;
use std::fs::{File, FileType, OpenOptions};
use std::io::{Error, Read, Result};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file without ever blocking. The kind of file is checked before and after opening.
///
/// # Errors
/// If the file cannot be opened, or is not a regular file.
pub fn open_regular(path: &Path) -> Result<File> {
    // Opening a device or a FIFO may have side effects, so the kind of file is also checked before opening.
    expect_regular(std::fs::metadata(path)?.file_type())?;
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    expect_regular(file.metadata()?.file_type())?;
    Ok(file)
}

pub(crate) fn expect_regular(file_type: FileType) -> Result<()> {
    if file_type.is_file() {
        return Ok(());
    }
    let kind = match file_type {
        file_type if file_type.is_dir() => "a directory",
        file_type if file_type.is_fifo() => "a FIFO",
        file_type if file_type.is_socket() => "a socket",
        file_type if file_type.is_symlink() => "a symbolic link",
        _ => "a device",
    };
    Err(Error::other(format!("expected a regular file, found {kind}")))
}

/// Maximum size of a text file in bytes. Only a module with inline weights, which belong in a separate file, exceeds
/// it.
pub const MAX_TEXT: usize = 256 << 20;

/// Reads a regular UTF-8 file of at most [`MAX_TEXT`] bytes.
///
/// # Errors
/// See [`open_regular`]. Also fails if the file is longer or not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    text_of(&open_regular(path)?, MAX_TEXT)
}

/// Reads the text of an open UTF-8 file of at most `max` bytes.
///
/// # Errors
/// If the file is longer, not UTF-8, or cannot be read.
pub fn text_of(file: &File, max: usize) -> Result<String> {
    let mut bytes = Vec::new();
    file.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(Error::other(format!("expected at most {max} bytes of text, found more")));
    }
    String::from_utf8(bytes).map_err(|_| Error::other("the file is not valid UTF-8"))
}

/// Maps a regular file into memory.
///
/// # Errors
/// See [`open_regular`]. Also fails if the file cannot be mapped.
pub fn map_file(path: &Path) -> Result<Bytes> {
    map(&open_regular(path)?)
}

/// Maps an open regular file into memory.
///
/// # Errors
/// If the file cannot be mapped.
pub fn map(file: &File) -> Result<Bytes> {
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    Ok(Bytes::from_owner(MappedFile::of(file)?))
}

/// Returns the diagnostic for a tensor file that cannot be read, or whose reading is cancelled.
pub fn bad_file(path: &Path, reason: impl std::fmt::Display) -> Diagnostic {
    if let Err(cancelled) = cancel::check(|| format!("{} was being read", path.display())) {
        return cancelled;
    }
    Diagnostic::error(codes::frontends::BAD_TENSOR_FILE, format!("cannot read {}: {reason}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        std::fs::write(&path, "text").unwrap();
        assert_eq!(read_text(&path).unwrap(), "text");
        assert_eq!(&map_file(&path).unwrap()[..], b"text");
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        for (path, kind) in
            [(fifo.as_path(), "a FIFO"), (dir.path(), "a directory"), ("/dev/null".as_ref(), "a device")]
        {
            let error = open_regular(path).unwrap_err().to_string();
            assert_eq!(error, format!("expected a regular file, found {kind}"));
        }
    }
}
