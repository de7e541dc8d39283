//! The table of entries under way: a slot for each thread that enters plugins. It has a fixed size and is read and written by
//! single loads and stores, so that handlers of signals can read it, on any thread and at any moment.

use super::float::FloatState;
use super::place::{Entry, Place};
use super::{ending, process};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// As many threads as `--threads` allows, and as many again for whoever embeds the host. Threads past them are not recorded.
const SLOTS: usize = 2048;

/// What one thread is in. A cache line of its own: threads write to theirs at every entry.
#[repr(align(64))]
pub(super) struct Slot {
    taken: AtomicBool,
    at: AtomicPtr<Place>,
    last: AtomicPtr<Place>,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot { taken: AtomicBool::new(false), at: AtomicPtr::new(ptr::null_mut()), last: AtomicPtr::new(ptr::null_mut()) }
}; SLOTS];

/// The slot of threads for which there was none left. Nobody reads it.
static SPARE: Slot =
    Slot { taken: AtomicBool::new(true), at: AtomicPtr::new(ptr::null_mut()), last: AtomicPtr::new(ptr::null_mut()) };

/// One past the last slot that was ever taken.
static USED: AtomicU32 = AtomicU32::new(0);

/// The entry that was entered last, by any thread, runs left out: these leave it to their slots.
static LATEST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    // Constant and without a destructor: reading it is reading memory, in a handler too.
    static OWN: Cell<Option<&'static Slot>> = const { Cell::new(None) };
}

fn place_in(pointer: &AtomicPtr<Place>) -> Option<&'static Place> {
    // SAFETY: null, or what was stored, which is a `&'static Place`.
    unsafe { pointer.load(Ordering::Acquire).as_ref() }
}

impl Slot {
    /// Where the thread is.
    pub(super) fn at(&self) -> Option<&'static Place> {
        place_in(&self.at)
    }

    /// Gives it to other threads.
    pub(super) fn give_back(&self) {
        self.at.store(ptr::null_mut(), Ordering::Relaxed);
        if !ptr::eq(self, &raw const SPARE) {
            self.taken.store(false, Ordering::Release);
        }
    }
}

#[cold]
fn claim() -> &'static Slot {
    let free = |slot: &&Slot| slot.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let slot = match TABLE.iter().enumerate().find(|(_, slot)| free(slot)) {
        Some((index, slot)) => {
            slot.last.store(ptr::null_mut(), Ordering::Relaxed);
            USED.fetch_max(index as u32 + 1, Ordering::Release);
            slot
        }
        None => &SPARE,
    };
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

/// Where some thread is, and how many others are in plugins.
pub(super) fn under_way() -> Option<(&'static Place, usize)> {
    let used = USED.load(Ordering::Acquire) as usize;
    let mut places = TABLE[..used.min(SLOTS)].iter().filter_map(Slot::at);
    let first = places.next()?;
    Some((first, places.count()))
}

/// An entry that was in use lately: a run if there was any, else the latest.
pub(super) fn last() -> Option<&'static Place> {
    let used = USED.load(Ordering::Acquire) as usize;
    let mut lasts = TABLE[..used.min(SLOTS)].iter().filter_map(|slot| place_in(&slot.last));
    lasts.find(|place| place.entry == Entry::Run).or_else(|| place_in(&LATEST))
}

/// Enters a plugin: until the guard is dropped this thread is in `place`.
#[inline]
pub(crate) fn enter(place: &'static Place) -> Entered {
    let slot = OWN.get().unwrap_or_else(claim);
    let before = slot.at.load(Ordering::Relaxed);
    let stored = ptr::from_ref(place).cast_mut();
    // A run is watched by whoever owns the process, when it is over: it must not cost calls of the system.
    let checked = place.entry != Entry::Run && before.is_null();
    if checked {
        LATEST.store(stored, Ordering::Relaxed);
    }
    slot.last.store(stored, Ordering::Relaxed);
    slot.at.store(stored, Ordering::Release);
    Entered { slot, place, before, checked, float: FloatState::read(), thread: PhantomData }
}

/// Enters a plugin on a thread that does a part of what is under way in `place` elsewhere.
#[inline]
pub(crate) fn enter_task(place: &'static Place) -> Entered {
    let mut entered = enter(place);
    entered.checked = false;
    entered
}

/// An entry under way. Dropping it puts back what the plugin has changed.
#[must_use]
pub(crate) struct Entered {
    slot: &'static Slot,
    place: &'static Place,
    before: *mut Place,
    /// Whether the state of the process is looked at behind it.
    checked: bool,
    float: FloatState,
    thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        let changed = self.float.restore();
        if changed {
            process::float_changed(self.place);
        }
        if ending::FORKED.load(Ordering::Relaxed) {
            ending::end_child(self.place);
        }
        if self.checked {
            process::check(self.place);
        }
        self.slot.at.store(self.before, Ordering::Release);
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
        {
            let _second = enter(inner);
            assert_eq!(current(), Some(inner));
            let seen = std::thread::spawn(|| (current(), under_way().is_some())).join().unwrap();
            assert_eq!(seen, (None, true));
        }
        assert_eq!(current(), Some(outer));
        assert_eq!(last().map(|place| place.entry), Some(Entry::Run));
        drop(first);
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
            assert!(!ptr::eq(OWN.get().unwrap(), &raw const SPARE));
        })
        .join()
        .unwrap();
    }
}
