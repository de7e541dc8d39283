//! Ending work that nobody waits for any more: a flag that is set from outside, and a deadline.
//!
//! Long work looks at a [`Cancel`] often and cheaply: the executor between the steps of a run, kernels between the pieces that
//! they divide their work into, the pass manager between passes. Kernels and references cannot be handed one, so the work of
//! a thread is done in its scope ([`Cancel::enter`]), and [`requested`] asks that of the scope. What a kernel leaves undone
//! then is nobody's result: whoever started it asks again when it returns, and a request is never taken back while work
//! goes on.

use crate::diag::{Diagnostic, codes};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A flag and a deadline that long work looks at. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<State>);

#[derive(Debug, Default)]
struct State {
    flag: Arc<AtomicBool>,
    /// Nanoseconds since the [`epoch`]; 0 for none.
    deadline: AtomicU64,
    /// Nanoseconds that the deadline was set for, for messages.
    limit: AtomicU64,
    parent: Option<Cancel>,
}

/// Why work ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Somebody asked for it.
    Cancelled,
    /// It took longer than this.
    TimedOut(Duration),
}

/// Returns the instant that deadlines are counted from.
fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Cancel {
    /// Asks the work to end (true), or lets what comes next go on (false), which is for when no work goes on.
    pub fn set(&self, off: bool) {
        self.0.flag.store(off, SeqCst);
    }

    /// Ends work that is not done `limit` from now; `None` takes the deadline away.
    pub fn set_timeout(&self, limit: Option<Duration>) {
        let at = limit.map_or(0, |limit| nanos(epoch().elapsed().saturating_add(limit)).max(1));
        self.0.limit.store(limit.map_or(0, nanos), Relaxed);
        self.0.deadline.store(at, SeqCst);
    }

    /// A part of this work with a flag and a deadline of its own; it ends with the whole at the latest.
    pub fn part(&self, limit: Option<Duration>) -> Cancel {
        let part = Cancel(Arc::new(State { parent: Some(self.clone()), ..State::default() }));
        part.set_timeout(limit);
        part
    }

    /// Returns true if the work is to end.
    pub fn is_set(&self) -> bool {
        self.0.flag.load(Relaxed) || self.past_deadline() || self.0.parent.as_ref().is_some_and(Cancel::is_set)
    }

    fn past_deadline(&self) -> bool {
        let deadline = self.0.deadline.load(Relaxed);
        deadline != 0 && nanos(epoch().elapsed()) >= deadline
    }

    /// Why the work is to end; `None` while it may go on.
    pub fn reason(&self) -> Option<Reason> {
        if self.0.flag.load(SeqCst) {
            return Some(Reason::Cancelled);
        }
        match self.past_deadline() {
            true => Some(Reason::TimedOut(Duration::from_nanos(self.0.limit.load(Relaxed)))),
            false => self.0.parent.as_ref().and_then(Cancel::reason),
        }
    }

    /// The time until the deadline; `None` where there is none.
    pub fn remaining(&self) -> Option<Duration> {
        let own = match self.0.deadline.load(Relaxed) {
            0 => None,
            at => Some(Duration::from_nanos(at.saturating_sub(nanos(epoch().elapsed())))),
        };
        let whole = self.0.parent.as_ref().and_then(Cancel::remaining);
        own.into_iter().chain(whole).min()
    }

    /// Goes on unless the work is to end.
    ///
    /// # Errors
    /// E0617 or E0618; `at` says how far the work is.
    pub fn check(&self, at: impl FnOnce() -> String) -> Result<(), Diagnostic> {
        if !self.is_set() {
            return Ok(());
        }
        let diagnostic = match self.reason() {
            Some(Reason::TimedOut(limit)) => {
                let message = format!("not done after {} s, the time limit", limit.as_secs_f64());
                let help = "give it more with --timeout SECONDS if it is meant to take so long";
                Diagnostic::error(codes::runtime::TIMED_OUT, message).help(help)
            }
            _ => Diagnostic::error(codes::runtime::CANCELLED, "cancelled: there is no result"),
        };
        Err(diagnostic.note(at()))
    }

    /// The flag itself, for a handler of signals.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.0.flag
    }

    /// Makes it the one that the work of this thread looks at, until the scope is dropped.
    pub fn enter(&self) -> Scope {
        Scope { before: CURRENT.replace(Some(self.clone())), _here: std::marker::PhantomData }
    }

    /// Does a part of the work on whatever thread this is.
    pub fn within<R>(&self, body: impl FnOnce() -> R) -> R {
        let here = CURRENT.with_borrow(|current| current.as_ref().is_some_and(|other| Arc::ptr_eq(&self.0, &other.0)));
        let _scope = if here { None } else { Some(self.enter()) };
        body()
    }

    /// The one that the work of this thread looks at.
    pub fn current() -> Option<Cancel> {
        CURRENT.with_borrow(Clone::clone)
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Cancel>> = const { RefCell::new(None) };
}

