//! LSTM with constant 8-bit weights. A piece of a step is the product and the state of a few units, with the weights of
//! their four gates side by side.

use super::{gates, lstm_state};
use crate::qnn::{RowProduct, quantize, range};
use crate::simd::multiversion;
use crate::{Kernel, Offer, Packs, Spec, split, team};
use byoc_ir::cancel::Ticks;
use byoc_ir::op::qnn::Quantized;
use byoc_ir::op::recurrent::{LayerShape, step_counts};
use byoc_ir::tensor::{TensorView, TensorViewMut};
use std::sync::{Mutex, PoisonError, RwLock};

inventory::submit! { Offer { op: "qnn.lstm", make } }
inventory::submit! { Packs("qnn.lstm") }

/// Number of units of a piece. Their columns fill whole blocks of packed weights.
const UNITS: usize = 32;
const GATES: usize = 4;

struct Layer {
    shape: LayerShape,
    reverse: bool,
    /// Weights of the pieces, whose last one has columns of zeros for units that do not exist.
    product: RowProduct,
    /// Scales of the columns.
    scales: Vec<f32>,
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let constant = |i: usize| spec.constants.get(i).copied().flatten();
    let (weight, zero_points, scales) = (constant(1)?.view(), constant(4)?.view(), constant(5)?.view());
    let shape = LayerShape::new(&spec.inputs[0].shape()?, &spec.inputs[2].shape()?);
    let columns = pieces(shape.hidden) * UNITS * GATES;
    // Original column of a column of the pieces.
    let origin = |column: usize| {
        let (piece, gate) = (column / (UNITS * GATES), column / UNITS % GATES);
        let unit = piece * UNITS + column % UNITS;
        (unit < shape.hidden).then_some(gate * shape.hidden + unit)
    };
    let rows = weight.data.chunks_exact(GATES * shape.hidden);
    let bytes: Vec<u8> =
        rows.flat_map(|row| (0..columns).map(move |column| origin(column).map_or(0, |origin| row[origin]))).collect();
    let weight = TensorView { dtype: weight.dtype, shape: &[shape.hidden, columns], data: &bytes };
    fn at<T: Copy + Default>(values: &[T], origin: Option<usize>) -> T {
        origin.map_or_else(T::default, |i| values[if values.len() == 1 { 0 } else { i }])
    }
    let zero_points = (0..columns).map(|column| at(zero_points.as_slice::<i32>(), origin(column))).collect();
    Some(Box::new(Layer {
        shape,
        reverse: spec.params().bool("reverse"),
        product: RowProduct::new(&weight, zero_points),
        scales: (0..columns).map(|column| at(scales.as_slice::<f32>(), origin(column))).collect(),
    }))
}

/// Returns the number of pieces of a layer.
fn pieces(hidden: usize) -> usize {
    hidden.div_ceil(UNITS)
}

/// States that a step reads.
struct States<'a> {
    /// Hidden states as integers, a row for each sequence.
    integers: &'a mut [u8],
    scale: f32,
    zero_point: u8,
}

/// Memory of a piece, each part with a row for each sequence.
struct Piece<'a> {
    sums: &'a mut [i32],
    /// Scaled sums, the states and the cells of the units.
    products: &'a mut [f32],
    hidden: &'a mut [f32],
    cell: &'a mut [f32],
}

impl Layer {
    /// Returns the number of bytes of the states as integers, and of the elements of a piece.
    fn parts(&self) -> (usize, [usize; 4]) {
        let rows = self.shape.batch * UNITS;
        ((self.shape.batch * self.product.row_bytes()).next_multiple_of(64), [GATES * rows, GATES * rows, rows, rows])
    }

    /// Splits the memory of the pieces.
    fn split<'a>(&self, memory: &'a mut [f32]) -> Vec<Mutex<Piece<'a>>> {
        let (_, parts) = self.parts();
        let piece = |memory: &'a mut [f32]| {
            let (sums, memory) = memory.split_at_mut(parts[0]);
            let (products, memory) = memory.split_at_mut(parts[1]);
            let (hidden, cell) = memory.split_at_mut(parts[2]);
            Mutex::new(Piece { sums: bytemuck::cast_slice_mut(sums), products, hidden, cell })
        };
        // The workspace may be larger than it has to be.
        memory.chunks_exact_mut(parts.iter().sum()).take(pieces(self.shape.hidden)).map(piece).collect()
    }

    /// Returns the number of units of a piece that exist.
    fn units(&self, piece: usize) -> usize {
        UNITS.min(self.shape.hidden - piece * UNITS)
    }

    /// Copies rows of all units to the pieces, or back.
    fn for_each_row(&self, pieces: &[Mutex<Piece<'_>>], mut f: impl FnMut(usize, usize, &mut [f32], &mut [f32])) {
        for (i, piece) in pieces.iter().enumerate() {
            let mut piece = lock(piece);
            let Piece { hidden, cell, .. } = &mut *piece;
            for (row, (hidden, cell)) in hidden.chunks_exact_mut(UNITS).zip(cell.chunks_exact_mut(UNITS)).enumerate() {
                let units = self.units(i);
                f(row, i * UNITS, &mut hidden[..units], &mut cell[..units]);
            }
        }
    }
}

