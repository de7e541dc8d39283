//! Limit on the number of concurrent region runs.

use std::sync::{Condvar, Mutex, PoisonError};

/// Slots for concurrent runs: a run occupies one slot until it ends.
#[derive(Debug)]
pub struct RunSlots {
    free: Mutex<usize>,
    changed: Condvar,
}

impl RunSlots {
    /// Creates `count` slots, at least one.
    pub fn new(count: usize) -> RunSlots {
        RunSlots { free: Mutex::new(count.max(1)), changed: Condvar::new() }
    }

    /// Waits for a free slot, and acquires it.
    pub fn acquire(&self) -> RunSlot<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.changed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        RunSlot(self)
    }
}

/// Slot occupied by a run; freed on drop.
#[derive(Debug)]
pub struct RunSlot<'a>(&'a RunSlots);

impl Drop for RunSlot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn at_most_so_many_runs_go_on() {
        let slots = RunSlots::new(2);
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _slot = slots.acquire();
                        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!((1..=2).contains(&most.load(Ordering::SeqCst)));
        let [_first, _second] = [slots.acquire(), slots.acquire()];
        assert_eq!(*slots.free.lock().unwrap(), 0);
    }
}
