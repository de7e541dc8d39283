//! Standard output for the host alone: what plugins print goes to standard error.

use super::process::{self, Identity};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Standard output as it was when the process began.
///
/// Descriptor 1 is standard error from then on, so that what a plugin or a library of it prints is talk and no part of the
/// product, and closing it closes nothing that is needed.
#[derive(Debug)]
pub struct Product {
    file: File,
    identity: Option<Identity>,
    process: u32,
}

impl Product {
    /// Takes standard output.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub(super) fn take() -> io::Result<Product> {
        let own = process::own_descriptor(libc::STDOUT_FILENO)?;
        // SAFETY: makes descriptor 1 refer to what descriptor 2 refers to.
        if unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let identity = process::identity(own.as_raw_fd());
        Ok(Product { file: own.into(), identity, process: std::process::id() })
    }

    /// Nothing may be written to a file that took the place of standard output, or by a process that a plugin has forked.
    fn check(&self) -> io::Result<()> {
        if std::process::id() != self.process {
            return Err(io::Error::other("a process that a plugin forked has no output"));
        }
        if process::identity(self.file.as_raw_fd()) != self.identity {
            return Err(io::Error::other("a plugin closed it"));
        }
        Ok(())
    }
}

impl Write for Product {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl AsFd for Product {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Product {
    /// Returns true if it is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.file.is_terminal()
    }
}
