//! Elementwise functions that oneDNN computes too imprecisely: its logarithm has an error of about 4e-6 near 1, where
//! the logarithm itself is small, and functions built on the logarithm inherit the error.

use crate::argument::Arguments;
use crate::cpu::fastest;
use crate::library::{OneDnn, ffi};
use crate::math::{LANES, ln, load, mish, store};

/// Elementwise function with a hand-written kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MathFn {
    /// Natural logarithm.
    Log,
    /// Mish: `x * tanh(ln(1 + e^x))`.
    Mish,
}

impl MathFn {
    /// Returns the name for messages.
    pub fn name(self) -> &'static str {
        match self {
            MathFn::Log => "logarithm",
            MathFn::Mish => "mish",
        }
    }
}

/// Kernel that applies an elementwise function to packed elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elementwise {
    pub function: MathFn,
    pub elements: usize,
}

/// Minimum number of elements that justifies waking another thread.
const MIN_PARALLEL_ELEMENTS: usize = 8192;

/// Tensor addresses during a run.
#[derive(Clone, Copy)]
struct Pointers {
    source: *const f32,
    destination: *mut f32,
}

// SAFETY: `run` assigns disjoint elements to the threads.
unsafe impl Sync for Pointers {}

impl Elementwise {
    /// Applies the function.
    ///
    /// # Safety
    /// The pointers in `args` must be valid for `self.elements` elements, and the two tensors must be identical or
    /// disjoint.
    pub unsafe fn run(&self, library: &OneDnn, args: Arguments<'_>) {
        let (Some(source), Some(destination)) = (args.floats(ffi::ARG_SRC), args.floats(ffi::ARG_DST)) else { return };
        let (pointers, code) = (Pointers { source, destination }, code());
        let line_count = self.elements.div_ceil(LANES);
        let run_part = |thread: usize, threads: usize| {
            let begin = |thread: usize| (line_count * thread / threads * LANES).min(self.elements);
            // SAFETY: the caller guarantees that both tensors are valid, and only this thread accesses these elements.
            unsafe { code(self, &pointers, begin(thread), begin(thread + 1)) };
        };
        library.run_on_threads(self.elements > MIN_PARALLEL_ELEMENTS, &run_part);
    }
}

fastest! {
    /// Returns the variant of [`compute`] for this CPU.
    code: unsafe fn(kernel: &Elementwise, pointers: &Pointers, first: usize, last: usize) = compute
}

/// Computes the elements `first..last`.
///
/// # Safety
/// The elements must be within both tensors, and no other thread may write them.
#[inline(always)]
unsafe fn compute(kernel: &Elementwise, pointers: &Pointers, first: usize, last: usize) {
    // SAFETY: the caller guarantees that the elements are within both tensors and that no other thread writes them.
    unsafe {
        match kernel.function {
            MathFn::Log => for_each_element(pointers, first, last, ln),
            MathFn::Mish => for_each_element(pointers, first, last, mish),
        }
    }
}

/// Applies `function` to the elements `first..last`.
///
/// # Safety
/// The elements must be within both tensors, and no other thread may write them.
#[inline(always)]
unsafe fn for_each_element(pointers: &Pointers, first: usize, last: usize, function: impl Fn(f32) -> f32) {
    for offset in (first..last).step_by(LANES) {
        let count = LANES.min(last - offset);
        // SAFETY: the caller guarantees that the elements are within both tensors and that no other thread writes them.
        unsafe {
            store(&load(Some(pointers.source), offset, count).map(&function), pointers.destination, offset, count)
        };
    }
}
