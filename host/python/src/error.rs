//! Exceptions: the classes of `byoc._errors`, created from the errors of the library.

use byoc::{Diagnostic, Interface};
use byoc_ir::diag::codes;
use byoc_ir::escape;
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Creates an exception of a class without a counterpart among the library's errors.
pub fn new(py: Python<'_>, class: &str, diagnostic: Diagnostic) -> PyErr {
    exception(py, class, diagnostic.into())
}

/// Converts an error of the library to an exception.
pub fn of(py: Python<'_>, error: impl Into<byoc::Error>) -> PyErr {
    let error = error.into();
    let class = match &error {
        byoc::Error::Model(_) => "ModelError",
        byoc::Error::Backend(_) => "BackendError",
        byoc::Error::Artifact(_) => "ArtifactError",
        byoc::Error::Input(_) => "InputError",
        byoc::Error::OutOfMemory(_) => "OutOfMemory",
        byoc::Error::Cancelled(_) => "Cancelled",
        byoc::Error::TimedOut(_) => "TimedOut",
        _ => "RunError",
    };
    exception(py, class, error)
}

fn exception(py: Python<'_>, class: &str, error: byoc::Error) -> PyErr {
    let error = error.in_interface(Interface::Python);
    let info = error.info();
    let details = info.others.iter().map(ToString::to_string);
    let context: Vec<String> = info.context.iter().cloned().chain(details).collect();
    let arguments = (&*info.message, info.code.to_string(), error.help(), context, error.to_string());
    match py.import("byoc._errors").and_then(|module| module.getattr(class)?.call1(arguments)) {
        Ok(instance) => PyErr::from_value(instance),
        Err(error) => error,
    }
}

/// Result of a call to the library; the outer `Err` holds the message of a panic.
pub type Outcome<T> = Result<Result<T, byoc::Error>, String>;

/// Calls the library, and catches its panics.
pub fn catch_panics<T>(operation: impl FnOnce() -> Result<T, byoc::Error>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(operation)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    })
}

/// Converts the result of [`catch_panics`]; errors and panics become exceptions.
pub fn result<T>(py: Python<'_>, outcome: Outcome<T>) -> PyResult<T> {
    match outcome {
        Ok(result) => result.map_err(|error| of(py, error)),
        Err(panic) => {
            let note = "this is a bug in byoc: please report it";
            Err(of(
                py,
                Diagnostic::error(codes::runtime::BAD_PROGRAM, format!("the library panicked: {panic}")).note(note),
            ))
        }
    }
}

/// Escapes the characters of a text of several lines that a terminal would interpret.
#[pyfunction]
pub fn escaped(text: &str) -> String {
    escape::lines(text).into_owned()
}

/// Rewords a message of the command line in terms of the Python package.
#[pyfunction]
pub fn in_python(text: &str) -> String {
    Interface::Python.words(text).into_owned()
}
