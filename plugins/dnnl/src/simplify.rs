//! Simplification of operators on creation: an idiom that one oneDNN function computes is replaced by that function.
//!
//! * Arithmetic with a constant scalar becomes `alpha * x + beta`; two consecutive operators of this kind are merged,
//!   and `1 * x + 0` is removed.
//! * `clip(a * x + b, 0, 1)` is a hard sigmoid; `x` times a hard sigmoid or a sigmoid of `x` is hard swish or swish.
//! * The gates of an LSTM or a GRU become one operator (`recurrent`).
//! * The erf and tanh forms of GELU, and mish, are recognized in the operand orders that occur in models.
//!
//! Matched operators with additional users are retained; the other matched operators are removed.

use crate::elementwise::MathFn;
use crate::ir::{EltwiseParams, Kind, RegionIr, Val};
use crate::library::ffi;

/// Relative tolerance for the constants of a formula: models write them with few digits.
const TOLERANCE: f32 = 1e-4;

fn approx_eq(a: f32, b: f32) -> bool {
    (a - b).abs() <= TOLERANCE * b.abs().max(1e-3)
}

impl RegionIr {
    fn function(&self, value: Val) -> Option<(EltwiseParams, Val)> {
        match self.producer(value) {
            Some(op) => match op.kind {
                Kind::Eltwise(function) => Some((function, op.inputs[0])),
                _ => None,
            },
            None => None,
        }
    }

    /// Returns the function that defines `value`, and the function's operand, if the function's algorithm is `alg`.
    pub fn function_of(&self, value: Val, alg: i32) -> Option<(EltwiseParams, Val)> {
        self.function(value).filter(|(function, _)| function.alg == alg)
    }

    /// Decomposes a value into `factor * x + summand`.
    pub fn linear_form(&self, value: Val) -> (f32, f32, Val) {
        match self.function_of(value, ffi::ELTWISE_LINEAR) {
            Some((f, x)) => (f.alpha, f.beta, x),
            None => (1.0, 0.0, value),
        }
    }

    /// Decomposes a value into `factor * x`.
    fn factor_and_value(&self, value: Val) -> (f32, Val) {
        match self.linear_form(value) {
            (factor, 0.0, x) => (factor, x),
            _ => (1.0, value),
        }
    }

    /// Returns the two factors of a product.
    pub fn factors(&self, value: Val) -> Option<(Val, Val)> {
        let op = self.producer(value)?;
        (op.kind == Kind::Binary(ffi::BINARY_MUL)).then(|| (op.inputs[0], op.inputs[1]))
    }

    /// Returns the two summands of a sum.
    pub fn summands(&self, value: Val) -> Option<(Val, Val)> {
        let op = self.producer(value)?;
        (op.kind == Kind::Binary(ffi::BINARY_ADD)).then(|| (op.inputs[0], op.inputs[1]))
    }

    /// Adds `function(x)`.
    pub fn eltwise(&mut self, function: EltwiseParams, x: Val) -> Val {
        let shape = self.shape(x).to_vec();
        if function.alg == ffi::ELTWISE_LINEAR {
            let (alpha, beta, operand) = self.linear_form(x);
            let composed_alpha = function.alpha * alpha;
            let composed_beta = function.alpha * beta + function.beta;
            // Treats a factor within rounding of 1 as 1: two factors that were meant to cancel may leave 0.99999994.
            if (composed_alpha - 1.0).abs() < 1e-6 && composed_beta == 0.0 {
                return operand;
            }
            let composed_params = EltwiseParams::new(ffi::ELTWISE_LINEAR, composed_alpha, composed_beta);
            return self.push(Kind::Eltwise(composed_params), &[operand], shape);
        }
        if function.alg == ffi::ELTWISE_CLIP && approx_eq(function.beta, 1.0) && function.alpha == 0.0 {
            let (alpha, beta, operand) = self.linear_form(x);
            if operand != x {
                let hard_sigmoid = EltwiseParams::new(ffi::ELTWISE_HARDSIGMOID, alpha, beta);
                return self.push(Kind::Eltwise(hard_sigmoid), &[operand], shape);
            }
        }
        self.push(Kind::Eltwise(function), &[x], shape)
    }

    /// Adds a reshape.
    pub fn reshape(&mut self, x: Val, shape: Vec<i64>) -> Val {
        let mut source = x;
        while let Some(op) = self.producer(source).filter(|op| op.kind == Kind::Reshape) {
            source = op.inputs[0];
        }
        if self.shape(source) == shape {
            return source;
        }
        if let Some(shuffled_value) = self.channel_shuffle(source, &shape) {
            return shuffled_value;
        }
        self.push(Kind::Reshape, &[source], shape)
    }

