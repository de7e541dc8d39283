//! Recognition of recurrent-layer steps that frontends have unrolled.
//!
//! Each rule starts from the last operator of a step, whose operands already exist. A match becomes one operator
//! (`cell`) that computes exactly the matched formula. The rules require that gates are columns of one matrix, because
//! the fused loop pays off only then, and because models also use gates outside recurrent layers.

use crate::cell::gru::{Gru, Part};
use crate::cell::lstm::Gates;
use crate::cell::{CellKind, MAX_OPERANDS};
use crate::ir::{Kind, RegionIr, Val};
use crate::library::ffi;

impl RegionIr {
    /// Recognizes a step of an LSTM: `sigmoid(o) * tanh(C)` with `C = sigmoid(f) * C' + sigmoid(i) * tanh(g)`, where
    /// the gates are the four column quarters of one matrix. The first step has no previous state `C'`.
    pub fn lstm_cell(&mut self, gate: Val, activation: Val) -> Option<Val> {
        let (_, output) = self.function_of(gate, ffi::ELTWISE_LOGISTIC)?;
        let (_, cell) = self.function_of(activation, ffi::ELTWISE_TANH)?;
        let (pre_activations, output) = self.gate(output)?;
        let gate_of = |value: Val, alg: i32| {
            let (_, argument) = self.function_of(value, alg)?;
            self.gate(argument).filter(|(source, _)| *source == pre_activations).map(|(_, index)| index)
        };
        let input_and_candidate = |value: Val| {
            let (a, b) = self.factors(value)?;
            [(a, b), (b, a)].into_iter().find_map(|(input, candidate)| {
                Some((gate_of(input, ffi::ELTWISE_LOGISTIC)?, gate_of(candidate, ffi::ELTWISE_TANH)?))
            })
        };
        let (gates, state) = match self.summands(cell) {
            None => {
                let (input, candidate) = input_and_candidate(cell)?;
                (Gates { input, forget: input, candidate, output }, None)
            }
            Some((a, b)) => [(a, b), (b, a)].into_iter().find_map(|(retained_term, added_term)| {
                let (input, candidate) = input_and_candidate(added_term)?;
                let (a, b) = self.factors(retained_term)?;
                [(a, b), (b, a)].into_iter().find_map(|(forget, state)| {
                    let forget = gate_of(forget, ffi::ELTWISE_LOGISTIC)?;
                    Some((Gates { input, forget, candidate, output }, Some(state)))
                })
            })?,
        };
        let shape = self.shape(cell).to_vec();
        let mut inputs = vec![pre_activations];
        if let Some(state) = state {
            if self.shape(state) != shape {
                return None;
            }
            inputs.push(self.cells.get(&state).copied().unwrap_or(state));
        }
        let result = self.push(Kind::Cell(CellKind::Lstm(gates)), &inputs, vec![2, shape[0], shape[1]]);
        let mut slice_at = |begin: i64| {
            let slice = Kind::Slice { begin: vec![begin, 0, 0], step: vec![1; 3] };
            let slice_value = self.push(slice, &[result], vec![1, shape[0], shape[1]]);
            self.push(Kind::Reshape, &[slice_value], shape.clone())
        };
        let (hidden_state, cell_state) = (slice_at(0), slice_at(1));
        self.cells.insert(cell, cell_state);
        Some(hidden_state)
    }

    /// Returns the matrix and the index of the quarter if `value` is a quarter of a matrix's columns.
    fn gate(&self, value: Val) -> Option<(Val, usize)> {
        let op = self.producer(value)?;
        let Kind::Slice { begin, step } = &op.kind else { return None };
        let (matrix_shape, slice_shape) = (self.shape(op.inputs[0]), self.shape(value));
        let is_quarter =
            matrix_shape.len() == 2 && matrix_shape[0] == slice_shape[0] && matrix_shape[1] == 4 * slice_shape[1];
        if !is_quarter || begin[0] != 0 || begin[1] % slice_shape[1] != 0 || *step != [1, 1] {
            return None;
        }
        Some((op.inputs[0], (begin[1] / slice_shape[1]) as usize))
    }

