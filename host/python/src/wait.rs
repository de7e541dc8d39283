//! Work that Ctrl-C can interrupt. Python runs its signal handlers on the main thread, so the main thread only waits,
//! and a worker thread does the work.

use byoc::Cancel;
use pyo3::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Polling interval for signals.
const POLL: Duration = Duration::from_millis(50);

/// Does `work` with the interpreter's lock released. An exception in a signal handler, such as `KeyboardInterrupt`,
/// cancels the work through `cancel`, and is raised when the work has ended.
pub fn interruptible<T: Send>(py: Python<'_>, cancel: &Cancel, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    if !on_main_thread(py)? {
        return Ok(py.detach(work));
    }
    py.detach(|| {
        std::thread::scope(|scope| {
            let (send, receive) = sync_channel(1);
            let (give, take) = sync_channel(1);
            let job = move || {
                let Ok(work) = take.recv() else { return };
                let work: Box<dyn FnOnce() -> T + Send + '_> = work;
                // The receiver has been dropped if a signal ended the wait.
                let _ = send.send(work());
            };
            let started = std::thread::Builder::new().name("byoc-python".into()).spawn_scoped(scope, job);
            let work: Box<dyn FnOnce() -> T + Send + '_> = Box::new(work);
            if started.is_err() {
                return Ok(work());
            }
            if let Err(back) = give.send(work) {
                return Ok(back.0());
            }
            loop {
                match receive.recv_timeout(POLL) {
                    Ok(value) => return Ok(value),
                    Err(RecvTimeoutError::Timeout) => {
                        if let Err(interrupt) = Python::attach(|py| py.check_signals()) {
                            cancel.set(true);
                            return Err(interrupt);
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => unreachable!("the work catches its panics"),
                }
            }
        })
    })
}

fn on_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    Ok(threading.call_method0("main_thread")?.is(&threading.call_method0("current_thread")?))
}
