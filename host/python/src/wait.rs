//! Work that Ctrl-C can interrupt. Python runs its signal handlers on the main thread, so the main thread only waits,
//! and a worker thread does the work.

use byoc::Cancel;
use pyo3::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Polling interval for signals.
const POLL: Duration = Duration::from_millis(50);

/// Runs `task` with the interpreter's lock released. An exception in a signal handler, such as `KeyboardInterrupt`,
/// cancels the work through `cancel`, and is raised when the work has ended.
pub fn interruptible<T: Send>(py: Python<'_>, cancel: &Cancel, task: impl FnOnce() -> T + Send) -> PyResult<T> {
    if !is_main_thread(py)? {
        return Ok(py.detach(task));
    }
    py.detach(|| {
        std::thread::scope(|scope| {
            let (send, receive) = sync_channel(1);
            let (give, take) = sync_channel(1);
            let job = move || {
                let Ok(task) = take.recv() else { return };
                let task: Box<dyn FnOnce() -> T + Send + '_> = task;
                // The receiver has been dropped if a signal ended the wait.
                let _ = send.send(task());
            };
            let thread = std::thread::Builder::new().name("byoc-python".into()).spawn_scoped(scope, job);
            let task: Box<dyn FnOnce() -> T + Send + '_> = Box::new(task);
            if thread.is_err() {
                return Ok(task());
            }
            if let Err(rejected_task) = give.send(task) {
                return Ok(rejected_task.0());
            }
            loop {
                match receive.recv_timeout(POLL) {
                    Ok(value) => return Ok(value),
                    Err(RecvTimeoutError::Timeout) => {
                        if let Err(signal_error) = Python::attach(|py| py.check_signals()) {
                            cancel.set(true);
                            return Err(signal_error);
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => unreachable!("the work catches its panics"),
                }
            }
        })
    })
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    Ok(threading.call_method0("main_thread")?.is(&threading.call_method0("current_thread")?))
}
