//! The files that a command is told to write, of which one may be standard output: `-`. That is the product then, and what
//! would be printed there is talk.

use super::out;
use crate::io;
use byoc_core::diag::{Diagnostic, codes};
use std::fs::File;
use std::io::{ErrorKind, Result};
use std::path::Path;

/// Returns whether a path stands for standard output.
pub fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path == Path::new(name))
}

/// Checks before long work whether files can be written, and reserves standard output for the one that goes there.
///
/// # Errors
/// E0513 where one cannot be written, or two go to standard output.
pub fn check<'a>(paths: impl IntoIterator<Item = &'a Path>) -> std::result::Result<(), Diagnostic> {
    for path in paths {
        if !is_stdout(path) {
            io::check_writable(path)?;
        } else if !out::reserve() {
            let message = "two files are to be written to standard output, expected one";
            return Err(
                Diagnostic::error(codes::frontends::CANNOT_WRITE, message).help("name a file for the other one")
            );
        }
    }
    Ok(())
}

/// Writes a file, or to standard output.
///
/// # Errors
/// E0513 when it cannot be written, E0517 when standard output cannot.
pub fn write(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> std::result::Result<(), Diagnostic> {
    if !is_stdout(path) {
        return io::write_atomically(path, fill);
    }
    match out::with_stdout(|stdout| io::write_through(stdout, fill)) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => out::Ended::from(error).end(),
        written => written.map_err(|error| out::cannot_write(&error)),
    }
}
