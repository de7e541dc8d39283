//! Runs that do not block their callers.

use crate::error::Error;
use crate::values::Outputs;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_runtime::cancel::Cancel;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

type Job = Box<dyn FnOnce() + Send>;

/// Threads that execute runs. They belong to a model, are started on demand, and terminate with the model.
pub(crate) struct Executors {
    shared: Arc<SharedState>,
    limit: usize,
}

#[derive(Default)]
struct SharedState {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Executors {
    /// Creates executors with up to `limit` threads.
    pub(crate) fn new(limit: usize) -> Executors {
        Executors { shared: Arc::default(), limit }
    }

    /// Queues a run.
    pub(crate) fn start(
        &self,
        cancel: Cancel,
        run: impl FnOnce() -> Result<Outputs, Error> + Send + 'static,
    ) -> RunFuture {
        let state = Arc::new(Mutex::new(State::Running(None)));
        let (result, token) = (state.clone(), cancel.clone());
        let job = Box::new(move || {
            // A run whose future was dropped while queued does not start.
            let start_check = token.check(|| "the run had not started".to_owned()).map_err(Error::from);
            // A panic must not end the thread: the future's waiter has to be woken, and more runs may be queued.
            let outcome =
                start_check.and_then(|()| catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(panic_error())));
            // The waker is called without the lock, as it may wait for a thread that is polling the future.
            let state = std::mem::replace(&mut *lock(&result), State::Done(Some(outcome)));
            if let State::Running(Some(waker)) = state {
                waker.wake();
            }
        });
        let mut queue = lock(&self.shared.queue);
        queue.jobs.push_back(job);
        if queue.idle < queue.jobs.len() && queue.threads < self.limit && self.spawn().is_ok() {
            queue.threads += 1;
        } else if queue.threads == 0 {
            // If the system cannot start a thread, the caller runs the job itself.
            let job = queue.jobs.pop_back();
            drop(queue);
            job.into_iter().for_each(|job| job());
            return RunFuture { state, cancel };
        }
        drop(queue);
        self.shared.changed.notify_one();
        RunFuture { state, cancel }
    }

    fn spawn(&self) -> std::io::Result<()> {
        let queue = self.shared.clone();
        std::thread::Builder::new().name("byoc-async".into()).spawn(move || queue.work()).map(|_| ())
    }
}

impl Drop for Executors {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.changed.notify_all();
    }
}

impl SharedState {
    fn work(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job();
                queue = lock(&self.queue);
            } else if queue.closed {
                return;
            } else {
                queue.idle += 1;
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }
}

fn panic_error() -> Error {
    Diagnostic::error(codes::runtime::BAD_PROGRAM, "the run panicked")
        .note("this is a bug in byoc: please report it")
        .into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

enum State {
    Running(Option<Waker>),
    Done(Option<Result<Outputs, Error>>),
}

/// Future of a run on a separate thread. Dropping it cancels the run.
#[must_use = "dropping a future cancels its run"]
pub struct RunFuture {
    state: Arc<Mutex<State>>,
    cancel: Cancel,
}

impl Future for RunFuture {
    type Output = Result<Outputs, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.state);
        match &mut *state {
            State::Running(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            State::Done(outcome) => Poll::Ready(outcome.take().unwrap_or_else(|| {
                let message = "the future was polled after it returned its result";
                Err(Diagnostic::error(codes::runtime::BAD_PROGRAM, message).into())
            })),
        }
    }
}

impl Drop for RunFuture {
    fn drop(&mut self) {
        if matches!(*lock(&self.state), State::Running(_)) {
            self.cancel.set(true);
        }
    }
}
