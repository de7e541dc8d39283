//! Operators as they are made: chains that one function of the library stands for become that function.
//!
//! * Arithmetic with one constant number is `alpha x + beta`; two of those in a row are one, and `1 x + 0` is nothing.
//! * `clip(a x + b, 0, 1)` is the hard sigmoid; `x` times a hard sigmoid or a sigmoid of `x` is hard swish or swish.
//! * GELU in its erf and its tanh form, and mish, in the orders of operands that models are written in.
//!
//! What a rule has looked through may have other users: it stays for them, and is dropped where there are none.

use crate::library::ffi;
use crate::program::{Function, Kind, Program, Val};

/// How far a constant of a formula may be off: models write them with few digits.
const SLACK: f32 = 1e-4;

fn near(a: f32, b: f32) -> bool {
    (a - b).abs() <= SLACK * b.abs().max(1e-3)
}

impl Program {
    fn function(&self, value: Val) -> Option<(Function, Val)> {
        match self.producer(value) {
            Some(op) => match op.kind {
                Kind::Eltwise(function) => Some((function, op.inputs[0])),
                _ => None,
            },
            None => None,
        }
    }

    fn function_of(&self, value: Val, alg: i32) -> Option<(Function, Val)> {
        self.function(value).filter(|(function, _)| function.alg == alg)
    }

    /// A value as `factor x + summand`.
    fn linear(&self, value: Val) -> (f32, f32, Val) {
        match self.function_of(value, ffi::ELTWISE_LINEAR) {
            Some((f, x)) => (f.alpha, f.beta, x),
            None => (1.0, 0.0, value),
        }
    }

    /// A value as `factor x`.
    fn scaled(&self, value: Val) -> (f32, Val) {
        match self.linear(value) {
            (factor, 0.0, x) => (factor, x),
            _ => (1.0, value),
        }
    }

    fn factors(&self, value: Val) -> Option<(Val, Val)> {
        let op = self.producer(value)?;
        (op.kind == Kind::Binary(ffi::BINARY_MUL)).then(|| (op.inputs[0], op.inputs[1]))
    }

    fn summands(&self, value: Val) -> Option<(Val, Val)> {
        let op = self.producer(value)?;
        (op.kind == Kind::Binary(ffi::BINARY_ADD)).then(|| (op.inputs[0], op.inputs[1]))
    }

    /// `function(x)`.
    pub fn eltwise(&mut self, function: Function, x: Val) -> Val {
        let shape = self.shape(x).to_vec();
        if function.alg == ffi::ELTWISE_LINEAR {
            let (alpha, beta, inner) = self.linear(x);
            let alpha_both = function.alpha * alpha;
            let beta_both = function.alpha * beta + function.beta;
            // Rounding must not leave a factor of 0.99999994 where two factors were meant to cancel.
            if (alpha_both - 1.0).abs() < 1e-6 && beta_both == 0.0 {
                return inner;
            }
            let both = Function::new(ffi::ELTWISE_LINEAR, alpha_both, beta_both);
            return self.push(Kind::Eltwise(both), &[inner], shape);
        }
        if function.alg == ffi::ELTWISE_CLIP && near(function.beta, 1.0) && function.alpha == 0.0 {
            let (alpha, beta, inner) = self.linear(x);
            if inner != x {
                let hard = Function::new(ffi::ELTWISE_HARDSIGMOID, alpha, beta);
                return self.push(Kind::Eltwise(hard), &[inner], shape);
            }
        }
        self.push(Kind::Eltwise(function), &[x], shape)
    }

    /// `factor x + summand`.
    pub fn affine(&mut self, factor: f32, summand: f32, x: Val) -> Val {
        self.eltwise(Function::new(ffi::ELTWISE_LINEAR, factor, summand), x)
    }

    /// A function of two tensors, whose result has this shape.
    pub fn binary(&mut self, alg: i32, a: Val, b: Val, shape: Vec<i64>) -> Val {
        if let Some(result) = self.with_number(alg, a, b, &shape) {
            return result;
        }
        if alg == ffi::BINARY_MUL && self.shape(a) == self.shape(b) {
            for (x, y) in [(a, b), (b, a)] {
                if let Some(result) = self.gated(x, y).or_else(|| self.gelu_erf(x, y)).or_else(|| self.gelu_tanh(x, y))
                {
                    return result;
                }
            }
        }
        self.push(Kind::Binary(alg), &[a, b], shape)
    }

