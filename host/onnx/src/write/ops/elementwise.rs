//! Elementwise operators on floats, comparisons, logic, casts.

use super::super::call::{Call, Outputs, dtype_since, scalar};
use super::super::proto_parts::{float, int, string};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::{Row, integer, single};
use crate::tensor::type_number;
use byoc_ir::ir::{Callee, Expr, ExprId};
use byoc_ir::op;
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("acos", |c| real(c, "Acos")),
    ("acosh", |c| real(c, "Acosh")),
    ("annotation.checkpoint", |c| same(c, "Identity")),
    ("annotation.compiler_begin", |c| same(c, "Identity")),
    ("annotation.compiler_end", |c| same(c, "Identity")),
    ("annotation.stop_fusion", |c| same(c, "Identity")),
    ("asin", |c| real(c, "Asin")),
    ("asinh", |c| real(c, "Asinh")),
    ("atan", |c| real(c, "Atan")),
    ("atanh", |c| real(c, "Atanh")),
    ("cast", cast),
    ("cast_like", cast),
    ("ceil", |c| rounded(c, "Ceil")),
    ("clip", clip),
    ("copy", |c| same(c, "Identity")),
    ("cos", |c| real(c, "Cos")),
    ("cosh", |c| real(c, "Cosh")),
    ("device_copy", |c| same(c, "Identity")),
    ("equal", |c| compare(c, "Equal", false)),
    ("erf", |c| real(c, "Erf")),
    ("exp", |c| real(c, "Exp")),
    ("fast_erf", |c| real(c, "Erf")),
    ("fast_exp", |c| real(c, "Exp")),
    ("fast_tanh", |c| real(c, "Tanh")),
    ("floor", |c| rounded(c, "Floor")),
    ("greater", |c| compare(c, "Greater", false)),
    ("greater_equal", |c| compare(c, "GreaterOrEqual", false)),
    ("isfinite", is_finite),
    ("isinf", |c| classify(c, "IsInf")),
    ("isnan", |c| classify(c, "IsNaN")),
    ("less", |c| compare(c, "Less", false)),
    ("less_equal", |c| compare(c, "LessOrEqual", false)),
    ("log", |c| real(c, "Log")),
    ("log10", |c| logarithm(c, 10f64.ln())),
    ("log2", |c| logarithm(c, 2f64.ln())),
    ("logical_and", |c| logic(c, "And")),
    ("logical_not", |c| logic(c, "Not")),
    ("logical_or", |c| logic(c, "Or")),
    ("logical_xor", |c| logic(c, "Xor")),
    ("nn.leaky_relu", |c| {
        let (x, alpha) = (c.arg(0)?, c.params.float("alpha"));
        single(c.node("LeakyRelu", &[x], vec![float("alpha", alpha)]))
    }),
    ("nn.relu", relu),
    ("not_equal", |c| compare(c, "Equal", true)),
    ("on_device", |c| same(c, "Identity")),
    ("reinterpret", reinterpret),
    ("round", round),
    ("rsqrt", |c| {
        let x = c.arg(0)?;
        let root = c.apply("Sqrt", &[&x]);
        let one = scalar(c.dtype(0)?, 1.0);
        single(c.apply("Div", &[&one, &root]))
    }),
    ("sigmoid", |c| real(c, "Sigmoid")),
    ("sin", |c| real(c, "Sin")),
    ("sinh", |c| real(c, "Sinh")),
    ("sqrt", |c| real(c, "Sqrt")),
    ("tan", |c| real(c, "Tan")),
    ("tanh", |c| real(c, "Tanh")),
    ("trunc", trunc),
    ("where", select),
];

/// Writes an operator that has the same name and meaning in ONNX.
pub fn same(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let x = c.arg(0)?;
    single(c.node(op, &[x], Vec::new()))
}

/// Writes a function of real numbers; integers are converted to float64, and the result is truncated.
fn real(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let (x, dtype) = (c.arg(0)?, c.dtype(0)?);
    if dtype.is_float() {
        return single(c.apply(op, &[&x]));
    }
    let wide = c.cast(&x, dtype, DType::F64)?;
    let result = c.apply(op, &[&wide]);
    single(c.cast(&result, DType::F64, dtype)?)
}

