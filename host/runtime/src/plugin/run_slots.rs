//! Limit on the number of concurrent region runs.

use std::sync::{Condvar, Mutex, PoisonError};

/// Slots for concurrent runs: a run occupies one slot until it ends.
#[derive(Debug)]
pub struct RunSlots {
    free_slots: Mutex<usize>,
    slot_released: Condvar,
}

impl RunSlots {
    /// Creates `count` slots, at least one.
    pub fn new(count: usize) -> RunSlots {
        RunSlots { free_slots: Mutex::new(count.max(1)), slot_released: Condvar::new() }
    }

    /// Waits for a free slot, and acquires it.
    pub fn acquire(&self) -> RunSlot<'_> {
        let free_slots = self.free_slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free_slots = self
            .slot_released
            .wait_while(free_slots, |free_slots| *free_slots == 0)
            .unwrap_or_else(PoisonError::into_inner);
        *free_slots -= 1;
        RunSlot(self)
    }
}

/// Slot occupied by a run; freed on drop.
#[derive(Debug)]
pub struct RunSlot<'a>(&'a RunSlots);

impl Drop for RunSlot<'_> {
    fn drop(&mut self) {
        *self.0.free_slots.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.slot_released.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn limits_concurrent_runs() {
        let slots = RunSlots::new(2);
        let (running_count, max_running) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _slot = slots.acquire();
                        max_running.fetch_max(running_count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        running_count.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!((1..=2).contains(&max_running.load(Ordering::SeqCst)));
        let [_first, _second] = [slots.acquire(), slots.acquire()];
        assert_eq!(*slots.free_slots.lock().unwrap(), 0);
    }
}
