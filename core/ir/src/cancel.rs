//! Cancellation tokens, each with a flag that is set from outside and a deadline.
//!
//! Long-running work polls a [`Cancel`] often and cheaply: the executor between the steps of a run, kernels between
//! blocks of work, the pass manager between passes. Kernels and references have no parameter for a token, so a thread
//! enters the scope of a [`Cancel`] ([`Cancel::enter`]), and [`is_requested`] polls the token of that scope. A
//! cancelled kernel leaves its result incomplete. That is safe because the caller polls again when the kernel returns,
//! and a request is never withdrawn while work is in progress.

use crate::diag::{Diagnostic, codes};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Cancellation token: a flag and a deadline that long-running work polls. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<State>);

#[derive(Debug, Default)]
struct State {
    flag: Arc<AtomicBool>,
    /// Deadline in nanoseconds since the [`epoch`]; 0 for none.
    deadline: AtomicU64,
    /// Time limit in nanoseconds from which the deadline was computed, for messages.
    limit: AtomicU64,
    parent: Option<Cancel>,
}

/// Reason for a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReason {
    /// Cancellation was requested.
    Cancelled,
    /// The time limit was exceeded.
    TimedOut(Duration),
}

/// Returns the instant from which deadlines are measured.
fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Cancel {
    /// Requests cancellation (true), or resets the flag for later work (false). Reset it only while no work is in
    /// progress.
    pub fn set(&self, cancelled: bool) {
        self.0.flag.store(cancelled, SeqCst);
    }

    /// Sets the deadline to `limit` from now; `None` removes it.
    pub fn set_timeout(&self, limit: Option<Duration>) {
        let deadline = limit.map_or(0, |limit| nanos(epoch().elapsed().saturating_add(limit)).max(1));
        self.0.limit.store(limit.map_or(0, nanos), Relaxed);
        self.0.deadline.store(deadline, SeqCst);
    }

    /// Creates a child token for part of the work, with its own flag and deadline. Cancelling the parent also cancels
    /// the child.
    pub fn part(&self, limit: Option<Duration>) -> Cancel {
        let child = Cancel(Arc::new(State { parent: Some(self.clone()), ..State::default() }));
        child.set_timeout(limit);
        child
    }

    /// Returns true if cancellation was requested or the deadline has passed.
    pub fn is_set(&self) -> bool {
        self.0.flag.load(Relaxed) || self.is_past_deadline() || self.0.parent.as_ref().is_some_and(Cancel::is_set)
    }

    fn is_past_deadline(&self) -> bool {
        let deadline = self.0.deadline.load(Relaxed);
        deadline != 0 && nanos(epoch().elapsed()) >= deadline
    }

    /// Returns the reason for cancellation; `None` while the work may continue.
    pub fn reason(&self) -> Option<CancelReason> {
        if self.0.flag.load(SeqCst) {
            return Some(CancelReason::Cancelled);
        }
        match self.is_past_deadline() {
            true => Some(CancelReason::TimedOut(Duration::from_nanos(self.0.limit.load(Relaxed)))),
            false => self.0.parent.as_ref().and_then(Cancel::reason),
        }
    }

    /// Returns the time until the deadline; `None` without a deadline.
    pub fn remaining(&self) -> Option<Duration> {
        let own_budget = match self.0.deadline.load(Relaxed) {
            0 => None,
            deadline_nanos => Some(Duration::from_nanos(deadline_nanos.saturating_sub(nanos(epoch().elapsed())))),
        };
        let inherited_budget = self.0.parent.as_ref().and_then(Cancel::remaining);
        own_budget.into_iter().chain(inherited_budget).min()
    }

    /// Fails if the work is cancelled. `at` describes the progress so far, shown as a note of the diagnostic.
    ///
    /// # Errors
    /// If cancellation was requested (E0617) or the deadline has passed (E0618).
    pub fn check(&self, at: impl FnOnce() -> String) -> Result<(), Diagnostic> {
        if !self.is_set() {
            return Ok(());
        }
        let diagnostic = match self.reason() {
            Some(CancelReason::TimedOut(limit)) => {
                let message = format!("time limit of {} s exceeded", limit.as_secs_f64());
                let help = "raise the limit with --timeout SECONDS if the work is expected to take longer";
                Diagnostic::error(codes::runtime::TIMED_OUT, message).help(help)
            }
            _ => Diagnostic::error(codes::runtime::CANCELLED, "cancelled: no result was computed"),
        };
        Err(diagnostic.note(at()))
    }

    /// Returns the shared flag, for a signal handler.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.0.flag
    }

    /// Makes this token the current token of the thread until the returned [`Scope`] is dropped.
    pub fn enter(&self) -> Scope {
        let previous = CURRENT.try_with(|current| current.replace(Some(self.clone())));
        Scope { previous: previous.ok().flatten(), _here: std::marker::PhantomData }
    }

    /// Runs `body` with this token as the current token of the thread.
    pub fn within<R>(&self, body: impl FnOnce() -> R) -> R {
        let is_current = with_current(|current| current.is_some_and(|active| Arc::ptr_eq(&self.0, &active.0)));
        let _scope = if is_current { None } else { Some(self.enter()) };
        body()
    }

    /// Returns the current token of this thread.
    pub fn current() -> Option<Cancel> {
        with_current(|current| current.cloned())
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Cancel>> = const { RefCell::new(None) };
}

/// Calls `body` with the current token of this thread. There is none in a handler of `exit`, which runs after the values
/// of its thread have been destroyed.
fn with_current<R>(body: impl Fn(Option<&Cancel>) -> R) -> R {
    CURRENT.try_with(|current| body(current.borrow().as_ref())).unwrap_or_else(|_| body(None))
}

