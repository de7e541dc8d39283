//! Recurrent layers over all steps of a sequence, in one direction. The products of the input with its weights come from
//! a product before the layer.

use super::scalar::{Reader, Writer};
use super::{Arity, AttrDef, AttrKind, Cost, Default, Evaluation, Params, Relation};
use crate::cancel::Ticks;
use crate::diag::Diagnostic;
use crate::ir::{Dim, Type};
use crate::op::facts::Properties;
use crate::op::qnn::Quantized;
use crate::tensor::{DType, TensorView, TensorViewMut};

const REVERSE: AttrDef =
    AttrDef::new("reverse", AttrKind::Bool, Default::Bool(false), "true to begin with the last step");

/// Sizes of a layer: arguments 0 to 2 are the data (steps, batch, gates * hidden), the weights, and the state
/// (batch, hidden).
#[derive(Clone, Copy, Debug)]
pub struct LayerShape {
    /// Number of steps.
    pub steps: usize,
    /// Number of sequences.
    pub batch: usize,
    /// Size of the state of a sequence.
    pub hidden: usize,
}

impl LayerShape {
    /// Reads the sizes from the shapes of the data and of the state.
    pub fn new(data: &[usize], state: &[usize]) -> LayerShape {
        LayerShape { steps: data[0], batch: state[0], hidden: state[1] }
    }

    /// Returns the steps in the order in which they are computed.
    pub fn order(self, reverse: bool) -> impl Iterator<Item = usize> {
        (0..self.steps).map(move |step| if reverse { self.steps - 1 - step } else { step })
    }
}

/// Checks the data and the states; `states` are the arguments with the shape of a state. Returns the dimensions of the
/// data and the hidden size.
fn layer(relation: &Relation<'_>, gates: usize, states: &[usize]) -> Result<([Dim; 3], usize), Box<Diagnostic>> {
    let data = relation.tensor(0)?;
    let [steps, batch, width] = &data.dims[..] else {
        return Err(relation.mismatch(format!("data: expected rank 3, found {}", relation.args[0])));
    };
    if !data.dtype.is_float() {
        return Err(relation.mismatch(format!("data: expected floats, found {}", data.dtype)));
    }
    let mut batch = batch.clone();
    let mut size = None;
    for &i in states {
        let state = relation.tensor(i)?;
        relation.same_dtype(data.dtype, state.dtype)?;
        let (name, [rows, columns]) = (relation.def.inputs[i], &state.dims[..]) else {
            let (name, found) = (relation.def.inputs[i], &relation.args[i]);
            return Err(relation.mismatch(format!("{name}: expected rank 2, found {found}")));
        };
        batch = relation.same_dim(&format!("batch of data and {name}"), &batch, rows)?;
        let Some(hidden) = columns.fixed().filter(|&hidden| hidden > 0 && size.is_none_or(|size| size == hidden))
        else {
            let found = &relation.args[i];
            return Err(relation.mismatch(format!("{name}: expected a known and equal size > 0, found {found}")));
        };
        size = Some(hidden);
    }
    let hidden = size.unwrap_or(1);
    let width = relation.same_dim("data and gates of the states", width, &Dim::Fixed(gates.saturating_mul(hidden)))?;
    Ok(([steps.clone(), batch, width], hidden))
}

/// Checks the numbers of steps of the sequences, argument `i`, if they are given.
fn lengths(relation: &Relation<'_>, i: usize, [_, batch, _]: &[Dim; 3]) -> Result<(), Box<Diagnostic>> {
    let Some(found) = relation.args.get(i) else { return Ok(()) };
    let lengths = relation.tensor(i)?;
    let [count] = &lengths.dims[..] else {
        return Err(relation.mismatch(format!("lengths: expected rank 1, found {found}")));
    };
    if lengths.dtype != DType::I32 {
        return Err(relation.mismatch(format!("lengths: expected int32, found {}", lengths.dtype)));
    }
    relation.same_dim("batch of data and lengths", batch, count).map(drop)
}

