//! Exceptions for the diagnostics of passes.

use crate::error;
use byoc::Diagnostic;
use byoc::runtime::Failure;
use byoc_ir::ir::Fault;
use pyo3::prelude::*;

/// Creates the exception for faults of a module.
pub fn of_faults(py: Python<'_>, faults: Vec<Fault>) -> PyErr {
    let diagnostics: Vec<Diagnostic> = faults.into_iter().map(|fault| fault.diagnostic).collect();
    error::of(py, Failure::from(diagnostics))
}

/// Returns the conversion of a diagnostic to an exception.
pub fn of_diagnostic(py: Python<'_>) -> impl Fn(Box<Diagnostic>) -> PyErr + '_ {
    move |diagnostic| error::of(py, *diagnostic)
}
