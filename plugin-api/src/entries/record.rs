//! Entry guards, which record the entry in the thread's slot and restore the state that the plugin has changed.

use super::call_site::{CallSite, Entry};
use super::float::FloatState;
use super::slots::{CURRENT_SLOT, LATEST_SITE, Slot, UNWOUND_SITE, claim, last_site, with_left_tag};
use super::{exit, gate, process, thread};
use crate::error::Result;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::Ordering;

#[cold]
fn claim_and_prepare() -> &'static Slot {
    let slot = claim();
    thread::prepare(slot);
    slot
}

/// Restores process-wide state that plugins have changed in runs, which are not checked individually. An executable
/// that owns its process calls this function after runs and before it writes output.
pub fn restore_process() {
    if let Some(site) = last_site() {
        process::restore_changes(site);
    }
}

/// Records this thread's current floating-point environment, which is restored after region runs. Every entry other
/// than `prepare` and `run` also records the environment.
pub fn save_float_state() {
    if let Some(slot) = CURRENT_SLOT.get() {
        slot.float.store(FloatState::read().0, Ordering::Relaxed);
    }
}

/// Prepares a host thread for faults, before the thread first enters a plugin: memory that a plugin has corrupted may
/// crash the process on any thread, and printing the message needs a large enough signal stack.
pub fn prepare_thread() {
    CURRENT_SLOT.get().unwrap_or_else(claim_and_prepare);
}

/// Runs `body` as the `run` entry of a region. Costs a nanosecond or two.
///
/// Uses the recorded floating-point environment, because reading the current one would wait for all earlier
/// computations. Does not check other process-wide state, because the checks need system calls.
///
/// # Errors
/// If `body` fails, or the process ends.
#[inline(always)]
pub(crate) fn run<T>(site: &'static CallSite, body: impl FnOnce() -> Result<T>) -> Result<T> {
    run_outermost::<false, T>(site, body)
}

/// Runs `body` as the `prepare` entry of a region: like [`enter`], but with the recorded floating-point environment, as
/// in [`run`].
///
/// # Errors
/// If `body` fails, or the process ends.
#[inline(always)]
pub(crate) fn prepare<T>(site: &'static CallSite, body: impl FnOnce() -> Result<T>) -> Result<T> {
    run_outermost::<true, T>(site, body)
}

/// Runs `body` as a task that an entry, which is still running, has started on another thread.
#[inline(always)]
pub(crate) fn run_task(site: &'static CallSite, body: impl FnOnce()) {
    let Some(entry) = OutermostEntry::<false>::begin(site) else {
        let _guard = record(site);
        return body();
    };
    body();
    entry.end();
}

// The body is called in place: a closure around it would copy what it captures.
#[inline(always)]
fn run_outermost<const CHECKED: bool, T>(site: &'static CallSite, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(entry) = OutermostEntry::<CHECKED>::begin(site) else { return run_nested(site, body) };
    let result = match gate::state() {
        0 => body(),
        state => gate::pass_slowly(state, site, body),
    };
    entry.end();
    result
}

#[cold]
fn run_nested<T>(site: &'static CallSite, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let _guard = enter(site)?;
    body()
}

/// Outermost entry of its thread, with the recorded floating-point environment. Dropped only if the plugin does not
/// return.
struct OutermostEntry<const CHECKED: bool> {
    slot: &'static Slot,
    site: &'static CallSite,
}

impl<const CHECKED: bool> OutermostEntry<CHECKED> {
    /// Records the entry; `None` if the thread is inside a plugin.
    #[inline(always)]
    fn begin(site: &'static CallSite) -> Option<OutermostEntry<CHECKED>> {
        let slot = CURRENT_SLOT.get().unwrap_or_else(claim_and_prepare);
        if slot.is_inside() {
            return None;
        }
        let pointer = ptr::from_ref(site).cast_mut();
        if CHECKED {
            LATEST_SITE.store(pointer, Ordering::Release);
        }
        slot.pointer.store(pointer, Ordering::Release);
        Some(OutermostEntry { slot, site })
    }

    #[inline(always)]
    fn end(self) {
        self.leave();
        std::mem::forget(self);
    }

    #[inline(always)]
    fn leave(&self) {
        let float = FloatState(self.slot.float.load(Ordering::Relaxed));
        if float.has_changed() || exit::HAS_FORKED.load(Ordering::Relaxed) {
            restore_state(float, self.site);
        }
        if CHECKED {
            process::restore_changes(self.site);
        }
        self.slot.pointer.store(with_left_tag(ptr::from_ref(self.site).cast_mut()), Ordering::Release);
    }
}

