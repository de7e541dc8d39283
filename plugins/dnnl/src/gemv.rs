//! GEMV with a constant matrix that several matrix products of a region read, as in the steps of a recurrent layer.
//!
//! Such a GEMV is bound by memory bandwidth. A matrix of 512 x 2048 elements is twice as large as the L2 caches of two
//! cores. If every GEMV read the matrix from its start, it would always miss the cache, because the end of the matrix
//! would have evicted the start. So every second GEMV traverses the matrix backwards, beginning with the part that the
//! previous GEMV left in the cache. Each thread processes the same columns in every GEMV.

use crate::argument::Arguments;
use crate::cpu::fastest;
use crate::ir::{Def, Kind, RegionIr, Val};
use crate::library::{OneDnn, ffi};
use std::collections::HashMap;

/// Number of columns in a panel: four AVX-512 registers per row.
const PANEL: usize = 64;

/// Maximum number of tensors added to the result.
pub const MAX_ADDENDS: usize = 2;

/// Maximum number of matrix elements that the calling thread multiplies alone, because waking another thread would take
/// longer.
const MAX_SERIAL_ELEMENTS: usize = 16 << 10;

/// Layout of a matrix that is packed into column panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panels {
    /// Number of rows and number of columns.
    pub size: [usize; 2],
    /// Strides of rows and columns in the constant, in elements.
    pub strides: [usize; 2],
}

impl Panels {
    /// Returns the number of panels; the last panel is zero-padded.
    fn count(&self) -> usize {
        self.size[1].div_ceil(PANEL)
    }

    /// Returns the number of elements of the packed matrix, whose axes are (panels, rows, columns per panel).
    pub fn elements(&self) -> usize {
        self.count() * self.size[0] * PANEL
    }

    /// Packs the matrix in `source` into `packed`, which must be zeroed. Returns `None` if `source` is too short.
    pub fn pack(&self, source: &[u8], packed: &mut [f32]) -> Option<()> {
        let ([rows, columns], (floats, _)) = (self.size, source.as_chunks::<4>());
        for row in 0..rows {
            for column in 0..columns {
                let index = row * self.strides[0] + column * self.strides[1];
                packed[(column / PANEL * rows + row) * PANEL + column % PANEL] =
                    f32::from_ne_bytes(*floats.get(index)?);
            }
        }
        Some(())
    }
}

/// GEMV step: row vector times matrix, plus addends.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemv {
    pub panels: Panels,
    /// True if the matrix is traversed from its end to its start.
    pub is_backwards: bool,
}

/// Tensor addresses during a run.
#[derive(Clone, Copy)]
struct Pointers {
    row: *const f32,
    panels: *const f32,
    addends: [Option<*const f32>; MAX_ADDENDS],
    result: *mut f32,
}

// SAFETY: `run` assigns disjoint columns to the threads, and inputs are only read.
unsafe impl Sync for Pointers {}

impl Gemv {
    /// Computes the GEMV.
    ///
    /// # Safety
    /// Each argument must point to a tensor with the dimensions stated in `self`: readable for operands, writable for
    /// the result. The result must not overlap any other tensor.
    pub unsafe fn run(&self, library: &OneDnn, args: Arguments<'_>) {
        let addresses = [ffi::ARG_SRC, ffi::ARG_WEIGHTS, ffi::ARG_DST].map(|arg| args.floats(arg));
        let [Some(row), Some(panels), Some(result)] = addresses else { return };
        let addend = |index: usize| args.floats(ffi::ARG_MULTIPLE_SRC + index as i32).map(<*mut f32>::cast_const);
        let pointers = Pointers { row, panels, addends: std::array::from_fn(addend), result };
        let (code, count) = (code(), self.panels.count());
        let run_part = |thread: usize, threads: usize| {
            let pointers = &pointers;
            // SAFETY: the caller guarantees valid tensors, and only this thread writes these columns.
            unsafe { code(self, pointers, count * thread / threads, count * (thread + 1) / threads) };
        };
        library.run_on_threads(self.panels.elements() > MAX_SERIAL_ELEMENTS, &run_part);
    }
}