/// Returns the numbers of steps of the sequences, which may exceed those of the data.
pub fn step_counts<'a>(lengths: Option<&'a TensorView<'a>>, shape: LayerShape) -> impl Fn(usize) -> usize + 'a {
    let lengths = lengths.map(|lengths| lengths.as_slice::<i32>());
    move |row| lengths.map_or(shape.steps, |lengths| usize::try_from(lengths[row]).unwrap_or(0))
}

/// Returns the type of the results: the outputs of all steps, and `count` final states.
fn result_type(dtype: DType, [steps, batch, _]: [Dim; 3], hidden: usize, count: usize) -> Type {
    let state = Type::tensor_of(dtype, [batch.clone(), Dim::Fixed(hidden)]);
    let outputs = Type::tensor_of(dtype, [steps, batch, Dim::Fixed(hidden)]);
    Type::tuple(std::iter::once(outputs).chain(vec![state; count]))
}

fn expect(relation: &Relation<'_>, i: usize, dtype: DType, shape: &[usize]) -> Result<(), Box<Diagnostic>> {
    let ty = relation.tensor(i)?;
    let has_shape = ty.dims.len() == shape.len()
        && ty.dims.iter().zip(shape).all(|(dim, &size)| dim.fixed().is_none_or(|dim| dim == size));
    if ty.dtype == dtype && has_shape {
        return Ok(());
    }
    let name = relation.def.inputs[i];
    Err(relation.mismatch(format!("{name}: expected {}, found {}", Type::tensor(dtype, shape), relation.args[i])))
}

/// Returns the multiply-adds of the recurrent products, twice.
fn flops(cost: &Cost<'_>) -> u64 {
    let hidden = cost.args.get(2).and_then(Type::as_tensor).and_then(|state| state.dims.last()?.fixed());
    cost.arg_len(0).saturating_mul(2).saturating_mul(hidden.unwrap_or(1) as u64)
}

