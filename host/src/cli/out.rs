//! Standard output, which is the product: the one writer that every command prints with.
//!
//! The process has taken standard output for itself (`entries::own_process`); what plugins print goes to standard error. In
//! this folder `println!` and the like are those below. A standard output that takes nothing more ends the command: quietly
//! where the reader has seen enough, with an error of its own where it is full.

use super::escape;
use crate::error::Failure;
use byoc_core::diag::{Diagnostic, codes};
use byoc_plugin_api::host::entries::{Product, restore_process};
use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, LineWriter, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Standard output, once it is taken.
static PRODUCT: Mutex<Option<LineWriter<Product>>> = Mutex::new(None);

/// Set when standard output is reserved for a file.
static RESERVED: AtomicBool = AtomicBool::new(false);

/// Reserves standard output for a file: what is printed goes to standard error from now on. Returns false where it is reserved
/// already.
pub fn reserve() -> bool {
    !RESERVED.swap(true, Ordering::Relaxed)
}

/// Prints on the product.
macro_rules! print {
    ($($text:tt)*) => { $crate::cli::out::write(format_args!($($text)*)) };
}

/// Prints a line on the product.
macro_rules! println {
    () => { $crate::cli::out::write(format_args!("\n")) };
    ($($text:tt)*) => { $crate::cli::out::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// Says something on standard error.
macro_rules! eprint {
    ($($text:tt)*) => { $crate::cli::out::talk(format_args!($($text)*)) };
}

/// Says a line on standard error.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::cli::out::talk(format_args!("{}\n", format_args!($($text)*))) };
}

/// End of a command whose standard output takes nothing more. It unwinds to where the command was started.
pub struct Ended(io::Error);

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Ended {
        Ended(error)
    }
}

impl Ended {
    /// Returns the error that the command ends with; none where the reader has seen enough.
    pub fn failure(&self) -> Option<Failure> {
        (self.0.kind() != ErrorKind::BrokenPipe).then(|| cannot_write(&self.0).into())
    }

    /// Unwinds to where the command was started. It is no panic, so that the hook has nothing to say.
    pub fn end(self) -> ! {
        std::panic::resume_unwind(Box::new(self))
    }
}

/// Diagnostic of a standard output that cannot be written.
pub fn cannot_write(error: &io::Error) -> Diagnostic {
    Diagnostic::error(codes::frontends::STDOUT_FAILED, format!("cannot write to standard output: {error}"))
        .help("what was printed is not complete: print it where there is room for it")
}

/// Prints with `product` from now on.
pub fn take(product: Product) {
    *locked() = Some(LineWriter::new(product));
}

fn locked() -> MutexGuard<'static, Option<LineWriter<Product>>> {
    PRODUCT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives standard output to what writes there.
///
/// # Errors
/// Those of `write`.
pub fn with_stdout<T>(write: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
    restore_process();
    match &mut *locked() {
        Some(product) => write(product),
        None => write(&mut io::stdout()),
    }
}

/// Writes to standard output; to standard error where a file is the product.
pub fn write(text: Arguments<'_>) {
    if RESERVED.load(Ordering::Relaxed) {
        return talk(text);
    }
    if let Err(error) = with_stdout(|stdout| write_shown(stdout, text)) {
        Ended(error).end();
    }
}

/// Writes text in which nothing is left that a terminal would obey.
fn write_shown(to: &mut dyn Write, text: Arguments<'_>) -> io::Result<()> {
    struct Shown<'a> {
        to: &'a mut dyn Write,
        outcome: io::Result<()>,
    }
    impl std::fmt::Write for Shown<'_> {
        fn write_str(&mut self, part: &str) -> std::fmt::Result {
            self.outcome = self.to.write_all(escape::rest(part).as_bytes());
            if self.outcome.is_ok() { Ok(()) } else { Err(std::fmt::Error) }
        }
    }
    let mut shown = Shown { to, outcome: Ok(()) };
    // A value whose `Display` fails is no failure of the writer's; there is none such here.
    let _ = std::fmt::Write::write_fmt(&mut shown, text);
    shown.outcome
}

/// Writes to standard error. Where that is closed or full there is nobody to be told.
pub fn talk(text: Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// Writes what is not written yet.
///
/// # Errors
/// Reason for the end of the command.
pub fn flush() -> Result<(), Ended> {
    with_stdout(|stdout| stdout.flush()).map_err(Ended)
}

/// Returns whether standard output is a terminal.
pub fn is_terminal() -> bool {
    match &*locked() {
        Some(product) => product.get_ref().is_terminal(),
        None => io::stdout().is_terminal(),
    }
}

/// Returns the width of the terminal that standard output is.
pub fn width() -> Option<u16> {
    let size = match &*locked() {
        Some(product) => terminal_size::terminal_size_of(product.get_ref()),
        None => terminal_size::terminal_size_of(io::stdout()),
    };
    size.map(|(width, _)| width.0)
}
