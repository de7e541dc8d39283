//! Detection of forks: the threads of a session do not exist in the child process.

use crate::error;
use byoc::runtime::fork::Generation;
use pyo3::prelude::*;

/// Checks that an object was created in this process.
///
/// # Errors
/// `ForkError` if the process has been forked since.
pub fn check(generation: Generation, py: Python<'_>) -> PyResult<()> {
    generation.check().map_err(|diagnostic| {
        let help = "load the model in the process that runs it, or start processes with \
                    multiprocessing.get_context(\"spawn\")";
        error::new(py, "ForkError", diagnostic.help(help))
    })
}