    /// Recognizes `(1 - z) * n` with `z = sigmoid(..)` and `n = tanh(..)`: the first step of a GRU, or the first
    /// summand of a later step.
    pub fn gru_first(&mut self, complement: Val, candidate: Val) -> Option<Val> {
        let (-1.0, 1.0, update) = self.linear_form(complement) else { return None };
        let pre_activations = self.activated_gate(update, ffi::ELTWISE_LOGISTIC)?;
        self.gru(pre_activations, candidate, None)
    }

    /// Recognizes `(1 - z) * n + z * h`, where the first summand is already a cell.
    pub fn gru_next(&mut self, first_summand: Val, second_summand: Val) -> Option<Val> {
        let op = self.producer(first_summand)?;
        let Kind::Cell(CellKind::Gru(Gru { part, mut present })) = op.kind else { return None };
        let (state_index, mut inputs) = (state_of(part)?, op.inputs.clone());
        if present[state_index] {
            return None;
        }
        let sort_summands = |mut summands: Vec<Val>| {
            summands.sort_unstable();
            summands
        };
        let own_summands = sort_summands(inputs[..usize::from(present[0]) + usize::from(present[1])].to_vec());
        let shape = self.shape(first_summand).to_vec();
        let mut decompositions = self.gate_decompositions(second_summand).into_iter();
        let (_, state) = decompositions.find(|(pre_activations, state)| {
            sort_summands(pre_activations.iter().copied().flatten().collect()) == own_summands
                && self.shape(*state) == shape
        })?;
        present[state_index] = true;
        inputs.push(state);
        Some(self.push(Kind::Cell(CellKind::Gru(Gru { part, present })), &inputs, shape))
    }

    /// Recognizes `n + z * (h - n)`, an equivalent form of a GRU step.
    pub fn gru_from(&mut self, candidate: Val, gated_difference: Val) -> Option<Val> {
        self.gate_decompositions(gated_difference).into_iter().find_map(|(pre_activations, difference)| {
            let op = self.producer(difference).filter(|op| op.kind == Kind::Binary(ffi::BINARY_SUB))?;
            let (state, subtrahend) = (op.inputs[0], op.inputs[1]);
            if subtrahend != candidate {
                return None;
            }
            self.gru(pre_activations, candidate, Some(state))
        })
    }

    /// Returns the decompositions of a value as `sigmoid(a + b) * c`: the summands `a` and `b`, and `c`.
    fn gate_decompositions(&mut self, value: Val) -> Vec<([Option<Val>; 2], Val)> {
        if let Some((a, b)) = self.factors(value) {
            let orders = [(a, b), (b, a)];
            let decompose =
                |(gate, other_factor)| Some((self.activated_gate(gate, ffi::ELTWISE_LOGISTIC)?, other_factor));
            return orders.into_iter().filter_map(decompose).collect();
        }
        match self.producer(value).map(|op| (&op.kind, &op.inputs[..])) {
            Some((Kind::Cell(CellKind::Gru(Gru { part: Part::Reset, .. })), &[sum, gate_operand])) => {
                vec![([Some(sum), None], gate_operand)]
            }
            Some((Kind::Cell(CellKind::Gru(Gru { part: Part::Reset, .. })), &[a, b, gate_operand])) => {
                vec![([Some(a), Some(b)], gate_operand)]
            }
            _ => Vec::new(),
        }
    }

    /// Recognizes `r * h`, where `r` is a slice of a sigmoid's columns: the reset state, an operand of the step's
    /// second matrix product.
    pub fn gru_reset(&mut self, reset: Val, state: Val) -> Option<Val> {
        self.columns(reset)?;
        let [left, right] = self.activated_gate(reset, ffi::ELTWISE_LOGISTIC)?;
        self.gru_cell(Part::Reset, &[left, right, Some(state)], self.shape(reset).to_vec())
    }