    /// Recognizes a channel shuffle: a concatenation reshaped to (parts, channels), transposed and merged into one
    /// dimension again. The shuffle becomes an interleaving: a concatenation along a new innermost axis.
    fn channel_shuffle(&mut self, transposed_value: Val, shape: &[i64]) -> Option<Val> {
        let op = self.producer(transposed_value)?;
        let Kind::Transpose(axes) = &op.kind else { return None };
        let grouped_value = op.inputs[0];
        let axis = axes.iter().enumerate().position(|(i, &axis)| i != axis)?;
        let mut swapped_axes: Vec<usize> = (0..axes.len()).collect();
        swapped_axes.swap(axis, *axes.get(axis)?);
        if *axes != swapped_axes || axes[axis] != axis + 1 {
            return None;
        }
        let concat_value = self.producer(grouped_value).filter(|op| op.kind == Kind::Reshape)?.inputs[0];
        let op = self.producer(concat_value).filter(|op| op.kind == Kind::Concat { axis })?;
        let (operands, groups) = (op.inputs.clone(), self.shape(grouped_value)[axis]);
        let mut merged_shape = self.shape(grouped_value).to_vec();
        let channels = merged_shape.remove(axis + 1);
        merged_shape[axis] *= channels;
        let has_equal_parts =
            operands.len() as i64 == groups && operands.iter().all(|&operand| self.shape(operand)[axis] == channels);
        if !has_equal_parts || merged_shape != shape || self.shape(concat_value) != shape {
            return None;
        }
        Some(self.interleave(&operands, axis))
    }

    /// Interleaves tensors of equal shape along an axis.
    fn interleave(&mut self, operands: &[Val], axis: usize) -> Val {
        let mut shape = self.shape(operands[0]).to_vec();
        let mut interleaved_shape = shape.clone();
        interleaved_shape[axis] *= operands.len() as i64;
        shape.insert(axis + 1, 1);
        let operands: Vec<Val> = operands.iter().map(|&operand| self.reshape(operand, shape.clone())).collect();
        shape[axis + 1] = operands.len() as i64;
        let interleaved_value = self.push(Kind::Concat { axis: axis + 1 }, &operands, shape);
        self.push(Kind::Reshape, &[interleaved_value], interleaved_shape)
    }

    /// Adds a slice: from `begin`, every `step`th element.
    pub fn slice(&mut self, x: Val, begin: Vec<i64>, step: Vec<i64>, shape: Vec<i64>) -> Val {
        if let Some(slice) = self.slice_of_interleaving(x, &begin, &step, &shape) {
            return slice;
        }
        self.push(Kind::Slice { begin, step }, &[x], shape)
    }

    /// Turns a slice of interleaved channels into an interleaving of slices of the parts.
    fn slice_of_interleaving(&mut self, x: Val, begin: &[i64], step: &[i64], shape: &[i64]) -> Option<Val> {
        let interleaved_value = self.producer(x).filter(|op| op.kind == Kind::Reshape)?.inputs[0];
        let op = self.producer(interleaved_value)?;
        let Kind::Concat { axis } = op.kind else { return None };
        let axis = axis.checked_sub(1)?;
        let (operands, groups) = (op.inputs.clone(), op.inputs.len() as i64);
        let mut operand_shape = self.shape(x).to_vec();
        let is_interleaving = self.shape(interleaved_value).len() == operand_shape.len() + 1
            && operands.iter().all(|&operand| self.shape(operand)[axis + 1] == 1)
            && self.shape(interleaved_value)[axis] * groups == operand_shape[axis];
        let is_multiple_of_groups =
            begin[axis] % groups == 0 && shape[axis] % groups == 0 && step.iter().all(|&s| s == 1);
        let covers_other_axes =
            (0..operand_shape.len()).all(|d| d == axis || (begin[d] == 0 && shape[d] == operand_shape[d]));
        if !(is_interleaving && is_multiple_of_groups && covers_other_axes) {
            return None;
        }
        let mut begin_of_slices = begin.to_vec();
        begin_of_slices[axis] = begin[axis] / groups;
        operand_shape[axis] /= groups;
        let mut slice_shape = operand_shape.clone();
        slice_shape[axis] = shape[axis] / groups;
        let slices: Vec<Val> = operands
            .iter()
            .map(|&operand| {
                let operand = self.reshape(operand, operand_shape.clone());
                self.push(
                    Kind::Slice { begin: begin_of_slices.clone(), step: step.to_vec() },
                    &[operand],
                    slice_shape.clone(),
                )
            })
            .collect();
        Some(self.interleave(&slices, axis))
    }

