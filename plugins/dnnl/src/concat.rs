//! Concatenation along the innermost dimension: each row of the result consists of one row of every part.
//!
//! This covers every channel concatenation in a channels-last network. oneDNN's primitive took 1.5 to 2.2 times as long
//! (with sizes that occur in networks, on two threads). Parts cannot be computed directly into the result: for a
//! destination with gaps between its rows, oneDNN has only reference implementations of the convolution, pooling and
//! elementwise primitives.

use crate::argument::Arguments;
use crate::library::{OneDnn, ffi};

/// Row-wise concatenation. The parts are the arguments `ARG_MULTIPLE_SRC + i`, the result is `ARG_DST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowConcat {
    /// Number of rows in each part and in the result.
    pub rows: usize,
    pub parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Size of a row in bytes.
    pub bytes: usize,
    /// Row stride in bytes.
    pub stride: usize,
}

/// Maximum size in bytes of a result that the calling thread copies alone, because waking another thread would take
/// longer than the copy.
const MAX_SERIAL_BYTES: usize = 16 << 10;

pub const MAX_PARTS: usize = 64;

/// Addresses of the parts and of the result, for all threads.
struct Pointers {
    operands: [*const u8; MAX_PARTS],
    result: *mut u8,
}

// SAFETY: `run` assigns disjoint rows to the threads, and the parts are only read.
unsafe impl Sync for Pointers {}

impl RowConcat {
    /// Copies the parts into the result.
    ///
    /// # Safety
    /// Each argument must point to a tensor of its size (the parts valid for reads, the result for writes), and the
    /// result must not overlap any part.
    pub unsafe fn run(&self, library: &OneDnn, args: Arguments<'_>) {
        let Some(result) = args.find(ffi::ARG_DST) else { return };
        let mut pointers = Pointers { operands: [std::ptr::null(); MAX_PARTS], result };
        pointers
            .operands
            .iter_mut()
            .zip(args.args)
            .for_each(|(pointer, arg)| *pointer = args.address(arg).cast_const());
        let pointers = &pointers;
        let row_bytes: usize = self.parts.iter().map(|part| part.bytes).sum();
        let rows = |thread: usize, threads: usize| {
            let (start, end) = (self.rows * thread / threads, self.rows * (thread + 1) / threads);
            let mut offset = 0;
            for (operand, &source) in self.parts.iter().zip(&pointers.operands) {
                for r in start..end {
                    // SAFETY: the caller guarantees valid tensors, and only this thread writes these rows.
                    unsafe {
                        copy(source.add(r * operand.stride), pointers.result.add(r * row_bytes + offset), operand.bytes)
                    };
                }
                offset += operand.bytes;
            }
        };
        library.run_on_threads(row_bytes * self.rows > MAX_SERIAL_BYTES, &rows);
    }
}

/// Copies a row. Most rows have a few hundred bytes, so calling `memcpy` would cost more than the copy itself.
#[inline(always)]
unsafe fn copy(mut source: *const u8, mut destination: *mut u8, mut bytes: usize) {
    macro_rules! blocks {
        ($size:literal) => {
            while bytes >= $size {
                // SAFETY: the loop condition ensures that `$size` bytes remain in both rows.
                unsafe {
                    destination.cast::<[u8; $size]>().write_unaligned(source.cast::<[u8; $size]>().read_unaligned());
                    (source, destination) = (source.add($size), destination.add($size));
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
