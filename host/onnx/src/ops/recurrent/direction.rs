//! Time steps of a recurrent layer in one direction.

use super::activation::Activation;
use super::weights::Matrix;
use super::{Kind, Node, Result, attrs};
use crate::ops::loops::{Carried, End, Iteration, Limits, counter, run_loop};
use byoc_ir::ir::{Dim, ExprId};
use byoc_ir::tensor::{DType, Tensor};

/// One direction of a recurrent layer.
pub(super) struct Direction<'a> {
    pub(super) kind: Kind,
    pub(super) hidden: usize,
    pub(super) activations: &'a [Activation],
    pub(super) clip: Option<f64>,
    /// Recurrent weights (gates * hidden, hidden).
    pub(super) recurrent: Matrix,
    /// Rows of the recurrent weights for the gates and for the candidate, if the reset gate of a GRU scales the state
    /// before the matrix product. The weights are sliced only once, because each slice of a constant is a new constant.
    pub(super) recurrent_parts: Option<[Matrix; 2]>,
    /// Recurrent bias (gates * hidden), if it must stay separate from the input bias.
    pub(super) recurrent_bias: Option<ExprId>,
    /// Peephole weights of the input, output and forget gate, each (hidden).
    pub(super) peepholes: Option<[ExprId; 3]>,
    pub(super) linear_before_reset: bool,
    pub(super) input_forget: bool,
}

/// State carried from step to step; `None` represents zeros.
#[derive(Clone, Copy)]
pub(super) struct State {
    pub(super) hidden: Option<ExprId>,
    pub(super) cell: Option<ExprId>,
}

/// Input sequence for one direction of a recurrent layer.
pub(super) struct Sequence<'a> {
    /// Inputs of all steps multiplied by the input weights, (steps * batch, gates * hidden).
    pub(super) projected: ExprId,
    /// Sequence lengths, (batch, 1), if a length may be less than the number of steps.
    pub(super) lengths: Option<ExprId>,
    pub(super) steps: &'a Dim,
    /// Batch and hidden size.
    pub(super) state_dims: &'a [Dim; 2],
    pub(super) backward: bool,
}

/// Splits `value` into `piece_count` equal parts along an axis.
fn split(n: &mut Node<'_, '_>, value: ExprId, piece_count: usize, axis: i64) -> Result<Vec<ExprId>> {
    if piece_count == 1 {
        return Ok(vec![value]);
    }
    let pieces = n.op("split", &[value], attrs![indices_or_sections: piece_count as i64, axis: axis])?;
    (0..piece_count).map(|i| n.project(pieces, i as u32)).collect()
}

impl Direction<'_> {
    /// Unrolls the layer into `steps` time steps. Returns the stacked outputs and the last state.
    pub(super) fn unroll(
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
    pub(super) fn repeat(
        &self,
        n: &mut Node<'_, '_>,
        sequence: &Sequence<'_>,
        state: State,
    ) -> Result<(ExprId, State)> {
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
            recurrent: self.recurrent.capture(n),
            recurrent_parts: self.recurrent_parts.map(|matrices| matrices.map(|part| part.capture(n))),
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
        let product = self.recurrent.multiply(n, state_hidden, self.kind.gates() * self.hidden)?;
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
                let recurrent_product = self.recurrent.multiply(n, previous, 3 * hidden)?;
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
        let product = gates_weight.multiply(n, previous, 2 * hidden)?;
        let gates = n.op_without_attrs("add", &[x_gates, product])?;
        let gates = self.activate(n, 0, gates)?;
        let gates = split(n, gates, 2, 1)?;
        let [update, reset] = gates[..] else {
            return Err(n.invalid_node(format!("expected 2 gates, found {}", gates.len())));
        };
        let kept_part = n.op_without_attrs("multiply", &[reset, previous])?;
        let product = candidate_weight.multiply(n, kept_part, hidden)?;
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
