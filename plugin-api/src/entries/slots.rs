//! Table of running entries, with one slot per thread that enters plugins. The table has a fixed size and is accessed
//! by single atomic loads and stores, so that signal handlers can read it on any thread at any time.

use super::call_site::{CallSite, Entry};
use super::float::FloatState;
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Number of slots: twice the maximum of `--threads`, to accommodate the threads of an executable that embeds the
/// host. Additional threads share one slot, which is never read.
pub(super) const SLOTS: usize = 2048;

/// Record of the entry that one thread executes. Aligned to a cache line, because threads write to their slots at every
/// entry.
#[repr(align(64))]
pub(super) struct Slot {
    claimed: AtomicBool,
    /// Current call site of the thread. If the lowest bit is set, the thread has left the call site. Null until the
    /// slot is claimed, so that the table occupies no space in the library file.
    pub(super) pointer: AtomicPtr<CallSite>,
    /// Last observed floating-point environment of the thread outside plugins.
    pub(super) float: AtomicU64,
}

static TABLE: [Slot; SLOTS] = [const { Slot::new(false) }; SLOTS];
static SHARED_SLOT: Slot = Slot::new(true);

/// One past the index of the highest slot ever used.
static USED_SLOTS: AtomicU32 = AtomicU32::new(0);

/// Most recently started outermost entry of any thread, except runs, which are recorded only in slots.
pub(super) static LATEST_SITE: AtomicPtr<CallSite> = AtomicPtr::new(ptr::null_mut());

/// Entry whose thread the plugin has ended: what the thread unwinds releases regions, and the process then aborts.
pub(super) static UNWOUND_SITE: AtomicPtr<CallSite> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    // Const-initialized and without a destructor, so that access is a plain memory read, even in a signal handler.
    pub(super) static CURRENT_SLOT: Cell<Option<&'static Slot>> = const { Cell::new(None) };
}

/// Tag bit in the pointer to a call site that the thread has left.
const LEFT_TAG: usize = 1;

pub(super) fn with_left_tag(site: *mut CallSite) -> *mut CallSite {
    site.map_addr(|address| address | LEFT_TAG)
}

/// Returns the call site of a tagged pointer.
fn site_of(pointer: *mut CallSite) -> Option<&'static CallSite> {
    // SAFETY: without the tag the pointer is null or a stored `&'static CallSite`.
    unsafe { pointer.map_addr(|address| address & !LEFT_TAG).as_ref() }
}

impl Slot {
    const fn new(is_claimed: bool) -> Slot {
        let pointer = AtomicPtr::new(ptr::null_mut());
        Slot { claimed: AtomicBool::new(is_claimed), pointer, float: AtomicU64::new(0) }
    }

    pub(super) fn is_inside(&self) -> bool {
        self.pointer.load(Ordering::Relaxed).addr() & LEFT_TAG == 0
    }

    /// Returns the thread's current entry.
    pub(super) fn call_site(&self) -> Option<&'static CallSite> {
        let pointer = self.pointer.load(Ordering::Acquire);
        if pointer.addr() & LEFT_TAG == 0 { site_of(pointer) } else { None }
    }

    /// Returns the thread's current or last entry.
    pub(super) fn last_site(&self) -> Option<&'static CallSite> {
        site_of(self.pointer.load(Ordering::Acquire))
    }

    /// Returns true for the slot shared by threads that found the table full.
    pub(super) fn is_shared(&self) -> bool {
        ptr::eq(self, &raw const SHARED_SLOT)
    }

    /// Releases the slot for reuse by other threads.
    pub(super) fn release(&self) {
        if !self.is_shared() {
            self.pointer.store(with_left_tag(ptr::null_mut()), Ordering::Relaxed);
            self.claimed.store(false, Ordering::Release);
        }
    }
}

/// Claims a free slot for this thread, or the shared slot if the table is full.
#[cold]
pub(super) fn claim() -> &'static Slot {
    let try_claim =
        |slot: &&Slot| slot.claimed.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let slot = match TABLE.iter().enumerate().find(|(_, slot)| try_claim(slot)) {
        Some((index, slot)) => {
            USED_SLOTS.fetch_max(index as u32 + 1, Ordering::Release);
            slot
        }
        None => &SHARED_SLOT,
    };
    if slot.pointer.load(Ordering::Relaxed).is_null() {
        slot.pointer.store(with_left_tag(ptr::null_mut()), Ordering::Relaxed);
    }
    slot.float.store(FloatState::read().0, Ordering::Relaxed);
    CURRENT_SLOT.set(Some(slot));
    slot
}

/// Detaches the thread from its slot.
pub(super) fn detach() {
    CURRENT_SLOT.set(None);
}

/// Returns this thread's current entry; `None` outside plugins.
pub(crate) fn current_site() -> Option<&'static CallSite> {
    CURRENT_SLOT.get()?.call_site()
}

fn slots() -> &'static [Slot] {
    &TABLE[..(USED_SLOTS.load(Ordering::Acquire) as usize).min(SLOTS)]
}

/// Returns the current entry of a thread inside a plugin, and the number of additional threads inside plugins.
pub(super) fn running_entry() -> Option<(&'static CallSite, usize)> {
    let mut sites = slots().iter().filter_map(Slot::call_site);
    let outermost = sites.next()?;
    Some((outermost, sites.count()))
}

/// Returns true if a thread other than the calling one is inside a plugin.
pub(super) fn is_other_thread_inside() -> bool {
    slots_of_other_threads().any(|slot| slot.call_site().is_some())
}

/// Releases the slots of all threads but the calling one. Async-signal-safe.
pub(super) fn forget_other_threads() {
    slots_of_other_threads().for_each(Slot::release);
}

fn slots_of_other_threads() -> impl Iterator<Item = &'static Slot> {
    let own_slot = CURRENT_SLOT.get();
    slots().iter().filter(move |slot| !own_slot.is_some_and(|own_slot| ptr::eq(own_slot, *slot)))
}

/// Returns a recent entry: the one whose thread was ended, a run if a slot holds one, otherwise the most recently started
/// entry.
pub(super) fn last_site() -> Option<&'static CallSite> {
    let mut runs = slots().iter().filter_map(Slot::last_site).filter(|site| site.entry == Entry::Run);
    let latest = |pointer: &AtomicPtr<CallSite>| site_of(pointer.load(Ordering::Acquire));
    latest(&UNWOUND_SITE).or_else(|| runs.next()).or_else(|| latest(&LATEST_SITE))
}