impl<const CHECKED: bool> Drop for OutermostEntry<CHECKED> {
    #[cold]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Neither a return nor a panic: `pthread_exit` unwinds the thread.
            UNWOUND_SITE.store(ptr::from_ref(self.site).cast_mut(), Ordering::Release);
        }
        self.leave();
    }
}

#[cold]
#[inline(never)]
fn restore_state(float: FloatState, site: &'static CallSite) {
    if float.restore() {
        process::report_float_change(site);
    }
    if exit::HAS_FORKED.load(Ordering::Relaxed) {
        exit::exit_forked_child(site);
    }
}

/// Enters a plugin: records `site` as this thread's entry until the guard is dropped.
///
/// # Errors
/// If the process ends.
pub(crate) fn enter(site: &'static CallSite) -> Result<EntryGuard> {
    let guard = record(site);
    match gate::state() {
        0 => {}
        state => gate::pass_slowly(state, site, || Ok(()))?,
    }
    Ok(guard)
}

fn record(site: &'static CallSite) -> EntryGuard {
    let slot = CURRENT_SLOT.get().unwrap_or_else(claim_and_prepare);
    let (previous_pointer, is_outermost) = (slot.pointer.load(Ordering::Relaxed), !slot.is_inside());
    let (pointer, float) = (ptr::from_ref(site).cast_mut(), FloatState::read());
    if is_outermost {
        LATEST_SITE.store(pointer, Ordering::Release);
        slot.float.store(float.0, Ordering::Relaxed);
    }
    slot.pointer.store(pointer, Ordering::Release);
    let restored_pointer = if is_outermost { with_left_tag(pointer) } else { previous_pointer };
    EntryGuard { slot, site, restored_pointer, is_outermost, float, thread: PhantomData }
}

/// Guard of an entry. Dropping it restores the state that the plugin has changed.
#[must_use]
pub(crate) struct EntryGuard {
    slot: &'static Slot,
    site: &'static CallSite,
    /// Pointer that the slot holds after the entry.
    restored_pointer: *mut CallSite,
    /// True for an outermost entry, after which the state of the process is checked.
    is_outermost: bool,
    float: FloatState,
    thread: PhantomData<*const ()>,
}

impl Drop for EntryGuard {
    fn drop(&mut self) {
        restore_state(self.float, self.site);
        if self.is_outermost {
            process::restore_changes(self.site);
            if !matches!(self.site.entry, Entry::Query | Entry::Run | Entry::Release) {
                gate::register_again(self.site);
            }
        }
        self.slot.pointer.store(self.restored_pointer, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::super::call_site::CallSites;
    use super::super::slots::{SLOTS, current_site, running_entry};
    use super::*;

    #[test]
    fn entries_nest() {
        let (outer, inner) = (CallSites::of("record", "").at(Entry::Load), CallSites::of("record", "r").at(Entry::Run));
        assert_eq!(current_site(), None);
        let guard = enter(outer).unwrap();
        assert_eq!(current_site(), Some(outer));
        run_task(inner, || {
            assert_eq!(current_site(), Some(inner));
            let observed_state = std::thread::spawn(|| (current_site(), running_entry().is_some())).join().unwrap();
            assert_eq!(observed_state, (None, true));
        });
        assert_eq!(current_site(), Some(outer));
        drop(guard);
        assert_eq!(current_site(), None);
        assert_eq!(CURRENT_SLOT.get().unwrap().last_site(), Some(outer));
        run_task(inner, || assert_eq!(current_site(), Some(inner)));
        assert_eq!(current_site(), None);
        assert_eq!(last_site().map(|site| site.entry), Some(Entry::Run));
    }

    #[test]
    fn panic_leaves_the_entry() {
        let site = CallSites::of("record", "panic").at(Entry::Run);
        let result = std::panic::catch_unwind(|| run_task(site, || panic!("on purpose")));
        assert!(result.is_err());
        assert_eq!(current_site(), None);
    }

    #[test]
    fn threads_release_their_slots() {
        let site = CallSites::of("record", "").at(Entry::Query);
        for _ in 0..SLOTS + 10 {
            std::thread::spawn(|| drop(enter(site).unwrap())).join().unwrap();
        }
        std::thread::spawn(|| {
            let _guard = enter(site).unwrap();
            assert!(!CURRENT_SLOT.get().unwrap().is_shared());
        })
        .join()
        .unwrap();
    }
}
