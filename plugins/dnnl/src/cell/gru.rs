//! Kernel for one row of a GRU step.
//!
//! If the reset gate scales the recurrent product (`linear_before_reset` in ONNX, and PyTorch's formula), a step is one
//! matrix product followed by one loop. If the reset gate scales the state before the recurrent product, a step is two
//! matrix products, each followed by a loop.

use super::MAX_OPERANDS;
use crate::math::{LANES, load, sigmoid, store, tanh};

/// Formula of a loop; `x0`, `x1`, ... denote the operands, by argument index. Each gate's pre-activation is the sum of
/// two operands, one computed from the input and one from the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Complete step: `(1 - z) * n + z * x6` with `z = sigmoid(x0 + x1)`, `r = sigmoid(x2 + x3)`,
    /// `n = tanh(x4 + r * x5)`.
    Whole,
    /// New state: `(1 - z) * n + z * x4` with `z = sigmoid(x0 + x1)`, `n = tanh(x2 + x3)`.
    Mix,
    /// State scaled by the reset gate: `sigmoid(x0 + x1) * x2`.
    Reset,
}

/// Loop of a GRU step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gru {
    pub part: Part,
    /// True for each operand that is present; absent operands are zeros.
    pub present: [bool; MAX_OPERANDS],
}

/// Computes one row.
#[inline(always)]
pub(super) unsafe fn row(part: Part, read: [Option<*const f32>; MAX_OPERANDS], out: *mut f32, n: usize) {
    let mut offset = 0;
    while offset < n {
        let count = LANES.min(n - offset);
        // SAFETY: the caller guarantees `n` elements at each address.
        let lanes = |index: usize| unsafe { load(read[index], offset, count) };
        let mut result = [0.0f32; LANES];
        match part {
            Part::Whole => {
                let [xz, hz, xr, hr, xn, hn, old_state] = std::array::from_fn(lanes);
                for l in 0..LANES {
                    let reset = sigmoid(xr[l] + hr[l]);
                    result[l] = interpolate(sigmoid(xz[l] + hz[l]), tanh(xn[l] + reset * hn[l]), old_state[l]);
                }
            }
            Part::Mix => {
                let [xz, hz, xn, hn, old_state] = std::array::from_fn(lanes);
                for l in 0..LANES {
                    result[l] = interpolate(sigmoid(xz[l] + hz[l]), tanh(xn[l] + hn[l]), old_state[l]);
                }
            }
            Part::Reset => {
                let [xr, hr, old_state] = std::array::from_fn(lanes);
                for l in 0..LANES {
                    result[l] = sigmoid(xr[l] + hr[l]) * old_state[l];
                }
            }
        }
        // SAFETY: the caller guarantees `n` elements at `out`, which overlaps no operand.
        unsafe { store(&result, out, offset, count) };
        offset += count;
    }
}

#[inline(always)]
fn interpolate(update: f32, candidate: f32, old_state: f32) -> f32 {
    (1.0 - update) * candidate + update * old_state
}
