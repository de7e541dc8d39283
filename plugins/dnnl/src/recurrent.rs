//! Recognition of recurrent-layer steps that frontends have unrolled.
//!
//! Each rule starts from the last operator of a step, whose operands already exist. A match becomes one operator
//! (`cell`) that computes exactly the matched formula. The rules require that gates are columns of one matrix, because
//! the fused loop pays off only then, and because models also use gates elsewhere.

use crate::cell::gru::{Gru, Part};
use crate::cell::lstm::Gates;
use crate::cell::{CellKind, MAX_OPERANDS};
use crate::ir::{Kind, RegionIr, Val};
use crate::library::ffi;

impl RegionIr {
    /// Recognizes a step of an LSTM: `sigmoid(o) tanh(C)` with `C = sigmoid(f) C' + sigmoid(i) tanh(g)`, where the
    /// gates are the four column quarters of one matrix. The first step has no previous state `C'`.
    pub fn lstm_cell(&mut self, gate: Val, activation: Val) -> Option<Val> {
        let (_, output) = self.function_of(gate, ffi::ELTWISE_LOGISTIC)?;
        let (_, cell) = self.function_of(activation, ffi::ELTWISE_TANH)?;
        let (sums, output) = self.gate(output)?;
        let gate_of = |value: Val, alg: i32| {
            let (_, inner) = self.function_of(value, alg)?;
            self.gate(inner).filter(|(own, _)| *own == sums).map(|(_, number)| number)
        };
        let fresh = |value: Val| {
            let (a, b) = self.factors(value)?;
            [(a, b), (b, a)].into_iter().find_map(|(input, candidate)| {
                Some((gate_of(input, ffi::ELTWISE_LOGISTIC)?, gate_of(candidate, ffi::ELTWISE_TANH)?))
            })
        };
        let (gates, state) = match self.summands(cell) {
            None => {
                let (input, candidate) = fresh(cell)?;
                (Gates { input, forget: input, candidate, output }, None)
            }
            Some((a, b)) => [(a, b), (b, a)].into_iter().find_map(|(kept, new)| {
                let (input, candidate) = fresh(new)?;
                let (a, b) = self.factors(kept)?;
                [(a, b), (b, a)].into_iter().find_map(|(forget, state)| {
                    let forget = gate_of(forget, ffi::ELTWISE_LOGISTIC)?;
                    Some((Gates { input, forget, candidate, output }, Some(state)))
                })
            })?,
        };
        let shape = self.shape(cell).to_vec();
        let mut inputs = vec![sums];
        if let Some(state) = state {
            if self.shape(state) != shape {
                return None;
            }
            inputs.push(self.cells.get(&state).copied().unwrap_or(state));
        }
        let both = self.push(Kind::Cell(CellKind::Lstm(gates)), &inputs, vec![2, shape[0], shape[1]]);
        let mut part = |begin: i64| {
            let slice = Kind::Slice { begin: vec![begin, 0, 0], step: vec![1; 3] };
            let one = self.push(slice, &[both], vec![1, shape[0], shape[1]]);
            self.push(Kind::Reshape, &[one], shape.clone())
        };
        let (hidden, state) = (part(0), part(1));
        self.cells.insert(cell, state);
        Some(hidden)
    }

    /// Returns the matrix and the index of the quarter if `value` is a quarter of a matrix's columns.
    fn gate(&self, value: Val) -> Option<(Val, usize)> {
        let op = self.producer(value)?;
        let Kind::Slice { begin, step } = &op.kind else { return None };
        let (whole, part) = (self.shape(op.inputs[0]), self.shape(value));
        let quarter = whole.len() == 2 && whole[0] == part[0] && whole[1] == 4 * part[1];
        if !quarter || begin[0] != 0 || begin[1] % part[1] != 0 || *step != [1, 1] {
            return None;
        }
        Some((op.inputs[0], (begin[1] / part[1]) as usize))
    }

    /// Recognizes `(1 - z) n` with `z = sigmoid(..)` and `n = tanh(..)`: the first step of a GRU, or the start of a
    /// later step.
    pub fn gru_first(&mut self, rest: Val, candidate: Val) -> Option<Val> {
        let (-1.0, 1.0, update) = self.linear(rest) else { return None };
        let sums = self.activated(update, ffi::ELTWISE_LOGISTIC)?;
        self.gru(sums, candidate, None)
    }

    /// Recognizes `(1 - z) n + z h`, where the first summand is already a cell.
    pub fn gru_next(&mut self, first: Val, kept: Val) -> Option<Val> {
        let op = self.producer(first)?;
        let Kind::Cell(CellKind::Gru(Gru { part, mut present })) = op.kind else { return None };
        let (at, mut inputs) = (state_of(part)?, op.inputs.clone());
        if present[at] {
            return None;
        }
        let sorted = |mut sums: Vec<Val>| {
            sums.sort_unstable();
            sums
        };
        let own = sorted(inputs[..usize::from(present[0]) + usize::from(present[1])].to_vec());
        let shape = self.shape(first).to_vec();
        let mut decompositions = self.gate_decompositions(kept).into_iter();
        let (_, state) = decompositions.find(|(sums, state)| {
            sorted(sums.iter().copied().flatten().collect()) == own && self.shape(*state) == shape
        })?;
        present[at] = true;
        inputs.push(state);
        Some(self.push(Kind::Cell(CellKind::Gru(Gru { part, present })), &inputs, shape))
    }

