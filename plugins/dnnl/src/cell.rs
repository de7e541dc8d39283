//! The step of an LSTM behind its matrix product, on the caller's thread.
//!
//! A step is a product of a row by the recurrent weights, which the library computes at the speed of memory, and then some
//! thousand elements through four gates. As primitives of the library these are eight calls, each of which costs more than its
//! work; the library's own recurrent primitive was measured at two to three times the sum of the products. So the gates are
//! one loop here.

use crate::plan::Argument;
use std::sync::OnceLock;

/// The first of a cell's arguments: the gates' sums, (rows, 4 hidden).
pub const ARG_GATES: i32 = 0;
/// The cell state that comes in, (rows, hidden); zeros where it is missing.
pub const ARG_STATE: i32 = 1;
/// What comes out, (2, rows, hidden): the hidden state, then the cell state.
pub const ARG_OUT: i32 = 2;

/// Where the gates lie in a row of sums, counted in hidden sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    /// The input gate.
    pub input: usize,
    /// The forget gate; unused in a step without an earlier state.
    pub forget: usize,
    /// The candidate.
    pub candidate: usize,
    /// The output gate.
    pub output: usize,
}

/// A cell's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Where the gates lie.
    pub gates: Gates,
    /// The batch.
    pub rows: usize,
    /// Elements of a state.
    pub hidden: usize,
    /// Elements from one row of sums to the next.
    pub gates_stride: usize,
    /// Elements from one row of the incoming state to the next.
    pub state_stride: usize,
}

/// Elements that are computed together.
const LANES: usize = 16;

type Row = unsafe fn([*const f32; 4], Option<*const f32>, *mut f32, *mut f32, usize);

impl Cell {
    /// Computes a step. `place` gives the address of an argument.
    ///
    /// # Safety
    /// Each argument has to lie where `place` says, with the cell's sizes, and the output may overlap no other.
    pub unsafe fn run(&self, args: &[Argument], place: impl Fn(&Argument) -> *mut u8) {
        let find = |arg: i32| args.iter().find(|a| a.arg == arg).map(|a| place(a).cast::<f32>());
        let (Some(gates), Some(out)) = (find(ARG_GATES), find(ARG_OUT)) else { return };
        let state = find(ARG_STATE);
        let row = row();
        for r in 0..self.rows {
            // SAFETY: every offset lies in the tensors that the caller vouches for.
            unsafe {
                let sums = gates.add(r * self.gates_stride).cast_const();
                let gate = |number: usize| sums.add(number * self.hidden);
                let Gates { input, forget, candidate, output } = self.gates;
                let old = state.map(|state| state.add(r * self.state_stride).cast_const());
                let new = out.add(r * self.hidden);
                let order = [gate(input), gate(forget), gate(candidate), gate(output)];
                row(order, old, new, new.add(self.rows * self.hidden), self.hidden);
            }
        }
    }
}

/// The fastest code for this CPU.
fn row() -> Row {
    static CHOSEN: OnceLock<Row> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return row_avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return row_avx2;
            }
        }
        row_plain
    })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn row_avx512(gates: [*const f32; 4], old: Option<*const f32>, h: *mut f32, c: *mut f32, n: usize) {
    // SAFETY: the caller's word.
    unsafe { row_plain(gates, old, h, c, n) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn row_avx2(gates: [*const f32; 4], old: Option<*const f32>, h: *mut f32, c: *mut f32, n: usize) {
    // SAFETY: the caller's word.
    unsafe { row_plain(gates, old, h, c, n) }
}

/// C = sigmoid(f) C + sigmoid(i) tanh(g), H = sigmoid(o) tanh(C), with the gates in the order i, f, g, o.
#[inline(always)]
unsafe fn row_plain(gates: [*const f32; 4], old: Option<*const f32>, h: *mut f32, c: *mut f32, n: usize) {
    let mut at = 0;
    while at < n {
        let count = LANES.min(n - at);
        let mut block = [[0.0f32; LANES]; 5];
        let sources = gates.into_iter().map(Some).chain([old]);
        for (lanes, source) in block.iter_mut().zip(sources) {
            if let Some(source) = source {
                // SAFETY: the caller's word: `n` elements lie there.
                unsafe { std::ptr::copy_nonoverlapping(source.add(at), lanes.as_mut_ptr(), count) };
            }
        }
        let [i, f, g, o, state] = block;
        let (mut cell, mut hidden) = ([0.0f32; LANES], [0.0f32; LANES]);
        for l in 0..LANES {
            cell[l] = sigmoid(f[l]) * state[l] + sigmoid(i[l]) * tanh(g[l]);
            hidden[l] = sigmoid(o[l]) * tanh(cell[l]);
        }
        // SAFETY: as above; the results overlap nothing that is read.
        unsafe {
            std::ptr::copy_nonoverlapping(cell.as_ptr(), c.add(at), count);
            std::ptr::copy_nonoverlapping(hidden.as_ptr(), h.add(at), count);
        }
        at += count;
    }
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// e^x = 2^n e^r with |r| <= ln 2 / 2, by the polynomial of Cephes' `expf`. A NaN stays one.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Adding it leaves the nearest whole number in the lowest bits.
    const MAGIC: f32 = 12_582_912.0;
    let x = if x > 88.0 { 88.0 } else { x };
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let p = ((((1.987_569_1e-4 * r + 1.398_199_9e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r + 1.666_666_6e-1)
        * r
        + 0.5;
    let scale = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    (p * r * r + r + 1.0) * scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_are_those_of_the_standard_library() {
        let mut x = -100.0f32;
        while x < 100.0 {
            let wide = f64::from(x);
            assert!((f64::from(sigmoid(x)) - 1.0 / (1.0 + (-wide).exp())).abs() < 2e-7, "{x}");
            assert!((f64::from(tanh(x)) - wide.tanh()).abs() < 3e-7, "{x}");
            x += 0.013;
        }
        assert!(sigmoid(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        assert_eq!((sigmoid(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
    }

    #[test]
    fn every_width_gives_the_same_as_one_element_at_a_time() {
        for n in [1, 15, 16, 17, 40] {
            let gate = |k: usize| (0..n).map(|i| ((i * 7 + k * 13) % 29) as f32 / 7.0 - 2.0).collect::<Vec<_>>();
            let (gates, old) = ([gate(0), gate(1), gate(2), gate(3)], gate(4));
            for state in [None, Some(old.as_ptr())] {
                let (mut h, mut c) = (vec![9.0; n], vec![9.0; n]);
                let pointers = gates.each_ref().map(|gate| gate.as_ptr());
                // SAFETY: every tensor has `n` elements.
                unsafe { row()(pointers, state, h.as_mut_ptr(), c.as_mut_ptr(), n) };
                for i in 0..n {
                    let before = if state.is_some() { old[i] } else { 0.0 };
                    let s = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
                    let cell = s(gates[1][i]) * f64::from(before) + s(gates[0][i]) * f64::from(gates[2][i]).tanh();
                    assert!((f64::from(c[i]) - cell).abs() < 1e-6);
                    assert!((f64::from(h[i]) - s(gates[3][i]) * cell.tanh()).abs() < 1e-6);
                }
            }
        }
    }
}
