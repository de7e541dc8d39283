//! The steps of recurrent layers behind their matrix products, on the caller's thread.
//!
//! A step is a product of a row by the recurrent weights, which the library computes at the speed of memory, and then some
//! thousand elements through a few gates. As primitives of the library the gates of an LSTM are eight calls, each of which costs
//! more than its work; the library's own recurrent primitive was measured at two to three times the sum of the products. So the
//! gates are one loop here: `lstm` and `gru` have what is done to a row, and this module goes over the rows.

pub mod gru;
pub mod lstm;

use crate::argument::Given;
use crate::cpu::fastest;
use crate::library::ffi;
use gru::Gru;
use lstm::Gates;

/// The most tensors that a cell reads. They are numbered from 0, as arguments too; one that is missing is zeros.
pub const MOST_OPERANDS: usize = 7;

/// The argument that a cell writes.
pub const ARG_OUT: i32 = ffi::ARG_DST;

/// What a cell computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A step of an LSTM. Reads the gates' sums (rows, 4 hidden) and, but for a first step, the cell state (rows, hidden).
    /// Gives (2, rows, hidden), the hidden state and then the cell state.
    Lstm(Gates),
    /// A step of a GRU or a half of one. Everything is (rows, hidden).
    Gru(Gru),
}

impl Form {
    /// Its name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Form::Lstm(_) => "LSTM cell",
            Form::Gru(_) => "GRU cell",
        }
    }

    /// The number that each of its operands has, in order.
    pub fn numbers(&self) -> Vec<usize> {
        match self {
            Form::Lstm(_) => vec![0, 1],
            Form::Gru(gru) => (0..MOST_OPERANDS).filter(|&number| gru.given[number]).collect(),
        }
    }
}

/// A cell's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// What it computes.
    pub form: Form,
    /// The batch.
    pub rows: usize,
    /// Elements of a state.
    pub hidden: usize,
    /// Elements from one row of each operand to the next; 0 where all rows are one.
    pub strides: [usize; MOST_OPERANDS],
}

/// Where a cell's tensors lie.
struct Places {
    read: [Option<*const f32>; MOST_OPERANDS],
    out: *mut f32,
}

impl Cell {
    /// Computes a step.
    ///
    /// # Safety
    /// Each tensor has to lie where it is said to, with the cell's sizes, and the output may overlap no other.
    pub unsafe fn run(&self, given: Given<'_>) {
        let Some(out) = given.floats(ARG_OUT) else { return };
        let read = std::array::from_fn(|number| given.floats(number as i32).map(<*mut f32>::cast_const));
        // SAFETY: the caller's word.
        unsafe { steps()(self, &Places { read, out }) }
    }

    /// All rows, one after the other.
    #[inline(always)]
    unsafe fn steps(&self, places: &Places) {
        for r in 0..self.rows {
            // SAFETY: every offset lies in the tensors that the caller vouches for.
            unsafe {
                let row = |number: usize| places.read[number].map(|at| at.add(r * self.strides[number]));
                let out = places.out.add(r * self.hidden);
                match &self.form {
                    Form::Lstm(gates) => {
                        let Some(sums) = row(0) else { return };
                        lstm::row(
                            gates.of(sums, self.hidden),
                            row(1),
                            out,
                            out.add(self.rows * self.hidden),
                            self.hidden,
                        );
                    }
                    Form::Gru(gru) => gru::row(gru.part, std::array::from_fn(row), out, self.hidden),
                }
            }
        }
    }
}

fastest! {
    /// Computes all rows.
    steps: unsafe fn(cell: &Cell, places: &Places) = Cell::steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use gru::Part;

    /// Runs a cell of so many rows over made-up operands, each with gaps between its rows; `zeros` are those left out. Gives
    /// the operands, element by element, and the output.
    fn run(form: Form, widths: &[usize], rows: usize, hidden: usize, outs: usize) -> (Vec<Vec<f32>>, Vec<f32>) {
        let numbers = form.numbers();
        let mut strides = [0; MOST_OPERANDS];
        let mut read = [None; MOST_OPERANDS];
        let tensors: Vec<Vec<f32>> = widths
            .iter()
            .enumerate()
            .map(|(k, width)| (0..rows * (width + 3)).map(|i| ((i * 7 + k * 13) % 29) as f32 / 7.0 - 2.0).collect())
            .collect();
        for ((tensor, &number), &width) in tensors.iter().zip(&numbers).zip(widths) {
            (strides[number], read[number]) = (width + 3, Some(tensor.as_ptr()));
        }
        let mut out = vec![9.0; outs * rows * hidden];
        // SAFETY: every tensor has the rows that its stride says.
        unsafe { steps()(&Cell { form, rows, hidden, strides }, &Places { read, out: out.as_mut_ptr() }) };
        let rows_of = |(tensor, &width): (&Vec<f32>, &usize)| -> Vec<f32> {
            (0..rows).flat_map(|r| tensor[r * (width + 3)..][..width].to_vec()).collect()
        };
        (tensors.iter().zip(widths).map(rows_of).collect(), out)
    }

    fn s(x: f32) -> f64 {
        1.0 / (1.0 + (-f64::from(x)).exp())
    }

    fn close(got: f32, wanted: f64) {
        assert!((f64::from(got) - wanted).abs() < 1e-6, "{got}, not {wanted}");
    }

    #[test]
    fn an_lstm_of_every_width_is_its_formula() {
        let gates = Gates { input: 2, forget: 0, candidate: 3, output: 1 };
        for (n, state) in [(1, true), (15, false), (16, true), (17, true), (40, false)] {
            let widths = if state { vec![4 * n, n] } else { vec![4 * n] };
            let (read, out) = run(Form::Lstm(gates), &widths, 2, n, 2);
            for i in 0..2 * n {
                let gate = |number: usize| read[0][i / n * 4 * n + number * n + i % n];
                let before = read.get(1).map_or(0.0, |state| f64::from(state[i]));
                let cell = s(gate(0)) * before + s(gate(2)) * f64::from(gate(3)).tanh();
                close(out[2 * n + i], cell);
                close(out[i], s(gate(1)) * cell.tanh());
            }
        }
    }

    #[test]
    fn a_gru_of_every_width_is_its_formula() {
        for n in [1, 15, 16, 17, 40] {
            for given in 0..1u32 << MOST_OPERANDS {
                for part in [Part::Whole, Part::Mix, Part::Reset] {
                    let form = Form::Gru(Gru { part, given: std::array::from_fn(|k| given >> k & 1 == 1) });
                    let numbers = form.numbers();
                    let (read, out) = run(form, &vec![n; numbers.len()], 2, n, 1);
                    for i in 0..2 * n {
                        let at = |number: usize| {
                            numbers.iter().position(|&other| other == number).map_or(0.0, |at| read[at][i])
                        };
                        let mix = |z: f64, n: f32, h: f32| (1.0 - z) * f64::from(n).tanh() + z * f64::from(h);
                        close(
                            out[i],
                            match part {
                                Part::Whole => {
                                    let reset = s(at(2) + at(3));
                                    let candidate = f64::from(at(4)) + reset * f64::from(at(5));
                                    mix(s(at(0) + at(1)), candidate as f32, at(6))
                                }
                                Part::Mix => mix(s(at(0) + at(1)), at(2) + at(3), at(4)),
                                Part::Reset => s(at(0) + at(1)) * f64::from(at(2)),
                            },
                        );
                    }
                }
            }
        }
    }
}