/// Returns the number of terms of all sums that contribute to the last step.
fn terms(_: &Params<'_>, shapes: &[&[usize]], _: &[usize]) -> usize {
    let size = |i: usize, axis: usize| shapes.get(i).and_then(|shape| shape.get(axis)).copied().unwrap_or(1);
    size(0, 0).saturating_mul(size(0, 2).saturating_add(16))
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Computes the new state of an LSTM from the sums of its gates (input, output, forget, cell).
fn lstm_state(gates: [f64; 4], cell: f64) -> [f64; 2] {
    let [input, output, forget, candidate] = gates;
    let cell = sigmoid(forget) * cell + sigmoid(input) * candidate.tanh();
    [sigmoid(output) * cell.tanh(), cell]
}

operator! {
    name: "nn.lstm",
    doc: "Long short-term memory over the steps of a sequence: data (steps, batch, 4 * hidden) are the products of the \
          input with its weights, plus the biases, of the gates i, o, f and c. Each step adds hidden * transposed \
          weight; then cell = sigmoid(f) * cell + sigmoid(i) * tanh(c), hidden = sigmoid(o) * tanh(cell). The results \
          are the hidden states of all steps, and the last hidden state and cell. A sequence keeps its state from step \
          lengths[i] on, and its outputs are 0 there.",
    arity: Arity { min: 4, max: 5 },
    inputs: &["data", "weight", "hidden", "cell", "lengths"],
    attrs: &[REVERSE],
    relation: |relation| {
        let (dims, hidden) = layer(relation, 4, &[2, 3])?;
        let dtype = relation.tensor(0)?.dtype;
        expect(relation, 1, dtype, &[4 * hidden, hidden])?;
        lengths(relation, 4, &dims)?;
        Ok(result_type(dtype, dims, hidden, 2))
    },
    reference: Some(|params, inputs, outputs| {
        let weight = Reader::new(&inputs[1]);
        let size = inputs[1].shape[1];
        let product = |states: &[f64], products: &mut [f64]| {
            for (state, products) in states.chunks(size).zip(products.chunks_mut(4 * size)) {
                dense(state, products, |row, column| weight.float(row * size + column));
            }
        };
        lstm(params, inputs, inputs.get(4), outputs, product)
    }),
    flops,
    properties: Properties::EXACT.stable(terms),
}

/// Computes products[r] = sum over c of weight(r, c) * values[c].
fn dense(values: &[f64], products: &mut [f64], weight: impl Fn(usize, usize) -> f64) {
    for (row, product) in products.iter_mut().enumerate() {
        *product = values.iter().enumerate().map(|(column, value)| weight(row, column) * value).sum();
    }
}

/// Computes an LSTM; `product` computes the product of a state (batch, hidden) with the weights, (batch, 4 * hidden).
fn lstm(
    params: Params<'_>,
    inputs: &[TensorView<'_>],
    lengths: Option<&TensorView<'_>>,
    outputs: &mut [TensorViewMut<'_>],
    product: impl Fn(&[f64], &mut [f64]),
) -> Evaluation {
    let (data, states) = (Reader::new(&inputs[0]), [&inputs[2], &inputs[3]]);
    let shape = LayerShape::new(inputs[0].shape, states[0].shape);
    let steps_of = step_counts(lengths, shape);
    let [mut hidden, mut cell] = states.map(|state| state.to_f64s());
    let mut products = vec![0.0; 4 * hidden.len()];
    let [all, last_hidden, last_cell] = outputs else { return Err("expected three results".into()) };
    let (is_single, mut all) = (all.dtype == DType::F32, Writer::new(all));
    let round = |value: f64| if is_single { f64::from(value as f32) } else { value };
    let mut ticks = Ticks::every(products.len().saturating_mul(shape.hidden));
    for step in shape.order(params.bool("reverse")) {
        if ticks.is_requested() {
            return Ok(());
        }
        product(&hidden, &mut products);
        for i in 0..hidden.len() {
            let (row, column) = (i / shape.hidden, i % shape.hidden);
            if step >= steps_of(row) {
                all.set_float(step * hidden.len() + i, 0.0);
                continue;
            }
            let gates = [0, 1, 2, 3].map(|gate| {
                let at = (row * 4 + gate) * shape.hidden + column;
                data.float(step * products.len() + at) + products[at]
            });
            [hidden[i], cell[i]] = lstm_state(gates, cell[i]).map(round);
            all.set_float(step * hidden.len() + i, hidden[i]);
        }
    }
    Writer::new(last_hidden).store(hidden);
    Writer::new(last_cell).store(cell);
    Ok(())
}

operator! {
    name: "qnn.lstm",
    doc: "nn.lstm whose weights are integers (hidden, 4 * hidden) with zero points and scales, scalars or one for each \
          column. In each step the hidden state of all sequences is quantized to uint8 over the range of its values, \
          extended to contain 0; the product is exact, and scaled by both scales.",
    arity: Arity { min: 6, max: 7 },
    inputs: &["data", "weight", "hidden", "cell", "zero_points", "scales", "lengths"],
    attrs: &[REVERSE],
    relation: |relation| {
        let (dims, hidden) = layer(relation, 4, &[2, 3])?;
        let (dtype, weight) = (relation.tensor(0)?.dtype, relation.tensor(1)?.dtype);
        if dtype != DType::F32 || !matches!(weight, DType::I8 | DType::U8) {
            return Err(relation.mismatch(format!(
                "expected float32 data and 8-bit weights, found {dtype} and {weight}"
            )));
        }
        expect(relation, 1, weight, &[hidden, 4 * hidden])?;
        for (i, dtype) in [(4, DType::I32), (5, DType::F32)] {
            let columns = if relation.tensor(i)?.dims.is_empty() { &[][..] } else { &[4 * hidden] };
            expect(relation, i, dtype, columns)?;
        }
        lengths(relation, 6, &dims)?;
        Ok(result_type(dtype, dims, hidden, 2))
    },
    reference: Some(|params, inputs, outputs| {
        let (weight, columns) = (Reader::new(&inputs[1]), inputs[1].shape[1]);
        let (zero_points, scales) = (Reader::new(&inputs[4]), Reader::new(&inputs[5]));
        let at = |view: &TensorView<'_>, column: usize| if view.shape.is_empty() { 0 } else { column };
        let product = |state: &[f64], products: &mut [f64]| {
            let quantized = Quantized::new(state);
            let size = inputs[1].shape[0];
            for (i, product) in products.iter_mut().enumerate() {
                let (row, column) = (i / columns, i % columns);
                let zero_point = zero_points.int(at(&inputs[4], column));
                let terms = (0..size).map(|k| {
                    let value = i128::from(quantized.values[row * size + k]) - i128::from(quantized.zero_point);
                    value * (weight.int(k * columns + column) - zero_point)
                });
                let factor = quantized.scale * scales.float(at(&inputs[5], column)) as f32;
                *product = f64::from(terms.sum::<i128>() as i32 as f32 * factor);
            }
        };
        lstm(params, inputs, inputs.get(6), outputs, product)
    }),
    flops,
    properties: Properties::EXACT.stable(terms),
}

operator! {
    name: "nn.gru",
    doc: "Gated recurrent unit over the steps of a sequence: data (steps, batch, 3 * hidden) are the products of the \
          input with its weights, plus its biases, of the gates z, r and h. With p = hidden * transposed weight + bias, \
          each step computes z = sigmoid(z + p_z), r = sigmoid(r + p_r), hidden = (1 - z) * tanh(h + r * p_h) + \
          z * hidden. The results are the hidden states of all steps, and the last one. A sequence keeps its state from \
          step lengths[i] on, and its outputs are 0 there.",
    arity: Arity { min: 4, max: 5 },
    inputs: &["data", "weight", "hidden", "bias", "lengths"],
    attrs: &[REVERSE],
    relation: |relation| {
        let (dims, hidden) = layer(relation, 3, &[2])?;
        let dtype = relation.tensor(0)?.dtype;
        expect(relation, 1, dtype, &[3 * hidden, hidden])?;
        expect(relation, 3, dtype, &[3 * hidden])?;
        lengths(relation, 4, &dims)?;
        Ok(result_type(dtype, dims, hidden, 1))
    },
    reference: Some(gru),
    flops,
    properties: Properties::EXACT.stable(terms),
}

fn gru(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let [data, weight, _, bias] = [0, 1, 2, 3].map(|i| Reader::new(&inputs[i]));
    let (shape, mut hidden) = (LayerShape::new(inputs[0].shape, inputs[2].shape), inputs[2].to_f64s());
    let (size, mut products) = (shape.hidden, vec![0.0; 3 * hidden.len()]);
    let steps_of = step_counts(inputs.get(4), shape);
    let [all, last] = outputs else { return Err("expected two results".into()) };
    let (is_single, mut all) = (all.dtype == DType::F32, Writer::new(all));
    let mut ticks = Ticks::every(products.len().saturating_mul(size));
    for step in shape.order(params.bool("reverse")) {
        if ticks.is_requested() {
            return Ok(());
        }
        for (state, products) in hidden.chunks(size).zip(products.chunks_mut(3 * size)) {
            dense(state, products, |row, column| weight.float(row * size + column));
        }
        for i in 0..hidden.len() {
            let (row, column) = (i / size, i % size);
            if step >= steps_of(row) {
                all.set_float(step * hidden.len() + i, 0.0);
                continue;
            }
            let at = |gate: usize| (row * 3 + gate) * size + column;
            let input = |gate: usize| data.float(step * products.len() + at(gate));
            let product = |gate: usize| products[at(gate)] + bias.float(gate * size + column);
            let (update, reset) = (sigmoid(input(0) + product(0)), sigmoid(input(1) + product(1)));
            let state = (1.0 - update) * (input(2) + reset * product(2)).tanh() + update * hidden[i];
            hidden[i] = if is_single { f64::from(state as f32) } else { state };
            all.set_float(step * hidden.len() + i, hidden[i]);
        }
    }
    Writer::new(last).store(hidden);
    Ok(())
}
