//! Detection of forks: the threads of a session do not exist in the child process.

use crate::error;
use byoc::Diagnostic;
use byoc_ir::diag::codes;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the initial process and this process.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Generation of the process in which an object was created.
#[derive(Clone, Copy)]
pub struct Generation(u32);

impl Generation {
    /// Returns the generation of this process.
    pub fn current() -> Generation {
        Generation(GENERATION.load(Ordering::Relaxed))
    }

    /// Checks that the object was created in this process.
    ///
    /// # Errors
    /// `ForkError` if the process has been forked since.
    pub fn check(self, py: Python<'_>) -> PyResult<()> {
        if self.0 == GENERATION.load(Ordering::Relaxed) {
            return Ok(());
        }
        let help = "load the model in the process that runs it, or start processes with \
                    multiprocessing.get_context(\"spawn\")";
        let message = "expected a model or session of this process, found one created before a fork";
        Err(error::new(py, "ForkError", Diagnostic::error(codes::runtime::MODEL_GONE, message).help(help)))
    }
}

/// Records that this process is the child of a fork.
#[pyfunction]
pub fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
