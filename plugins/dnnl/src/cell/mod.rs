//! Part of a recurrent-layer step that follows the matrix products, computed on the caller's thread.
//!
//! A step is a GEMV with the recurrent weights, followed by the gates. The library computes the GEMV at memory
//! bandwidth; the gates have only about a thousand elements. Computed by oneDNN primitives, the gates of an LSTM need
//! eight calls, whose overhead exceeds their work; oneDNN's recurrent primitive took two to three times as long as the
//! matrix products. So the gates are a single loop here: `lstm` and `gru` compute one row, and this module iterates
//! over the rows.

pub mod gru;
pub mod lstm;

use crate::argument::Arguments;
use crate::cpu::fastest;
use crate::library::ffi;
use gru::Gru;
use lstm::Gates;

/// Maximum number of cell operands. Argument indices of operands start at 0; absent operands are zeros.
pub const MAX_OPERANDS: usize = 7;

/// Argument index of the result.
pub const ARG_OUT: i32 = ffi::ARG_DST;

/// Cell computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    /// Step of an LSTM. Reads the pre-activations of the gates (rows, 4 * hidden) and, except in the first step, the
    /// cell state (rows, hidden). Returns (2, rows, hidden): the hidden state, then the cell state.
    Lstm(Gates),
    /// Step of a GRU, or half of one. All tensors are (rows, hidden).
    Gru(Gru),
}

impl CellKind {
    /// Returns the name for messages.
    pub fn name(&self) -> &'static str {
        match self {
            CellKind::Lstm(_) => "LSTM cell",
            CellKind::Gru(_) => "GRU cell",
        }
    }

    /// Returns the argument index of each operand, in order.
    pub fn operand_indices(&self) -> Vec<usize> {
        match self {
            CellKind::Lstm(_) => vec![0, 1],
            CellKind::Gru(gru) => (0..MAX_OPERANDS).filter(|&index| gru.present[index]).collect(),
        }
    }
}

/// Cell kernel for given dimensions and strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub kind: CellKind,
    /// Number of rows: the batch size.
    pub rows: usize,
    /// Hidden size: number of elements of a state.
    pub hidden_size: usize,
    /// Row stride of each operand in elements; 0 if one row is broadcast.
    pub strides: [usize; MAX_OPERANDS],
}

/// Addresses of a cell's tensors.
struct Pointers {
    read: [Option<*const f32>; MAX_OPERANDS],
    out: *mut f32,
}

impl Cell {
    /// Executes a step.
    ///
    /// # Safety
    /// Each tensor must be at its argument's address with the cell's sizes, and the output must not overlap any other
    /// tensor.
    pub unsafe fn run(&self, args: Arguments<'_>) {
        let Some(out) = args.floats(ARG_OUT) else { return };
        let read = std::array::from_fn(|index| args.floats(index as i32).map(<*mut f32>::cast_const));
        // SAFETY: the caller guarantees valid tensors, and an output that does not overlap them.
        unsafe { steps()(self, &Pointers { read, out }) }
    }

    /// Computes all rows in order.
    #[inline(always)]
    unsafe fn steps(&self, pointers: &Pointers) {
        for r in 0..self.rows {
            // SAFETY: the caller guarantees tensors of the cell's sizes, and every offset is within them.
            unsafe {
                let row = |index: usize| pointers.read[index].map(|pointer| pointer.add(r * self.strides[index]));
                let out = pointers.out.add(r * self.hidden_size);
                match &self.kind {
                    CellKind::Lstm(gates) => {
                        let Some(pre_activations) = row(0) else { return };
                        lstm::row(
                            gates.pointers(pre_activations, self.hidden_size),
                            row(1),
                            out,
                            out.add(self.rows * self.hidden_size),
                            self.hidden_size,
                        );
                    }
                    CellKind::Gru(gru) => gru::row(gru.part, std::array::from_fn(row), out, self.hidden_size),
                }
            }
        }
    }
}

