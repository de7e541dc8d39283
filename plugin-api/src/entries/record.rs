//! Guards of an entry: they record the entry in the thread's slot, and restore the state that the plugin has changed.

use super::float::FloatState;
use super::place::Place;
use super::slots::{LATEST, OWN, Slot, last, left, take};
use super::{end, process, thread};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::Ordering;

#[cold]
fn claim() -> &'static Slot {
    let slot = take();
    thread::prepare(slot);
    slot
}

/// Restores the state that plugins have changed in runs, which are not checked one by one. Call this in a program that
/// owns its process, after runs and before output is written.
pub fn restore_process() {
    if let Some(place) = last() {
        process::check(place);
    }
}

/// Records the current floating-point environment of this thread as the one to restore after runs of regions. Each
/// entry other than `prepare` and `run` does so too.
pub fn trust_float_state() {
    if let Some(slot) = OWN.get() {
        slot.float.store(FloatState::read().0, Ordering::Relaxed);
    }
}

/// Prepares a thread of the host, before it first enters a plugin, for the faults of plugins on other threads: memory
/// that a plugin has damaged may end the process on any thread, and the message needs a large enough signal stack.
pub fn prepare_thread() {
    OWN.get().unwrap_or_else(claim);
}

/// Runs `body` as a run of a region, or as a task of an entry that another thread is in. Costs a nanosecond or two.
///
/// The floating-point environment is not read first, as that would wait for all earlier computations; the recorded one
/// is used. Other process-wide state is not checked either: that takes system calls.
#[inline(always)]
pub(crate) fn run<R>(place: &'static Place, body: impl FnOnce() -> R) -> R {
    known::<false, R>(place, body)
}

/// Runs `body` as `prepare` of a region, which accompanies a run: like [`enter`], but with the recorded floating-point
/// environment, as in [`run`].
#[inline(always)]
pub(crate) fn prepare<R>(place: &'static Place, body: impl FnOnce() -> R) -> R {
    known::<true, R>(place, body)
}

#[inline(always)]
fn known<const CHECKED: bool, R>(place: &'static Place, body: impl FnOnce() -> R) -> R {
    let slot = OWN.get().unwrap_or_else(claim);
    if slot.is_inside() {
        return nested(place, body);
    }
    let stored = ptr::from_ref(place).cast_mut();
    if CHECKED {
        LATEST.store(stored, Ordering::Release);
    }
    slot.at.store(stored, Ordering::Release);
    let _known = Known::<CHECKED> { slot, place };
    body()
}

#[cold]
fn nested<R>(place: &'static Place, body: impl FnOnce() -> R) -> R {
    let _entered = enter(place);
    body()
}

/// Outermost entry of its thread, with the recorded floating-point environment.
struct Known<const CHECKED: bool> {
    slot: &'static Slot,
    place: &'static Place,
}

impl<const CHECKED: bool> Drop for Known<CHECKED> {
    #[inline(always)]
    fn drop(&mut self) {
        let float = FloatState(self.slot.float.load(Ordering::Relaxed));
        if float.differs() || end::FORKED.load(Ordering::Relaxed) {
            put_back(float, self.place);
        }
        if CHECKED {
            process::check(self.place);
        }
        self.slot.at.store(left(ptr::from_ref(self.place).cast_mut()), Ordering::Release);
    }
}

#[cold]
#[inline(never)]
fn put_back(float: FloatState, place: &'static Place) {
    if float.restore() {
        process::float_changed(place);
    }
    if end::FORKED.load(Ordering::Relaxed) {
        end::end_child(place);
    }
}

/// Enters a plugin: until the guard is dropped this thread is in `place`.
pub(crate) fn enter(place: &'static Place) -> Entered {
    let slot = OWN.get().unwrap_or_else(claim);
    let (before, outer) = (slot.at.load(Ordering::Relaxed), !slot.is_inside());
    let (stored, float) = (ptr::from_ref(place).cast_mut(), FloatState::read());
    if outer {
        LATEST.store(stored, Ordering::Release);
        slot.float.store(float.0, Ordering::Relaxed);
    }
    slot.at.store(stored, Ordering::Release);
    let after = if outer { left(stored) } else { before };
    Entered { slot, place, after, outer, float, thread: PhantomData }
}

/// Guard of an entry. Dropping it restores the state that the plugin has changed.
#[must_use]
pub(crate) struct Entered {
    slot: &'static Slot,
    place: &'static Place,
    /// Value of the slot after the entry.
    after: *mut Place,
    /// True for an outermost entry, after which the state of the process is checked.
    outer: bool,
    float: FloatState,
    thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        put_back(self.float, self.place);
        if self.outer {
            process::check(self.place);
        }
        self.slot.at.store(self.after, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::{Entry, Places};
    use super::super::slots::{SLOTS, current, under_way};
    use super::*;

    #[test]
    fn entries_nest() {
        let (outer, inner) = (Places::of("record", "").at(Entry::Load), Places::of("record", "r").at(Entry::Run));
        assert_eq!(current(), None);
        let first = enter(outer);
        assert_eq!(current(), Some(outer));
        run(inner, || {
            assert_eq!(current(), Some(inner));
            let seen = std::thread::spawn(|| (current(), under_way().is_some())).join().unwrap();
            assert_eq!(seen, (None, true));
        });
        assert_eq!(current(), Some(outer));
        drop(first);
        assert_eq!(current(), None);
        assert_eq!(OWN.get().unwrap().last(), Some(outer));
        run(inner, || assert_eq!(current(), Some(inner)));
        assert_eq!(current(), None);
        assert_eq!(last().map(|place| place.entry), Some(Entry::Run));
    }

    #[test]
    fn panic_leaves_the_entry() {
        let place = Places::of("record", "panic").at(Entry::Run);
        let caught = std::panic::catch_unwind(|| run(place, || panic!("on purpose")));
        assert!(caught.is_err());
        assert_eq!(current(), None);
    }

    #[test]
    fn threads_release_their_slots() {
        let place = Places::of("record", "").at(Entry::Query);
        for _ in 0..SLOTS + 10 {
            std::thread::spawn(|| drop(enter(place))).join().unwrap();
        }
        std::thread::spawn(|| {
            let _entered = enter(place);
            assert!(!OWN.get().unwrap().is_shared());
        })
        .join()
        .unwrap();
    }
}
