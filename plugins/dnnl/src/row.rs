//! The product of one row by a constant matrix that a region reads again and again: the steps of a recurrent layer.
//!
//! Such a product takes as long as it takes to read the matrix. One of 512 by 2048 is twice as large as the second
//! caches of two cores, and read from its beginning each time it is never there when it is needed again: what was read
//! first has been driven out by what was read last. So every other product goes over the matrix backwards, and begins
//! with what the one before has left in the cache. Each thread has columns of its own, the same in every product.

use crate::argument::Given;
use crate::cpu::fastest;
use crate::library::{OneDnn, ffi};
use crate::program::{Def, Kind, Program, Val};
use std::collections::HashMap;

/// Columns of a panel: of a row of it four registers of AVX-512.
const PANEL: usize = 64;

/// The most tensors that are added to the product.
pub const MOST_ADDENDS: usize = 2;

/// A matrix of so many elements is multiplied by the caller's thread alone: others take longer to begin.
const SMALL: usize = 16 << 10;

/// A matrix in panels of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panels {
    /// Rows and columns.
    pub size: [usize; 2],
    /// Elements from one row and column to the next, as they lie in the constant.
    pub strides: [usize; 2],
}

impl Panels {
    /// How many panels; the last one is filled with zeros.
    fn count(&self) -> usize {
        self.size[1].div_ceil(PANEL)
    }

    /// Elements of the packed matrix: (panels, rows, columns of a panel).
    pub fn elements(&self) -> usize {
        self.count() * self.size[0] * PANEL
    }

    /// Packs a matrix that begins at the first of these bytes into `to`, which is zeros. `None` where there are not
    /// enough bytes.
    pub fn pack(&self, from: &[u8], to: &mut [f32]) -> Option<()> {
        let ([rows, columns], (floats, _)) = (self.size, from.as_chunks::<4>());
        for row in 0..rows {
            for column in 0..columns {
                let at = row * self.strides[0] + column * self.strides[1];
                to[(column / PANEL * rows + row) * PANEL + column % PANEL] = f32::from_ne_bytes(*floats.get(at)?);
            }
        }
        Some(())
    }
}

/// A product of a row by a matrix, and what is added to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The matrix.
    pub panels: Panels,
    /// True if it goes over the matrix from its end.
    pub backwards: bool,
}

/// Where a product's tensors lie.
#[derive(Clone, Copy)]
struct Places {
    row: *const f32,
    panels: *const f32,
    addends: [Option<*const f32>; MOST_ADDENDS],
    result: *mut f32,
}

// SAFETY: nobody writes what is read, and every thread writes columns of its own.
unsafe impl Sync for Places {}

impl Row {
    /// Computes.
    ///
    /// # Safety
    /// Each tensor has to lie where it is said to, with the sizes given, and the result may overlap no other.
    pub unsafe fn run(&self, library: &OneDnn, given: Given<'_>) {
        let all = [ffi::ARG_SRC, ffi::ARG_WEIGHTS, ffi::ARG_DST].map(|arg| given.floats(arg));
        let [Some(row), Some(panels), Some(result)] = all else { return };
        let addend = |number: usize| given.floats(ffi::ARG_MULTIPLE_SRC + number as i32).map(<*mut f32>::cast_const);
        let places = Places { row, panels, addends: std::array::from_fn(addend), result };
        let (code, count) = (code(), self.panels.count());
        let part = |thread: usize, threads: usize| {
            let places = &places;
            // SAFETY: the caller's word; these columns are this thread's own.
            unsafe { code(self, places, count * thread / threads, count * (thread + 1) / threads) };
        };
        library.on_threads(self.panels.elements() > SMALL, &part);
    }
}

fastest! {
    /// Computes the panels of these numbers.
    code: unsafe fn(row: &Row, places: &Places, first: usize, last: usize) = panels
}

/// # Safety
/// The panels have to lie in the tensors, and no other thread may write their columns.
#[inline(always)]
unsafe fn panels(row: &Row, places: &Places, first: usize, last: usize) {
    let [inner, columns] = row.panels.size;
    for number in 0..last - first {
        let panel = if row.backwards { last - 1 - number } else { first + number };
        // Two sums at a time: the next one need not wait for the one before.
        let mut sums = [[0.0f32; PANEL]; 2];
        // SAFETY: the caller's word: so many rows of a panel, elements of the row, columns of the rest.
        unsafe {
            let weights = places.panels.add(panel * inner * PANEL).cast::<[f32; PANEL]>();
            let mut add = |sum: usize, at: usize| {
                let (x, weights) = (*places.row.add(at), &*weights.add(at));
                sums[sum].iter_mut().zip(weights).for_each(|(sum, weight)| *sum += x * weight);
            };
            for pair in 0..inner / 2 {
                add(0, pair * 2);
                add(1, pair * 2 + 1);
            }
            if inner % 2 == 1 {
                add(0, inner - 1);
            }
            let begin = panel * PANEL;
            let [even, odd] = &sums;
            for (column, (even, odd)) in even.iter().zip(odd).enumerate().take(columns - begin) {
                let added = |addend: &Option<*const f32>| addend.map_or(0.0, |addend| *addend.add(begin + column));
                let sum = even + odd + places.addends.iter().map(added).sum::<f32>();
                *places.result.add(begin + column) = sum;
            }
        }
    }
}

/// What is known of the matrices of a program.
#[derive(Default)]
pub struct Matrices {
    /// How many products read a constant.
    readers: HashMap<usize, usize>,
    /// Which way the next product by a constant goes.
    backwards: HashMap<usize, bool>,
}

impl Matrices {
    /// Of a program.
    pub fn of(program: &Program) -> Matrices {
        let mut readers = HashMap::new();
        for op in program.ops.iter().filter(|op| matches!(op.kind, Kind::MatMul { .. })) {
            if let Some(constant) = root(program, op.inputs[1]) {
                *readers.entry(constant).or_default() += 1;
            }
        }
        Matrices { readers, backwards: HashMap::new() }
    }

    /// Returns true if a value is a constant that more than one product reads, or a view of such.
    pub fn is_read_again(&self, program: &Program, value: Val) -> bool {
        root(program, value).and_then(|constant| self.readers.get(&constant)).is_some_and(|&readers| readers > 1)
    }

    /// Returns true if the next product by it goes over it backwards: every other one does.
    pub fn turn(&mut self, program: &Program, value: Val) -> bool {
        let backwards = root(program, value).map(|constant| self.backwards.entry(constant).or_default());
        backwards.is_some_and(|backwards| std::mem::replace(backwards, !*backwards))
    }
}

/// The constant that a value is a view of.
fn root(program: &Program, mut value: Val) -> Option<usize> {
    loop {
        match program.get(value).def {
            Def::Constant(number) => return Some(number),
            Def::Op(op) if program.ops[op].kind.is_view() => value = program.ops[op].inputs[0],
            _ => return None,
        }
    }
}
