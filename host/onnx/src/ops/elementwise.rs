//! Elementwise operators: arithmetic, comparison, logic, activations, casts.

use super::{Node, Outputs, Result, Row, attrs, single_output, text};
use crate::tensor;
use byoc_ir::ir::{Dim, ExprId};
use byoc_ir::tensor::{DType, Tensor};
use std::sync::Arc;

pub const ROWS: &[Row] = &[
    ("Abs", 1, |n| unary(n, "abs")),
    ("Acos", 7, |n| unary(n, "acos")),
    ("Acosh", 9, |n| unary(n, "acosh")),
    ("Add", 7, |n| binary(n, "add")),
    ("And", 7, |n| binary(n, "logical_and")),
    ("Asin", 7, |n| unary(n, "asin")),
    ("Asinh", 9, |n| unary(n, "asinh")),
    ("Atan", 7, |n| unary(n, "atan")),
    ("Atanh", 9, |n| unary(n, "atanh")),
    ("BitShift", 11, bit_shift),
    ("BitwiseAnd", 18, |n| binary(n, "bitwise_and")),
    ("BitwiseNot", 18, |n| unary(n, "bitwise_not")),
    ("BitwiseOr", 18, |n| binary(n, "bitwise_or")),
    ("BitwiseXor", 18, |n| binary(n, "bitwise_xor")),
    ("BitCast", 26, |n| {
        let number = n.int_attr("to", 0)?;
        let number = i32::try_from(number).unwrap_or(0);
        let dtype = tensor::dtype(number).ok_or_else(|| {
            n.invalid_node(format!("attribute to: unsupported element type {}", tensor::type_name(number)))
        })?;
        let x = n.input(0)?;
        single_output(n.op("reinterpret", &[x], attrs![dtype: dtype])?)
    }),
    ("Cast", 6, cast),
    ("CastLike", 15, cast_like),
    ("Ceil", 1, |n| unary(n, "ceil")),
    ("Celu", 12, |n| {
        let alpha = n.float_attr("alpha", 1.0)?;
        float32_throughout(n, |n, x| celu(n, x, alpha))
    }),
    ("Clip", 1, clip_6),
    ("Clip", 11, clip_11),
    ("Cos", 7, |n| unary(n, "cos")),
    ("Cosh", 9, |n| unary(n, "cosh")),
    ("Div", 7, |n| binary(n, "divide")),
    ("Dropout", 7, dropout),
    ("Elu", 1, |n| {
        let alpha = n.float_attr("alpha", 1.0)?;
        float32_throughout(n, |n, x| exponential_below_zero(n, x, alpha))
    }),
    ("Equal", 7, |n| binary(n, "equal")),
    ("Erf", 9, |n| unary(n, "erf")),
    ("Exp", 1, |n| unary(n, "exp")),
    ("Floor", 1, |n| unary(n, "floor")),
    ("Gelu", 20, gelu),
    ("Greater", 7, |n| binary(n, "greater")),
    ("GreaterOrEqual", 12, |n| binary(n, "greater_equal")),
    ("HardSigmoid", 1, |n| {
        let (alpha, beta) = (n.float_attr("alpha", 0.2)?, n.float_attr("beta", 0.5)?);
        let x = n.input(0)?;
        single_output(hard_sigmoid(n, x, alpha, beta)?)
    }),
    ("HardSwish", 14, |n| {
        float32_throughout(n, |n, x| {
            let gate = hard_sigmoid(n, x, 1.0 / 6.0, 0.5)?;
            n.op_without_attrs("multiply", &[x, gate])
        })
    }),
    ("Identity", 1, |n| {
        let x = n.input(0)?;
        single_output(n.forward(x))
    }),
    ("IsInf", 10, is_inf),
    ("IsNaN", 9, |n| unary(n, "isnan")),
    ("LeakyRelu", 1, |n| {
        let alpha = n.float_attr("alpha", 0.01)?;
        let x = n.input(0)?;
        single_output(n.op("nn.leaky_relu", &[x], attrs![alpha: alpha])?)
    }),
    ("Less", 7, |n| binary(n, "less")),
    ("LessOrEqual", 12, |n| binary(n, "less_equal")),
    ("Log", 1, |n| unary(n, "log")),
    ("Max", 1, |n| variadic(n, "maximum")),
    ("Mean", 1, mean),
    ("Min", 1, |n| variadic(n, "minimum")),
    ("Mish", 18, |n| {
        float32_throughout(n, |n, x| {
            let softplus_x = softplus(n, x)?;
            let gate = n.op_without_attrs("tanh", &[softplus_x])?;
            n.op_without_attrs("multiply", &[x, gate])
        })
    }),
    ("Mod", 10, modulo),
    ("Mul", 7, |n| binary(n, "multiply")),
    ("Neg", 1, |n| unary(n, "negative")),
    ("Not", 1, |n| unary(n, "logical_not")),
    ("Or", 7, |n| binary(n, "logical_or")),
    ("PRelu", 7, prelu),
    ("Pow", 7, pow),
    ("Reciprocal", 1, |n| {
        let x = n.input(0)?;
        let one = n.scalar(n.dtype(x)?, 1.0);
        single_output(n.op_without_attrs("divide", &[one, x])?)
    }),
    ("Relu", 1, |n| unary(n, "nn.relu")),
    ("Round", 11, round),
    ("Selu", 1, |n| {
        // Defaults from the specification, rounded to binary32.
        let alpha = n.float_attr("alpha", 1.673_263_2)?;
        let gamma = n.float_attr("gamma", 1.050_701)?;
        float32_throughout(n, |n, x| {
            let elu = exponential_below_zero(n, x, alpha)?;
            n.with_scalar("multiply", elu, gamma)
        })
    }),
    ("Shrink", 9, shrink),
    ("Sigmoid", 1, |n| unary(n, "sigmoid")),
    ("Sign", 9, |n| unary(n, "sign")),
    ("Sin", 7, |n| unary(n, "sin")),
    ("Sinh", 9, |n| unary(n, "sinh")),
    ("Softplus", 1, |n| float32_throughout(n, softplus)),
    ("Softsign", 1, |n| {
        float32_throughout(n, |n, x| {
            let size = n.op_without_attrs("abs", &[x])?;
            let size_plus_one = n.with_scalar("add", size, 1.0)?;
            n.op_without_attrs("divide", &[x, size_plus_one])
        })
    }),
    ("Sqrt", 1, |n| unary(n, "sqrt")),
    ("Sub", 7, |n| binary(n, "subtract")),
    ("Sum", 1, |n| variadic(n, "add")),
    ("SwiGLU", 28, |n| {
        let (gate, linear) = (n.input(0)?, n.input(1)?);
        let alpha = n.float_attr("alpha", 1.0)?;
        let scaled_gate = if alpha == 1.0 { gate } else { n.with_scalar("multiply", gate, alpha)? };
        let weight = n.op_without_attrs("sigmoid", &[scaled_gate])?;
        let swish = n.op_without_attrs("multiply", &[gate, weight])?;
        single_output(n.op_without_attrs("multiply", &[swish, linear])?)
    }),
    ("Swish", 24, |n| {
        let alpha = n.float_attr("alpha", 1.0)?;
        float32_throughout(n, |n, x| {
            let scaled_x = if alpha == 1.0 { x } else { n.with_scalar("multiply", x, alpha)? };
            let gate = n.op_without_attrs("sigmoid", &[scaled_x])?;
            n.op_without_attrs("multiply", &[x, gate])
        })
    }),
    ("Tan", 7, |n| unary(n, "tan")),
    ("Tanh", 1, |n| unary(n, "tanh")),
    ("ThresholdedRelu", 10, |n| {
        let alpha = n.float_attr("alpha", 1.0)?;
        let x = n.input(0)?;
        let is_above = n.with_scalar("greater", x, alpha)?;
        let zero = n.scalar(n.dtype(x)?, 0.0);
        single_output(n.op_without_attrs("where", &[is_above, x, zero])?)
    }),
    ("Where", 9, |n| {
        let args = [n.input(0)?, n.input(1)?, n.input(2)?];
        single_output(n.op_without_attrs("where", &args)?)
    }),
    ("Xor", 7, |n| binary(n, "logical_xor")),
];