fn rounded(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    if c.dtype(0)?.is_float() { same(c, op) } else { same(c, "Identity") }
}

fn trunc(c: &mut Call<'_, '_>) -> Result<Outputs> {
    if !c.dtype(0)?.is_float() {
        return same(c, "Identity");
    }
    let x = c.arg(0)?;
    let result = integer::truncated(c, &x);
    single(result)
}

/// Rounds halves away from zero; ONNX rounds them to the even integer.
fn round(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let dtype = c.dtype(0)?;
    if !dtype.is_float() {
        return same(c, "Identity");
    }
    let x = c.arg(0)?;
    let size = c.apply("Abs", &[&x]);
    let floor = c.apply("Floor", &[&size]);
    let fraction = c.apply("Sub", &[&size, &floor]);
    let is_up = c.apply("GreaterOrEqual", &[&fraction, &scalar(dtype, 0.5)]);
    let step = c.cast(&is_up, DType::Bool, dtype)?;
    let nearest = c.apply("Add", &[&floor, &step]);
    let sign = c.apply("Sign", &[&x]);
    single(c.apply("Mul", &[&sign, &nearest]))
}

fn relu(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (x, dtype) = (c.arg(0)?, c.dtype(0)?);
    if dtype.is_float() {
        return single(c.apply("Relu", &[&x]));
    }
    single(c.apply("Max", &[&x, &scalar(dtype, 0.0)]))
}

fn logarithm(c: &mut Call<'_, '_>, base: f64) -> Result<Outputs> {
    let (x, dtype) = (c.arg(0)?, c.dtype(0)?);
    let natural = c.apply("Log", &[&x]);
    single(c.apply("Div", &[&natural, &scalar(dtype, base)]))
}

/// Returns the bounds of a clip as operands, absent where they have no effect.
pub fn bounds(dtype: DType, low: f64, high: f64) -> [Operand; 2] {
    let (min, max) = integer::range(dtype).unwrap_or((f64::NEG_INFINITY, f64::INFINITY));
    let bound = |value: f64, is_free: bool| if is_free { Operand::Absent } else { scalar(dtype, value) };
    [bound(low.min(max).trunc_if(dtype), low <= min), bound(high.max(min).trunc_if(dtype), high >= max)]
}

trait TruncIf {
    fn trunc_if(self, dtype: DType) -> f64;
}

impl TruncIf for f64 {
    /// Truncates the bound of integers.
    fn trunc_if(self, dtype: DType) -> f64 {
        if dtype.is_float() { self } else { self.trunc() }
    }
}

fn clip(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (x, dtype) = (c.arg(0)?, c.dtype(0)?);
    let [low, high] = bounds(dtype, c.params.float("a_min"), c.params.float("a_max"));
    single(c.node("Clip", &[x, low, high], Vec::new()))
}

/// Casts a value to a Boolean: true for every nonzero value.
pub fn to_bool(c: &mut Call<'_, '_>, i: usize) -> Result<Operand> {
    let (x, dtype) = (c.arg(i)?, c.dtype(i)?);
    c.cast(&x, dtype, DType::Bool)
}

fn logic(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let operands = (0..c.args.len()).map(|i| to_bool(c, i)).collect::<Result<Vec<_>>>()?;
    let dtype = c.result()?.dtype;
    let result = c.node(op, &operands, Vec::new());
    single(c.cast(&result, DType::Bool, dtype)?)
}

fn compare(c: &mut Call<'_, '_>, op: &str, is_negated: bool) -> Result<Outputs> {
    let dtype = c.dtype(0)?;
    // The order of Booleans, and types that operators do not compare, are those of wider numbers.
    let wide = match dtype {
        DType::Bool if op != "Equal" => DType::I32,
        DType::I8 | DType::U8 | DType::I16 | DType::U16 => DType::I32,
        DType::U32 => DType::I64,
        _ => dtype,
    };
    let (a, b) = (c.cast(&c.arg(0)?, dtype, wide)?, c.cast(&c.arg(1)?, c.dtype(1)?, wide)?);
    let result = c.apply(op, &[&a, &b]);
    single(if is_negated { c.apply("Not", &[&result]) } else { result })
}

