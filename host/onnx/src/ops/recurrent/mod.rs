//! Recurrent layers: unrolled over a sequence of known length, or converted to a loop if the length is unknown.
//!
//! One `nn.dense` multiplies all time steps by the input weights; each step then needs only the product with the
//! recurrent weights and a few elementwise operators.

mod activation;
mod direction;
mod weights;
mod whole;

use super::{Node, Outputs, Result, Row, attrs};
use activation::{activations, are_default};
use byoc_ir::interface::HostOperators;
use byoc_ir::ir::{Dim, ExprId};
use byoc_ir::tensor::DType;
use direction::{Direction, Sequence, State};
use weights::{Matrix, Weights};

pub const ROWS: &[Row] = &[
    ("GRU", 1, |n| convert_recurrent(n, Kind::Gru, read_float)),
    ("LSTM", 1, |n| convert_recurrent(n, Kind::Lstm, read_float)),
    ("RNN", 1, |n| convert_recurrent(n, Kind::Rnn, read_float)),
];

/// Maximum number of steps of a layer that backends get as operators of each step.
const MAX_SPREAD: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rnn,
    Gru,
    Lstm,
}

impl Kind {
    fn gates(self) -> usize {
        match self {
            Kind::Rnn => 1,
            Kind::Gru => 3,
            Kind::Lstm => 4,
        }
    }

