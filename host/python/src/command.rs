//! `byoc` command line inside the Python interpreter.

use byoc::runtime::invocation::{self, Invocation};
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// Runs the command line, and returns its exit code. `command` is the command that starts the interpreter with the
/// package, and `directory` is the directory of the package's files.
#[pyfunction]
pub fn main(py: Python<'_>, command: Vec<OsString>, arguments: Vec<OsString>, directory: PathBuf) -> u8 {
    invocation::set(Invocation { command, arguments, directory });
    py.detach(|| byoc_cli::main_number(serve))
}

/// Runs the inference server, which is linked into this extension module.
fn serve(arguments: &[OsString]) -> u8 {
    let name = OsString::from("byoc serve");
    byoc_serve::run_program(std::iter::once(name).chain(arguments.iter().cloned()))
}
