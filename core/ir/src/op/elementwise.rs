//! Elementwise unary operators: each output element depends on the input element at the same index.

use super::scalar::{BLOCK, Reader, Writer};
use super::{AttrDef, AttrKind, Cost, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::codes;
use crate::ir::Type;
use crate::op::facts::{LayoutRule, Properties};
use crate::tensor::small::{self, PowerRounding};
use crate::tensor::{DType, TensorView, TensorViewMut};

/// Returns the type of the argument.
pub(super) fn same_as_input(relation: &Relation<'_>) -> TypeResult {
    relation.tensor(0)?;
    Ok(relation.args[0].clone())
}

/// Returns the type of the argument with its element type replaced by `dtype`.
pub(super) fn with_element_type(relation: &Relation<'_>, dtype: DType) -> TypeResult {
    Ok(Type::tensor_of(dtype, relation.tensor(0)?.dims.iter().cloned()))
}

/// Counts one operation per output element.
pub(super) fn one_flop_per_element(cost: &Cost<'_>) -> u64 {
    cost.ret_len()
}

/// Computes each element in binary64 and rounds once.
pub(super) fn map(inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], f: &dyn Fn(f64) -> f64) {
    let (x, mut out) = (Reader::new(&inputs[0]), Writer::new(&mut outputs[0]));
    let mut values = [0.0; BLOCK];
    for i in (0..out.len()).step_by(BLOCK) {
        let values = &mut values[..BLOCK.min(out.len() - i)];
        x.floats(i, 1, values);
        values.iter_mut().for_each(|value| *value = f(*value));
        out.set_floats(i, values);
    }
}

/// Computes each element exactly: floats in binary64, integers in 128 bits, wrapped to their type.
pub(super) fn map_exact(
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
    float: &dyn Fn(f64) -> f64,
    int: &dyn Fn(i128) -> i128,
) {
    let (x, mut out) = (Reader::new(&inputs[0]), Writer::new(&mut outputs[0]));
    for i in 0..out.len() {
        if x.is_float() {
            out.set_float(i, float(x.float(i)));
        } else {
            out.set_int(i, int(x.int(i)));
        }
    }
}

macro_rules! unary {
    ($($name:literal, $properties:expr, $doc:literal, $run:expr;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["data"],
            pattern: OpPattern::ElemWise,
            relation: same_as_input,
            reference: Some(|_, inputs, outputs| { ($run)(inputs, outputs); Ok(()) }),
            flops: one_flop_per_element,
            properties: $properties,
        }
    )*};
}

/// Functions of a real number, with the error bounds in units in the last place that OpenCL requires of every
/// implementation (The OpenCL C Specification 3.0, section "Relative Error as ULPs", full profile). An integer is
/// converted to binary64, and the result is truncated.
macro_rules! real {
    ($($name:literal, $ulps:literal, $doc:literal, $f:expr;)*) => {
        unary! { $($name, Properties::POINTWISE.ulps($ulps), $doc, |inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]| map(inputs, outputs, &$f);)* }
    };
}

/// Functions that are also defined on integers: the float formula, then the integer formula.
macro_rules! exact {
    ($($name:literal, $doc:literal, $f:expr, $g:expr;)*) => {
        unary! { $($name, Properties::POINTWISE, $doc, |inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]| map_exact(inputs, outputs, &$f, &$g);)* }
    };
}

real! {
    "exp", 3.0, "e to the power of x.", f64::exp;
    "fast_exp", 3.0, "exp(x), for which Relay has a faster approximation.", f64::exp;
    "fast_tanh", 5.0, "tanh(x), for which Relay has a faster approximation.", f64::tanh;
    "fast_erf", 16.0, "erf(x), for which Relay has a faster approximation.", libm::erf;
    "log", 3.0, "Natural logarithm of x; NaN below zero.", f64::ln;
    "log2", 3.0, "Logarithm of x to base 2.", f64::log2;
    "log10", 3.0, "Logarithm of x to base 10.", f64::log10;
    "sqrt", 3.0, "Square root of x; NaN below zero.", f64::sqrt;
    "rsqrt", 3.0, "1 / sqrt(x).", |x: f64| 1.0 / x.sqrt();
    "erf", 16.0, "Error function: 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.", libm::erf;
    "sigmoid", 8.0, "1 / (1 + exp(-x)).", |x: f64| 1.0 / (1.0 + (-x).exp());
    "sin", 4.0, "Sine of x, in radians.", f64::sin;
    "cos", 4.0, "Cosine of x, in radians.", f64::cos;
    "tan", 5.0, "Tangent of x, in radians.", f64::tan;
    "asin", 4.0, "Arc sine of x, in [-pi/2, pi/2]; NaN outside [-1, 1].", f64::asin;
    "acos", 4.0, "Arc cosine of x, in [0, pi]; NaN outside [-1, 1].", f64::acos;
    "atan", 5.0, "Arc tangent of x, in [-pi/2, pi/2].", f64::atan;
    "sinh", 4.0, "Hyperbolic sine of x.", f64::sinh;
    "cosh", 4.0, "Hyperbolic cosine of x.", f64::cosh;
    "tanh", 5.0, "Hyperbolic tangent of x.", f64::tanh;
    "asinh", 4.0, "Inverse hyperbolic sine of x.", libm::asinh;
    "acosh", 4.0, "Inverse hyperbolic cosine of x; NaN below 1.",
        |x: f64| if x < 1.0 { f64::NAN } else { libm::acosh(x) };
    "atanh", 5.0, "Inverse hyperbolic tangent of x; NaN outside [-1, 1].", libm::atanh;
}

