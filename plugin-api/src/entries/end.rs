//! Termination of the process with a message that names an entry.

use super::line::Line;
use super::place::Place;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

/// Error code of the messages written here: a plugin ended the process.
pub(super) const ENDED: &str = "E0450";

/// Set in a process that a plugin forked inside an entry.
pub(super) static FORKED: AtomicBool = AtomicBool::new(false);
/// Process id of the host.
pub(super) static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Work that is done once, by the first thread that comes to it.
struct Once(AtomicU8);

/// Last message of the process.
static LAST: Once = Once::new();

impl Once {
    const NEW: u8 = 0;
    const RUNNING: u8 = 1;
    const DONE: u8 = 2;

    const fn new() -> Once {
        Once(AtomicU8::new(Once::NEW))
    }

    /// Runs `work`, unless it was done already. Waits for another thread that runs it, but no longer than 200 ms: that
    /// thread may be the one that the caller has interrupted. Async-signal-safe if `work` is.
    fn run(&self, work: impl FnOnce()) {
        if self.0.compare_exchange(Once::NEW, Once::RUNNING, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            work();
            self.0.store(Once::DONE, Ordering::SeqCst);
            return;
        }
        for _ in 0..200 {
            if self.0.load(Ordering::SeqCst) == Once::DONE {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn forget(&self) {
        self.0.store(Once::NEW, Ordering::SeqCst);
    }
}

/// Prints the last message of the process, unless it was printed already. When this returns the caller may end the
/// process: no other thread is in the middle of the message.
pub(super) fn say_last(say: impl FnOnce(&mut Line)) {
    LAST.run(|| {
        let mut line = Line::new();
        say(&mut line);
        line.write();
    });
}

/// Exits with this message, unless a last message was printed already.
pub(super) fn end(say: impl FnOnce(&mut Line)) -> ! {
    say_last(say);
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
    LAST.forget();
    end_with(ENDED, place, |line| _ = line.text("it forked, and the child returned to byoc; the child exits here"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn second_thread_waits_for_the_first() {
        static ONCE: Once = Once::new();
        let (inside, entered) = mpsc::channel();
        let written = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ONCE.run(|| {
                    inside.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                    written.store(true, Ordering::SeqCst);
                });
            });
            entered.recv().unwrap();
            ONCE.run(|| panic!("a second message"));
            assert!(written.load(Ordering::SeqCst));
        });
    }
}