/// As long as it lives, the work of this thread looks at a [`Cancel`].
#[must_use]
pub struct Scope {
    before: Option<Cancel>,
    /// It belongs to its thread.
    _here: std::marker::PhantomData<*const ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

/// Returns true if the work of this thread is to end.
pub fn requested() -> bool {
    CURRENT.with_borrow(|current| current.as_ref().is_some_and(Cancel::is_set))
}

/// Goes on unless the work of this thread is to end.
///
/// # Errors
/// As [`Cancel::check`].
pub fn check(at: impl FnOnce() -> String) -> Result<(), Diagnostic> {
    CURRENT.with_borrow(|current| current.as_ref().map_or(Ok(()), |cancel| cancel.check(at)))
}

/// Asks [`requested`] now and then: for loops whose steps are too short to ask at each.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    left: u32,
    every: u32,
}

impl Ticks {
    /// Simple operations between two questions: some ten microseconds.
    const WORK: usize = 1 << 14;

    /// For steps of about `work` simple operations.
    pub fn every(work: usize) -> Ticks {
        let every = (Ticks::WORK / work.max(1)) as u32;
        Ticks { left: every, every }
    }

    /// Returns true if the work of this thread is to end.
    #[inline(always)]
    pub fn requested(&mut self) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        let ends = requested();
        // Once it is to end, every question is answered so.
        self.every = if ends { 0 } else { self.every };
        self.left = self.every;
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_and_a_deadline_end_work() {
        let cancel = Cancel::default();
        assert_eq!((cancel.is_set(), cancel.reason(), cancel.remaining()), (false, None, None));
        assert!(cancel.check(|| unreachable!("it goes on")).is_ok());
        cancel.clone().set(true);
        assert_eq!((cancel.is_set(), cancel.reason()), (true, Some(Reason::Cancelled)));
        let said = cancel.check(|| "at step 3".into()).unwrap_err();
        assert_eq!((said.code, &said.notes[..]), (codes::runtime::CANCELLED, &["at step 3".to_owned()][..]));
        cancel.set(false);

        cancel.set_timeout(Some(Duration::from_secs(3600)));
        assert!(!cancel.is_set() && cancel.remaining().unwrap() > Duration::from_secs(3000));
        cancel.set_timeout(Some(Duration::ZERO));
        assert_eq!(cancel.reason(), Some(Reason::TimedOut(Duration::ZERO)));
        assert_eq!(cancel.check(String::new).unwrap_err().code, codes::runtime::TIMED_OUT);
        cancel.set_timeout(None);
        assert!(!cancel.is_set());
    }

    #[test]
    fn a_part_ends_with_the_whole() {
        let whole = Cancel::default();
        let part = whole.part(Some(Duration::ZERO));
        assert!(part.is_set() && !whole.is_set());
        let part = whole.part(None);
        whole.set_timeout(Some(Duration::from_secs(5)));
        assert!(part.remaining().unwrap() <= Duration::from_secs(5) && !part.is_set());
        whole.set(true);
        assert_eq!(part.reason(), Some(Reason::Cancelled));
    }

    #[test]
    fn scopes_nest_and_belong_to_a_thread() {
        assert!(!requested() && check(String::new).is_ok());
        let (outer, inner) = (Cancel::default(), Cancel::default());
        outer.set(true);
        let scope = outer.enter();
        assert!(requested() && check(String::new).is_err());
        {
            let _inner = inner.enter();
            assert!(!requested());
        }
        assert!(requested());
        std::thread::spawn(|| assert!(!requested())).join().unwrap();
        drop(scope);
        assert!(!requested() && Cancel::current().is_none());
    }
}