exact! {
    "nn.relu", "max(x, 0); NaN stays NaN.", |x: f64| if x < 0.0 { 0.0 } else { x }, |x: i128| x.max(0);
    "abs", "Absolute value of x; the minimum of an integer type is mapped to itself.", f64::abs, i128::abs;
    "negative", "-x; the minimum of an integer type is mapped to itself.", |x: f64| -x, |x: i128| -x;
    "sign", "-1, 0 or 1; zero and NaN are returned unchanged.", |x: f64| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { x }, i128::signum;
    "floor", "Largest integer not greater than x.", f64::floor, |x: i128| x;
    "ceil", "Smallest integer not less than x.", f64::ceil, |x: i128| x;
    "round", "Nearest integer, halves away from zero.", f64::round, |x: i128| x;
    "trunc", "x rounded toward zero.", f64::trunc, |x: i128| x;
    "logical_not", "1 where x is zero, 0 elsewhere.", |x: f64| f64::from(x == 0.0), |x: i128| i128::from(x == 0);
}

unary! {
    "copy", Properties { layout: LayoutRule::Pointwise, ..Properties::VIEW }, "x itself.", copy;
}

/// Copies the bytes of the first input.
pub(super) fn copy(inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) {
    outputs[0].data.copy_from_slice(inputs[0].data);
}

macro_rules! classify {
    ($($name:literal, $doc:literal, $f:expr;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["data"],
            pattern: OpPattern::ElemWise,
            relation: |relation| with_element_type(relation, DType::Bool),
            reference: Some(|_, inputs, outputs| {
                let values = inputs[0].to_f64s();
                for (out, x) in outputs[0].data.iter_mut().zip(values) {
                    *out = u8::from(($f)(x));
                }
                Ok(())
            }),
            flops: one_flop_per_element,
            properties: Properties::POINTWISE,
        }
    )*};
}

classify! {
    "isnan", "True where x is NaN; false for integers.", f64::is_nan;
    "isinf", "True where x is plus or minus infinity; false for integers.", f64::is_infinite;
    "isfinite", "True where x is neither infinite nor NaN; true for integers.", f64::is_finite;
}

operator! {
    name: "bitwise_not",
    doc: "Bitwise complement of an integer; the logical not of a Boolean.",
    inputs: &["data"],
    pattern: OpPattern::ElemWise,
    relation: |relation| {
        let dtype = relation.tensor(0)?.dtype;
        if dtype.is_float() {
            return Err(relation.mismatch(format!("expected integers or Booleans, found {dtype}")));
        }
        same_as_input(relation)
    },
    reference: Some(|_, inputs, outputs| {
        let is_boolean = inputs[0].dtype == DType::Bool;
        map_exact(inputs, outputs, &|x| x, &|x| if is_boolean { i128::from(x == 0) } else { !x });
        Ok(())
    }),
    flops: one_flop_per_element,
    properties: Properties::POINTWISE,
}

operator! {
    name: "clip",
    doc: "min(max(x, a_min), a_max); NaN stays NaN.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("a_min", AttrKind::Float, Default::Required, "lower bound"),
        AttrDef::new("a_max", AttrKind::Float, Default::Required, "upper bound"),
    ],
    pattern: OpPattern::ElemWise,
    relation: same_as_input,
    reference: Some(clip),
    flops: one_flop_per_element,
    properties: Properties::POINTWISE,
}

fn clip(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (low, high) = (params.float("a_min"), params.float("a_max"));
    let clamp = |x: f64| {
        if x < low {
            low
        } else if x > high {
            high
        } else {
            x
        }
    };
    // An integer within the bounds is unchanged; an integer outside is clamped to the nearer bound, which is truncated
    // to an integer.
    map_exact(inputs, outputs, &clamp, &|x| {
        let (real, bound) = (x as f64, clamp(x as f64));
        if bound == real { x } else { bound as i128 }
    });
    Ok(())
}