fn select(c: &mut Call<'_, '_>) -> Result<Outputs> {
    if let Some(rounded) = round_half_to_even(c)? {
        return single(rounded);
    }
    let (condition, x, y) = (to_bool(c, 0)?, c.arg(1)?, c.arg(2)?);
    // Integers that few runtimes select.
    let dtype = c.dtype(1)?;
    let wide = match dtype {
        DType::I8 | DType::I16 | DType::U16 => DType::I32,
        DType::U32 => DType::I64,
        _ => dtype,
    };
    if wide == dtype || c.w.has_strings(&x) {
        return single(c.apply("Where", &[&condition, &x, &y]));
    }
    let (x, y) = (c.cast(&x, dtype, wide)?, c.cast(&y, dtype, wide)?);
    let result = c.apply("Where", &[&condition, &x, &y]);
    single(c.cast(&result, wide, dtype)?)
}

/// Recognizes where(abs(x - trunc(x)) = 0.5, 2 round(x / 2), round(x)), the form that the reader gives to Round.
fn round_half_to_even(c: &mut Call<'_, '_>) -> Result<Option<Operand>> {
    let call = |id: ExprId| match c.w.module.expr(id) {
        Expr::Call(call) => match call.callee {
            Callee::Op(op) => Some((op::get(op).name, &call.args)),
            Callee::Expr(_) => None,
        },
        _ => None,
    };
    let argument = |id: ExprId, name: &str| call(id).filter(|found| found.0 == name).map(|found| found.1[0]);
    let parts = || {
        let x = argument(c.args[2], "round")?;
        let half = argument(argument(c.args[1], "multiply")?, "round")?;
        let fraction = argument(argument(c.args[0], "equal")?, "abs")?;
        let is_form = argument(half, "multiply") == Some(x) && argument(fraction, "subtract") == Some(x);
        is_form.then_some(x)
    };
    let Some(x) = parts() else { return Ok(None) };
    let Some(leaves) = c.w.value(x)?.leaves() else { return Ok(None) };
    Ok(Some(c.node("Round", &leaves, Vec::new())))
}

fn classify(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let (x, dtype) = (c.arg(0)?, c.dtype(0)?);
    if !dtype.is_float() {
        let is_equal = c.apply("Equal", &[&x, &x]);
        return single(c.apply("Not", &[&is_equal]));
    }
    let x = if op == "IsInf" && dtype != DType::F64 { c.cast(&x, dtype, DType::F32)? } else { x };
    single(c.apply(op, &[&x]))
}

fn is_finite(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (x, dtype) = (c.arg(0)?, c.dtype(0)?);
    if !dtype.is_float() {
        return single(c.apply("Equal", &[&x, &x]));
    }
    let wide = if dtype == DType::F64 { x } else { c.cast(&x, dtype, DType::F32)? };
    let is_nan = c.apply("IsNaN", &[&wide]);
    let is_infinite = c.apply("IsInf", &[&wide]);
    let either = c.apply("Or", &[&is_nan, &is_infinite]);
    single(c.apply("Not", &[&either]))
}

fn cast(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (x, from, to) = (c.arg(0)?, c.dtype(0)?, c.result()?.dtype);
    c.since(dtype_since(from).max(dtype_since(to)), "the element type")?;
    let is_default =
        c.params.def().name == "cast_like" || (c.params.bool("saturate") && c.params.string("round_mode") == "up");
    if is_default {
        let result = c.cast(&x, from, to)?;
        return single(if from == to { c.apply("Identity", &[&x]) } else { result });
    }
    let mut attrs = vec![int("to", type_number(to).into()), int("saturate", i64::from(c.params.bool("saturate")))];
    if to == DType::F8E8M0Fnu {
        attrs.push(string("round_mode", &c.params.string("round_mode")));
    }
    single(c.node("Cast", &[x], attrs))
}

fn reinterpret(c: &mut Call<'_, '_>) -> Result<Outputs> {
    c.since(26, "BitCast")?;
    let (x, to) = (c.arg(0)?, c.result()?.dtype);
    if to == DType::Bool || c.dtype(0)? == DType::Bool {
        return Err(Refusal::new("BitCast of Booleans"));
    }
    single(c.node("BitCast", &[x], vec![int("to", type_number(to).into())]))
}
