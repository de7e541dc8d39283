//! Calls of Python functions from threads of the library. They end before the interpreter does: a thread that holds the
//! interpreter's lock while the interpreter is finalized ends the process.

use pyo3::prelude::*;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Calls in progress.
struct Calls {
    count: usize,
    /// True once the interpreter ends.
    are_over: bool,
}

static CALLS: Mutex<Calls> = Mutex::new(Calls { count: 0, are_over: false });
static CALL_ENDED: Condvar = Condvar::new();

/// Runs `body` with the interpreter's lock, unless the interpreter ends: nothing awaits the call then.
pub fn call(body: impl FnOnce(Python<'_>) -> PyResult<()>) {
    {
        let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.are_over {
            return;
        }
        calls.count += 1;
    }
    let _ = Python::try_attach(|py| {
        if let Err(error) = body(py) {
            error.write_unraisable(py, None);
        }
    });
    CALLS.lock().unwrap_or_else(PoisonError::into_inner).count -= 1;
    CALL_ENDED.notify_all();
}

/// Waits for the calls in progress, and skips all later ones. Python calls it when it exits.
#[pyfunction]
pub fn end_callbacks(py: Python<'_>) {
    /// Time for which the exit waits for calls in progress, which may never end.
    const LIMIT: Duration = Duration::from_secs(5);
    py.detach(|| {
        let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        calls.are_over = true;
        drop(CALL_ENDED.wait_timeout_while(calls, LIMIT, |calls| calls.count > 0));
    });
}
