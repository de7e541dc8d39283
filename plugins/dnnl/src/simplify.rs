//! Simplification of operators on creation: an idiom that one oneDNN function computes is replaced by that function.
//!
//! * Arithmetic with a constant scalar is `alpha x + beta`; two consecutive such operators are merged, and `1 x + 0` is
//!   removed.
//! * `clip(a x + b, 0, 1)` is a hard sigmoid; `x` times a hard sigmoid or a sigmoid of `x` is hard swish or swish.
//! * The gates of an LSTM or a GRU become one operator (`recurrent`).
//! * The erf and tanh forms of GELU, and mish, are recognized in the operand orders that occur in models.
//!
//! Matched operators with additional users are retained; all others are removed.

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

    /// Returns the function that defines `value`, and the function's operand, if its algorithm is `alg`.
    pub fn function_of(&self, value: Val, alg: i32) -> Option<(EltwiseParams, Val)> {
        self.function(value).filter(|(function, _)| function.alg == alg)
    }

    /// Decomposes a value into `factor x + summand`.
    pub fn linear(&self, value: Val) -> (f32, f32, Val) {
        match self.function_of(value, ffi::ELTWISE_LINEAR) {
            Some((f, x)) => (f.alpha, f.beta, x),
            None => (1.0, 0.0, value),
        }
    }

    /// Decomposes a value into `factor x`.
    fn scaled(&self, value: Val) -> (f32, Val) {
        match self.linear(value) {
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
            let (alpha, beta, inner) = self.linear(x);
            let alpha_both = function.alpha * alpha;
            let beta_both = function.alpha * beta + function.beta;
            // Treats a factor within rounding of 1 as 1: two factors that were meant to cancel may leave 0.99999994.
            if (alpha_both - 1.0).abs() < 1e-6 && beta_both == 0.0 {
                return inner;
            }
            let both = EltwiseParams::new(ffi::ELTWISE_LINEAR, alpha_both, beta_both);
            return self.push(Kind::Eltwise(both), &[inner], shape);
        }
        if function.alg == ffi::ELTWISE_CLIP && approx_eq(function.beta, 1.0) && function.alpha == 0.0 {
            let (alpha, beta, inner) = self.linear(x);
            if inner != x {
                let hard = EltwiseParams::new(ffi::ELTWISE_HARDSIGMOID, alpha, beta);
                return self.push(Kind::Eltwise(hard), &[inner], shape);
            }
        }
        self.push(Kind::Eltwise(function), &[x], shape)
    }

    /// Adds a reshape.
    pub fn reshape(&mut self, x: Val, shape: Vec<i64>) -> Val {
        let mut from = x;
        while let Some(op) = self.producer(from).filter(|op| op.kind == Kind::Reshape) {
            from = op.inputs[0];
        }
        if self.shape(from) == shape {
            return from;
        }
        if let Some(interleaved) = self.channel_shuffle(from, &shape) {
            return interleaved;
        }
        self.push(Kind::Reshape, &[from], shape)
    }

    /// Recognizes a channel shuffle: a concatenation reshaped to (parts, channels), transposed and merged into one
    /// dimension again. The shuffle becomes an interleaving: a concatenation along a new innermost axis.
    fn channel_shuffle(&mut self, transposed: Val, shape: &[i64]) -> Option<Val> {
        let op = self.producer(transposed)?;
        let Kind::Transpose(axes) = &op.kind else { return None };
        let grouped = op.inputs[0];
        let axis = axes.iter().enumerate().position(|(i, &from)| i != from)?;
        let mut swapped: Vec<usize> = (0..axes.len()).collect();
        swapped.swap(axis, *axes.get(axis)?);
        if *axes != swapped || axes[axis] != axis + 1 {
            return None;
        }
        let wide = self.producer(grouped).filter(|op| op.kind == Kind::Reshape)?.inputs[0];
        let op = self.producer(wide).filter(|op| op.kind == Kind::Concat { axis })?;
        let (parts, groups) = (op.inputs.clone(), self.shape(grouped)[axis]);
        let mut whole = self.shape(grouped).to_vec();
        let channels = whole.remove(axis + 1);
        whole[axis] *= channels;
        let even = parts.len() as i64 == groups && parts.iter().all(|&part| self.shape(part)[axis] == channels);
        if !even || whole != shape || self.shape(wide) != shape {
            return None;
        }
        Some(self.interleave(&parts, axis))
    }

    /// Interleaves tensors of equal shape along an axis.
    fn interleave(&mut self, parts: &[Val], axis: usize) -> Val {
        let mut shape = self.shape(parts[0]).to_vec();
        let mut whole = shape.clone();
        whole[axis] *= parts.len() as i64;
        shape.insert(axis + 1, 1);
        let parts: Vec<Val> = parts.iter().map(|&part| self.reshape(part, shape.clone())).collect();
        shape[axis + 1] = parts.len() as i64;
        let interleaved = self.push(Kind::Concat { axis: axis + 1 }, &parts, shape);
        self.push(Kind::Reshape, &[interleaved], whole)
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
        let interleaved = self.producer(x).filter(|op| op.kind == Kind::Reshape)?.inputs[0];
        let op = self.producer(interleaved)?;
        let Kind::Concat { axis } = op.kind else { return None };
        let axis = axis.checked_sub(1)?;
        let (parts, groups) = (op.inputs.clone(), op.inputs.len() as i64);
        let mut own = self.shape(x).to_vec();
        let is_interleaving = self.shape(interleaved).len() == own.len() + 1
            && parts.iter().all(|&part| self.shape(part)[axis + 1] == 1)
            && self.shape(interleaved)[axis] * groups == own[axis];
        let whole_turns = begin[axis] % groups == 0 && shape[axis] % groups == 0 && step.iter().all(|&s| s == 1);
        let along = (0..own.len()).all(|d| d == axis || (begin[d] == 0 && shape[d] == own[d]));
        if !(is_interleaving && whole_turns && along) {
            return None;
        }
        let mut from = begin.to_vec();
        from[axis] = begin[axis] / groups;
        own[axis] /= groups;
        let mut some = own.clone();
        some[axis] = shape[axis] / groups;
        let slices: Vec<Val> = parts
            .iter()
            .map(|&part| {
                let part = self.reshape(part, own.clone());
                self.push(Kind::Slice { begin: from.clone(), step: step.to_vec() }, &[part], some.clone())
            })
            .collect();
        Some(self.interleave(&slices, axis))
    }

    /// Adds a matrix product. Constant factors of its operands are applied to the result, where they cost nothing, and
    /// batch dimensions that a reshape merged are separated again, so that attention heads are read in place.
    pub fn matmul(&mut self, transpose_a: bool, transpose_b: bool, [a, b]: [Val; 2], shape: Vec<i64>) -> Val {
        let ((first, a), (second, b)) = (self.factor_out_scalar(a), self.factor_out_scalar(b));
        let factor = first * second;
        let kind = Kind::MatMul { transpose_a, transpose_b };
        let result = match (self.unmerged_batches(a), self.unmerged_batches(b)) {
            (Some(x), Some(y)) if self.shape(x)[..2] == self.shape(y)[..2] => {
                let mut own = self.shape(x)[..2].to_vec();
                own.extend_from_slice(&shape[1..]);
                let product = self.push(kind, &[x, y], own);
                self.reshape(product, shape)
            }
            _ => self.push(kind, &[a, b], shape),
        };
        if factor == 1.0 { result } else { self.affine(factor, 0.0, result) }
    }

    /// Factors a scalar out of a value, looking through views. Returns the scalar and the value without it.
    fn factor_out_scalar(&mut self, value: Val) -> (f32, Val) {
        let (mut at, mut views) = (value, Vec::new());
        while let Some(op) = self.producer(at).filter(|op| matches!(op.kind, Kind::Reshape | Kind::Transpose(_))) {
            views.push((op.kind.clone(), self.shape(at).to_vec()));
            at = op.inputs[0];
        }
        let (factor, mut core) = self.scaled(at);
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
        let before = self.producer(value).filter(|op| op.kind == Kind::Reshape)?.inputs[0];
        let (from, to) = (self.shape(before), self.shape(value));
        let same = from.len() == 4 && to.len() == 3 && from[0] * from[1] == to[0] && from[2..] == to[1..];
        same.then_some(before)
    }

    /// Adds `factor x + summand`.
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
                if let Some(result) = self.gated(x, y).or_else(|| self.gelu_erf(x, y)).or_else(|| self.gelu_tanh(x, y))
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

    /// Recognizes `x g(x)`, where `g` is a sigmoid, a hard sigmoid, or the tanh factor of mish.
    fn gated(&mut self, x: Val, gate: Val) -> Option<Val> {
        let (function, inner) = self.function(gate)?;
        let (factor, core) = self.scaled(inner);
        let whole = match function.alg {
            ffi::ELTWISE_HARDSIGMOID if inner == x => {
                EltwiseParams::new(ffi::ELTWISE_HARDSWISH, function.alpha, function.beta)
            }
            ffi::ELTWISE_LOGISTIC if inner == x => EltwiseParams::new(ffi::ELTWISE_SWISH, 1.0, 0.0),
            ffi::ELTWISE_LOGISTIC if core == x => EltwiseParams::new(ffi::ELTWISE_SWISH, factor, 0.0),
            ffi::ELTWISE_TANH => {
                let log = self.producer(inner).filter(|op| op.kind == Kind::MathFn(MathFn::Log))?.inputs[0];
                let (1.0, 1.0, exp) = self.linear(log) else { return None };
                let (_, core) = self.function_of(exp, ffi::ELTWISE_EXP)?;
                if core != x {
                    return None;
                }
                let shape = self.shape(x).to_vec();
                return Some(self.push(Kind::MathFn(MathFn::Mish), &[x], shape));
            }
            _ => return None,
        };
        Some(self.eltwise(whole, x))
    }

    /// Recognizes `(k x) (s + s erf(x / sqrt 2)) = 2 k s gelu(x)`.
    fn gelu_erf(&mut self, outer: Val, gate: Val) -> Option<Val> {
        let (s, t, erf) = self.linear(gate);
        let inner = self.producer(erf).filter(|op| op.kind == Kind::Erf)?.inputs[0];
        let (root, x) = self.scaled(inner);
        let factor = self.multiple_of(outer, x)?;
        if !approx_eq(s, t) || !approx_eq(root, std::f32::consts::FRAC_1_SQRT_2) {
            return None;
        }
        let gelu = self.eltwise(EltwiseParams::plain(ffi::ELTWISE_GELU_ERF), x);
        Some(self.affine(2.0 * factor * s, 0.0, gelu))
    }

    /// Recognizes `(k x) (s + s tanh(sqrt(2 / pi) (x + 0.044715 x^3))) = 2 k s gelu(x)`.
    fn gelu_tanh(&mut self, outer: Val, gate: Val) -> Option<Val> {
        let (s, t, tanh) = self.linear(gate);
        let (_, inner) = self.function_of(tanh, ffi::ELTWISE_TANH)?;
        let (root, sum) = self.scaled(inner);
        if !approx_eq(s, t) || !approx_eq(root, (2.0 / std::f32::consts::PI).sqrt()) {
            return None;
        }
        let (a, b) = self.summands(sum)?;
        let x = [(a, b), (b, a)].into_iter().find_map(|(x, rest)| {
            let (factor, cube) = self.scaled(rest);
            (approx_eq(factor, 0.044_715) && self.is_cube(cube, x)).then_some(x)
        })?;
        let factor = self.multiple_of(outer, x)?;
        let gelu = self.eltwise(EltwiseParams::plain(ffi::ELTWISE_GELU_TANH), x);
        Some(self.affine(2.0 * factor * s, 0.0, gelu))
    }

    /// Returns `k` if `value` is `k x`.
    fn multiple_of(&self, value: Val, x: Val) -> Option<f32> {
        if value == x {
            return Some(1.0);
        }
        let (factor, core) = self.scaled(value);
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
