//! Standard output, which is the product: the one writer that every command prints with.
//!
//! The process has taken standard output for itself (`entries::own_process`); what plugins print goes to standard error. In
//! this folder `println!` and `print!` are those below, with the standard library's names and behavior.

use byoc_plugin_api::host::entries::{Product, restore_process};
use std::fmt::Arguments;
use std::io::{self, IsTerminal, LineWriter, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Standard output, once it is taken.
static PRODUCT: Mutex<Option<LineWriter<Product>>> = Mutex::new(None);

/// Prints on the product, as the standard library's macro does on standard output.
macro_rules! print {
    ($($text:tt)*) => { $crate::cli::out::write(format_args!($($text)*)) };
}

/// Prints a line on the product, as the standard library's macro does on standard output.
macro_rules! println {
    () => { $crate::cli::out::write(format_args!("\n")) };
    ($($text:tt)*) => { $crate::cli::out::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints with `product` from now on.
pub fn take(product: Product) {
    *locked() = Some(LineWriter::new(product));
}

fn locked() -> MutexGuard<'static, Option<LineWriter<Product>>> {
    PRODUCT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes to standard output.
///
/// # Panics
/// When it cannot be written to, with the words of the standard library.
pub fn write(text: Arguments<'_>) {
    restore_process();
    let written = match &mut *locked() {
        Some(product) => product.write_fmt(text),
        None => io::stdout().write_fmt(text),
    };
    if let Err(error) = written {
        panic!("failed printing to stdout: {error}");
    }
}

/// Writes what is not written yet.
///
/// # Errors
/// When it cannot be.
pub fn flush() -> io::Result<()> {
    match &mut *locked() {
        Some(product) => product.flush(),
        None => io::stdout().flush(),
    }
}

/// Whether standard output is a terminal.
pub fn is_terminal() -> bool {
    match &*locked() {
        Some(product) => product.get_ref().is_terminal(),
        None => io::stdout().is_terminal(),
    }
}

/// The width of the terminal that standard output is.
pub fn width() -> Option<u16> {
    let size = match &*locked() {
        Some(product) => terminal_size::terminal_size_of(product.get_ref()),
        None => terminal_size::terminal_size_of(io::stdout()),
    };
    size.map(|(width, _)| width.0)
}