fn unary(n: &mut Node<'_, '_>, op: &str) -> Result<Outputs> {
    let x = n.input(0)?;
    single_output(n.op_without_attrs(op, &[x])?)
}

fn binary(n: &mut Node<'_, '_>, op: &str) -> Result<Outputs> {
    let args = [n.input(0)?, n.input(1)?];
    single_output(n.op_without_attrs(op, &args)?)
}

/// Folds all inputs from left to right with a binary operator.
fn variadic(n: &mut Node<'_, '_>, op: &str) -> Result<Outputs> {
    let inputs = n.all_inputs()?;
    let (&first_operand, other_operands) =
        inputs.split_first().ok_or_else(|| n.invalid_node("expected at least one input, found none"))?;
    if other_operands.is_empty() {
        return single_output(n.forward(first_operand));
    }
    single_output(other_operands.iter().try_fold(first_operand, |sum, &x| n.op_without_attrs(op, &[sum, x]))?)
}

fn mean(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let count = n.all_inputs()?.len();
    let sum = variadic(n, "add")?[0];
    single_output(n.with_scalar("divide", sum, count as f64)?)
}

fn bit_shift(n: &mut Node<'_, '_>) -> Result<Outputs> {
    match n.str_attr("direction", "")?.as_str() {
        "LEFT" => shift(n, "left_shift"),
        "RIGHT" => shift(n, "right_shift"),
        other => Err(n.invalid_node(format!("attribute direction: expected LEFT or RIGHT, found \"{other}\""))),
    }
}