    /// Adds a matrix product. Constant factors of its operands are applied to the result, where they cost nothing, and
    /// batch dimensions that a reshape merged are separated again, so that attention heads are read in place.
    pub fn matmul(&mut self, transpose_a: bool, transpose_b: bool, [a, b]: [Val; 2], shape: Vec<i64>) -> Val {
        let ((first_factor, a), (second_factor, b)) = (self.factor_out_scalar(a), self.factor_out_scalar(b));
        let factor = first_factor * second_factor;
        let kind = Kind::MatMul { transpose_a, transpose_b };
        let result = match (self.unmerged_batches(a), self.unmerged_batches(b)) {
            (Some(x), Some(y)) if self.shape(x)[..2] == self.shape(y)[..2] => {
                let mut product_shape = self.shape(x)[..2].to_vec();
                product_shape.extend_from_slice(&shape[1..]);
                let product = self.push(kind, &[x, y], product_shape);
                self.reshape(product, shape)
            }
            _ => self.push(kind, &[a, b], shape),
        };
        if factor == 1.0 { result } else { self.affine(factor, 0.0, result) }
    }

    /// Factors a scalar out of a value, looking through views. Returns the scalar and the value without it.
    fn factor_out_scalar(&mut self, value: Val) -> (f32, Val) {
        let (mut current, mut views) = (value, Vec::new());
        while let Some(op) = self.producer(current).filter(|op| matches!(op.kind, Kind::Reshape | Kind::Transpose(_))) {
            views.push((op.kind.clone(), self.shape(current).to_vec()));
            current = op.inputs[0];
        }
        let (factor, mut core) = self.factor_and_value(current);
        if factor == 1.0 {
            return (1.0, value);
        }
        for (kind, shape) in views.into_iter().rev() {
            core = match kind {
                Kind::Reshape => self.reshape(core, shape),
                kind => self.push(kind, &[core], shape),
            };
        }
        (factor, core)
    }

    /// Returns the operand of the reshape that merged two batch dimensions into the single batch dimension of `value`.
    fn unmerged_batches(&self, value: Val) -> Option<Val> {
        let unmerged_value = self.producer(value).filter(|op| op.kind == Kind::Reshape)?.inputs[0];
        let (unmerged_shape, merged_shape) = (self.shape(unmerged_value), self.shape(value));
        let is_batch_merge = unmerged_shape.len() == 4
            && merged_shape.len() == 3
            && unmerged_shape[0] * unmerged_shape[1] == merged_shape[0]
            && unmerged_shape[2..] == merged_shape[1..];
        is_batch_merge.then_some(unmerged_value)
    }

    /// Adds `factor * x + summand`.
    pub fn affine(&mut self, factor: f32, summand: f32, x: Val) -> Val {
        self.eltwise(EltwiseParams::new(ffi::ELTWISE_LINEAR, factor, summand), x)
    }

    /// Adds a binary operator; `shape` is the result's shape.
    pub fn binary(&mut self, alg: i32, a: Val, b: Val, shape: Vec<i64>) -> Val {
        if let Some(result) = self.binary_with_scalar(alg, a, b, &shape) {
            return result;
        }
        if alg == ffi::BINARY_MUL && self.shape(a) == self.shape(b) {
            for (x, y) in [(a, b), (b, a)] {
                let cell = self.lstm_cell(x, y).or_else(|| self.gru_reset(x, y)).or_else(|| self.gru_first(x, y));
                if let Some(result) = cell {
                    return result;
                }
                if let Some(result) =
                    self.gate_product(x, y).or_else(|| self.gelu_erf(x, y)).or_else(|| self.gelu_tanh(x, y))
                {
                    return result;
                }
            }
        }
        if alg == ffi::BINARY_ADD && self.shape(a) == self.shape(b) {
            for (x, y) in [(a, b), (b, a)] {
                if let Some(result) = self.gru_next(x, y).or_else(|| self.gru_from(x, y)) {
                    return result;
                }
            }
        }
        self.push(Kind::Binary(alg), &[a, b], shape)
    }

    /// Simplifies a binary operator with a constant scalar operand, if the other operand has the result's shape.
    fn binary_with_scalar(&mut self, alg: i32, a: Val, b: Val, shape: &[i64]) -> Option<Val> {
        if let Some(c) = self.scalar(b)
            && self.shape(a) == shape
        {
            return Some(match alg {
                ffi::BINARY_ADD => self.affine(1.0, c, a),
                ffi::BINARY_SUB => self.affine(1.0, -c, a),
                ffi::BINARY_MUL => self.affine(c, 0.0, a),
                // The reciprocal of a subnormal number may be infinite.
                ffi::BINARY_DIV if (1.0 / c).is_normal() => self.affine(1.0 / c, 0.0, a),
                ffi::BINARY_MAX => self.eltwise(EltwiseParams::new(ffi::ELTWISE_CLIP, c, f32::MAX), a),
                ffi::BINARY_MIN => self.eltwise(EltwiseParams::new(ffi::ELTWISE_CLIP, f32::MIN, c), a),
                _ => return None,
            });
        }
        if let Some(c) = self.scalar(a)
            && self.shape(b) == shape
        {
            return match alg {
                ffi::BINARY_SUB => Some(self.affine(-1.0, c, b)),
                ffi::BINARY_DIV => Some(self.eltwise(EltwiseParams::new(ffi::ELTWISE_POW, c, -1.0), b)),
                ffi::BINARY_ADD | ffi::BINARY_MUL | ffi::BINARY_MAX | ffi::BINARY_MIN => {
                    self.binary_with_scalar(alg, b, a, shape)
                }
                _ => None,
            };
        }
        None
    }

