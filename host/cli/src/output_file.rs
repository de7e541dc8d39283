//! Output files of a command. One of them may be standard output, given as `-`; everything else the command prints then
//! goes to standard error.

use super::stdout;
use byoc::io;
use byoc_ir::diag::{Diagnostic, codes};
use std::fs::File;
use std::io::{ErrorKind, Result};
use std::path::Path;

/// Tests whether a path denotes standard output.
pub fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path == Path::new(name))
}

/// Checks before long computations that the files can be written, and reserves standard output if one of them is `-`.
///
/// # Errors
/// E0513 if a file cannot be written, or if two files would go to standard output.
pub fn check<'a>(paths: impl IntoIterator<Item = &'a Path>) -> std::result::Result<(), Diagnostic> {
    for path in paths {
        if !is_stdout(path) {
            io::check_writable(path)?;
        } else if !stdout::reserve() {
            let message = "expected at most one file on standard output, found two";
            return Err(
                Diagnostic::error(codes::frontends::CANNOT_WRITE, message).help("write the other output to a file")
            );
        }
    }
    Ok(())
}

/// Writes to a file or to standard output.
///
/// # Errors
/// E0513 if the file cannot be written, E0517 if standard output cannot be written.
pub fn write(path: &Path, write_contents: impl FnOnce(&mut File) -> Result<()>) -> std::result::Result<(), Diagnostic> {
    if !is_stdout(path) {
        return io::write_atomically(path, write_contents);
    }
    match stdout::with_stdout(|stdout| io::write_through(stdout, write_contents)) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => stdout::OutputError::from(error).end(),
        write_result => write_result.map_err(|error| stdout::write_error(&error)),
    }
}