/// Converts a bit shift. A negative amount shifts out all bits, like an amount of at least the bit width.
fn shift(n: &mut Node<'_, '_>, op: &str) -> Result<Outputs> {
    let (data, mut shift_amount) = (n.input(0)?, n.input(1)?);
    let dtype = n.dtype(shift_amount)?;
    if dtype.is_signed_int() {
        let (zero, bit_width) = (n.scalar(dtype, 0.0), n.scalar(dtype, dtype.bits() as f64));
        let is_negative = n.op_without_attrs("less", &[shift_amount, zero])?;
        shift_amount = n.op_without_attrs("where", &[is_negative, bit_width, shift_amount])?;
    }
    single_output(n.op_without_attrs(op, &[data, shift_amount])?)
}

pub(super) fn cast(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let dtype_number = n.int_attr("to", 0)?;
    let dtype_number = i32::try_from(dtype_number).unwrap_or(0);
    if dtype_number == tensor::STRING {
        return single_output(text::to_strings(n)?);
    }
    let dtype = tensor::dtype(dtype_number).ok_or_else(|| {
        n.invalid_node(format!("attribute to: unsupported element type {}", tensor::type_name(dtype_number)))
    })?;
    let x = n.input(0)?;
    single_output(cast_to(n, x, dtype)?)
}

/// Casts `x` as the attributes `saturate` and `round_mode` of the node specify.
pub(super) fn cast_to(n: &mut Node<'_, '_>, x: ExprId, dtype: DType) -> Result<ExprId> {
    if n.has_strings(x) {
        return text::to_numbers(n, dtype);
    }
    if n.dtype(x)? == dtype {
        return Ok(n.forward(x));
    }
    let (saturate, rounding) = (n.int_attr("saturate", 1)? != 0, n.str_attr("round_mode", "up")?);
    if !dtype.is_small_float() || (saturate && rounding == "up") {
        return n.cast(x, dtype);
    }
    n.op("cast", &[x], attrs![dtype: dtype, saturate: saturate, round_mode: rounding.as_str()])
}

