//! Exceptions: the classes of `byoc._errors`, made from the errors of the library.

use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Creates an exception that the extension itself raises.
pub fn new(py: Python<'_>, class: &str, message: &str, hint: Option<&str>) -> PyErr {
    make(py, class, (message, py.None(), hint, Vec::<String>::new(), message))
}

/// Converts an error of the library.
pub fn of(py: Python<'_>, error: byoc::Error) -> PyErr {
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
    let text = error.to_string();
    let info = error.info();
    let others = info.others.iter().map(ToString::to_string);
    let context: Vec<String> = info.context.iter().cloned().chain(others).collect();
    make(py, class, (&*info.message, info.code.to_string(), error.help(), context, text))
}

fn make<'py>(py: Python<'py>, class: &str, arguments: impl pyo3::call::PyCallArgs<'py>) -> PyErr {
    match py.import("byoc._errors").and_then(|module| module.getattr(class)?.call1(arguments)) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Result of work of the library; `Err` holds the message of a panic.
pub type Outcome<T> = Result<Result<T, byoc::Error>, String>;

/// Runs work of the library, and catches its panics.
pub fn caught<T>(work: impl FnOnce() -> Result<T, byoc::Error>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    })
}

/// Converts the result of [`caught`].
pub fn result<T>(py: Python<'_>, outcome: Outcome<T>) -> PyResult<T> {
    match outcome {
        Ok(result) => result.map_err(|error| of(py, error)),
        Err(panic) => {
            let message = format!("this is a defect of byoc, please report it: {panic}");
            Err(new(py, "RunError", &message, None))
        }
    }
}
