//! Table of running entries: a slot for each thread that enters plugins. It has a fixed size and is accessed by single
//! atomic loads and stores, so that signal handlers can read it on any thread at any time.

use super::float::FloatState;
use super::place::{Entry, Place};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Number of slots: the maximum of `--threads`, and as many again for a program that embeds the host. Further threads
/// share a slot that nobody reads.
pub(super) const SLOTS: usize = 2048;

/// Entry that one thread is in. Aligned to a cache line, as threads write to their slots at every entry.
#[repr(align(64))]
pub(super) struct Slot {
    taken: AtomicBool,
    /// Place that the thread is in; with the lowest bit set, the last place that it was in.
    pub(super) at: AtomicPtr<Place>,
    /// Last observed floating-point environment of the thread outside of plugins.
    pub(super) float: AtomicU64,
}

static TABLE: [Slot; SLOTS] = [const { Slot::new(false) }; SLOTS];
static SHARED: Slot = Slot::new(true);

/// One past the highest slot that was ever used.
static USED: AtomicU32 = AtomicU32::new(0);

/// Most recently started outermost entry of any thread, except runs, which are recorded in slots only.
pub(super) static LATEST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    // Constant and without a destructor: access is a plain memory read, also in a signal handler.
    pub(super) static OWN: Cell<Option<&'static Slot>> = const { Cell::new(None) };
}

/// Tag bit in the pointer to a place that the thread has left.
const LEFT: usize = 1;

pub(super) fn left(place: *mut Place) -> *mut Place {
    place.map_addr(|address| address | LEFT)
}

/// Returns the place of a tagged pointer.
fn place_of(pointer: *mut Place) -> Option<&'static Place> {
    // SAFETY: without the tag the pointer is null or a stored `&'static Place`.
    unsafe { pointer.map_addr(|address| address & !LEFT).as_ref() }
}

impl Slot {
    const fn new(taken: bool) -> Slot {
        let nowhere = AtomicPtr::new(ptr::without_provenance_mut(LEFT));
        Slot { taken: AtomicBool::new(taken), at: nowhere, float: AtomicU64::new(0) }
    }

    pub(super) fn is_inside(&self) -> bool {
        self.at.load(Ordering::Relaxed).addr() & LEFT == 0
    }

    /// Returns the entry that the thread is in.
    pub(super) fn at(&self) -> Option<&'static Place> {
        let at = self.at.load(Ordering::Acquire);
        if at.addr() & LEFT == 0 { place_of(at) } else { None }
    }

    /// Returns the entry that the thread is in, or was in last.
    pub(super) fn last(&self) -> Option<&'static Place> {
        place_of(self.at.load(Ordering::Acquire))
    }

    /// Returns true for the slot shared by threads that found the table full.
    pub(super) fn is_shared(&self) -> bool {
        ptr::eq(self, &raw const SHARED)
    }

    /// Releases the slot for other threads.
    pub(super) fn give_back(&self) {
        if !self.is_shared() {
            self.at.store(left(ptr::null_mut()), Ordering::Relaxed);
            self.taken.store(false, Ordering::Release);
        }
    }
}

/// Takes a free slot for this thread, or the shared one.
#[cold]
pub(super) fn take() -> &'static Slot {
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
    slot
}

/// Detaches the thread from its slot.
pub(super) fn disown() {
    OWN.set(None);
}

/// Returns the entry that this thread is in; `None` outside of plugins.
pub(crate) fn current() -> Option<&'static Place> {
    OWN.get()?.at()
}

fn slots() -> &'static [Slot] {
    &TABLE[..(USED.load(Ordering::Acquire) as usize).min(SLOTS)]
}

/// Returns the entry of some thread, and the number of other threads in plugins.
pub(super) fn under_way() -> Option<(&'static Place, usize)> {
    let mut places = slots().iter().filter_map(Slot::at);
    let first = places.next()?;
    Some((first, places.count()))
}

/// Returns a recently used entry: a run if there was any, else the latest.
pub(super) fn last() -> Option<&'static Place> {
    let mut lasts = slots().iter().filter_map(Slot::last);
    lasts.find(|place| place.entry == Entry::Run).or_else(|| place_of(LATEST.load(Ordering::Acquire)))
}