pub(super) fn cast_like(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (x, template) = (n.input(0)?, n.input(1)?);
    if n.has_strings(template) {
        return single_output(text::to_strings(n)?);
    }
    let dtype = n.dtype(template)?;
    single_output(cast_to(n, x, dtype)?)
}

fn clip_6(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (min, max) = (n.float_attr("min", f32::MIN)?, n.float_attr("max", f32::MAX)?);
    let x = n.input(0)?;
    single_output(clip(n, x, min, max)?)
}

/// Computes min(max(x, min), max), which is `max` if `min > max`; Relay's `clip` could return either bound.
fn clip(n: &mut Node<'_, '_>, x: ExprId, min: f64, max: f64) -> Result<ExprId> {
    n.op("clip", &[x], attrs![a_min: min.min(max), a_max: max])
}

fn clip_11(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let x = n.input(0)?;
    let dtype = n.dtype(x)?;
    let bounds = [n.optional_input(1), n.optional_input(2)];
    let mut constant_bounds = [f64::NEG_INFINITY, f64::INFINITY];
    let mut are_bounds_known = dtype.is_float();
    for (bound, value) in bounds.iter().zip(&mut constant_bounds) {
        if let Some(bound) = *bound {
            match n.constant_value(bound).filter(|t| t.len() == 1) {
                Some(tensor) => *value = tensor.view().to_f64s()[0],
                None => are_bounds_known = false,
            }
        }
    }
    if bounds == [None, None] {
        return single_output(n.forward(x));
    }
    if are_bounds_known {
        // A missing bound becomes the limit of float32 instead of an infinity, which not every text format for modules
        // can represent.
        let (min, max) = (constant_bounds[0].max(f64::from(f32::MIN)), constant_bounds[1].min(f64::from(f32::MAX)));
        let (min, max) = if dtype == DType::F64 { (constant_bounds[0], constant_bounds[1]) } else { (min, max) };
        return single_output(clip(n, x, min, max)?);
    }
    let mut y = x;
    if let Some(min) = bounds[0] {
        y = n.op_without_attrs("maximum", &[y, min])?;
    }
    if let Some(max) = bounds[1] {
        y = n.op_without_attrs("minimum", &[y, max])?;
    }
    single_output(y)
}

/// Converts Dropout: the data unchanged, or in training mode with random elements set to zero. The mode may be known in
/// the run only.
pub(super) fn dropout(n: &mut Node<'_, '_>) -> Result<Outputs> {
    if n.opset >= 12
        && let Some(mode) = n.optional_input(2)
    {
        let is_zero =
            |tensor: Option<Arc<Tensor>>| tensor.is_some_and(|t| t.view().to_f64s().iter().all(|&v| v == 0.0));
        let is_inference = is_zero(n.constant_value(mode));
        let ratio = n.optional_input(1);
        if !is_inference && !ratio.is_some_and(|ratio| is_zero(n.constant_value(ratio))) {
            return dropout_in_training(n, mode, ratio);
        }
    }
    let x = n.input(0)?;
    let y = n.forward(x);
    if !n.has_output(1) {
        return single_output(y);
    }
    let dims = n.dims(x)?;
    // Before opset 10, the mask had the element type of the data.
    let dtype = if n.opset >= 10 { DType::Bool } else { n.dtype(x)? };
    let one_tensor = n.scalar(dtype, 1.0);
    let mask = n.broadcast_to(one_tensor, &dims)?;
    Ok(vec![y, mask])
}

