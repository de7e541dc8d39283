//! Concatenation in rows: each row of the result consists of one row of every part. A concatenation of a single part is a
//! copy between layouts with gaps between their rows.
//!
//! This covers every concatenation of parts that have the result's memory order: the dimensions outside of the axis are
//! the rows. oneDNN's primitive took 1.5 to 2.2 times as long for channels-last images (with sizes that occur in
//! networks, on two threads), and copies single elements or calls `memcpy` for a few of them in other cases. Parts cannot be computed directly into the result: for a
//! destination with gaps between its rows, oneDNN has only reference implementations of the convolution, pooling and
//! elementwise primitives.

use crate::argument::Arguments;
use crate::library::{OneDnn, ffi};
use byoc_plugin_support::view::{View, count};

/// Row-wise concatenation. The parts are the arguments `ARG_MULTIPLE_SRC + i`, the result is `ARG_DST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowConcat {
    /// Number of rows in each part and in the result.
    pub rows: usize,
    pub parts: Vec<Part>,
    /// Row stride of the result in bytes.
    pub stride: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Size of a row in bytes.
    pub bytes: usize,
    /// Row stride in bytes.
    pub stride: usize,
}

/// Number of bytes from which a row is copied by the C library's `memcpy`.
const LONG_ROW: usize = 1 << 10;

/// Maximum size in bytes of a result that the calling thread copies alone, because waking another thread would take
/// longer than the copy.
const MAX_SERIAL_BYTES: usize = 16 << 10;

pub const MAX_PARTS: usize = 256;

/// Addresses of the parts and of the result, for all threads.
struct Pointers {
    operands: [*const u8; MAX_PARTS],
    result: *mut u8,
}

// SAFETY: `run` assigns disjoint rows to the threads, and the parts are only read.
unsafe impl Sync for Pointers {}

impl RowConcat {
    /// Returns the copy of a tensor from one layout to another, with elements of `size` bytes. Returns `None` unless both
    /// consist of equal rows without gaps between their elements.
    pub fn copy(source: &View, destination: &View, size: usize) -> Option<RowConcat> {
        let order = destination.order();
        let [source, destination] = [source, destination].map(|view| view.permute(&order));
        (0..=order.len()).find_map(|outer| {
            let columns = count(&source.shape[outer..]);
            let rows = [count(&source.shape[..outer]), columns];
            let stride = |view: &View| {
                let view = view.reshape(&rows)?;
                let is_forward = view.strides[0] >= 0;
                (is_forward && (columns == 1 || view.strides[1] == 1)).then_some(view.strides[0] as usize * size)
            };
            let part = Part { bytes: columns as usize * size, stride: stride(&source)? };
            Some(RowConcat { rows: rows[0] as usize, parts: vec![part], stride: stride(&destination)? })
        })
    }

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
        // Each thread copies the same share of every part, which may begin and end within a row.
        let rows = |thread: usize, threads: usize| {
            let mut offset = 0;
            for (operand, &source) in self.parts.iter().zip(&pointers.operands) {
                let total = self.rows * operand.bytes;
                let (start, end) = (total * thread / threads, total * (thread + 1) / threads);
                let (mut row, mut column) = (start / operand.bytes, start % operand.bytes);
                let mut remaining = end - start;
                while remaining > 0 {
                    let bytes = (operand.bytes - column).min(remaining);
                    // SAFETY: the caller guarantees valid tensors, which do not overlap, and only this thread writes these
                    // bytes.
                    unsafe {
                        let source = source.add(row * operand.stride + column);
                        let destination = pointers.result.add(row * self.stride + offset + column);
                        match bytes >= LONG_ROW {
                            true => destination.copy_from_nonoverlapping(source, bytes),
                            false => copy(source, destination, bytes),
                        }
                    }
                    remaining -= bytes;
                    (row, column) = (row + 1, 0);
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
