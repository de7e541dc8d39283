//! Recurrent layers: unrolled over a sequence of known length, or converted to a loop if the length is unknown.
//!
//! One `nn.dense` multiplies all time steps by the input weights; each step then needs only the product with the
//! recurrent weights and a few elementwise operators.

use super::control::{Carried, End, Iteration, Limits, counter, run_loop};
use super::{Node, Outputs, Result, Row, attrs};
use byoc_ir::ir::{Dim, ExprId};
use byoc_ir::tensor::{DType, Tensor};

pub const ROWS: &[Row] = &[
    ("GRU", 1, |n| convert_recurrent(n, Kind::Gru)),
    ("LSTM", 1, |n| convert_recurrent(n, Kind::Lstm)),
    ("RNN", 1, |n| convert_recurrent(n, Kind::Rnn)),
];

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

/// Activation function with its parameters.
#[derive(Clone, Debug)]
struct Activation {
    name: String,
    alpha: f64,
    beta: f64,
}

/// One direction of a recurrent layer.
struct Direction<'a> {
    kind: Kind,
    hidden: usize,
    activations: &'a [Activation],
    clip: Option<f64>,
    /// Recurrent weights (gates * hidden, hidden).
    recurrent: ExprId,
    /// Rows of the recurrent weights for the gates and for the candidate, if the reset gate of a GRU scales the state
    /// before the matrix product. The weights are sliced only once, because each slice of a constant is a new constant.
    recurrent_parts: Option<[ExprId; 2]>,
    /// Recurrent bias (gates * hidden), if it must stay separate from the input bias.
    recurrent_bias: Option<ExprId>,
    /// Peephole weights of the input, output and forget gate, each (hidden).
    peepholes: Option<[ExprId; 3]>,
    linear_before_reset: bool,
    input_forget: bool,
}

/// State carried from step to step; `None` represents zeros.
#[derive(Clone, Copy)]
struct State {
    hidden: Option<ExprId>,
    cell: Option<ExprId>,
}