/// Sets elements to zero with the probability `ratio`, and divides the others by its complement, if `mode` is true.
fn dropout_in_training(n: &mut Node<'_, '_>, mode: ExprId, ratio: Option<ExprId>) -> Result<Outputs> {
    let x = n.input(0)?;
    let dtype = n.dtype(x)?;
    let data = n.widen(x)?;
    let computed_type = n.dtype(data)?;
    let ratio = match ratio {
        Some(ratio) => {
            let ratio = n.reshape(ratio, &[])?;
            n.cast(ratio, computed_type)?
        }
        None => n.scalar(computed_type, 0.5),
    };
    let numbers = super::random::uniform_like(n, data, computed_type, 0)?;
    let is_kept = n.op_without_attrs("greater_equal", &[numbers, ratio])?;
    let is_inference = {
        let mode = n.reshape(mode, &[])?;
        let mode = n.cast(mode, DType::Bool)?;
        n.op_without_attrs("logical_not", &[mode])?
    };
    let one = n.scalar(computed_type, 1.0);
    let kept_share = n.op_without_attrs("subtract", &[one, ratio])?;
    let scaled = n.op_without_attrs("divide", &[data, kept_share])?;
    let zero = n.scalar(computed_type, 0.0);
    let trained = n.op_without_attrs("where", &[is_kept, scaled, zero])?;
    let y = n.op_without_attrs("where", &[is_inference, data, trained])?;
    let mask = n.op_without_attrs("logical_or", &[is_kept, is_inference])?;
    Ok(vec![n.cast(y, dtype)?, mask])
}

/// Converts a unary operator to several calls, in float32 for 16-bit floats, so that only the result is rounded.
fn float32_throughout(
    n: &mut Node<'_, '_>,
    compute: impl FnOnce(&mut Node<'_, '_>, ExprId) -> Result<ExprId>,
) -> Result<Outputs> {
    let x = n.input(0)?;
    let wide_x = n.widen(x)?;
    let result = compute(n, wide_x)?;
    single_output(n.cast(result, n.dtype(x)?)?)
}

/// Computes x where x > 0, and alpha * (exp(x) - 1) elsewhere.
fn exponential_below_zero(n: &mut Node<'_, '_>, x: ExprId, alpha: f64) -> Result<ExprId> {
    let dtype = n.dtype(x)?;
    let positive_part = n.op_without_attrs("nn.relu", &[x])?;
    let zero = n.scalar(dtype, 0.0);
    // The argument of exp is min(x, 0), so that exp does not overflow for positive elements.
    let negative_part = n.op_without_attrs("minimum", &[x, zero])?;
    let power = n.op_without_attrs("exp", &[negative_part])?;
    let power_minus_one = n.with_scalar("subtract", power, 1.0)?;
    let negative_branch = n.with_scalar("multiply", power_minus_one, alpha)?;
    n.op_without_attrs("add", &[positive_part, negative_branch])
}

/// Computes max(x, 0) + min(0, alpha * (exp(x / alpha) - 1)).
fn celu(n: &mut Node<'_, '_>, x: ExprId, alpha: f64) -> Result<ExprId> {
    let positive_part = n.op_without_attrs("nn.relu", &[x])?;
    let scaled_x = n.with_scalar("divide", x, alpha)?;
    let power = n.op_without_attrs("exp", &[scaled_x])?;
    let power_minus_one = n.with_scalar("subtract", power, 1.0)?;
    let scaled_power = n.with_scalar("multiply", power_minus_one, alpha)?;
    let zero = n.scalar(n.dtype(x)?, 0.0);
    let negative_branch = n.op_without_attrs("minimum", &[scaled_power, zero])?;
    n.op_without_attrs("add", &[positive_part, negative_branch])
}

/// Computes x / 2 * (1 + erf(x / sqrt(2))), or its tanh approximation. 16-bit floats are computed in float32.
fn gelu(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let is_approximate = match n.str_attr("approximate", "none")?.as_str() {
        "none" => false,
        "tanh" => true,
        other => {
            return Err(n.invalid_node(format!("attribute approximate: expected none or tanh, found \"{other}\"")));
        }
    };
    float32_throughout(n, |n, x| gelu_of(n, x, is_approximate))
}

