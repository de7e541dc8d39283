//! Threads that load and unload models. Loads take long, so they do not occupy the threads that serve requests.

use crate::error::{Result, ServeError, Status};
use byoc_ir::diag::codes::runtime::{BAD_PROGRAM, NO_THREADS};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::{Semaphore, oneshot};

/// Maximum number of models that clients load and unload at the same time.
const MAX_TASKS: usize = 4;

/// Threads that load models. The threads end with their loads, which are cancelled at shutdown.
#[derive(Debug)]
pub struct Loader {
    permits: Arc<Semaphore>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Default for Loader {
    fn default() -> Loader {
        Loader { permits: Arc::new(Semaphore::new(MAX_TASKS)), threads: Mutex::default() }
    }
}

impl Loader {
    /// Runs `task` on a thread of its own.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn spawn(&self, name: &str, task: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(format!("serve-{name}")).spawn(task).map_err(|error| {
            let message = format!("cannot start a thread to {name} models: {error}");
            ServeError::new(Status::Unavailable, NO_THREADS, message)
        })?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Runs the task of a client on a thread of its own. The task goes on if the client disconnects.
    ///
    /// # Errors
    /// If too many tasks are in progress, or `task` fails or panics.
    pub async fn run<T: Send + 'static>(&self, task: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let Ok(permit) = self.permits.clone().try_acquire_owned() else {
            return Err(ServeError::overloaded("too many concurrent loads and unloads of models; retry later"));
        };
        let (reply, result) = oneshot::channel();
        self.spawn("load", move || {
            let outcome = task();
            drop(permit);
            // The receiver is gone if the client has disconnected.
            let _ = reply.send(outcome);
        })?;
        result.await.unwrap_or_else(|_| {
            let message = "the load panicked; this is a bug in byoc: please report it";
            Err(ServeError::new(Status::Internal, BAD_PROGRAM, message))
        })
    }

    /// Returns the threads, so that the caller may join them.
    pub fn take_threads(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
