//! Functions of each element that the library computes with too few digits: the logarithm, which is off by some 4e-6 next to 1,
//! where it is itself small, and what is made of it.

use crate::argument::Given;
use crate::cpu::fastest;
use crate::curves::{LANES, ln, load, mish, store};
use crate::library::{OneDnn, ffi};

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// The natural logarithm.
    Log,
    /// x tanh(ln(1 + e^x)).
    Mish,
}

impl Curve {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Curve::Log => "logarithm",
            Curve::Mish => "mish",
        }
    }
}

/// A function of so many elements, which lie without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elementwise {
    /// Which one.
    pub curve: Curve,
    /// How many.
    pub elements: usize,
}

/// Elements that are worth the wake-up of another thread.
const SHARE: usize = 8192;

/// Where the tensors lie.
#[derive(Clone, Copy)]
struct Places {
    from: *const f32,
    to: *mut f32,
}

// SAFETY: each thread writes elements of its own, and reads no others.
unsafe impl Sync for Places {}

impl Elementwise {
    /// Computes.
    ///
    /// # Safety
    /// Both tensors have to lie where they are said to, with so many elements, as the same tensor or apart.
    pub unsafe fn run(&self, library: &OneDnn, given: Given<'_>) {
        let (Some(from), Some(to)) = (given.floats(ffi::ARG_SRC), given.floats(ffi::ARG_DST)) else { return };
        let (places, code) = (Places { from, to }, code());
        let lines = self.elements.div_ceil(LANES);
        let part = |thread: usize, threads: usize| {
            let begin = |thread: usize| (lines * thread / threads * LANES).min(self.elements);
            // SAFETY: the caller's word; these elements are this thread's own.
            unsafe { code(self, &places, begin(thread), begin(thread + 1)) };
        };
        library.on_threads(self.elements > SHARE, &part);
    }
}

fastest! {
    /// Computes the elements of these numbers.
    code: unsafe fn(what: &Elementwise, places: &Places, first: usize, last: usize) = compute
}

/// # Safety
/// The elements have to lie in both tensors, and no other thread may write them.
#[inline(always)]
unsafe fn compute(what: &Elementwise, places: &Places, first: usize, last: usize) {
    // SAFETY: the caller's word.
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
        // SAFETY: the caller's word.
        unsafe { store(&load(Some(places.from), at, count).map(&curve), places.to, at, count) };
    }
}