/// Computes x / 2 * (1 + erf(x / sqrt(2))), or its tanh approximation.
pub(super) fn gelu_of(n: &mut Node<'_, '_>, x: ExprId, is_approximate: bool) -> Result<ExprId> {
    let inner = if is_approximate {
        let square = n.op_without_attrs("multiply", &[x, x])?;
        let cube = n.op_without_attrs("multiply", &[square, x])?;
        let cubic_term = n.with_scalar("multiply", cube, 0.044715)?;
        let sum = n.op_without_attrs("add", &[x, cubic_term])?;
        let scaled_sum = n.with_scalar("multiply", sum, (2.0 / std::f64::consts::PI).sqrt())?;
        n.op_without_attrs("tanh", &[scaled_sum])?
    } else {
        let scaled_x = n.with_scalar("divide", x, std::f64::consts::SQRT_2)?;
        n.op_without_attrs("erf", &[scaled_x])?
    };
    let gate = n.with_scalar("add", inner, 1.0)?;
    let product = n.op_without_attrs("multiply", &[x, gate])?;
    n.with_scalar("multiply", product, 0.5)
}

/// Computes max(0, min(1, alpha * x + beta)).
pub(super) fn hard_sigmoid(n: &mut Node<'_, '_>, x: ExprId, alpha: f64, beta: f64) -> Result<ExprId> {
    let scaled_x = n.with_scalar("multiply", x, alpha)?;
    let shifted_x = n.with_scalar("add", scaled_x, beta)?;
    n.op("clip", &[shifted_x], attrs![a_min: 0.0, a_max: 1.0])
}

fn is_inf(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (detect_negative, detect_positive) = (n.int_attr("detect_negative", 1)?, n.int_attr("detect_positive", 1)?);
    let x = n.input(0)?;
    let is_infinite = n.op_without_attrs("isinf", &[x])?;
    let active_sides = match (detect_negative != 0, detect_positive != 0) {
        (true, true) => return single_output(is_infinite),
        (true, false) => n.with_scalar("less", x, 0.0)?,
        (false, true) => n.with_scalar("greater", x, 0.0)?,
        (false, false) => {
            let zeros = n.op_without_attrs("zeros_like", &[is_infinite])?;
            return single_output(zeros);
        }
    };
    single_output(n.op_without_attrs("logical_and", &[is_infinite, active_sides])?)
}

/// Converts Mod: the result has the sign of the divisor if `fmod` is 0, and the sign of the dividend if `fmod` is 1.
fn modulo(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let op = if n.int_attr("fmod", 0)? == 0 { "floor_mod" } else { "mod" };
    binary(n, op)
}

/// Converts PRelu. The slope broadcasts to the data, aligned at the last axis.
pub(super) fn prelu(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (x, slope) = (n.input(0)?, n.input(1)?);
    let (dims, slopes) = (n.dims(x)?, n.dims(slope)?);
    // A slope with one element per channel maps to `nn.prelu`.
    if let Some(channels) = dims.get(1).and_then(Dim::fixed) {
        let is_per_channel =
            slopes.len() + 1 == dims.len() && slopes[0] == dims[1] && slopes[1..].iter().all(|d| *d == Dim::Fixed(1));
        if is_per_channel && channels > 0 {
            let alpha = n.reshape(slope, &[channels])?;
            return single_output(n.op("nn.prelu", &[x, alpha], attrs![axis: 1])?);
        }
    }
    let zero = n.scalar(n.dtype(x)?, 0.0);
    let is_negative = n.op_without_attrs("less", &[x, zero])?;
    let scaled_x = n.op_without_attrs("multiply", &[x, slope])?;
    single_output(n.op_without_attrs("where", &[is_negative, scaled_x, x])?)
}

