//! Standard output, which carries the result of a command, and the print macros of all commands.
//!
//! The process reserves standard output for itself (`entries::own_process`); the output of plugins goes to standard
//! error. In this crate `println!` and the other print macros expand to the macros below. A failed write ends the
//! command: silently if the reader closed the pipe, otherwise (for example if the disk is full) with an error.

use super::escape;
use byoc::runtime::error::Failure;
use byoc_ir::cancel;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_plugin_api::host::entries::{ReservedStdout, restore_process};
use std::cell::RefCell;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, LineWriter, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Writer to standard output; `None` until [`install`] is called.
static STDOUT: Mutex<Option<LineWriter<ReservedStdout>>> = Mutex::new(None);

/// True if standard output is reserved for an output file.
static IS_RESERVED: AtomicBool = AtomicBool::new(false);

/// Reserves standard output for an output file: all later prints go to standard error. Returns false if standard output
/// is already reserved.
pub fn reserve() -> bool {
    !IS_RESERVED.swap(true, Ordering::Relaxed)
}

/// Prints on standard output.
macro_rules! print {
    ($($text:tt)*) => { $crate::stdout::write(format_args!($($text)*)) };
}

/// Prints a line on standard output.
macro_rules! println {
    () => { $crate::stdout::write(format_args!("\n")) };
    ($($text:tt)*) => { $crate::stdout::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints on standard error.
macro_rules! eprint {
    ($($text:tt)*) => { $crate::stdout::write_stderr(format_args!($($text)*)) };
}

/// Prints a line on standard error.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::stdout::write_stderr(format_args!("{}\n", format_args!($($text)*))) };
}

/// Output that was not completed. [`OutputError::end`] uses it as the payload when unwinding to the start of the command.
pub enum OutputError {
    /// Failed write to standard output.
    Write(io::Error),
    /// Reason for which the work was cancelled.
    Cancelled(Box<Diagnostic>),
}

impl From<io::Error> for OutputError {
    fn from(error: io::Error) -> OutputError {
        OutputError::Write(error)
    }
}

impl OutputError {
    /// Returns the error that the command ends with; `None` if the reader closed the pipe.
    pub fn failure(&self) -> Option<Failure> {
        match self {
            OutputError::Write(error) => (error.kind() != ErrorKind::BrokenPipe).then(|| write_error(error).into()),
            OutputError::Cancelled(reason) => Some(Diagnostic::clone(reason).into()),
        }
    }

    /// Unwinds to the start of the command without a panic, so that the panic hook does not run.
    pub fn end(self) -> ! {
        std::panic::resume_unwind(Box::new(self))
    }
}

/// Returns the diagnostic for a failed write to standard output.
pub fn write_error(error: &io::Error) -> Diagnostic {
    Diagnostic::error(codes::frontends::STDOUT_FAILED, format!("cannot write to standard output: {error}"))
        .help("free disk space, or redirect standard output to another file")
}

/// Installs the writer of `print!` and `println!`.
pub fn install(stdout: ReservedStdout) {
    *lock_stdout() = Some(LineWriter::new(stdout));
}

fn lock_stdout() -> MutexGuard<'static, Option<LineWriter<ReservedStdout>>> {
    STDOUT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `write` with standard output.
///
/// # Errors
/// If `write` fails.
pub fn with_stdout<T>(write: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
    restore_process();
    match &mut *lock_stdout() {
        Some(stdout) => write(stdout),
        None => write(&mut io::stdout()),
    }
}

thread_local! {
    /// Text that [`captured_text`] collects on this thread.
    static CAPTURE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Captures the standard output of `body`, formatted as for a file, not for a terminal.
pub fn captured_text(body: impl FnOnce()) -> String {
    let outer_capture = CAPTURE.replace(Some(String::new()));
    body();
    CAPTURE.replace(outer_capture).unwrap_or_default()
}

/// Appends text to the capture of this thread; returns false if no capture is active.
fn capture(text: Arguments<'_>) -> bool {
    CAPTURE.with_borrow_mut(|buffer| match buffer {
        Some(buffer) => {
            buffer.push_str(&escape::escape_json(&text.to_string()));
            true
        }
        None => false,
    })
}

/// Writes to standard output, or to standard error if standard output is reserved for an output file.
pub fn write(text: Arguments<'_>) {
    if capture(text) {
        return;
    }
    if IS_RESERVED.load(Ordering::Relaxed) {
        return write_stderr(text);
    }
    if let Err(error) = with_stdout(|stdout| write_escaped(stdout, text)) {
        OutputError::from(error).end();
    }
}

/// Ends the command if the work is cancelled. Called periodically while a large output is printed.
pub fn end_if_cancelled(progress: impl FnOnce() -> String) {
    let is_captured = CAPTURE.with_borrow(Option::is_some);
    if !is_captured && let Err(reason) = cancel::check(progress) {
        OutputError::Cancelled(Box::new(reason)).end();
    }
}

/// Writes text with control characters escaped.
fn write_escaped(out: &mut dyn Write, text: Arguments<'_>) -> io::Result<()> {
    struct EscapingWriter<'a> {
        out: &'a mut dyn Write,
        outcome: io::Result<()>,
    }
    impl std::fmt::Write for EscapingWriter<'_> {
        fn write_str(&mut self, part: &str) -> std::fmt::Result {
            self.outcome = self.out.write_all(escape::escape_json(part).as_bytes());
            if self.outcome.is_ok() { Ok(()) } else { Err(std::fmt::Error) }
        }
    }
    let mut writer = EscapingWriter { out, outcome: Ok(()) };
    // Write errors are in `outcome`; `write_fmt` itself fails only if a `Display` implementation does, and those of
    // the printed values never fail.
    let _ = std::fmt::Write::write_fmt(&mut writer, text);
    writer.outcome
}

/// Writes to standard error, ignoring write errors, which cannot be reported anywhere else.
pub fn write_stderr(text: Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// Flushes standard output.
///
/// # Errors
/// If standard output cannot be written.
pub fn flush() -> Result<(), OutputError> {
    with_stdout(|stdout| stdout.flush()).map_err(OutputError::Write)
}

/// Tests whether standard output is a terminal.
pub fn is_terminal() -> bool {
    if CAPTURE.with_borrow(Option::is_some) {
        return false;
    }
    match &*lock_stdout() {
        Some(stdout) => stdout.get_ref().is_terminal(),
        None => io::stdout().is_terminal(),
    }
}

/// Returns the width of the terminal in columns, or `None` if standard output is not a terminal.
pub fn width() -> Option<u16> {
    let size = match &*lock_stdout() {
        Some(stdout) => terminal_size::terminal_size_of(stdout.get_ref()),
        None => terminal_size::terminal_size_of(io::stdout()),
    };
    size.map(|(width, _)| width.0)
}
