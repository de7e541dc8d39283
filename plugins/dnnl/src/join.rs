//! Tensors behind each other along the dimension that lies innermost: a row of the whole is a row of each part after the other.
//!
//! That is every concatenation of channels in a network that lies channels-last. The library's primitive for it took 1.5 to 2.2
//! times as long (networks' sizes, two threads). No part can be written into its place to begin with: for a destination with
//! gaps between its rows the library has only its reference for convolutions, pools and elementwise functions.

use crate::argument::Given;
use crate::library::{OneDnn, ffi};

/// A concatenation of rows. The parts are the arguments `ARG_MULTIPLE_SRC + i`, the whole is `ARG_DST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Rows of every part and of the whole.
    pub rows: usize,
    /// The parts, in order.
    pub parts: Vec<Part>,
}

/// A part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes of a row.
    pub bytes: usize,
    /// Bytes from one row to the next.
    pub stride: usize,
}

/// A whole of so many bytes is copied by the caller's thread alone: others take longer to begin.
const SMALL: usize = 16 << 10;

/// The most parts that are joined here.
pub const MOST_PARTS: usize = 64;

/// Addresses of the parts and of the whole, for all threads.
struct Places {
    parts: [*const u8; MOST_PARTS],
    whole: *mut u8,
}

// SAFETY: the parts are read only, and every thread writes rows of its own.
unsafe impl Sync for Places {}

impl Join {
    /// Copies.
    ///
    /// # Safety
    /// Each tensor has to lie where it is said to, with the sizes given, and the whole may overlap no part.
    pub unsafe fn run(&self, library: &OneDnn, given: Given<'_>) {
        let Some(whole) = given.find(ffi::ARG_DST) else { return };
        let mut places = Places { parts: [std::ptr::null(); MOST_PARTS], whole };
        places.parts.iter_mut().zip(given.args).for_each(|(at, arg)| *at = given.place(arg).cast_const());
        let places = &places;
        let row: usize = self.parts.iter().map(|part| part.bytes).sum();
        let rows = |thread: usize, threads: usize| {
            let (from, to) = (self.rows * thread / threads, self.rows * (thread + 1) / threads);
            let mut begin = 0;
            for (part, &source) in self.parts.iter().zip(&places.parts) {
                for r in from..to {
                    // SAFETY: the caller's word; the rows of the whole are this thread's own.
                    unsafe { copy(source.add(r * part.stride), places.whole.add(r * row + begin), part.bytes) };
                }
                begin += part.bytes;
            }
        };
        library.on_threads(row * self.rows > SMALL, &rows);
    }
}

/// Copies a row. Most are some hundred bytes, for which a call of the system's routine takes longer than the copy.
#[inline(always)]
unsafe fn copy(mut from: *const u8, mut to: *mut u8, mut bytes: usize) {
    macro_rules! blocks {
        ($size:literal) => {
            while bytes >= $size {
                // SAFETY: so many bytes are left of both rows.
                unsafe {
                    to.cast::<[u8; $size]>().write_unaligned(from.cast::<[u8; $size]>().read_unaligned());
                    (from, to) = (from.add($size), to.add($size));
                }
                bytes -= $size;
            }
        };
    }
    blocks!(64);
    blocks!(16);
    blocks!(4);
    blocks!(1);
}
