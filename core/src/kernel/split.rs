//! Dividing the work of a kernel among the threads of the pool in which it runs. A piece that has not begun when the work is
//! to [end](crate::stop) is left out: threads of the pool work for others as well, so the question goes with the pieces.

use crate::stop::{Cancel, Ticks};
use rayon::prelude::*;
use std::ops::Range;

/// Returns the number of threads that a job may use: one when it is too small to share. `work` counts simple operations on elements;
/// waking another thread costs about as much as 30,000 of them.
pub(super) fn threads(work: usize) -> usize {
    match rayon::current_num_threads() {
        1 => 1,
        n => n.min(work / 30_000 + 1),
    }
}

/// Part `i` of `parts` of `total` items, cut at multiples of `unit`.
pub(super) fn part(total: usize, unit: usize, i: usize, parts: usize) -> Range<usize> {
    let units = total.div_ceil(unit);
    (units * i / parts * unit).min(total)..(units * (i + 1) / parts * unit).min(total)
}

/// Calls `f(i)` for every i below `parts`, on as many threads.
pub(super) fn each_part(parts: usize, f: impl Fn(usize) + Send + Sync) {
    if parts <= 1 {
        (0..parts).for_each(f);
    } else {
        let cancel = Cancel::current();
        (0..parts).into_par_iter().with_max_len(1).for_each(|i| within(cancel.as_ref(), || f(i)));
    }
}

/// Calls `f(i, chunk)` for every chunk of `size` elements; neighbouring chunks go to one thread.
pub(super) fn each_chunk<T: Send>(data: &mut [T], size: usize, work: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if size == 0 {
        return;
    }
    let parts = threads(work);
    let each = |first: usize, run: &mut [T]| {
        let mut ticks = Ticks::every(size);
        for (i, chunk) in run.chunks_mut(size).enumerate() {
            if ticks.requested() {
                return;
            }
            f(first + i, chunk);
        }
    };
    if parts <= 1 {
        return each(0, data);
    }
    let cancel = Cancel::current();
    // A few runs for each thread, so that a thread that is held up does not hold up all.
    let per_run = data.len().div_ceil(size).div_ceil(4 * parts).max(1);
    let run = |(i, run): (usize, &mut [T])| within(cancel.as_ref(), || each(i * per_run, run));
    data.par_chunks_mut(per_run * size).enumerate().for_each(run);
}

/// Does a piece of work unless it is to end, in the scope of the work that it belongs to.
fn within(cancel: Option<&Cancel>, piece: impl FnOnce()) {
    match cancel {
        None => piece(),
        Some(cancel) if cancel.is_set() => {}
        Some(cancel) => cancel.within(piece),
    }
}

/// A pointer that threads share, each of them for elements that no other touches.
#[derive(Clone, Copy)]
pub(super) struct Shared<T>(*mut T);

// SAFETY: whoever dereferences the pointer (in an unsafe block of its own) promises that no other thread does so for
// the same elements.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The elements of `data`, to be shared out while it is borrowed.
    pub fn new(data: &mut [T]) -> Shared<T> {
        Shared(data.as_mut_ptr())
    }

    /// The elements at `data`.
    pub fn at(data: *mut T) -> Shared<T> {
        Shared(data)
    }

    /// The pointer. (A method, so that a closure captures the whole and not the bare pointer.)
    pub fn get(&self) -> *mut T {
        self.0
    }
}

/// Scratch memory as `f32`; the bytes are aligned to 64.
pub(super) fn scratch(workspace: &mut [u8]) -> &mut [f32] {
    let whole = workspace.len() / 4 * 4;
    bytemuck::cast_slice_mut(&mut workspace[..whole])
}