    /// Recognizes `x * g(x)`, where `g` is a sigmoid, a hard sigmoid, or the tanh factor of mish.
    fn gate_product(&mut self, x: Val, gate: Val) -> Option<Val> {
        let (function, argument) = self.function(gate)?;
        let (factor, core) = self.factor_and_value(argument);
        let params = match function.alg {
            ffi::ELTWISE_HARDSIGMOID if argument == x => {
                EltwiseParams::new(ffi::ELTWISE_HARDSWISH, function.alpha, function.beta)
            }
            ffi::ELTWISE_LOGISTIC if argument == x => EltwiseParams::new(ffi::ELTWISE_SWISH, 1.0, 0.0),
            ffi::ELTWISE_LOGISTIC if core == x => EltwiseParams::new(ffi::ELTWISE_SWISH, factor, 0.0),
            ffi::ELTWISE_TANH => {
                let log = self.producer(argument).filter(|op| op.kind == Kind::MathFn(MathFn::Log))?.inputs[0];
                let (1.0, 1.0, exp) = self.linear_form(log) else { return None };
                let (_, core) = self.function_of(exp, ffi::ELTWISE_EXP)?;
                if core != x {
                    return None;
                }
                let shape = self.shape(x).to_vec();
                return Some(self.push(Kind::MathFn(MathFn::Mish), &[x], shape));
            }
            _ => return None,
        };
        Some(self.eltwise(params, x))
    }

    /// Recognizes `(k * x) * (s + s * erf(x / sqrt(2))) = 2 * k * s * gelu(x)`.
    fn gelu_erf(&mut self, outer: Val, gate: Val) -> Option<Val> {
        let (s, t, erf) = self.linear_form(gate);
        let argument = self.producer(erf).filter(|op| op.kind == Kind::Erf)?.inputs[0];
        let (root, x) = self.factor_and_value(argument);
        let factor = self.multiple_of(outer, x)?;
        if !approx_eq(s, t) || !approx_eq(root, std::f32::consts::FRAC_1_SQRT_2) {
            return None;
        }
        let gelu = self.eltwise(EltwiseParams::plain(ffi::ELTWISE_GELU_ERF), x);
        Some(self.affine(2.0 * factor * s, 0.0, gelu))
    }

    /// Recognizes `(k * x) * (s + s * tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) = 2 * k * s * gelu(x)`.
    fn gelu_tanh(&mut self, outer: Val, gate: Val) -> Option<Val> {
        let (s, t, tanh) = self.linear_form(gate);
        let (_, argument) = self.function_of(tanh, ffi::ELTWISE_TANH)?;
        let (root, sum) = self.factor_and_value(argument);
        if !approx_eq(s, t) || !approx_eq(root, (2.0 / std::f32::consts::PI).sqrt()) {
            return None;
        }
        let (a, b) = self.summands(sum)?;
        let x = [(a, b), (b, a)].into_iter().find_map(|(x, scaled_cube)| {
            let (factor, cube) = self.factor_and_value(scaled_cube);
            (approx_eq(factor, 0.044_715) && self.is_cube(cube, x)).then_some(x)
        })?;
        let factor = self.multiple_of(outer, x)?;
        let gelu = self.eltwise(EltwiseParams::plain(ffi::ELTWISE_GELU_TANH), x);
        Some(self.affine(2.0 * factor * s, 0.0, gelu))
    }

    /// Returns `k` if `value` is `k * x`.
    fn multiple_of(&self, value: Val, x: Val) -> Option<f32> {
        if value == x {
            return Some(1.0);
        }
        let (factor, core) = self.factor_and_value(value);
        (core == x).then_some(factor)
    }

    fn is_cube(&self, value: Val, x: Val) -> bool {
        if let Some((function, core)) = self.function_of(value, ffi::ELTWISE_POW) {
            return core == x && function.alpha == 1.0 && function.beta == 3.0;
        }
        let is_square = |value: Val| {
            self.factors(value) == Some((x, x))
                || self
                    .function_of(value, ffi::ELTWISE_POW)
                    .is_some_and(|(f, core)| core == x && f.alpha == 1.0 && f.beta == 2.0)
        };
        self.factors(value).is_some_and(|(a, b)| (a == x && is_square(b)) || (b == x && is_square(a)))
    }
}
