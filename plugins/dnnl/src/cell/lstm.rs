//! Kernel for one row of an LSTM step.

use crate::math::{LANES, load, sigmoid, store, tanh};

/// Positions of the gates in a row of pre-activations, in units of the hidden size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    pub input: usize,
    /// Unused in a step without a previous cell state.
    pub forget: usize,
    pub candidate: usize,
    pub output: usize,
}

impl Gates {
    /// Returns the addresses of the input, forget, candidate and output pre-activations in a row of `4 * hidden_size`
    /// elements.
    #[inline(always)]
    pub(super) unsafe fn pointers(&self, pre_activations: *const f32, hidden_size: usize) -> [*const f32; 4] {
        // SAFETY: the caller guarantees that the row has `4 * hidden_size` elements.
        [self.input, self.forget, self.candidate, self.output]
            .map(|index| unsafe { pre_activations.add(index * hidden_size) })
    }
}

/// Computes `C = sigmoid(f) * C + sigmoid(i) * tanh(g)` and `H = sigmoid(o) * tanh(C)`, with the `gates` i, f, g, o.
#[inline(always)]
pub(super) unsafe fn row(gates: [*const f32; 4], old_state: Option<*const f32>, h: *mut f32, c: *mut f32, n: usize) {
    let mut offset = 0;
    while offset < n {
        let count = LANES.min(n - offset);
        // SAFETY: the caller guarantees `n` elements at each address.
        let [i, f, g, o] = gates.map(|gate| unsafe { load(Some(gate), offset, count) });
        // SAFETY: the caller guarantees `n` elements at `old_state`, if present.
        let state = unsafe { load(old_state, offset, count) };
        let (mut cell, mut hidden_state) = ([0.0f32; LANES], [0.0f32; LANES]);
        for l in 0..LANES {
            cell[l] = sigmoid(f[l]) * state[l] + sigmoid(i[l]) * tanh(g[l]);
            hidden_state[l] = sigmoid(o[l]) * tanh(cell[l]);
        }
        // SAFETY: the caller guarantees `n` elements at `c` and `h`, which overlap no operand.
        unsafe {
            store(&cell, c, offset, count);
            store(&hidden_state, h, offset, count);
        }
        offset += count;
    }
}
