//! Splitting of a kernel's work over the threads of the pool in which it runs. Parts that have not started when the
//! work is [cancelled](byoc_ir::cancel) are skipped. Pool threads serve other callers as well, so the token is passed
//! along with the parts.

use byoc_ir::cancel::{Cancel, Ticks};
use rayon::prelude::*;
use std::cell::Cell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

thread_local! {
    /// True while kernels called on this thread must not use other threads.
    static INLINE: Cell<bool> = const { Cell::new(false) };
    /// True if a kernel on this thread has split its work.
    static HAS_SPLIT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` with all of its kernels on the calling thread, which need not belong to a pool.
pub fn inline<R>(body: impl FnOnce() -> R) -> R {
    /// Guard that restores the flag, even after a panic.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            INLINE.set(self.0);
        }
    }
    let _restore = Restore(INLINE.replace(true));
    body()
}

/// Returns true inside [`inline`].
pub fn is_inline() -> bool {
    INLINE.get()
}

/// Records that work of this thread was split over the threads of a pool.
pub fn record_split() {
    HAS_SPLIT.set(true);
}

/// Returns true if work of this thread was split since the last call.
pub fn take_split() -> bool {
    HAS_SPLIT.replace(false)
}

/// Returns the number of threads that a kernel may use.
pub(super) fn available_threads() -> usize {
    if is_inline() { 1 } else { rayon::current_num_threads() }
}

/// Returns the number of threads for a job: one if it is too small to split. `work` counts simple operations on
/// elements; waking another thread costs about as much as 30,000 of them.
pub(super) fn threads(work: usize) -> usize {
    match available_threads() {
        1 => 1,
        n => n.min(work / 30_000 + 1),
    }
}

/// Returns the range of part `i` when `total` items are divided into `parts` parts at multiples of `unit`.
pub(super) fn part(total: usize, unit: usize, i: usize, parts: usize) -> Range<usize> {
    let units = total.div_ceil(unit);
    (units * i / parts * unit).min(total)..(units * (i + 1) / parts * unit).min(total)
}

/// Calls `f(i)` for every i below `parts`, on at most `parts` threads.
pub(super) fn for_each_part(parts: usize, f: impl Fn(usize) + Send + Sync) {
    if parts <= 1 {
        (0..parts).for_each(f);
    } else {
        run_parts(parts, 1, &f);
    }
}

/// Calls `f(i, chunk)` for every chunk of `size` elements; adjacent chunks are processed by one thread.
pub(super) fn for_each_chunk<T: Send>(data: &mut [T], size: usize, work: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if size == 0 {
        return;
    }
    let parts = threads(work);
    let run_chunk = |first: usize, run: &mut [T]| {
        let mut ticks = Ticks::every(size);
        for (i, chunk) in run.chunks_mut(size).enumerate() {
            if ticks.is_requested() {
                return;
            }
            f(first + i, chunk);
        }
    };
    if parts <= 1 {
        return run_chunk(0, data);
    }
    // Several runs per thread, so that one delayed thread does not delay the whole job.
    let chunks_per_run = data.len().div_ceil(size).div_ceil(4 * parts).max(1);
    let runs: Vec<Mutex<&mut [T]>> = data.chunks_mut(chunks_per_run * size).map(Mutex::new).collect();
    run_parts(runs.len(), usize::MAX, &|i| {
        let mut run = runs[i].lock().unwrap_or_else(PoisonError::into_inner);
        run_chunk(i * chunks_per_run, &mut run);
    });
}

/// Calls `f(i)` for every i below `parts` on the threads of the pool, with up to `max_len` consecutive calls on one
/// thread. Not generic, so that the parallel loop is compiled once for all kernels.
fn run_parts(parts: usize, max_len: usize, f: &(dyn Fn(usize) + Sync)) {
    if is_inline() {
        return (0..parts).for_each(f);
    }
    record_split();
    let cancel = Cancel::current();
    (0..parts).into_par_iter().with_max_len(max_len).for_each(|i| run_within(cancel.as_ref(), || f(i)));
}

/// Calls `lead` on the calling thread or another one of the pool, and `help(i)` for every i below `helpers` on those that
/// become free before `lead` returns. The calls of `help` that nobody has begun by then follow it.
pub(super) fn lead(lead: impl FnOnce() + Send, helpers: usize, help: impl Fn(usize) + Sync) {
    record_split();
    let cancel = Cancel::current();
    let lead = Mutex::new(Some(lead));
    // A job that is split over threads runs its first half before those that nobody has taken from it.
    (0..helpers + 1).into_par_iter().with_max_len(1).for_each(|i| {
        let call = || match i.checked_sub(1) {
            Some(i) => help(i),
            None => {
                let lead = lead.lock().unwrap_or_else(PoisonError::into_inner).take();
                lead.into_iter().for_each(|lead| lead());
            }
        };
        // Helpers wait for the leader, which runs in work that was cancelled as well.
        match &cancel {
            None => call(),
            Some(cancel) => cancel.within(call),
        }
    });
}

/// Runs `work_item` in the cancellation scope of its job, unless the job was cancelled.
fn run_within(cancel: Option<&Cancel>, work_item: impl FnOnce()) {
    match cancel {
        None => work_item(),
        Some(cancel) if cancel.is_set() => {}
        Some(cancel) => cancel.within(work_item),
    }
}

/// Pointer shared between threads that access disjoint elements.
#[derive(Clone, Copy)]
pub(super) struct SharedPtr<T>(*mut T);

// SAFETY: every unsafe block that dereferences the pointer guarantees that no other thread accesses the same elements.
unsafe impl<T: Send> Send for SharedPtr<T> {}
// SAFETY: as for `Send`, the dereferencing blocks guarantee disjoint accesses.
unsafe impl<T: Send> Sync for SharedPtr<T> {}

impl<T> SharedPtr<T> {
    /// Shares the elements of `data` while it is borrowed.
    pub fn new(data: &mut [T]) -> SharedPtr<T> {
        SharedPtr(data.as_mut_ptr())
    }

    /// Shares the elements at `data`.
    pub fn at(data: *mut T) -> SharedPtr<T> {
        SharedPtr(data)
    }

    /// Returns the pointer. (A method, so that a closure captures the struct and not the bare pointer.)
    pub fn get(&self) -> *mut T {
        self.0
    }
}

/// Returns a workspace as `f32` elements; workspaces are 64-byte aligned.
pub(super) fn scratch(workspace: &mut [u8]) -> &mut [f32] {
    let float_bytes = workspace.len() / 4 * 4;
    bytemuck::cast_slice_mut(&mut workspace[..float_bytes])
}