    /// Where one operand is one constant number and the other has the result's shape.
    fn with_number(&mut self, alg: i32, a: Val, b: Val, shape: &[i64]) -> Option<Val> {
        if let Some(c) = self.scalar(b)
            && self.shape(a) == shape
        {
            return Some(match alg {
                ffi::BINARY_ADD => self.affine(1.0, c, a),
                ffi::BINARY_SUB => self.affine(1.0, -c, a),
                ffi::BINARY_MUL => self.affine(c, 0.0, a),
                ffi::BINARY_DIV if c != 0.0 => self.affine(1.0 / c, 0.0, a),
                ffi::BINARY_MAX => self.eltwise(Function::new(ffi::ELTWISE_CLIP, c, f32::MAX), a),
                ffi::BINARY_MIN => self.eltwise(Function::new(ffi::ELTWISE_CLIP, f32::MIN, c), a),
                _ => return None,
            });
        }
        if let Some(c) = self.scalar(a)
            && self.shape(b) == shape
        {
            return match alg {
                ffi::BINARY_SUB => Some(self.affine(-1.0, c, b)),
                ffi::BINARY_DIV => Some(self.eltwise(Function::new(ffi::ELTWISE_POW, c, -1.0), b)),
                ffi::BINARY_ADD | ffi::BINARY_MUL | ffi::BINARY_MAX | ffi::BINARY_MIN => {
                    self.with_number(alg, b, a, shape)
                }
                _ => None,
            };
        }
        None
    }

    /// `x g(x)` with a sigmoid, a hard sigmoid, or the tanh of mish.
    fn gated(&mut self, x: Val, gate: Val) -> Option<Val> {
        let (function, inner) = self.function(gate)?;
        let (factor, core) = self.scaled(inner);
        let whole = match function.alg {
            ffi::ELTWISE_HARDSIGMOID if inner == x => {
                Function::new(ffi::ELTWISE_HARDSWISH, function.alpha, function.beta)
            }
            ffi::ELTWISE_LOGISTIC if inner == x => Function::new(ffi::ELTWISE_SWISH, 1.0, 0.0),
            ffi::ELTWISE_LOGISTIC if core == x => Function::new(ffi::ELTWISE_SWISH, factor, 0.0),
            ffi::ELTWISE_TANH => {
                let (_, log) = self.function_of(inner, ffi::ELTWISE_LOG)?;
                let (1.0, 1.0, exp) = self.linear(log) else { return None };
                let (_, core) = self.function_of(exp, ffi::ELTWISE_EXP)?;
                if core != x {
                    return None;
                }
                Function::plain(ffi::ELTWISE_MISH)
            }
            _ => return None,
        };
        Some(self.eltwise(whole, x))
    }

    /// `(k x) (s + s erf(x / sqrt 2)) = 2 k s gelu(x)`.
    fn gelu_erf(&mut self, outer: Val, gate: Val) -> Option<Val> {
        let (s, t, erf) = self.linear(gate);
        let inner = self.producer(erf).filter(|op| op.kind == Kind::Erf)?.inputs[0];
        let (root, x) = self.scaled(inner);
        let factor = self.multiple_of(outer, x)?;
        if !near(s, t) || !near(root, std::f32::consts::FRAC_1_SQRT_2) {
            return None;
        }
        let gelu = self.eltwise(Function::plain(ffi::ELTWISE_GELU_ERF), x);
        Some(self.affine(2.0 * factor * s, 0.0, gelu))
    }

    /// `(k x) (s + s tanh(sqrt(2 / pi) (x + 0.044715 x^3))) = 2 k s gelu(x)`.
    fn gelu_tanh(&mut self, outer: Val, gate: Val) -> Option<Val> {
        let (s, t, tanh) = self.linear(gate);
        let (_, inner) = self.function_of(tanh, ffi::ELTWISE_TANH)?;
        let (root, sum) = self.scaled(inner);
        if !near(s, t) || !near(root, (2.0 / std::f32::consts::PI).sqrt()) {
            return None;
        }
        let (a, b) = self.summands(sum)?;
        let x = [(a, b), (b, a)].into_iter().find_map(|(x, rest)| {
            let (factor, cube) = self.scaled(rest);
            (near(factor, 0.044_715) && self.is_cube(cube, x)).then_some(x)
        })?;
        let factor = self.multiple_of(outer, x)?;
        let gelu = self.eltwise(Function::plain(ffi::ELTWISE_GELU_TANH), x);
        Some(self.affine(2.0 * factor * s, 0.0, gelu))
    }

    /// `k` where `value` is `k x`.
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