    /// Recognizes `n + z (h - n)`, an equivalent form of a GRU step.
    pub fn gru_from(&mut self, candidate: Val, scaled: Val) -> Option<Val> {
        self.gate_decompositions(scaled).into_iter().find_map(|(sums, difference)| {
            let op = self.producer(difference).filter(|op| op.kind == Kind::Binary(ffi::BINARY_SUB))?;
            let (state, from) = (op.inputs[0], op.inputs[1]);
            if from != candidate {
                return None;
            }
            self.gru(sums, candidate, Some(state))
        })
    }

    /// Returns the decompositions of a value as `sigmoid(a + b) c`: the summands, and `c`.
    fn gate_decompositions(&mut self, value: Val) -> Vec<([Option<Val>; 2], Val)> {
        if let Some((a, b)) = self.factors(value) {
            let both = [(a, b), (b, a)];
            let decompose = |(gate, other)| Some((self.activated(gate, ffi::ELTWISE_LOGISTIC)?, other));
            return both.into_iter().filter_map(decompose).collect();
        }
        match self.producer(value).map(|op| (&op.kind, &op.inputs[..])) {
            Some((Kind::Cell(CellKind::Gru(Gru { part: Part::Reset, .. })), &[sum, other])) => {
                vec![([Some(sum), None], other)]
            }
            Some((Kind::Cell(CellKind::Gru(Gru { part: Part::Reset, .. })), &[a, b, other])) => {
                vec![([Some(a), Some(b)], other)]
            }
            _ => Vec::new(),
        }
    }

    /// Recognizes `r h`, where `r` is a slice of a sigmoid's columns: the reset state, an operand of the step's second
    /// matrix product.
    pub fn gru_reset(&mut self, reset: Val, state: Val) -> Option<Val> {
        self.columns(reset)?;
        let [first, second] = self.activated(reset, ffi::ELTWISE_LOGISTIC)?;
        self.gru_cell(Part::Reset, &[first, second, Some(state)], self.shape(reset).to_vec())
    }

    /// Adds a GRU step with these summands of the update gate, this candidate and this state.
    fn gru(&mut self, update: [Option<Val>; 2], candidate: Val, state: Option<Val>) -> Option<Val> {
        let [first, second] = update;
        let whole = update.into_iter().flatten().find_map(|sum| self.columns(sum))?;
        let shape = self.shape(candidate).to_vec();
        let (_, inner) = self.function_of(candidate, ffi::ELTWISE_TANH)?;
        if let Some((x, reset, h)) = self.reset_after_product(inner)
            && self.columns(x).is_some_and(|own| own == whole)
        {
            let operands = [first, second, reset[0], reset[1], Some(x), Some(h), state];
            return self.gru_cell(Part::Whole, &operands, shape);
        }
        let [x, h] = self.activated(candidate, ffi::ELTWISE_TANH)?;
        self.gru_cell(Part::Mix, &[first, second, x, h, state], shape)
    }

    /// Decomposes `x + r h` into `x`, the summands of `r`, and `h`.
    fn reset_after_product(&mut self, sum: Val) -> Option<(Val, [Option<Val>; 2], Val)> {
        let (a, b) = self.summands(sum)?;
        [(a, b), (b, a)].into_iter().find_map(|(x, product)| {
            let (reset, h) = self.gate_decompositions(product).into_iter().next()?;
            Some((x, reset, h))
        })
    }

    /// Returns the two summands in the operand of the function `alg` that defines `value`, or only the operand if it is
    /// not a sum. `value` may be a column slice of the function's result.
    fn activated(&mut self, value: Val, alg: i32) -> Option<[Option<Val>; 2]> {
        let inner = match self.function_of(value, alg) {
            Some((_, inner)) => inner,
            None => {
                let whole = self.columns(value)?;
                let (_, inner) = self.function_of(whole, alg)?;
                self.same_columns(value, inner)?
            }
        };
        if let Some((a, b)) = self.summands(inner) {
            return Some([Some(a), Some(b)]);
        }
        if let Some(whole) = self.columns(inner)
            && let Some((a, b)) = self.summands(whole)
            && self.shape(a) == self.shape(b)
        {
            return Some([self.same_columns(inner, a), self.same_columns(inner, b)]);
        }
        Some([Some(inner), None])
    }

    /// Returns the matrix of which `value` is a column slice.
    fn columns(&self, value: Val) -> Option<Val> {
        let op = self.producer(value)?;
        let Kind::Slice { begin, step } = &op.kind else { return None };
        let (whole, part) = (self.shape(op.inputs[0]), self.shape(value));
        let last = part.len().checked_sub(1)?;
        let some = last > 0 && whole[..last] == part[..last] && begin[..last].iter().all(|&b| b == 0);
        (some && part[last] < whole[last] && step.iter().all(|&s| s == 1)).then(|| op.inputs[0])
    }

    /// Applies the column slice that defines `value` to another matrix.
    fn same_columns(&mut self, value: Val, of: Val) -> Option<Val> {
        let kind = self.producer(value)?.kind.clone();
        let shape = self.shape(value).to_vec();
        Some(self.push(kind, &[of], shape))
    }

    /// Adds a cell if every operand has the result's shape or is a single row.
    fn gru_cell(&mut self, part: Part, operands: &[Option<Val>], shape: Vec<i64>) -> Option<Val> {
        let present: [bool; MAX_OPERANDS] =
            std::array::from_fn(|number| operands.get(number).is_some_and(Option::is_some));
        let inputs: Vec<Val> = operands.iter().copied().flatten().collect();
        let row = |own: &[i64]| own.last() == shape.last() && own[..own.len() - 1].iter().all(|&d| d == 1);
        let fits = |value: &Val| *self.shape(*value) == shape[..] || row(self.shape(*value));
        if !inputs.iter().all(fits) {
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
