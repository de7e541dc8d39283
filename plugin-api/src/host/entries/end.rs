//! The end of the process with a line that names an entry.

use super::line::Line;
use super::place::Place;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The code of the lines written here: a plugin ended the process.
pub(super) const ENDED: &str = "E0450";

/// Set in a process that a plugin forked inside an entry.
pub(super) static FORKED: AtomicBool = AtomicBool::new(false);
/// Set by the thread that prints the last line, so that it is printed once.
pub(super) static SAID: AtomicBool = AtomicBool::new(false);
/// The host's process.
pub(super) static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Ends the process with this line, unless its end has been said already.
pub(super) fn end(say: impl FnOnce(&mut Line)) -> ! {
    if !SAID.swap(true, Ordering::SeqCst) {
        let mut line = Line::new();
        say(&mut line);
        line.write();
    }
    // SAFETY: ends the process, without anything that a plugin has registered for its end.
    unsafe { libc::_exit(1) }
}

/// Ends the process with an error about `place`.
pub(super) fn end_with(code: &str, place: &Place, finish: impl FnOnce(&mut Line)) -> ! {
    end(|line| {
        line.error(code).place(place).text(": ");
        finish(line);
    })
}

/// A process that a plugin forked has come back from the entry: there must not be two hosts.
#[cold]
pub(super) fn end_child(place: &Place) -> ! {
    // Whatever was noted of the parent's threads holds for the parent.
    SAID.store(false, Ordering::SeqCst);
    end_with(ENDED, place, |line| _ = line.text("it forked, and the child came back; the child ends here"))
}
