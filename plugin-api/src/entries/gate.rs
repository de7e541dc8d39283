//! End of the process: while the destructors of libraries run, no thread is inside a plugin.
//!
//! `exit` destroys the statics of every library while the other threads of the process go on. A thread that runs or
//! releases a region at that time uses memory that is being freed. Therefore the gate closes before the destructors
//! run: no thread enters a plugin from then on, objects of plugins are leaked instead of released, and the end of the
//! process waits until every thread has left the entry that it is in.
//!
//! A handler of `exit` closes the gate, in programs of byoc as in those that embed it. Handlers run in the reverse order
//! of their registration, and a library registers its destructors when it is loaded and when it first uses a static. So
//! the handler is registered again after the entries that may do so: after the first entries of each kind, and after
//! the first run that follows a `load`.

use super::call_site::{CallSite, Entry};
use super::{handlers, slots};
use crate::error::Error;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering, compiler_fence};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

/// Time for which the end of the process waits for entries in progress. Plugins that poll `cancelled` return sooner.
const GRACE: Duration = Duration::from_secs(5);

/// Bit of [`STATE`]: no thread may enter a plugin.
const CLOSED: u8 = 1;
/// Bit of [`STATE`]: the handler of `exit` is registered again after the next entry.
const DUE: u8 = 2;

/// State of the gate, which every entry reads; 0 if nothing is to be done.
static STATE: AtomicU8 = AtomicU8::new(0);

/// Number of further runs after which the handler is registered again, if they belong to other plugins.
static DUE_RUNS: AtomicU32 = AtomicU32::new(0);

/// Maximum number of runs after a `load` that look whether the handler has to be registered again.
const MAX_DUE_RUNS: u32 = 64;

/// Number of times that the handler is registered for one kind of entry of a plugin.
const MAX_REGISTRATIONS: u32 = 4;

/// Returns true once no thread may enter a plugin because the process ends.
pub fn is_shut_down() -> bool {
    STATE.load(Ordering::Relaxed) & CLOSED != 0
}

/// Returns the state of the gate, with which a thread enters a plugin: if it is 0, nothing is to be done, otherwise
/// [`pass_slowly`] passes the gate. The slot of the thread must already name the entry.
#[inline(always)]
pub(super) fn state() -> u8 {
    // The slot was written before the state is read. `close` has the processors agree on this order.
    compiler_fence(Ordering::SeqCst);
    STATE.load(Ordering::Relaxed)
}

/// Calls `body` unless the gate is closed.
#[cold]
pub(super) fn pass_slowly<T>(
    state: u8,
    site: &'static CallSite,
    body: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    if state & CLOSED != 0 {
        return Err(Error::new("the process is ending").code(Error::CANCELLED));
    }
    let result = body();
    register_again(site);
    result
}

/// Registers the handler of `exit` after an entry that may have registered destructors before it.
pub(super) fn register_again(site: &CallSite) {
    let is_new = site.completed.load(Ordering::Relaxed) < MAX_REGISTRATIONS
        && site.completed.fetch_add(1, Ordering::Relaxed) < MAX_REGISTRATIONS;
    if is_new {
        register_handler();
    }
    match site.entry {
        Entry::Load if is_new => {
            DUE_RUNS.store(MAX_DUE_RUNS, Ordering::Relaxed);
            STATE.fetch_or(DUE, Ordering::Relaxed);
        }
        Entry::Run if DUE_RUNS.fetch_sub(1, Ordering::Relaxed) <= 1 => {
            STATE.fetch_and(!DUE, Ordering::Relaxed);
        }
        _ => {}
    }
}

fn register_handler() {
    static AT_FORK: Once = Once::new();
    AT_FORK.call_once(|| {
        // SAFETY: the function lives as long as the process. If the registration fails, the end of a forked process
        // takes longer.
        unsafe { libc::pthread_atfork(None, None, Some(on_fork)) };
    });
    // SAFETY: the function has the signature that `on_exit` expects, and lives as long as the process.
    #[cfg(target_env = "gnu")]
    unsafe {
        on_exit(handle_exit, std::ptr::null_mut());
    }
    // SAFETY: the function lives as long as the process.
    #[cfg(not(target_env = "gnu"))]
    unsafe {
        libc::atexit(handle_exit_without_status);
    }
}

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    /// Registers a function that `exit` calls with the exit code.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

