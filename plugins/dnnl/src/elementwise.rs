//! Elementwise functions for which oneDNN lacks precision: its logarithm is off by some 4e-6 near 1, where the result
//! itself is small, and so are functions built on it.

use crate::argument::Given;
use crate::cpu::fastest;
use crate::curves::{LANES, ln, load, mish, store};
use crate::library::{OneDnn, ffi};

/// Elementwise function with a hand-written kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// Natural logarithm.
    Log,
    /// x tanh(ln(1 + e^x)).
    Mish,
}

impl Curve {
    /// Name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Curve::Log => "logarithm",
            Curve::Mish => "mish",
        }
    }
}

/// Elementwise function of packed elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elementwise {
    pub curve: Curve,
    /// Number of elements.
    pub elements: usize,
}

/// Minimum number of elements that justifies waking another thread.
const SHARE: usize = 8192;

/// Addresses of the tensors.
#[derive(Clone, Copy)]
struct Places {
    from: *const f32,
    to: *mut f32,
}

// SAFETY: each thread writes elements of its own, and reads no others.
unsafe impl Sync for Places {}

impl Elementwise {
    /// Computes the function.
    ///
    /// # Safety
    /// Both tensors must be at their arguments' addresses with this number of elements, and be identical or disjoint.
    pub unsafe fn run(&self, library: &OneDnn, given: Given<'_>) {
        let (Some(from), Some(to)) = (given.floats(ffi::ARG_SRC), given.floats(ffi::ARG_DST)) else { return };
        let (places, code) = (Places { from, to }, code());
        let lines = self.elements.div_ceil(LANES);
        let part = |thread: usize, threads: usize| {
            let begin = |thread: usize| (lines * thread / threads * LANES).min(self.elements);
            // SAFETY: guaranteed by the caller; these elements belong to this thread alone.
            unsafe { code(self, &places, begin(thread), begin(thread + 1)) };
        };
        library.on_threads(self.elements > SHARE, &part);
    }
}

fastest! {
    /// Computes the elements `first..last`.
    code: unsafe fn(what: &Elementwise, places: &Places, first: usize, last: usize) = compute
}

/// # Safety
/// The elements must be within both tensors, and no other thread may write them.
#[inline(always)]
unsafe fn compute(what: &Elementwise, places: &Places, first: usize, last: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match what.curve {
            Curve::Log => each(places, first, last, ln),
            Curve::Mish => each(places, first, last, mish),
        }
    }
}

/// # Safety
/// As for `compute`.
#[inline(always)]
unsafe fn each(places: &Places, first: usize, last: usize, curve: impl Fn(f32) -> f32) {
    for at in (first..last).step_by(LANES) {
        let count = LANES.min(last - at);
        // SAFETY: guaranteed by the caller.
        unsafe { store(&load(Some(places.from), at, count).map(&curve), places.to, at, count) };
    }
}
