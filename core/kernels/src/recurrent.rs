//! Recurrent layers: the steps of a sequence follow each other on one thread, sequences are divided over the threads.
//! Weights are packed so that a product adds one column of the matrix after the other, without sums over lanes.

mod quantized;

use super::math::{sigmoid, tanh};
use super::simd::{mul_add, multiversion};
use super::{Kernel, Offer, Spec, split};
use byoc_ir::cancel::Ticks;
use byoc_ir::op::recurrent::{LayerShape, step_counts};
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};
use std::ops::Range;

inventory::submit! { Offer { op: "nn.lstm", make: |spec| make(spec, Kind::Lstm) } }
inventory::submit! { Offer { op: "nn.gru", make: |spec| make(spec, Kind::Gru) } }

/// Number of results of a product that are computed together.
const LANES: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Lstm,
    Gru,
}

impl Kind {
    fn gates(self) -> usize {
        match self {
            Kind::Lstm => 4,
            Kind::Gru => 3,
        }
    }
}

struct Layer {
    kind: Kind,
    shape: LayerShape,
    reverse: bool,
    /// Packed weights, if they are constant.
    packed: Option<Vec<f32>>,
}

fn make(spec: &Spec<'_>, kind: Kind) -> Option<Box<dyn Kernel>> {
    if spec.inputs[..4].iter().any(|ty| ty.dtype != DType::F32) {
        return None;
    }
    let shape = LayerShape::new(&spec.inputs[0].shape()?, &spec.inputs[2].shape()?);
    let mut layer = Layer { kind, shape, reverse: spec.params().bool("reverse"), packed: None };
    if let Some(weight) = spec.constants.get(1).copied().flatten() {
        let mut packed = vec![0.0; layer.packed_len()];
        pack(weight.view().as_slice(), shape.hidden, &mut packed);
        layer.packed = Some(packed);
    }
    Some(Box::new(layer))
}

/// Packs a matrix of rows of `columns` elements into blocks of [`LANES`] rows, column by column.
fn pack(weight: &[f32], columns: usize, packed: &mut [f32]) {
    for (block, packed) in packed.chunks_mut(columns * LANES).enumerate() {
        for (lane, row) in weight.chunks(columns).skip(block * LANES).take(LANES).enumerate() {
            row.iter().enumerate().for_each(|(column, &value)| packed[column * LANES + lane] = value);
        }
    }
}

/// Values of a run.
struct Operands<'a> {
    data: &'a [f32],
    /// Packed weights.
    packed: &'a [f32],
    /// Bias of the product of a GRU; empty for an LSTM.
    bias: &'a [f32],
}

impl Layer {
    fn rows(&self) -> usize {
        self.kind.gates() * self.shape.hidden
    }

    fn packed_len(&self) -> usize {
        self.rows().next_multiple_of(LANES) * self.shape.hidden
    }

    /// Returns the number of floats that a sequence needs: for its product, its hidden state, its cell, and its results.
    fn slot_len(&self) -> usize {
        self.rows().next_multiple_of(LANES) + (2 + self.shape.steps) * self.shape.hidden
    }

    /// Splits the memory of a sequence.
    fn slot<'a>(&self, slot: &'a mut [f32]) -> [&'a mut [f32]; 4] {
        let (product, states) = slot.split_at_mut(self.rows().next_multiple_of(LANES));
        let (hidden, states) = states.split_at_mut(self.shape.hidden);
        let (cell, all) = states.split_at_mut(self.shape.hidden);
        [product, hidden, cell, all]
    }

    /// Computes the first `steps` steps of sequence `i`.
    fn sequence(&self, i: usize, steps: usize, operands: &Operands<'_>, slot: &mut [f32]) {
        let (hidden, rows) = (self.shape.hidden, self.rows());
        let [product, state, cell, all] = self.slot(slot);
        let mut ticks = Ticks::every(rows * hidden);
        all[(steps.min(self.shape.steps)) * hidden..].fill(0.0);
        for step in self.shape.order(self.reverse).filter(|&step| step < steps) {
            if ticks.is_requested() {
                return;
            }
            let blocks = operands.packed.chunks_exact(hidden * LANES).zip(product.as_chunks_mut::<LANES>().0);
            blocks.for_each(|(block, product)| multiply(state, block, product));
            let row = step * self.shape.batch + i;
            let input = &operands.data[row * rows..][..rows];
            match self.kind {
                Kind::Lstm => {
                    lstm_state(&gates(input, hidden, 0..hidden), &gates(product, hidden, 0..hidden), state, cell);
                }
                Kind::Gru => gru_state(input, &product[..rows], operands.bias, state),
            }
            all[step * hidden..][..hidden].copy_from_slice(state);
        }
    }
}