/// Guard that keeps a [`Cancel`] the current token of its thread.
#[must_use]
pub struct Scope {
    previous: Option<Cancel>,
    /// Makes the guard `!Send`, because the current token is thread-local.
    _here: std::marker::PhantomData<*const ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|current| current.replace(self.previous.take()));
    }
}

/// Returns true if the work of this thread is cancelled.
pub fn is_requested() -> bool {
    with_current(|current| current.is_some_and(Cancel::is_set))
}

/// Fails if the work of this thread is cancelled.
///
/// # Errors
/// See [`Cancel::check`].
pub fn check(at: impl FnOnce() -> String) -> Result<(), Diagnostic> {
    CURRENT.try_with(|current| current.borrow().as_ref().map_or(Ok(()), |cancel| cancel.check(at))).unwrap_or(Ok(()))
}

/// Poll counter for loops whose iterations are too short for one poll each. It polls [`is_requested`] every few
/// iterations.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    countdown: u32,
    interval: u32,
}

impl Ticks {
    /// Number of simple operations between two polls: about ten microseconds of work.
    const WORK_PER_POLL: usize = 1 << 14;

    /// Creates a counter for iterations of about `work` simple operations.
    pub fn every(work: usize) -> Ticks {
        let interval = (Ticks::WORK_PER_POLL / work.max(1)) as u32;
        Ticks { countdown: interval, interval }
    }

    /// Counts an iteration, and polls when due. Returns true if the poll finds the work of this thread cancelled.
    #[inline(always)]
    pub fn is_requested(&mut self) -> bool {
        if self.countdown > 0 {
            self.countdown -= 1;
            return false;
        }
        let cancelled = is_requested();
        // After cancellation, every call polls again and returns true.
        self.interval = if cancelled { 0 } else { self.interval };
        self.countdown = self.interval;
        cancelled
    }
}

/// Reader that fails once the work of this thread is cancelled. It ends decoders that do not poll themselves.
#[derive(Debug)]
pub struct CancellableReader<R> {
    inner: R,
    ticks: Ticks,
}

impl<R> CancellableReader<R> {
    /// Creates a reader of the bytes of `inner`.
    pub fn new(inner: R) -> CancellableReader<R> {
        CancellableReader { inner, ticks: Ticks::every(1 << 8) }
    }
}

impl<R: std::io::Seek> std::io::Seek for CancellableReader<R> {
    fn seek(&mut self, position: std::io::SeekFrom) -> std::io::Result<u64> {
        self.inner.seek(position)
    }
}

impl<R: std::io::Read> std::io::Read for CancellableReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        // Most decoders read a buffer at a time, and some a byte.
        let is_cancelled = if buffer.len() > 64 { is_requested() } else { self.ticks.is_requested() };
        match is_cancelled {
            // The caller reports the reason; an interruption would be retried.
            true => Err(std::io::Error::other("cancelled")),
            false => self.inner.read(buffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_and_deadline_cancel_work() {
        let cancel = Cancel::default();
        assert_eq!((cancel.is_set(), cancel.reason(), cancel.remaining()), (false, None, None));
        assert!(cancel.check(|| unreachable!("not cancelled")).is_ok());
        cancel.clone().set(true);
        assert_eq!((cancel.is_set(), cancel.reason()), (true, Some(CancelReason::Cancelled)));
        let error = cancel.check(|| "at step 3".into()).unwrap_err();
        assert_eq!((error.code, &error.notes[..]), (codes::runtime::CANCELLED, &["at step 3".to_owned()][..]));
        cancel.set(false);

        cancel.set_timeout(Some(Duration::from_secs(3600)));
        assert!(!cancel.is_set() && cancel.remaining().unwrap() > Duration::from_secs(3000));
        cancel.set_timeout(Some(Duration::ZERO));
        assert_eq!(cancel.reason(), Some(CancelReason::TimedOut(Duration::ZERO)));
        assert_eq!(cancel.check(String::new).unwrap_err().code, codes::runtime::TIMED_OUT);
        cancel.set_timeout(None);
        assert!(!cancel.is_set());
    }

    #[test]
    fn child_is_cancelled_with_parent() {
        let parent = Cancel::default();
        let child = parent.part(Some(Duration::ZERO));
        assert!(child.is_set() && !parent.is_set());
        let child = parent.part(None);
        parent.set_timeout(Some(Duration::from_secs(5)));
        assert!(child.remaining().unwrap() <= Duration::from_secs(5) && !child.is_set());
        parent.set(true);
        assert_eq!(child.reason(), Some(CancelReason::Cancelled));
    }

    #[test]
    fn reader_fails_after_cancellation() {
        use std::io::Read;
        let cancel = Cancel::default();
        let _scope = cancel.enter();
        let mut reader = CancellableReader::new(std::io::repeat(1));
        let mut buffer = [0; 1000];
        reader.read_exact(&mut buffer).unwrap();
        cancel.set_timeout(Some(Duration::ZERO));
        assert!(reader.read_exact(&mut buffer).is_err());
        assert!((0..1 << 16).any(|_| reader.read_exact(&mut buffer[..1]).is_err()));
    }

    #[test]
    fn scopes_nest_and_belong_to_a_thread() {
        assert!(!is_requested() && check(String::new).is_ok());
        let (outer, inner) = (Cancel::default(), Cancel::default());
        outer.set(true);
        let scope = outer.enter();
        assert!(is_requested() && check(String::new).is_err());
        {
            let _inner = inner.enter();
            assert!(!is_requested());
        }
        assert!(is_requested());
        std::thread::spawn(|| assert!(!is_requested())).join().unwrap();
        drop(scope);
        assert!(!is_requested() && Cancel::current().is_none());
    }
}