fastest! {
    /// Returns the variant of [`panels`] for this CPU.
    code: unsafe fn(gemv: &Gemv, pointers: &Pointers, first: usize, last: usize) = panels
}

/// Computes the result columns of the panels `first..last`.
///
/// # Safety
/// The panels must be within the tensors, and no other thread may write their columns.
#[inline(always)]
unsafe fn panels(gemv: &Gemv, pointers: &Pointers, first: usize, last: usize) {
    let [inner_dim, columns] = gemv.panels.size;
    for index in 0..last - first {
        let panel = if gemv.is_backwards { last - 1 - index } else { first + index };
        // Two independent accumulators hide the latency of the additions.
        let mut accumulators = [[0.0f32; PANEL]; 2];
        // SAFETY: the caller guarantees that the panels, the row vector, the addends and the result have the stated
        // dimensions.
        unsafe {
            let weights = pointers.panels.add(panel * inner_dim * PANEL).cast::<[f32; PANEL]>();
            let mut add = |sum: usize, position: usize| {
                let (x, weights) = (*pointers.row.add(position), &*weights.add(position));
                accumulators[sum].iter_mut().zip(weights).for_each(|(sum, weight)| *sum += x * weight);
            };
            for pair in 0..inner_dim / 2 {
                add(0, pair * 2);
                add(1, pair * 2 + 1);
            }
            if inner_dim % 2 == 1 {
                add(0, inner_dim - 1);
            }
            let begin = panel * PANEL;
            let [even, odd] = &accumulators;
            for (column, (even, odd)) in even.iter().zip(odd).enumerate().take(columns - begin) {
                let addend_value =
                    |addend: &Option<*const f32>| addend.map_or(0.0, |addend| *addend.add(begin + column));
                let sum = even + odd + pointers.addends.iter().map(addend_value).sum::<f32>();
                *pointers.result.add(begin + column) = sum;
            }
        }
    }
}

/// Uses of constant matrices in the matrix products of a region.
#[derive(Default)]
pub struct MatrixUses {
    /// Number of matrix products that read each constant.
    reader_counts: HashMap<usize, usize>,
    /// True for each constant that the next GEMV traverses backwards.
    is_backwards_next: HashMap<usize, bool>,
}

impl MatrixUses {
    /// Counts the matrix products of a region that read each constant.
    pub fn of(ir: &RegionIr) -> MatrixUses {
        let mut reader_counts = HashMap::new();
        for op in ir.ops.iter().filter(|op| matches!(op.kind, Kind::MatMul { .. })) {
            if let Some(constant) = root(ir, op.inputs[1]) {
                *reader_counts.entry(constant).or_default() += 1;
            }
        }
        MatrixUses { reader_counts, is_backwards_next: HashMap::new() }
    }

    /// Returns true if `value` is a constant, or a view of a constant, that several matrix products read.
    pub fn is_shared(&self, ir: &RegionIr, value: Val) -> bool {
        root(ir, value)
            .and_then(|constant| self.reader_counts.get(&constant))
            .is_some_and(|&reader_count| reader_count > 1)
    }

    /// Returns true if the next GEMV should traverse the matrix `value` backwards; the direction alternates.
    pub fn next_direction(&mut self, ir: &RegionIr, value: Val) -> bool {
        let direction = root(ir, value).map(|constant| self.is_backwards_next.entry(constant).or_default());
        direction.is_some_and(|direction| std::mem::replace(direction, !*direction))
    }
}

/// Returns the index of the constant of which `value` is a view, if any.
fn root(ir: &RegionIr, mut value: Val) -> Option<usize> {
    loop {
        match ir.get(value).def {
            Def::Constant(index) => return Some(index),
            Def::Op(op) if ir.ops[op].kind.is_view() => value = ir.ops[op].inputs[0],
            _ => return None,
        }
    }
}