/// Converts Pow; the result has the element type of the base.
fn pow(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (base, exponent) = (n.input(0)?, n.input(1)?);
    let (dtype, other) = (n.dtype(base)?, n.dtype(exponent)?);
    if dtype == other {
        return binary(n, "power");
    }
    if dtype.is_float() || !other.is_float() {
        let exponent = n.cast(exponent, dtype)?;
        return single_output(n.op_without_attrs("power", &[base, exponent])?);
    }
    // The power is computed in float64, because an exponent type narrower than float64 may not represent the integer
    // base exactly.
    let (wide_base, exponent) = (n.cast(base, DType::F64)?, n.cast(exponent, DType::F64)?);
    let power = n.op_without_attrs("power", &[wide_base, exponent])?;
    single_output(n.cast(power, dtype)?)
}

fn round(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let x = n.input(0)?;
    single_output(round_half_to_even(n, x)?)
}

/// Rounds to the nearest integer, ties to even; Relay's `round` rounds ties away from zero.
pub fn round_half_to_even(n: &mut Node<'_, '_>, x: ExprId) -> Result<ExprId> {
    let integer_part = n.op_without_attrs("trunc", &[x])?;
    let fraction = n.op_without_attrs("subtract", &[x, integer_part])?;
    let size = n.op_without_attrs("abs", &[fraction])?;
    let is_tie = n.with_scalar("equal", size, 0.5)?;
    let half_x = n.with_scalar("multiply", x, 0.5)?;
    let nearest_half = n.op_without_attrs("round", &[half_x])?;
    let even_integer = n.with_scalar("multiply", nearest_half, 2.0)?;
    let nearest_integer = n.op_without_attrs("round", &[x])?;
    n.op_without_attrs("where", &[is_tie, even_integer, nearest_integer])
}

/// Computes x + bias if x < -lambd, x - bias if x > lambd, and 0 otherwise.
fn shrink(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (bias, lambda) = (n.float_attr("bias", 0.0)?, n.float_attr("lambd", 0.5)?);
    let x = n.input(0)?;
    let dtype = n.dtype(x)?;
    if dtype.is_float() || bias.fract() == 0.0 {
        return single_output(soft_threshold(n, x, bias, lambda)?);
    }
    // A fractional bias is subtracted before the result is rounded toward zero.
    let wide_x = n.cast(x, DType::F64)?;
    let result = soft_threshold(n, wide_x, bias, lambda)?;
    single_output(n.cast(result, dtype)?)
}

fn soft_threshold(n: &mut Node<'_, '_>, x: ExprId, bias: f64, lambda: f64) -> Result<ExprId> {
    let zero = n.scalar(n.dtype(x)?, 0.0);
    let is_below = n.with_scalar("less", x, -lambda)?;
    let is_above = n.with_scalar("greater", x, lambda)?;
    let x_plus_bias = n.with_scalar("add", x, bias)?;
    let x_minus_bias = n.with_scalar("subtract", x, bias)?;
    let positive_branch = n.op_without_attrs("where", &[is_above, x_minus_bias, zero])?;
    n.op_without_attrs("where", &[is_below, x_plus_bias, positive_branch])
}

/// Computes log(1 + exp(x)) as max(x, 0) + log(1 + u) with u = exp(-|x|), which does not overflow. What the sum 1 + u
/// loses by rounding is added to the logarithm, so that small results keep their relative accuracy.
pub fn softplus(n: &mut Node<'_, '_>, x: ExprId) -> Result<ExprId> {
    let positive_part = n.op_without_attrs("nn.relu", &[x])?;
    let size = n.op_without_attrs("abs", &[x])?;
    let negated_size = n.op_without_attrs("negative", &[size])?;
    let power = n.op_without_attrs("exp", &[negated_size])?;
    let one_plus_power = n.with_scalar("add", power, 1.0)?;
    let log = n.op_without_attrs("log", &[one_plus_power])?;
    let rounded_power = n.with_scalar("subtract", one_plus_power, 1.0)?;
    let rounding_error = n.op_without_attrs("subtract", &[power, rounded_power])?;
    let corrected_log = n.op_without_attrs("add", &[log, rounding_error])?;
    n.op_without_attrs("add", &[positive_part, corrected_log])
}
