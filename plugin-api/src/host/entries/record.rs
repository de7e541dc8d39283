//! The table of entries under way: a slot for each thread that enters plugins. It has a fixed size and is read and written by
//! single loads and stores, so that handlers of signals can read it, on any thread and at any moment.

use super::float::FloatState;
use super::place::{Entry, Place};
use super::{ending, process};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// As many threads as `--threads` allows, and as many again for whoever embeds the host. Threads past them share a slot that
/// nobody reads.
const SLOTS: usize = 2048;

/// What one thread is in. A cache line of its own: threads write to theirs at every entry.
#[repr(align(64))]
pub(super) struct Slot {
    taken: AtomicBool,
    /// The place that the thread is in; with its lowest bit set the one that it was in last.
    at: AtomicPtr<Place>,
    /// The floating-point environment of the thread outside of plugins, as it was seen last.
    float: AtomicU64,
}

static TABLE: [Slot; SLOTS] = [const { Slot::new(false) }; SLOTS];
static SHARED: Slot = Slot::new(true);

/// One past the last slot that was ever taken.
static USED: AtomicU32 = AtomicU32::new(0);

/// The outermost entry that was begun last, by any thread, runs left out: these leave it to their slots.
static LATEST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    // Constant and without a destructor: reading it is reading memory, in a handler too.
    static OWN: Cell<Option<&'static Slot>> = const { Cell::new(None) };
}

/// Set in a pointer to a place that was left.
const LEFT: usize = 1;

fn left(place: *mut Place) -> *mut Place {
    place.map_addr(|address| address | LEFT)
}

/// The place that such a pointer is of.
fn place_of(pointer: *mut Place) -> Option<&'static Place> {
    // SAFETY: without the bit it is null, or what was stored, which is a `&'static Place`.
    unsafe { pointer.map_addr(|address| address & !LEFT).as_ref() }
}

impl Slot {
    const fn new(taken: bool) -> Slot {
        let nowhere = AtomicPtr::new(ptr::without_provenance_mut(LEFT));
        Slot { taken: AtomicBool::new(taken), at: nowhere, float: AtomicU64::new(0) }
    }

    fn is_inside(&self) -> bool {
        self.at.load(Ordering::Relaxed).addr() & LEFT == 0
    }

    /// Where the thread is.
    pub(super) fn at(&self) -> Option<&'static Place> {
        let at = self.at.load(Ordering::Acquire);
        if at.addr() & LEFT == 0 { place_of(at) } else { None }
    }

    /// Where the thread is, or was last.
    fn last(&self) -> Option<&'static Place> {
        place_of(self.at.load(Ordering::Acquire))
    }

    /// Whether it is that of all threads which found the table full.
    pub(super) fn is_shared(&self) -> bool {
        ptr::eq(self, &raw const SHARED)
    }

    /// Gives it to other threads.
    pub(super) fn give_back(&self) {
        if !self.is_shared() {
            self.at.store(left(ptr::null_mut()), Ordering::Relaxed);
            self.taken.store(false, Ordering::Release);
        }
    }
}

#[cold]
fn claim() -> &'static Slot {
    let free = |slot: &&Slot| slot.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let slot = match TABLE.iter().enumerate().find(|(_, slot)| free(slot)) {
        Some((index, slot)) => {
            USED.fetch_max(index as u32 + 1, Ordering::Release);
            slot
        }
        None => &SHARED,
    };
    slot.float.store(FloatState::read().0, Ordering::Relaxed);
    OWN.set(Some(slot));
    ending::prepare_thread(slot);
    slot
}

/// The thread has no slot any more.
pub(super) fn disown() {
    OWN.set(None);
}

/// Where this thread is; `None` outside of plugins.
pub(crate) fn current() -> Option<&'static Place> {
    OWN.get()?.at()
}

fn slots() -> &'static [Slot] {
    &TABLE[..(USED.load(Ordering::Acquire) as usize).min(SLOTS)]
}

/// Where some thread is, and how many others are in plugins.
pub(super) fn under_way() -> Option<(&'static Place, usize)> {
    let mut places = slots().iter().filter_map(Slot::at);
    let first = places.next()?;
    Some((first, places.count()))
}

/// An entry that was in use lately: a run if there was any, else the latest.
pub(super) fn last() -> Option<&'static Place> {
    let mut lasts = slots().iter().filter_map(Slot::last);
    lasts.find(|place| place.entry == Entry::Run).or_else(|| place_of(LATEST.load(Ordering::Acquire)))
}

/// Takes the floating-point environment of this thread for the one that its runs of regions are to leave it with. Each entry
/// other than `prepare` and `run` does so too.
pub fn trust_float_state() {
    if let Some(slot) = OWN.get() {
        slot.float.store(FloatState::read().0, Ordering::Relaxed);
    }
}

/// Runs a region, or a part of what is under way in `place` elsewhere: `body` is in it. That costs a nanosecond or two.
///
/// The floating-point environment is not read first, as that would have to wait for everything that was computed before; the
/// thread's own is known. What else belongs to the process is not looked at either: that takes calls of the system.
#[inline(always)]
pub(crate) fn run<R>(place: &'static Place, body: impl FnOnce() -> R) -> R {
    known::<false, R>(place, body)
}

/// Prepares a region, which comes with a run: as [`enter`], but the floating-point environment is known as in [`run`].
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

/// An entry that is no part of another one on its thread, whose floating-point environment is known.
struct Known<const CHECKED: bool> {
    slot: &'static Slot,
    place: &'static Place,
}

impl<const CHECKED: bool> Drop for Known<CHECKED> {
    #[inline(always)]
    fn drop(&mut self) {
        let float = FloatState(self.slot.float.load(Ordering::Relaxed));
        if float.differs() || ending::FORKED.load(Ordering::Relaxed) {
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
    if ending::FORKED.load(Ordering::Relaxed) {
        ending::end_child(place);
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

/// An entry under way. Dropping it puts back what the plugin has changed.
#[must_use]
pub(crate) struct Entered {
    slot: &'static Slot,
    place: &'static Place,
    /// What the slot holds behind it.
    after: *mut Place,
    /// Whether it is no part of another: the state of the process is looked at behind it.
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
    use super::super::place::Places;
    use super::*;

    #[test]
    fn entries_nest_and_end() {
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
    fn a_panic_ends_an_entry() {
        let place = Places::of("record", "panic").at(Entry::Run);
        let caught = std::panic::catch_unwind(|| run(place, || panic!("on purpose")));
        assert!(caught.is_err());
        assert_eq!(current(), None);
    }

    #[test]
    fn threads_give_their_slots_back() {
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
