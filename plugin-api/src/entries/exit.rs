//! Termination of the process with a message that names an entry.

use super::call_site::CallSite;
use super::line::Line;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

/// Error code of messages about a plugin that ended the process.
pub(super) const PROCESS_ENDED: &str = "E0450";

/// Set in a process that a plugin forked inside an entry.
pub(super) static HAS_FORKED: AtomicBool = AtomicBool::new(false);
/// Id of a process that the host owns; 0 in other processes.
pub(super) static HOST_PID: AtomicU32 = AtomicU32::new(0);
/// Id of a process in which the end of the process names the plugin that caused it; 0 in other processes.
pub(super) static GUARDED_PID: AtomicU32 = AtomicU32::new(0);

/// Variant of `Once` for signal handlers: only the first call runs its closure.
struct SignalSafeOnce(AtomicU8);

/// Guard that lets the process print its last message only once.
static LAST_MESSAGE: SignalSafeOnce = SignalSafeOnce::new();

impl SignalSafeOnce {
    const NEW: u8 = 0;
    const RUNNING: u8 = 1;
    const DONE: u8 = 2;

    const fn new() -> SignalSafeOnce {
        SignalSafeOnce(AtomicU8::new(SignalSafeOnce::NEW))
    }

    /// Runs `work` on the first call only. A later call waits for the first call to finish, but for at most 200 ms,
    /// because it may have interrupted the thread of the first call. Async-signal-safe if `work` is.
    fn run(&self, work: impl FnOnce()) {
        if self
            .0
            .compare_exchange(SignalSafeOnce::NEW, SignalSafeOnce::RUNNING, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
        {
            work();
            self.0.store(SignalSafeOnce::DONE, Ordering::SeqCst);
            return;
        }
        for _ in 0..200 {
            if self.0.load(Ordering::SeqCst) == SignalSafeOnce::DONE {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn reset(&self) {
        self.0.store(SignalSafeOnce::NEW, Ordering::SeqCst);
    }
}

/// Prints the last message of the process, unless it was printed already. When this function returns, no other thread
/// is still writing the message, and the caller may end the process.
pub(super) fn print_last(write: impl FnOnce(&mut Line)) {
    LAST_MESSAGE.run(|| {
        let mut line = Line::new();
        write(&mut line);
        line.write();
    });
}

/// Exits with the given message, unless a last message was printed already.
pub(super) fn exit_with(write: impl FnOnce(&mut Line)) -> ! {
    print_last(write);
    // SAFETY: `_exit` has no preconditions. It skips the exit handlers that a plugin has registered.
    unsafe { libc::_exit(1) }
}

/// Exits with an error about `site`.
pub(super) fn exit_with_error(code: &str, site: &CallSite, detail: impl FnOnce(&mut Line)) -> ! {
    exit_with(|line| {
        line.error(code).site(site).text(": ");
        detail(line);
        line.operators(site);
    })
}

/// Exits in a forked child that returned from the plugin's entry and would otherwise continue as a second host.
#[cold]
pub(super) fn exit_forked_child(site: &CallSite) -> ! {
    // The state was inherited from the parent, whose other threads do not exist here.
    LAST_MESSAGE.reset();
    exit_with_error(PROCESS_ENDED, site, |line| {
        _ = line.text("forked, and the child process returned to byoc; the child process exits")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn second_thread_waits_for_the_first() {
        static ONCE: SignalSafeOnce = SignalSafeOnce::new();
        let (sender, receiver) = mpsc::channel();
        let is_written = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ONCE.run(|| {
                    sender.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                    is_written.store(true, Ordering::SeqCst);
                });
            });
            receiver.recv().unwrap();
            ONCE.run(|| panic!("expected one message, found a second one"));
            assert!(is_written.load(Ordering::SeqCst));
        });
    }
}