#[cfg(not(target_env = "gnu"))]
extern "C" fn handle_exit_without_status() {
    handle_exit(1, std::ptr::null_mut());
}

extern "C" fn handle_exit(status: c_int, _: *mut c_void) {
    // A plugin that calls `exit` may never leave its entry, and is named by another handler.
    if slots::current_site().is_some() || handlers::is_exit_unexpected() {
        close();
        return;
    }
    if !shut_down() {
        // SAFETY: neither function has preconditions. `_exit` skips the destructors that the entry could not survive.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(status);
        }
    }
}

/// The other threads do not exist in a forked process, so none of them will leave its entry.
extern "C" fn on_fork() {
    slots::forget_other_threads();
}

/// Closes the gate, and waits until every other thread has left the plugin that it is in, at most for [`GRACE`] from the
/// first call. Returns false if a thread has not.
///
/// Plugins that ask are told that the work is cancelled.
fn shut_down() -> bool {
    static DEADLINE: OnceLock<Instant> = OnceLock::new();
    close();
    let deadline = *DEADLINE.get_or_init(|| Instant::now() + GRACE);
    while slots::is_other_thread_inside() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Closes the gate. When this function returns, every thread that passed it has a call site in its slot.
fn close() {
    STATE.fetch_or(CLOSED, Ordering::SeqCst);
    const PRIVATE_EXPEDITED: c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;
    // SAFETY: the system call has no preconditions. It makes every running thread of the process execute a memory
    // barrier, so that entries need none.
    let barrier = |command: c_int| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } == 0;
    if !(barrier(REGISTER_PRIVATE_EXPEDITED) && barrier(PRIVATE_EXPEDITED)) {
        // Without the system call, a store may stay invisible to other processors for far less than this time.
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
#[expect(clippy::exit, reason = "the end of a process is tested")]
mod tests {
    use super::super::call_site::CallSites;
    use super::super::record::{enter, run, run_task};
    use super::*;
    use std::process::{Command, exit};
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;

    /// Variable that names the test whose body a child process runs.
    const CHILD: &str = "BYOC_GATE_TEST";

    /// Runs the body of the test `name` in a process of its own, because the gate never opens again. The body ends that
    /// process with the exit code 7.
    fn in_child(name: &str, body: fn()) {
        if std::env::var_os(CHILD).is_some_and(|value| value == name) {
            return body();
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &format!("entries::gate::tests::{name}")]).env(CHILD, name);
        let output = child.output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stdout));
    }

    #[test]
    fn closed_gate_admits_only_tasks_of_running_entries() {
        in_child("closed_gate_admits_only_tasks_of_running_entries", || {
            let sites = CallSites::of("gate", "region");
            let outcome = run(sites.at(Entry::Run), || {
                assert!(!is_shut_down());
                close();
                run_task(sites.at(Entry::Run), || assert!(is_shut_down()));
                Ok(5)
            });
            assert_eq!(outcome, Ok(5), "an entry in progress completes");
            assert!(run::<()>(sites.at(Entry::Run), || unreachable!("the gate is closed")).is_err());
            let error = enter(sites.at(Entry::Release)).err().unwrap();
            assert_eq!((error.message.as_str(), &*error.code), ("the process is ending", Error::CANCELLED));
            assert!(slots::current_site().is_none() && shut_down());
            exit(7);
        });
    }

    #[test]
    fn exit_waits_for_entries_of_other_threads() {
        static HAS_LEFT: AtomicBool = AtomicBool::new(false);
        /// Stands for the destructors of a library.
        extern "C" fn destroy() {
            if !HAS_LEFT.load(Ordering::SeqCst) {
                std::process::abort();
            }
        }
        in_child("exit_waits_for_entries_of_other_threads", || {
            let sites = CallSites::of("gate", "region");
            // SAFETY: the function lives as long as the process.
            unsafe { libc::atexit(destroy) };
            drop(enter(sites.at(Entry::Load)));
            let (sender, receiver) = mpsc::channel();
            std::thread::spawn(move || {
                let _ = run(sites.at(Entry::Run), || {
                    sender.send(()).unwrap();
                    while !is_shut_down() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    std::thread::sleep(Duration::from_millis(20));
                    HAS_LEFT.store(true, Ordering::SeqCst);
                    Ok(())
                });
            });
            receiver.recv().unwrap();
            exit(7);
        });
    }
}