operator! {
    name: "nn.leaky_relu",
    doc: "x where x is positive, alpha * x elsewhere.",
    inputs: &["data"],
    attrs: &[AttrDef::new("alpha", AttrKind::Float, Default::Float(0.25), "slope for negative x")],
    pattern: OpPattern::ElemWise,
    relation: same_as_input,
    reference: Some(|params, inputs, outputs| {
        let alpha = params.float("alpha");
        map(inputs, outputs, &|x| if x > 0.0 { x } else { alpha * x });
        Ok(())
    }),
    flops: one_flop_per_element,
    properties: Properties::POINTWISE.ulps(1.0),
}

operator! {
    name: "cast",
    doc: "x converted to another element type. Integers wrap. A float is rounded to the nearest float, or truncated \
          to an integer, which saturates (NaN becomes 0) or, below 8 bits, wraps. A Boolean is true for every \
          nonzero value.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("dtype", AttrKind::DType, Default::Required, "element type of the result"),
        AttrDef::new("saturate", AttrKind::Bool, Default::Bool(true),
            "true to saturate to the range of an 8-bit float; false for infinity, or NaN in a type without infinities"),
        AttrDef::new("round_mode", AttrKind::Str, Default::Str("up"),
            "rounding to float8_e8m0fnu: up, down or nearest"),
    ],
    pattern: OpPattern::ElemWise,
    relation: |relation| {
        let dtype = relation.params.dtype("dtype");
        let missing_dtype = || relation.error(codes::types::BAD_ATTRIBUTE, "dtype: expected an element type, found \"\"");
        if rounding(&relation.params).is_none() {
            let round_mode = relation.params.string("round_mode");
            let message = format!("round_mode: expected up, down or nearest, found \"{round_mode}\"");
            return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
        }
        with_element_type(relation, dtype.ok_or_else(missing_dtype)?)
    },
    reference: Some(cast),
    properties: Properties::POINTWISE,
}

operator! {
    name: "reinterpret",
    doc: "Bits of x reinterpreted as an element type of the same width.",
    inputs: &["data"],
    attrs: &[AttrDef::new("dtype", AttrKind::DType, Default::Required, "element type of the result")],
    pattern: OpPattern::ElemWise,
    relation: |relation| {
        let source = relation.tensor(0)?.dtype;
        let missing_dtype = || relation.error(codes::types::BAD_ATTRIBUTE, "dtype: expected an element type, found \"\"");
        let target = relation.params.dtype("dtype").ok_or_else(missing_dtype)?;
        if source.bits() != target.bits() {
            let message = format!("dtype: expected a type of {} bits, found {target}", source.bits());
            return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
        }
        with_element_type(relation, target)
    },
    reference: Some(reinterpret),
    properties: Properties::POINTWISE,
}

/// Copies the bits. A Boolean is normalized, and an integer of fewer than 8 bits is sign- or zero-extended to a byte.
fn reinterpret(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let dtype = outputs[0].dtype;
    let unused_bits = 8usize.saturating_sub(dtype.bits());
    for (out, &byte) in outputs[0].data.iter_mut().zip(inputs[0].data) {
        let shifted_byte = byte << unused_bits;
        *out = match dtype {
            DType::Bool => u8::from(byte != 0),
            DType::I4 | DType::I2 => (shifted_byte as i8 >> unused_bits) as u8,
            _ => shifted_byte >> unused_bits,
        };
    }
    Ok(())
}

operator! {
    name: "cast_like",
    doc: "data cast to the element type of dtype_like.",
    inputs: &["data", "dtype_like"],
    pattern: OpPattern::ElemWise,
    relation: |relation| with_element_type(relation, relation.tensor(1)?.dtype),
    reference: Some(cast),
    properties: Properties::POINTWISE,
}

/// Returns the power-of-two rounding in attribute `round_mode`.
fn rounding(params: &Params<'_>) -> Option<PowerRounding> {
    match params.string("round_mode").as_str() {
        "" | "up" => Some(PowerRounding::Up),
        "down" => Some(PowerRounding::Down),
        "nearest" => Some(PowerRounding::Nearest),
        _ => None,
    }
}

fn cast(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let dtype = outputs[0].dtype;
    if dtype.is_small_float() {
        let x = Reader::new(&inputs[0]);
        let rounding = rounding(&params).ok_or_else(|| {
            format!("round_mode: expected up, down or nearest, found \"{}\"", params.string("round_mode"))
        })?;
        let is_saturating = params.def().attr("saturate").is_none() || params.bool("saturate");
        for (i, out) in outputs[0].data.iter_mut().enumerate() {
            let code = small::encode(dtype, x.float(i), rounding, is_saturating);
            *out = code.ok_or_else(|| format!("expected a small floating-point type, found {dtype}"))?;
        }
        return Ok(());
    }
    let (x, mut out) = (Reader::new(&inputs[0]), Writer::new(&mut outputs[0]));
    for i in 0..out.len() {
        out.convert(i, &x, i);
    }
    Ok(())
}