fn lock<'m, 'a>(piece: &'m Mutex<Piece<'a>>) -> std::sync::MutexGuard<'m, Piece<'a>> {
    piece.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kernel for Layer {
    fn workspace(&self) -> usize {
        let (integers, parts) = self.parts();
        integers + 4 * pieces(self.shape.hidden) * parts.iter().sum::<usize>()
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let LayerShape { batch, hidden, steps } = self.shape;
        let (integers, _) = self.parts();
        let (integers, memory) = workspace.split_at_mut(integers);
        integers.fill(0);
        let states = RwLock::new(States { integers, scale: 0.0, zero_point: 0 });
        let pieces = self.split(split::scratch(memory));
        let [initial, cells] = [inputs[2].as_slice::<f32>(), inputs[3].as_slice::<f32>()];
        self.for_each_row(&pieces, |row, first, hidden_out, cell_out| {
            let at = row * hidden + first;
            hidden_out.copy_from_slice(&initial[at..][..hidden_out.len()]);
            cell_out.copy_from_slice(&cells[at..][..cell_out.len()]);
        });
        let data = inputs[0].as_slice::<f32>();
        let steps_of = step_counts(inputs.get(6), self.shape);
        let order: Vec<usize> = self.shape.order(self.reverse).collect();
        let work = batch * hidden * GATES * hidden / 16;
        let mut ticks = Ticks::every(2 * work);
        let [all, last_hidden, last_cell] = outputs else { return Err("expected three results".to_owned()) };
        let all = all.as_mut_slice::<f32>();
        // The results of a step are written at the beginning of the next one.
        let mut finish = |step: usize| {
            self.for_each_row(&pieces, |row, first, state, _| {
                let out = &mut all[(step * batch + row) * hidden + first..][..state.len()];
                if step < steps_of(row) { out.copy_from_slice(state) } else { out.fill(0.0) }
            });
        };
        let begin = |round: usize| {
            if ticks.is_requested() {
                return false;
            }
            if let Some(previous) = round.checked_sub(1) {
                finish(order[previous]);
            }
            let (mut min, mut max) = (0f32, 0f32);
            self.for_each_row(&pieces, |_, _, state, _| {
                let (low, high) = range(state);
                (min, max) = (min.min(low), max.max(high));
            });
            let mut states = states.write().unwrap_or_else(PoisonError::into_inner);
            (states.scale, states.zero_point) = Quantized::parameters(min, max);
            let States { integers, scale, zero_point } = &mut *states;
            self.for_each_row(&pieces, |row, first, state, _| {
                let out = &mut integers[row * self.product.row_bytes() + first..][..state.len()];
                quantize(state, *scale, f32::from(*zero_point), out);
            });
            true
        };
        team::for_each_round(steps, pieces.len(), work, begin, |round, i| {
            let states = states.read().unwrap_or_else(PoisonError::into_inner);
            let mut piece = lock(&pieces[i]);
            let Piece { sums, products, hidden: state, cell } = &mut *piece;
            let first = i * UNITS * GATES;
            let columns = first..first + UNITS * GATES;
            self.product.multiply(states.integers, i32::from(states.zero_point), columns.clone(), sums);
            let (step, units) = (order[round], self.units(i));
            for row in 0..batch {
                if step >= step_counts(inputs.get(6), self.shape)(row) {
                    continue;
                }
                let product = &mut products[row * UNITS * GATES..][..UNITS * GATES];
                scale(&sums[row * UNITS * GATES..], &self.scales[columns.clone()], states.scale, product);
                let input = &data[(step * batch + row) * GATES * hidden..][..GATES * hidden];
                let own = row * UNITS..row * UNITS + units;
                let (input, product) =
                    (gates(input, hidden, i * UNITS..i * UNITS + units), gates(product, UNITS, 0..units));
                lstm_state(&input, &product, &mut state[own.clone()], &mut cell[own]);
            }
        });
        if let Some(&step) = order.last() {
            finish(step);
        }
        let [last_hidden, last_cell] = [last_hidden, last_cell].map(|out| out.as_mut_slice::<f32>());
        self.for_each_row(&pieces, |row, first, state, cell| {
            let at = row * hidden + first;
            last_hidden[at..][..state.len()].copy_from_slice(state);
            last_cell[at..][..cell.len()].copy_from_slice(cell);
        });
        Ok(())
    }
}

multiversion! {
    /// Scales integer products.
    fn scale(products: &[i32], factors: &[f32], scale: f32, out: &mut [f32]) {
        for ((out, &product), &factor) in out.iter_mut().zip(products).zip(factors) {
            *out = product as f32 * (scale * factor);
        }
    }
}
