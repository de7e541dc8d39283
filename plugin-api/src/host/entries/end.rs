//! Termination of the process with a message that names an entry.

use super::line::Line;
use super::place::Place;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Error code of the messages written here: a plugin ended the process.
pub(super) const ENDED: &str = "E0450";

/// Set in a process that a plugin forked inside an entry.
pub(super) static FORKED: AtomicBool = AtomicBool::new(false);
/// Set by the thread that prints the last message, so that it is printed once.
pub(super) static SAID: AtomicBool = AtomicBool::new(false);
/// Process id of the host.
pub(super) static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Exits with this message, unless a last message was printed already.
pub(super) fn end(say: impl FnOnce(&mut Line)) -> ! {
    if !SAID.swap(true, Ordering::SeqCst) {
        let mut line = Line::new();
        say(&mut line);
        line.write();
    }
    // SAFETY: exits without running the handlers that a plugin has registered.
    unsafe { libc::_exit(1) }
}

/// Exits with an error about `place`.
pub(super) fn end_with(code: &str, place: &Place, finish: impl FnOnce(&mut Line)) -> ! {
    end(|line| {
        line.error(code).place(place).text(": ");
        finish(line);
    })
}

/// Exits in a forked child that returned from the plugin's entry: there must not be two hosts.
#[cold]
pub(super) fn end_child(place: &Place) -> ! {
    // The state was inherited from the parent's threads.
    SAID.store(false, Ordering::SeqCst);
    end_with(ENDED, place, |line| _ = line.text("it forked, and the child returned to byoc; the child exits here"))
}