    fn activations(self) -> &'static [&'static str] {
        match self {
            Kind::Rnn => &["Tanh"],
            Kind::Gru => &["Sigmoid", "Tanh"],
            Kind::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// Converts DynamicQuantizeLSTM, an LSTM with integer weights: the input is quantized as a whole, the state in each step.
pub(super) fn dynamic_quantize_lstm(n: &mut Node<'_, '_>) -> Result<Outputs> {
    convert_recurrent(n, Kind::Lstm, |n| {
        Ok([Weights::read_quantized(n, 1, [8, 9])?, Weights::read_quantized(n, 2, [10, 11])?])
    })
}

fn read_float(n: &mut Node<'_, '_>) -> Result<[Weights; 2]> {
    Ok([Weights::read_float(n, 1)?, Weights::read_float(n, 2)?])
}

/// Converts a layer; `read_weights` returns the input weights and the recurrent weights.
fn convert_recurrent(
    n: &mut Node<'_, '_>,
    kind: Kind,
    read_weights: impl FnOnce(&mut Node<'_, '_>) -> Result<[Weights; 2]>,
) -> Result<Outputs> {
    let input = n.input(0)?;
    let dtype = n.dtype(input)?;
    let data = n.widen(input)?;
    let [weights, recurrent_weights] = read_weights(n)?;
    let is_batch_first = n.int_attr("layout", 0)? != 0;
    let data = if is_batch_first { n.transpose(data, &[1, 0, 2])? } else { data };
    let (ty, w_shape, r_shape) = (n.ty(data)?, weights.shape(n)?, recurrent_weights.shape(n)?);
    let (dims, gates) = (n.dims(data)?, kind.gates());
    let ([steps, batch, width], [directions, rows, columns], [_, _, hidden_size]) =
        (&dims[..], &w_shape[..], &r_shape[..])
    else {
        return Err(n.invalid_node(format!(
            "expected data, weights and recurrent weights of rank 3, found {ty}, {w_shape:?} and {r_shape:?}"
        )));
    };
    let (columns, directions, hidden_size) = (*columns, *directions, *hidden_size);
    let is_compatible = width.fixed().is_none_or(|width| width == columns);
    if *rows != gates * hidden_size || !is_compatible || r_shape[..] != [directions, *rows, hidden_size] {
        let gate_rows = gates * hidden_size;
        return Err(n.invalid_node(format!(
            "expected weight shapes [{directions}, {gate_rows}, {width}] and \
             [{directions}, {gate_rows}, {hidden_size}], found {w_shape:?} and {r_shape:?}"
        )));
    }
    if steps.fixed() == Some(0) {
        return Err(n.invalid_node("expected a sequence of at least 1 step, found 0 steps"));
    }
    let reverse = match (n.str_attr("direction", "forward")?.as_str(), directions) {
        ("forward", 1) => vec![false],
        ("reverse", 1) => vec![true],
        ("bidirectional", 2) => vec![false, true],
        (other, _) => {
            let expected = if directions == 1 { "forward or reverse" } else { "bidirectional" };
            return Err(n.invalid_node(format!(
                "attribute direction: expected {expected} for num_directions {directions}, found \"{other}\""
            )));
        }
    };
    let activations = activations(n, kind, directions)?;
    let clip = if n.has("clip") { Some(n.float_attr("clip", 0.0)?) } else { None };
    let linear_before_reset = n.int_attr("linear_before_reset", 0)? != 0;
    let input_forget = n.int_attr("input_forget", 0)? != 0;
    let lengths = lengths(n, steps)?;

    let flat_batch = Dim::product(&[steps.clone(), batch.clone()]).unwrap_or(Dim::Any);
    let flat = n.reshape_to(data, &[flat_batch, Dim::Fixed(columns)])?;
    let (mut all_outputs, mut last_hidden, mut last_cell) = (Vec::new(), Vec::new(), Vec::new());
    for (d, &backward) in reverse.iter().enumerate() {
        let part = |n: &mut Node<'_, '_>, value: ExprId, shape: &[usize]| {
            let direction_slice = n.slice(value, 0, d, d + 1)?;
            n.reshape(direction_slice, shape)
        };
        let input_weight = weights.matrix(n, d)?;
        let recurrent_weight = recurrent_weights.matrix(n, d)?;
        let (input_bias, recurrent_bias) = match n.optional_input(3) {
            None => (None, None),
            Some(bias) => {
                let bias = n.widen(bias)?;
                let direction_bias = part(n, bias, &[2 * gates * hidden_size])?;
                let input_gate_bias = n.slice(direction_bias, 0, 0, gates * hidden_size)?;
                let recurrent_gate_bias = n.slice(direction_bias, 0, gates * hidden_size, 2 * gates * hidden_size)?;
                if kind == Kind::Gru && linear_before_reset {
                    (Some(input_gate_bias), Some(recurrent_gate_bias))
                } else {
                    (Some(n.op_without_attrs("add", &[input_gate_bias, recurrent_gate_bias])?), None)
                }
            }
        };
        let peepholes = match n.optional_input(7).filter(|_| kind == Kind::Lstm) {
            None => None,
            Some(peepholes) => {
                let peepholes = n.widen(peepholes)?;
                let peepholes = part(n, peepholes, &[3 * hidden_size])?;
                let mut gate_peepholes = [peepholes; 3];
                for (i, weight) in gate_peepholes.iter_mut().enumerate() {
                    *weight = n.slice(peepholes, 0, i * hidden_size, (i + 1) * hidden_size)?;
                }
                Some(gate_peepholes)
            }
        };
        let state_dims = [batch.clone(), Dim::Fixed(hidden_size)];
        let initial_state = |n: &mut Node<'_, '_>, i: usize| -> Result<Option<ExprId>> {
            let Some(value) = n.optional_input(i) else { return Ok(None) };
            let value = n.widen(value)?;
            let value = if is_batch_first { n.transpose(value, &[1, 0, 2])? } else { value };
            let value = n.slice(value, 0, d, d + 1)?;
            let value = n.reshape_to(value, &state_dims)?;
            Ok(Some(value).filter(|&v| !is_zero(n, v)))
        };
        let state =
            State { hidden: initial_state(n, 5)?, cell: if kind == Kind::Lstm { initial_state(n, 6)? } else { None } };

        let mut projection = input_weight.multiply(n, flat, gates * hidden_size)?;
        if let Some(bias) = input_bias {
            projection = n.op("nn.bias_add", &[projection, bias], attrs![axis: 1])?;
        }
        let is_plain = are_default(&activations[d], kind)
            && (clip, peepholes, input_forget) == (None, None, false)
            && (kind == Kind::Lstm || kind == Kind::Gru && linear_before_reset);
        if is_plain && is_whole(n, steps, recurrent_weight, dtype) {
            let (hidden, weight, bias) = (hidden_size, recurrent_weight, recurrent_bias);
            let layer = whole::Layer { kind, hidden, weight, bias, backward, lengths };
            let (outputs, state) = layer.convert(n, projection, steps, &state_dims, state)?;
            all_outputs.push(outputs);
            last_hidden.extend(state.hidden);
            last_cell.extend(state.cell);
            continue;
        }
        let recurrent_parts = if kind == Kind::Gru && !linear_before_reset {
            let gates = recurrent_weight.rows(n, 0, 2 * hidden_size)?;
            Some([gates, recurrent_weight.rows(n, 2 * hidden_size, 3 * hidden_size)?])
        } else {
            None
        };
        let direction = Direction {
            kind,
            hidden: hidden_size,
            activations: &activations[d],
            clip,
            recurrent: recurrent_weight,
            recurrent_parts,
            recurrent_bias,
            peepholes,
            linear_before_reset,
            input_forget,
        };
        let sequence = Sequence { projected: projection, lengths, steps, state_dims: &state_dims, backward };
        let (outputs, state) = match steps.fixed() {
            Some(steps) => {
                n.reserve_steps(steps)?;
                direction.unroll(n, &sequence, steps, state)?
            }
            None => direction.repeat(n, &sequence, state)?,
        };
        all_outputs.push(outputs);
        last_hidden.extend(state.hidden);
        last_cell.extend(state.cell);
    }

    let mut results = Vec::new();
    // The output has the shape (steps, directions, batch, hidden), or (batch, steps, directions, hidden) if
    // `is_batch_first`.
    let y = if directions == 1 {
        n.op("expand_dims", &[all_outputs[0]], attrs![axis: 1])?
    } else {
        let tuple = n.tuple(&all_outputs)?;
        n.op("stack", &[tuple], attrs![axis: 1])?
    };
    results.push(if is_batch_first { n.transpose(y, &[2, 0, 1, 3])? } else { y });
    for (i, last_outputs) in [last_hidden, last_cell].into_iter().enumerate() {
        if last_outputs.is_empty() || !(i + 1..3).any(|output| n.has_output(output)) {
            break;
        }
        let tuple = n.tuple(&last_outputs)?;
        // The last states have the shape (directions, batch, hidden), or (batch, directions, hidden) if
        // `is_batch_first`.
        results.push(n.op("stack", &[tuple], attrs![axis: i64::from(is_batch_first)])?);
    }
    results.into_iter().map(|result| n.cast(result, dtype)).collect()
}

/// Tests whether a layer becomes one operator.
fn is_whole(n: &Node<'_, '_>, steps: &Dim, weight: Matrix, dtype: DType) -> bool {
    let is_long = steps.fixed().is_none_or(|steps| steps > MAX_SPREAD);
    match (n.host_operators(), weight) {
        (HostOperators::None, _) => false,
        (_, Matrix::Quantized { .. }) => dtype == DType::F32,
        (HostOperators::Long, Matrix::Float(_)) => is_long,
        (HostOperators::All, Matrix::Float(_)) => true,
    }
}

fn is_zero(n: &mut Node<'_, '_>, value: ExprId) -> bool {
    n.constant_value(value).is_some_and(|tensor| tensor.view().to_f64s().iter().all(|&v| v == 0.0))
}

/// Returns the sequence lengths, (batch, 1); `None` if all sequences have the full length.
fn lengths(n: &mut Node<'_, '_>, steps: &Dim) -> Result<Option<ExprId>> {
    let Some(lengths) = n.optional_input(4) else { return Ok(None) };
    if let (Some(tensor), Some(steps)) = (n.constant_value(lengths), steps.fixed())
        && tensor.view().to_i64s().is_some_and(|lengths| lengths.iter().all(|&l| l >= steps as i64))
    {
        return Ok(None);
    }
    let lengths = n.cast(lengths, DType::I32)?;
    n.op("expand_dims", &[lengths], attrs![axis: 1]).map(Some)
}
