//! Network threads, each with its own runtime.
//!
//! A connection stays on one thread. A thread pool that shares connections would wake a second thread for most
//! requests, which takes longer than the execution of a small model.

use crate::error::{Result, ServeError, Status};
use byoc_ir::diag::codes::runtime::NO_THREADS;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Maximum number of threads that serve connections; long executions run on separate threads.
pub const MAX_THREADS: usize = 4;

/// Threads that serve connections.
#[derive(Debug)]
pub struct Threads(Vec<Thread>);

#[derive(Debug)]
struct Thread {
    runtime: Handle,
    /// Number of connections.
    load: Arc<AtomicUsize>,
    /// Stops the thread on drop.
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// Assignment of a connection to a thread, counted until dropped.
#[derive(Debug)]
pub struct Place {
    pub runtime: Handle,
    load: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Threads {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(count: usize) -> Result<Threads> {
        (0..count).map(|index| Thread::start(index, count)).collect::<Result<_>>().map(Threads)
    }

    /// Assigns a connection to the thread with the fewest connections; `None` if there are no threads.
    pub fn place(&self) -> Option<Place> {
        let thread = self.0.iter().min_by_key(|thread| thread.load.load(Ordering::Relaxed))?;
        thread.load.fetch_add(1, Ordering::Relaxed);
        Some(Place { runtime: thread.runtime.clone(), load: thread.load.clone() })
    }

    /// Makes the threads exit, even if connections are open. Returns them, so that the caller may join them.
    pub fn close(self) -> Vec<JoinHandle<()>> {
        let close = |Thread { stop, thread, .. }| {
            drop(stop);
            thread
        };
        self.0.into_iter().map(close).collect()
    }
}

/// Waits until the threads have ended, but at most for `limit`. Returns the number of threads that are still running.
pub fn join(threads: Vec<JoinHandle<()>>, limit: Duration) -> usize {
    let deadline = Instant::now().checked_add(limit);
    let mut running_count = 0;
    for thread in threads {
        while !thread.is_finished() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            std::thread::sleep(Duration::from_millis(1));
        }
        match thread.is_finished() {
            true => _ = thread.join(),
            false => running_count += 1,
        }
    }
    running_count
}

impl Thread {
    fn start(index: usize, count: usize) -> Result<Thread> {
        /// Maximum total number of threads for blocking work, over all runtimes.
        const MAX_BLOCKING_THREADS: usize = 16;
        let start_error = |error: std::io::Error| {
            let message = format!("cannot start network thread {index}: {error}");
            ServeError::new(Status::Internal, NO_THREADS, message)
        };
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(MAX_BLOCKING_THREADS.div_ceil(count))
            .thread_name("serve-work")
            .enable_all()
            .build()
            .map_err(start_error)?;
        let handle = runtime.handle().clone();
        let (stop, stop_receiver) = oneshot::channel();
        let thread = std::thread::Builder::new().name(format!("serve-net-{index}"));
        let thread = thread
            .spawn(move || {
                let _ = runtime.block_on(stop_receiver);
                runtime.shutdown_timeout(Duration::from_secs(1));
            })
            .map_err(start_error)?;
        Ok(Thread { runtime: handle, load: Arc::default(), stop, thread })
    }
}