fn convert_recurrent(n: &mut Node<'_, '_>, kind: Kind) -> Result<Outputs> {
    let input = n.input(0)?;
    let dtype = n.dtype(input)?;
    let [data, weights, recurrent_weights] = [n.widen(input)?, wide_input(n, 1)?, wide_input(n, 2)?];
    let is_batch_first = n.int_attr("layout", 0)? != 0;
    let data = if is_batch_first { n.transpose(data, &[1, 0, 2])? } else { data };
    let (ty, w_shape, r_shape) = (n.ty(data)?, n.shape(weights)?, n.shape(recurrent_weights)?);
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
    if let Some(steps) = steps.fixed() {
        if steps == 0 {
            return Err(n.invalid_node("expected a sequence of at least 1 step, found 0 steps"));
        }
        n.reserve_steps(steps.saturating_mul(directions))?;
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
        let input_weight = part(n, weights, &[gates * hidden_size, columns])?;
        let recurrent_weight = part(n, recurrent_weights, &[gates * hidden_size, hidden_size])?;
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

        let mut projection = n.op("nn.dense", &[flat, input_weight], attrs![units: (gates * hidden_size) as i64])?;
        if let Some(bias) = input_bias {
            projection = n.op("nn.bias_add", &[projection, bias], attrs![axis: 1])?;
        }
        let recurrent_parts = if kind == Kind::Gru && !linear_before_reset {
            let gates = n.slice(recurrent_weight, 0, 0, 2 * hidden_size)?;
            Some([gates, n.slice(recurrent_weight, 0, 2 * hidden_size, 3 * hidden_size)?])
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
            Some(steps) => direction.unroll(n, &sequence, steps, state)?,
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

/// Returns input `i`, with 16-bit floats cast to float32.
fn wide_input(n: &mut Node<'_, '_>, i: usize) -> Result<ExprId> {
    let value = n.input(i)?;
    n.widen(value)
}

/// Input sequence for one direction of a recurrent layer.
struct Sequence<'a> {
    /// Inputs of all steps multiplied by the input weights, (steps * batch, gates * hidden).
    projected: ExprId,
    /// Sequence lengths, (batch, 1), if a length may be less than the number of steps.
    lengths: Option<ExprId>,
    steps: &'a Dim,
    /// Batch and hidden size.
    state_dims: &'a [Dim; 2],
    backward: bool,
}

/// Splits `value` into `piece_count` equal parts along an axis.
fn split(n: &mut Node<'_, '_>, value: ExprId, piece_count: usize, axis: i64) -> Result<Vec<ExprId>> {
    if piece_count == 1 {
        return Ok(vec![value]);
    }
    let pieces = n.op("split", &[value], attrs![indices_or_sections: piece_count as i64, axis: axis])?;
    (0..piece_count).map(|i| n.project(pieces, i as u32)).collect()
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

/// Reads the activation functions of each direction.
fn activations(n: &Node<'_, '_>, kind: Kind, directions: usize) -> Result<Vec<Vec<Activation>>> {
    let defaults = kind.activations();
    let names = match n.strings_attr("activations")? {
        Some(names) => names,
        None => defaults.iter().cycle().take(defaults.len() * directions).map(|&s| s.to_owned()).collect(),
    };
    if names.len() != defaults.len() * directions {
        return Err(n.invalid_node(format!(
            "attribute activations: expected length {1}, found {0}",
            names.len(),
            defaults.len() * directions
        )));
    }
    // Activation functions with parameters consume the parameter lists in order.
    let mut alphas = n.floats_attr("activation_alpha")?.unwrap_or_default().into_iter();
    let mut betas = n.floats_attr("activation_beta")?.unwrap_or_default().into_iter();
    let mut activations = Vec::with_capacity(names.len());
    for name in names {
        let (alpha, beta) = match name.to_ascii_lowercase().as_str() {
            "relu" | "tanh" | "sigmoid" | "softsign" | "softplus" => (None, None),
            "affine" => (Some(1.0), Some(0.0)),
            "leakyrelu" => (Some(0.01), None),
            "thresholdedrelu" | "elu" => (Some(1.0), None),
            "scaledtanh" => (Some(1.0), Some(1.0)),
            "hardsigmoid" => (Some(0.2), Some(0.5)),
            _ => return Err(n.invalid_node(format!("activation \"{name}\" is not supported"))),
        };
        activations.push(Activation {
            name: name.to_ascii_lowercase(),
            alpha: alpha.map_or(0.0, |default| alphas.next().unwrap_or(default)),
            beta: beta.map_or(0.0, |default| betas.next().unwrap_or(default)),
        });
    }
    Ok(activations.chunks(defaults.len()).map(<[Activation]>::to_vec).collect())
}

impl Activation {
    fn apply(&self, n: &mut Node<'_, '_>, x: ExprId) -> Result<ExprId> {
        let (alpha, beta) = (self.alpha, self.beta);
        match self.name.as_str() {
            "relu" => n.op_without_attrs("nn.relu", &[x]),
            "tanh" => n.op_without_attrs("tanh", &[x]),
            "sigmoid" => n.op_without_attrs("sigmoid", &[x]),
            "affine" => {
                let scaled_x = n.with_scalar("multiply", x, alpha)?;
                n.with_scalar("add", scaled_x, beta)
            }
            "leakyrelu" => n.op("nn.leaky_relu", &[x], attrs![alpha: alpha]),
            "thresholdedrelu" => {
                let is_above = n.with_scalar("greater", x, alpha)?;
                let zero = n.scalar(n.dtype(x)?, 0.0);
                n.op_without_attrs("where", &[is_above, x, zero])
            }
            "scaledtanh" => {
                let inner = n.with_scalar("multiply", x, beta)?;
                let tanh = n.op_without_attrs("tanh", &[inner])?;
                n.with_scalar("multiply", tanh, alpha)
            }
            "hardsigmoid" => {
                let scaled_x = n.with_scalar("multiply", x, alpha)?;
                let shifted_x = n.with_scalar("add", scaled_x, beta)?;
                n.op("clip", &[shifted_x], attrs![a_min: 0.0, a_max: 1.0])
            }
            "elu" => {
                let zero = n.scalar(n.dtype(x)?, 0.0);
                let negative_part = n.op_without_attrs("minimum", &[x, zero])?;
                let power = n.op_without_attrs("exp", &[negative_part])?;
                let power_minus_one = n.with_scalar("subtract", power, 1.0)?;
                let negative = n.with_scalar("multiply", power_minus_one, alpha)?;
                let positive = n.op_without_attrs("nn.relu", &[x])?;
                n.op_without_attrs("add", &[positive, negative])
            }
            "softsign" => {
                let size = n.op_without_attrs("abs", &[x])?;
                let shifted_size = n.with_scalar("add", size, 1.0)?;
                n.op_without_attrs("divide", &[x, shifted_size])
            }
            _ => super::elementwise::softplus(n, x),
        }
    }
}

impl Direction<'_> {
    /// Unrolls the layer into `steps` time steps. Returns the stacked outputs and the last state.
    fn unroll(
        &self,
        n: &mut Node<'_, '_>,
        sequence: &Sequence<'_>,
        steps: usize,
        mut state: State,
    ) -> Result<(ExprId, State)> {
        let step_inputs = split(n, sequence.projected, steps, 0)?;
        let mut outputs = step_inputs.clone();
        for i in 0..steps {
            let t = if sequence.backward { steps - 1 - i } else { i };
            let step = n.tensor(Tensor::scalar(t as i32));
            (outputs[t], state) = self.masked_step(n, sequence, step_inputs[t], step, state)?;
        }
        let output_tuple = n.tuple(&outputs)?;
        Ok((n.op("stack", &[output_tuple], attrs![axis: 0])?, state))
    }

    /// Creates a loop over the steps, for a number of steps known only at run time. Returns the same values as
    /// [`Direction::unroll`].
    fn repeat(&self, n: &mut Node<'_, '_>, sequence: &Sequence<'_>, state: State) -> Result<(ExprId, State)> {
        let dtype = n.dtype(sequence.projected)?;
        let zeros = n.scalar(dtype, 0.0);
        let zeros = n.broadcast_to(zeros, sequence.state_dims)?;
        let mut carried_states = vec![state.hidden.unwrap_or(zeros)];
        if self.kind == Kind::Lstm {
            carried_states.push(state.cell.unwrap_or(zeros));
        }
        let width = Dim::Fixed(self.kind.gates() * self.hidden);
        let step_inputs =
            n.reshape_to(sequence.projected, &[sequence.steps.clone(), sequence.state_dims[0].clone(), width])?;
        let length = n.shape_vector(step_inputs, 0..1)?;
        let length = counter(n, length)?;
        let last_index = n.with_scalar("subtract", length, 1.0)?;
        let mut body = |n: &mut Node<'_, '_>, iteration: ExprId, values: &[ExprId]| {
            let (step_inputs, last_index) = (n.capture(step_inputs), n.capture(last_index));
            let index =
                if sequence.backward { n.op_without_attrs("subtract", &[last_index, iteration])? } else { iteration };
            let projection = n.op("take", &[step_inputs, index], attrs![axis: 0, mode: "fast"])?;
            let state = State { hidden: Some(values[0]), cell: values.get(1).copied() };
            let captured_sequence = Sequence {
                projected: projection,
                lengths: sequence.lengths.map(|value| n.capture(value)),
                ..*sequence
            };
            let step = n.cast(index, DType::I32)?;
            let (output, next) = self.capture_weights(n).masked_step(n, &captured_sequence, projection, step, state)?;
            let end = if sequence.backward { End::Front } else { End::Back };
            let carried_states = next.hidden.into_iter().chain(next.cell).collect();
            Ok(Iteration {
                next: None,
                carried_values: carried_states,
                scan_outputs: vec![(output, end)],
                declared_shapes: Vec::new(),
            })
        };
        let results =
            run_loop(n, Limits { trips: Some(length), start: None }, Carried::read(carried_states), &mut body)?;
        let (&outputs, final_states) =
            results.split_last().ok_or_else(|| n.invalid_node("expected a loop result, found none"))?;
        let [batch, hidden] = sequence.state_dims.clone();
        n.name_dims(outputs, &[sequence.steps.clone(), batch, hidden]);
        for &value in final_states {
            n.name_dims(value, sequence.state_dims);
        }
        Ok((outputs, State { hidden: final_states.first().copied(), cell: final_states.get(1).copied() }))
    }

    /// Returns the direction with its weights replaced by captured variables of the innermost function.
    fn capture_weights(&self, n: &mut Node<'_, '_>) -> Direction<'_> {
        Direction {
            recurrent: n.capture(self.recurrent),
            recurrent_parts: self.recurrent_parts.map(|matrices| matrices.map(|part| n.capture(part))),
            recurrent_bias: self.recurrent_bias.map(|bias| n.capture(bias)),
            peepholes: self.peepholes.map(|weights| weights.map(|weight| n.capture(weight))),
            ..*self
        }
    }

    /// Creates the calls for step `step`, and returns its output and the new state. A sequence that has ended outputs
    /// zeros and keeps its state.
    fn masked_step(
        &self,
        n: &mut Node<'_, '_>,
        sequence: &Sequence<'_>,
        projection: ExprId,
        step: ExprId,
        state: State,
    ) -> Result<(ExprId, State)> {
        let next = self.step(n, projection, state)?;
        let Some(lengths) = sequence.lengths else { return Ok((next.hidden.unwrap_or(projection), next)) };
        let is_active = n.op_without_attrs("greater", &[lengths, step])?;
        let zero = n.scalar(n.dtype(projection)?, 0.0);
        let mut select_new = |new: Option<ExprId>, previous: Option<ExprId>| match new {
            Some(new) => n.op_without_attrs("where", &[is_active, new, previous.unwrap_or(zero)]).map(Some),
            None => Ok(None),
        };
        let output = select_new(next.hidden, None)?.unwrap_or(projection);
        Ok((output, State { hidden: select_new(next.hidden, state.hidden)?, cell: select_new(next.cell, state.cell)? }))
    }

    /// Creates the calls for one step from the projected input (batch, gates * hidden).
    fn step(&self, n: &mut Node<'_, '_>, projection: ExprId, state: State) -> Result<State> {
        match self.kind {
            Kind::Rnn => self.rnn(n, projection, state),
            Kind::Gru => self.gru(n, projection, state),
            Kind::Lstm => self.lstm(n, projection, state),
        }
    }

    fn apply_clip(&self, n: &mut Node<'_, '_>, x: ExprId) -> Result<ExprId> {
        match self.clip {
            Some(bound) => n.op("clip", &[x], attrs![a_min: -bound, a_max: bound]),
            None => Ok(x),
        }
    }

    fn activate(&self, n: &mut Node<'_, '_>, index: usize, x: ExprId) -> Result<ExprId> {
        let x = self.apply_clip(n, x)?;
        self.activations[index].apply(n, x)
    }

    fn with_recurrence(&self, n: &mut Node<'_, '_>, projection: ExprId, state: State) -> Result<ExprId> {
        let Some(state_hidden) = state.hidden else { return Ok(projection) };
        let unit_count = (self.kind.gates() * self.hidden) as i64;
        let product = n.op("nn.dense", &[state_hidden, self.recurrent], attrs![units: unit_count])?;
        n.op_without_attrs("add", &[projection, product])
    }

    /// Creates a step of an RNN: H = f(X * W^T + H * R^T + b).
    fn rnn(&self, n: &mut Node<'_, '_>, projection: ExprId, state: State) -> Result<State> {
        let sum = self.with_recurrence(n, projection, state)?;
        Ok(State { hidden: Some(self.activate(n, 0, sum)?), cell: None })
    }

    /// Creates a step of an LSTM with gates i, o, f, c: C = f * C + i * c, H = o * h(C), with elementwise products.
    fn lstm(&self, n: &mut Node<'_, '_>, projection: ExprId, state: State) -> Result<State> {
        let sum = self.with_recurrence(n, projection, state)?;
        let gates = split(n, sum, 4, 1)?;
        let [mut input, mut output, mut forget, candidate] = gates[..] else {
            return Err(n.invalid_node(format!("expected 4 gates, found {}", gates.len())));
        };
        let add_peephole =
            |n: &mut Node<'_, '_>, gate: ExprId, index: usize, cell: Option<ExprId>| match (self.peepholes, cell) {
                (Some(weights), Some(cell)) => {
                    let product = n.op_without_attrs("multiply", &[cell, weights[index]])?;
                    n.op_without_attrs("add", &[gate, product])
                }
                _ => Ok(gate),
            };
        input = add_peephole(n, input, 0, state.cell)?;
        let input = self.activate(n, 0, input)?;
        let candidate = self.activate(n, 1, candidate)?;
        let mut cell = n.op_without_attrs("multiply", &[input, candidate])?;
        if let Some(previous) = state.cell {
            let forget = if self.input_forget {
                let one = n.scalar(n.dtype(input)?, 1.0);
                n.op_without_attrs("subtract", &[one, input])?
            } else {
                forget = add_peephole(n, forget, 2, state.cell)?;
                self.activate(n, 0, forget)?
            };
            let kept_part = n.op_without_attrs("multiply", &[forget, previous])?;
            cell = n.op_without_attrs("add", &[kept_part, cell])?;
        }
        output = add_peephole(n, output, 1, Some(cell))?;
        let output = self.activate(n, 0, output)?;
        let activated_cell = self.activations[2].apply(n, cell)?;
        Ok(State { hidden: Some(n.op_without_attrs("multiply", &[output, activated_cell])?), cell: Some(cell) })
    }

    /// Creates a step of a GRU with gates z, r, h: H = (1 - z) * h + z * H, with elementwise products.
    fn gru(&self, n: &mut Node<'_, '_>, projection: ExprId, state: State) -> Result<State> {
        let hidden = self.hidden;
        if self.linear_before_reset {
            // The reset gate scales the recurrent product including its bias, so all gates share one product.
            let mut product = None;
            if let Some(previous) = state.hidden {
                let recurrent_product =
                    n.op("nn.dense", &[previous, self.recurrent], attrs![units: (3 * hidden) as i64])?;
                product = Some(match self.recurrent_bias {
                    Some(bias) => n.op("nn.bias_add", &[recurrent_product, bias], attrs![axis: 1])?,
                    None => recurrent_product,
                });
            } else if let Some(bias) = self.recurrent_bias {
                product = Some(n.reshape(bias, &[1, 3 * hidden])?);
            }
            let x = split(n, projection, 3, 1)?;
            let r = match product {
                Some(product) => Some(split(n, product, 3, 1)?),
                None => None,
            };
            let sum = |n: &mut Node<'_, '_>, gate: usize| match &r {
                Some(r) => n.op_without_attrs("add", &[x[gate], r[gate]]),
                None => Ok(x[gate]),
            };
            let update = sum(n, 0)?;
            let update = self.activate(n, 0, update)?;
            let mut candidate = x[2];
            if let Some(r) = &r {
                let reset = sum(n, 1)?;
                let reset = self.activate(n, 0, reset)?;
                let reset_product = n.op_without_attrs("multiply", &[reset, r[2]])?;
                candidate = n.op_without_attrs("add", &[candidate, reset_product])?;
            }
            let candidate = self.activate(n, 1, candidate)?;
            return self.interpolate(n, update, candidate, state);
        }
        let x_gates = n.slice(projection, 1, 0, 2 * hidden)?;
        let x_candidate = n.slice(projection, 1, 2 * hidden, 3 * hidden)?;
        let (Some(previous), Some([gates_weight, candidate_weight])) = (state.hidden, self.recurrent_parts) else {
            let update = n.slice(x_gates, 1, 0, hidden)?;
            let update = self.activate(n, 0, update)?;
            let candidate = self.activate(n, 1, x_candidate)?;
            return self.interpolate(n, update, candidate, state);
        };
        let product = n.op("nn.dense", &[previous, gates_weight], attrs![units: (2 * hidden) as i64])?;
        let gates = n.op_without_attrs("add", &[x_gates, product])?;
        let gates = self.activate(n, 0, gates)?;
        let gates = split(n, gates, 2, 1)?;
        let [update, reset] = gates[..] else {
            return Err(n.invalid_node(format!("expected 2 gates, found {}", gates.len())));
        };
        let kept_part = n.op_without_attrs("multiply", &[reset, previous])?;
        let product = n.op("nn.dense", &[kept_part, candidate_weight], attrs![units: hidden as i64])?;
        let candidate = n.op_without_attrs("add", &[x_candidate, product])?;
        let candidate = self.activate(n, 1, candidate)?;
        self.interpolate(n, update, candidate, state)
    }

    fn interpolate(&self, n: &mut Node<'_, '_>, update: ExprId, candidate: ExprId, state: State) -> Result<State> {
        let one = n.scalar(n.dtype(update)?, 1.0);
        let update_complement = n.op_without_attrs("subtract", &[one, update])?;
        let mut next = n.op_without_attrs("multiply", &[update_complement, candidate])?;
        if let Some(previous) = state.hidden {
            let kept_part = n.op_without_attrs("multiply", &[update, previous])?;
            next = n.op_without_attrs("add", &[next, kept_part])?;
        }
        Ok(State { hidden: Some(next), cell: None })
    }
}