fastest! {
    /// Returns the variant of [`Cell::steps`] for this CPU.
    steps: unsafe fn(cell: &Cell, pointers: &Pointers) = Cell::steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use gru::Part;

    /// Executes a cell on generated operands with gaps between their rows; operands that `kind` omits are zeros.
    /// Returns the operands without gaps, and the output.
    fn run(
        kind: CellKind,
        widths: &[usize],
        rows: usize,
        hidden_size: usize,
        out_count: usize,
    ) -> (Vec<Vec<f32>>, Vec<f32>) {
        let indices = kind.operand_indices();
        let mut strides = [0; MAX_OPERANDS];
        let mut read = [None; MAX_OPERANDS];
        let tensors: Vec<Vec<f32>> = widths
            .iter()
            .enumerate()
            .map(|(k, width)| (0..rows * (width + 3)).map(|i| ((i * 7 + k * 13) % 29) as f32 / 7.0 - 2.0).collect())
            .collect();
        for ((tensor, &index), &width) in tensors.iter().zip(&indices).zip(widths) {
            (strides[index], read[index]) = (width + 3, Some(tensor.as_ptr()));
        }
        let mut out = vec![9.0; out_count * rows * hidden_size];
        // SAFETY: `tensors` and `out` are allocated above in the sizes that rows and strides imply.
        unsafe { steps()(&Cell { kind, rows, hidden_size, strides }, &Pointers { read, out: out.as_mut_ptr() }) };
        let rows_of = |(tensor, &width): (&Vec<f32>, &usize)| -> Vec<f32> {
            (0..rows).flat_map(|r| tensor[r * (width + 3)..][..width].to_vec()).collect()
        };
        (tensors.iter().zip(widths).map(rows_of).collect(), out)
    }

    fn s(x: f32) -> f64 {
        1.0 / (1.0 + (-f64::from(x)).exp())
    }

    fn assert_close(actual: f32, expected: f64) {
        assert!((f64::from(actual) - expected).abs() < 1e-6, "expected {expected}, found {actual}");
    }

    #[test]
    fn lstm_matches_reference_for_every_width() {
        let gates = Gates { input: 2, forget: 0, candidate: 3, output: 1 };
        for (n, state) in [(1, true), (15, false), (16, true), (17, true), (40, false)] {
            let widths = if state { vec![4 * n, n] } else { vec![4 * n] };
            let (read, out) = run(CellKind::Lstm(gates), &widths, 2, n, 2);
            for i in 0..2 * n {
                let gate = |index: usize| read[0][i / n * 4 * n + index * n + i % n];
                let old_state = read.get(1).map_or(0.0, |state| f64::from(state[i]));
                let cell = s(gate(0)) * old_state + s(gate(2)) * f64::from(gate(3)).tanh();
                assert_close(out[2 * n + i], cell);
                assert_close(out[i], s(gate(1)) * cell.tanh());
            }
        }
    }

    #[test]
    fn gru_matches_reference_for_every_width() {
        for n in [1, 15, 16, 17, 40] {
            for present in 0..1u32 << MAX_OPERANDS {
                for part in [Part::Whole, Part::Mix, Part::Reset] {
                    let kind = CellKind::Gru(Gru { part, present: std::array::from_fn(|k| present >> k & 1 == 1) });
                    let indices = kind.operand_indices();
                    let (read, out) = run(kind, &vec![n; indices.len()], 2, n, 1);
                    for i in 0..2 * n {
                        let value_at = |operand: usize| {
                            indices.iter().position(|&index| index == operand).map_or(0.0, |position| read[position][i])
                        };
                        let interpolate = |z: f64, n: f32, h: f32| (1.0 - z) * f64::from(n).tanh() + z * f64::from(h);
                        assert_close(
                            out[i],
                            match part {
                                Part::Whole => {
                                    let reset = s(value_at(2) + value_at(3));
                                    let candidate = f64::from(value_at(4)) + reset * f64::from(value_at(5));
                                    interpolate(s(value_at(0) + value_at(1)), candidate as f32, value_at(6))
                                }
                                Part::Mix => {
                                    interpolate(s(value_at(0) + value_at(1)), value_at(2) + value_at(3), value_at(4))
                                }
                                Part::Reset => s(value_at(0) + value_at(1)) * f64::from(value_at(2)),
                            },
                        );
                    }
                }
            }
        }
    }
}