impl Kernel for Layer {
    fn workspace(&self) -> usize {
        let packed = if self.packed.is_some() { 0 } else { self.packed_len() };
        4 * (packed + self.shape.batch * self.slot_len())
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let (hidden, slot_len) = (self.shape.hidden, self.slot_len());
        let (slots, packed) = split::scratch(workspace).split_at_mut(self.shape.batch * slot_len);
        let packed = match &self.packed {
            Some(packed) => packed.as_slice(),
            None => {
                let packed = &mut packed[..self.packed_len()];
                packed.fill(0.0);
                pack(inputs[1].as_slice(), hidden, packed);
                &*packed
            }
        };
        let [initial, last] = [inputs[2].as_slice::<f32>(), inputs[3].as_slice::<f32>()];
        for (i, slot) in slots.chunks_exact_mut(slot_len).enumerate() {
            let [_, state, cell, _] = self.slot(slot);
            state.copy_from_slice(&initial[i * hidden..][..hidden]);
            if self.kind == Kind::Lstm {
                cell.copy_from_slice(&last[i * hidden..][..hidden]);
            }
        }
        let bias = if self.kind == Kind::Gru { last } else { &[] };
        let operands = Operands { data: inputs[0].as_slice(), packed, bias };
        let work = self.shape.steps * self.shape.batch * self.packed_len() / 8;
        let steps_of = step_counts(inputs.get(4), self.shape);
        split::for_each_chunk(slots, slot_len, work, |i, slot| self.sequence(i, steps_of(i), &operands, slot));
        for (i, slot) in slots.chunks_exact_mut(slot_len).enumerate() {
            let [_, state, cell, all] = self.slot(slot);
            for (step, row) in all.chunks_exact(hidden).enumerate() {
                let at = (step * self.shape.batch + i) * hidden;
                outputs[0].as_mut_slice::<f32>()[at..][..hidden].copy_from_slice(row);
            }
            for (output, state) in outputs[1..].iter_mut().zip([state, cell]) {
                output.as_mut_slice::<f32>()[i * hidden..][..hidden].copy_from_slice(state);
            }
        }
        Ok(())
    }
}

/// Returns the values of some units for each gate of an LSTM; each gate has `size` values.
fn gates(values: &[f32], size: usize, units: Range<usize>) -> [&[f32]; 4] {
    std::array::from_fn(|gate| &values[gate * size..][units.clone()])
}

multiversion! {
    /// Computes the results of a block of packed weights: sum over k of values[k] * block[k].
    fn multiply(values: &[f32], block: &[f32], product: &mut [f32; LANES]) {
        let mut sums = [0.0; LANES];
        for (&value, column) in values.iter().zip(block.as_chunks::<LANES>().0) {
            for (sum, &weight) in sums.iter_mut().zip(column) {
                *sum = mul_add::<FMA>(value, weight, *sum);
            }
        }
        *product = sums;
    }

    /// Computes the next state of an LSTM from the gates i, o, f and c: the sums of `input` and `product`.
    fn lstm_state(input: &[&[f32]; 4], product: &[&[f32]; 4], state: &mut [f32], cell: &mut [f32]) {
        let size = state.len();
        let [xi, xo, xf, xc] = input.map(|gate| &gate[..size]);
        let [pi, po, pf, pc] = product.map(|gate| &gate[..size]);
        let cell = &mut cell[..size];
        for j in 0..size {
            let kept = sigmoid::<FMA>(xf[j] + pf[j]) * cell[j];
            let next = kept + sigmoid::<FMA>(xi[j] + pi[j]) * tanh::<FMA>(xc[j] + pc[j]);
            cell[j] = next;
            state[j] = sigmoid::<FMA>(xo[j] + po[j]) * tanh::<FMA>(next);
        }
    }

    /// Computes the next state of a GRU from the gates z, r and h, whose products are scaled by r.
    fn gru_state(input: &[f32], product: &[f32], bias: &[f32], state: &mut [f32]) {
        let size = state.len();
        let (xz, xr, xh) = (&input[..size], &input[size..][..size], &input[2 * size..][..size]);
        let (pz, pr, ph) = (&product[..size], &product[size..][..size], &product[2 * size..][..size]);
        let (bz, br, bh) = (&bias[..size], &bias[size..][..size], &bias[2 * size..][..size]);
        for j in 0..size {
            let update = sigmoid::<FMA>(xz[j] + (pz[j] + bz[j]));
            let reset = sigmoid::<FMA>(xr[j] + (pr[j] + br[j]));
            let candidate = tanh::<FMA>(xh[j] + reset * (ph[j] + bh[j]));
            state[j] = (1.0 - update) * candidate + update * state[j];
        }
    }
}
