//! Standard output reserved for the host: plugin output goes to standard error.

use super::process::{self, Identity};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Standard output of the process at its start.
///
/// Once standard output is reserved, descriptor 1 refers to standard error: output of a plugin or of its libraries does
/// not mix with the host's results, and closing descriptor 1 is harmless.
#[derive(Debug)]
pub struct ReservedStdout {
    file: File,
    identity: Option<Identity>,
    process: u32,
}

impl ReservedStdout {
    /// Reserves standard output for the host.
    ///
    /// # Errors
    /// If no file descriptor is available.
    pub(super) fn reserve() -> io::Result<ReservedStdout> {
        let duplicate = process::duplicate_high(libc::STDOUT_FILENO)?;
        // SAFETY: `dup2` only redirects descriptor 1, whose file `duplicate` keeps open.
        if unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let identity = process::identity(duplicate.as_raw_fd());
        Ok(ReservedStdout { file: duplicate.into(), identity, process: std::process::id() })
    }

    /// Checks that the descriptor still refers to standard output, and that no plugin has forked this process.
    fn check(&self) -> io::Result<()> {
        if std::process::id() != self.process {
            return Err(io::Error::other("this process was forked by a plugin and has no standard output"));
        }
        if process::identity(self.file.as_raw_fd()) != self.identity {
            return Err(io::Error::other("a plugin closed the standard output descriptor"));
        }
        Ok(())
    }
}

impl Write for ReservedStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl AsFd for ReservedStdout {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl ReservedStdout {
    /// Returns true if the output is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.file.is_terminal()
    }
}