    /// Adds a GRU step, given the summands of the update gate, the candidate and the state.
    fn gru(&mut self, update: [Option<Val>; 2], candidate: Val, state: Option<Val>) -> Option<Val> {
        let [left, right] = update;
        let matrix = update.into_iter().flatten().find_map(|sum| self.columns(sum))?;
        let shape = self.shape(candidate).to_vec();
        let (_, argument) = self.function_of(candidate, ffi::ELTWISE_TANH)?;
        if let Some((x, reset, h)) = self.reset_after_product(argument)
            && self.columns(x).is_some_and(|source| source == matrix)
        {
            let operands = [left, right, reset[0], reset[1], Some(x), Some(h), state];
            return self.gru_cell(Part::Whole, &operands, shape);
        }
        let [x, h] = self.activated_gate(candidate, ffi::ELTWISE_TANH)?;
        self.gru_cell(Part::Mix, &[left, right, x, h, state], shape)
    }

    /// Decomposes `x + r * h` into `x`, the summands of `r`, and `h`.
    fn reset_after_product(&mut self, sum: Val) -> Option<(Val, [Option<Val>; 2], Val)> {
        let (a, b) = self.summands(sum)?;
        [(a, b), (b, a)].into_iter().find_map(|(x, product)| {
            let (reset, h) = self.gate_decompositions(product).into_iter().next()?;
            Some((x, reset, h))
        })
    }

    /// Decomposes the operand of the function `alg` that computes `value`. Returns the two summands, or only the
    /// operand if it is not a sum. `value` may be a column slice of the function's result.
    fn activated_gate(&mut self, value: Val, alg: i32) -> Option<[Option<Val>; 2]> {
        let argument = match self.function_of(value, alg) {
            Some((_, argument)) => argument,
            None => {
                let matrix = self.columns(value)?;
                let (_, argument) = self.function_of(matrix, alg)?;
                self.same_columns(value, argument)?
            }
        };
        if let Some((a, b)) = self.summands(argument) {
            return Some([Some(a), Some(b)]);
        }
        if let Some(matrix) = self.columns(argument)
            && let Some((a, b)) = self.summands(matrix)
            && self.shape(a) == self.shape(b)
        {
            return Some([self.same_columns(argument, a), self.same_columns(argument, b)]);
        }
        Some([Some(argument), None])
    }

    /// Returns the matrix of which `value` is a column slice.
    fn columns(&self, value: Val) -> Option<Val> {
        let op = self.producer(value)?;
        let Kind::Slice { begin, step } = &op.kind else { return None };
        let (matrix_shape, slice_shape) = (self.shape(op.inputs[0]), self.shape(value));
        let last_axis = slice_shape.len().checked_sub(1)?;
        let is_column_slice = last_axis > 0
            && matrix_shape[..last_axis] == slice_shape[..last_axis]
            && begin[..last_axis].iter().all(|&b| b == 0);
        (is_column_slice && slice_shape[last_axis] < matrix_shape[last_axis] && step.iter().all(|&s| s == 1))
            .then(|| op.inputs[0])
    }

    /// Applies the column slice that defines `value` to another matrix.
    fn same_columns(&mut self, value: Val, matrix: Val) -> Option<Val> {
        let kind = self.producer(value)?.kind.clone();
        let shape = self.shape(value).to_vec();
        Some(self.push(kind, &[matrix], shape))
    }

    /// Adds a cell if every operand has the result's shape or is a single row.
    fn gru_cell(&mut self, part: Part, operands: &[Option<Val>], shape: Vec<i64>) -> Option<Val> {
        let present: [bool; MAX_OPERANDS] =
            std::array::from_fn(|index| operands.get(index).is_some_and(Option::is_some));
        let inputs: Vec<Val> = operands.iter().copied().flatten().collect();
        let is_row = |operand_shape: &[i64]| {
            operand_shape.last() == shape.last() && operand_shape[..operand_shape.len() - 1].iter().all(|&d| d == 1)
        };
        let has_cell_shape = |value: &Val| *self.shape(*value) == shape[..] || is_row(self.shape(*value));
        if !inputs.iter().all(has_cell_shape) {
            return None;
        }
        Some(self.push(Kind::Cell(CellKind::Gru(Gru { part, present })), &inputs, shape))
    }
}

/// Returns the index of a cell's state operand, if its formula has one.
fn state_of(part: Part) -> Option<usize> {
    match part {
        Part::Whole => Some(6),
        Part::Mix => Some(4),
        Part::Reset => None,
    }
}
