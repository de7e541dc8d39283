//! Asynchronous runs, which a Python program awaits or cancels.

use crate::callback;
use crate::error;
use crate::values::objects_of;
use byoc::{Diagnostic, Error, Outputs, Port, RunFuture};
use byoc_ir::diag::codes;
use pyo3::prelude::*;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Cancellation of runs, which any thread may request.
#[pyclass(frozen, module = "byoc._byoc")]
pub struct Cancel(byoc::Cancel);

#[pymethods]
impl Cancel {
    #[new]
    fn new() -> Cancel {
        Cancel(byoc::Cancel::default())
    }

    /// Requests cancellation, or withdraws the request.
    #[pyo3(signature = (cancelled=true))]
    fn set(&self, cancelled: bool) {
        self.0.set(cancelled);
    }

    /// Returns true if cancellation is requested.
    fn is_set(&self) -> bool {
        self.0.is_set()
    }
}

impl Cancel {
    /// Returns the library's cancellation token.
    pub fn token(&self) -> &byoc::Cancel {
        &self.0
    }
}

/// Asynchronous run.
#[pyclass(frozen, module = "byoc._byoc")]
pub struct Pending {
    state: Mutex<State>,
    outputs: Vec<Port>,
}

enum State {
    Running(RunFuture),
    Done(Result<Outputs, Error>),
    Taken,
}

/// Calls a Python function when the run has ended.
struct Notify(Py<PyAny>);

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        callback::call(|py| self.0.call0(py).map(drop));
    }
}

impl Pending {
    /// Polls a run for the first time. The flag is true if the run has already ended, in which case `done` is never
    /// called.
    pub fn new(mut future: RunFuture, outputs: Vec<Port>, done: Py<PyAny>) -> (Pending, bool) {
        let waker = Waker::from(Arc::new(Notify(done)));
        let (state, is_ready) = match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => (State::Running(future), false),
            Poll::Ready(outcome) => (State::Done(outcome), true),
        };
        (Pending { state: Mutex::new(state), outputs }, is_ready)
    }
}

fn misuse_error(py: Python<'_>, message: &str) -> PyErr {
    error::of(py, Diagnostic::error(codes::runtime::BAD_PROGRAM, message))
}

#[pymethods]
impl Pending {
    /// Returns the results in the order of the outputs. Must be called only once, after the run has ended.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = match std::mem::replace(&mut *state, State::Taken) {
            State::Done(outcome) => outcome,
            State::Running(mut future) => match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => {
                    *state = State::Running(future);
                    return Err(misuse_error(py, "expected a finished run, found one in progress"));
                }
            },
            State::Taken => {
                return Err(misuse_error(py, "the results of the run were already retrieved"));
            }
        };
        drop(state);
        let outputs = outcome.map_err(|error| error::of(py, error))?;
        objects_of(py, &self.outputs, outputs.into_tensors())
    }

    /// Cancels the run.
    fn cancel(&self) {
        // Dropping a future cancels its run.
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Taken;
    }
}
