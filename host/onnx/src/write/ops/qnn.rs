//! Quantized operators: DequantizeLinear, the float operator, QuantizeLinear.

use super::super::Form;
use super::super::call::{Call, Outputs, normal_axis, scalar};
use super::super::proto_parts::{float, int};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::pool::windows;
use super::{Row, integer, single};
use byoc_ir::op;
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("qnn.abs", |c| unary(c, "Abs")),
    ("qnn.add", |c| binary(c, "Add")),
    ("qnn.avg_pool2d", |c| {
        let data = real_arg(c, 0, 1)?;
        let mean = windows(c, "AveragePool", &data)?;
        quantized(c, mean, 3)
    }),
    ("qnn.concatenate", concatenate),
    ("qnn.contrib_dynamic_quantize", |c| {
        let x = c.arg(0)?;
        Ok(c.nodes("DynamicQuantizeLinear", &[x], Vec::new(), 3))
    }),
    ("qnn.dequantize", dequantize),
    ("qnn.erf", |c| unary(c, "Erf")),
    ("qnn.exp", |c| unary(c, "Exp")),
    ("qnn.hardswish", |c| unary(c, "HardSwish")),
    ("qnn.leaky_relu", |c| unary(c, "LeakyRelu")),
    ("qnn.log", |c| unary(c, "Log")),
    ("qnn.mul", |c| binary(c, "Mul")),
    ("qnn.quantize", |c| {
        let (x, dtype) = (c.arg(0)?, c.dtype(0)?);
        let x = c.cast(&x, dtype, DType::F32)?;
        quantized(c, x, 1)
    }),
    ("qnn.requantize", requantize),
    ("qnn.rsqrt", |c| unary(c, "Reciprocal")),
    ("qnn.sigmoid", |c| unary(c, "Sigmoid")),
    ("qnn.softmax", |c| unary(c, "Softmax")),
    ("qnn.sqrt", |c| unary(c, "Sqrt")),
    ("qnn.subtract", |c| binary(c, "Sub")),
    ("qnn.tanh", |c| unary(c, "Tanh")),
];

/// Operators that move elements, which have the scale of their argument.
const MOVES: &[&str] =
    &["nn.batch_flatten", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "reshape", "squeeze", "transpose"];

/// Writes an operator whose argument has a real value instead of integers, or which an operator before it has done;
/// `None` for any other operator.
pub fn write_on_reals(c: &mut Call<'_, '_>) -> Result<Option<Outputs>> {
    let Some(&argument) = c.args.first() else { return Ok(None) };
    if c.w.absorbed.contains(&c.id) {
        if let Some(real) = c.w.reals.get(&argument).cloned() {
            c.w.reals.insert(c.id, real);
        }
        if let Some(parameters) = c.w.quantized.get(&argument).cloned() {
            c.w.quantized.insert(c.id, parameters);
        }
        return c.w.leaves(argument).map(Some);
    }
    let name = c.params.def().name;
    if let Some(real) = c.w.reals.get(&argument).cloned()
        && name == "nn.relu"
    {
        let result = c.apply("Relu", &[&real]);
        c.w.reals.insert(c.id, result);
        return Ok(Some(vec![Operand::Absent]));
    }
    let parameters = c.w.quantized.get(&argument).cloned();
    match parameters {
        Some((scale, zero)) if MOVES.contains(&name) && c.w.options.form == Form::Qdq => {
            let dtype = c.dtype(0)?;
            let x = c.arg(0)?;
            let real = dequantized(c, &x, dtype, &scale, &zero, None)?;
            c.replaced = Some(real);
            let outputs = super::dispatch(c)?;
            c.replaced = None;
            let result = quantize(c, &outputs[0], &scale, &zero, dtype, None)?;
            c.w.quantized.insert(c.id, (scale, zero));
            Ok(Some(vec![result]))
        }
        _ => Ok(None),
    }
}

/// Returns a zero point in the type of the integers; absent if it is 0 and the type int32.
pub fn zero_point(c: &mut Call<'_, '_>, i: usize, dtype: DType) -> Result<Operand> {
    let value = c.arg(i)?;
    if dtype == DType::I32 {
        return if is_zero(&value) { Ok(Operand::Absent) } else { Ok(value) };
    }
    c.cast(&value, DType::I32, dtype)
}

fn is_zero(value: &Operand) -> bool {
    let known = value.constant().and_then(|tensor| tensor.view().to_i64s());
    known.is_some_and(|values| values.iter().all(|&value| value == 0))
}

pub fn is_vector(value: &Operand, c: &Call<'_, '_>, i: usize) -> bool {
    value.constant().map_or_else(|| c.rank(i).is_ok_and(|rank| rank == 1), |tensor| tensor.shape().len() == 1)
}

/// Appends a conversion between real numbers and integers. The node of another operator's conversion is named after both.
fn conversion(c: &mut Call<'_, '_>, op: &str, inputs: [&Operand; 3], axis: Option<i64>) -> Operand {
    let attrs = axis.map(|axis| int("axis", axis)).into_iter().collect();
    let inputs = inputs.map(Clone::clone);
    if matches!(c.params.def().name, "qnn.quantize" | "qnn.dequantize") {
        return c.node(op, &inputs, attrs);
    }
    let named = format!("{}.{op}", c.label);
    let label = std::mem::replace(&mut c.label, named);
    let result = c.node(op, &inputs, attrs);
    c.label = label;
    result
}

/// Dequantizes integers; equal ones of a graph share the node.
pub fn dequantized(
    c: &mut Call<'_, '_>,
    x: &Operand,
    dtype: DType,
    scale: &Operand,
    zero: &Operand,
    axis: Option<i64>,
) -> Result<Operand> {
    if matches!(dtype, DType::I16 | DType::U16) {
        c.since(21, "DequantizeLinear of 16 bits")?;
    }
    let serial = c.w.graph().serial;
    let key = (serial, "DequantizeLinear", vec![x.key(), scale.key(), zero.key()], axis.unwrap_or(0));
    if let Some(shared) = c.w.shared.get(&key) {
        return Ok(shared.clone());
    }
    let result = if dtype == DType::I32 && !matches!(zero, Operand::Absent) {
        let difference = c.apply("Sub", &[x, zero]);
        let real = c.cast(&difference, DType::I32, DType::F32)?;
        c.apply("Mul", &[&real, scale])
    } else {
        conversion(c, "DequantizeLinear", [x, scale, zero], axis)
    };
    c.w.shared.insert(key, result.clone());
    Ok(result)
}

/// Dequantizes argument `i`, whose scale and zero point are the arguments `scale` and `scale + 1`.
fn real_arg(c: &mut Call<'_, '_>, i: usize, scale: usize) -> Result<Operand> {
    let dtype = c.dtype(i)?;
    let (x, zero, scale_value) = (c.arg(i)?, zero_point(c, scale + 1, dtype)?, c.arg(scale)?);
    dequantized(c, &x, dtype, &scale_value, &zero, None)
}

pub fn quantize(
    c: &mut Call<'_, '_>,
    real: &Operand,
    scale: &Operand,
    zero: &Operand,
    dtype: DType,
    axis: Option<i64>,
) -> Result<Operand> {
    match dtype {
        DType::I8 | DType::U8 => {}
        DType::I16 | DType::U16 => c.since(21, "QuantizeLinear to 16 bits")?,
        _ => return wide_quantize(c, real, scale, zero, dtype, axis),
    }
    Ok(conversion(c, "QuantizeLinear", [real, scale, zero], axis))
}

/// Quantizes to integers that QuantizeLinear does not have.
fn wide_quantize(
    c: &mut Call<'_, '_>,
    real: &Operand,
    scale: &Operand,
    zero: &Operand,
    dtype: DType,
    axis: Option<i64>,
) -> Result<Operand> {
    if axis.is_some() {
        return Err(Refusal::new(format!("a quantization to {dtype} with a scale for each channel")));
    }
    let ratio = c.apply("Div", &[real, scale]);
    let rounded = c.apply("Round", &[&ratio]);
    let wide = c.cast(&rounded, DType::F32, DType::I64)?;
    let moved = match zero {
        Operand::Absent => wide,
        zero => {
            let zero = c.cast(zero, DType::I32, DType::I64)?;
            c.apply("Add", &[&wide, &zero])
        }
    };
    let (low, high) = integer::range(dtype).unwrap_or((0.0, 0.0));
    let clipped = c.apply("Clip", &[&moved, &scalar(DType::I64, low), &scalar(DType::I64, high)]);
    c.cast(&clipped, DType::I64, dtype)
}

/// Quantizes the real result of a call, whose scale and zero point are the arguments `scale` and `scale + 1`. A clip of the
/// integers that follows becomes one of the real numbers before it.
fn quantized(c: &mut Call<'_, '_>, real: Operand, scale: usize) -> Result<Outputs> {
    let dtype = c.result()?.dtype;
    let (scale_value, zero) = (c.arg(scale)?, zero_point(c, scale + 1, dtype)?);
    let is_per_axis = is_vector(&scale_value, c, scale) || is_vector(&zero, c, scale + 1);
    let axis = if is_per_axis { Some(normal_axis(c.params.int("axis"), c.result()?.dims.len())?) } else { None };
    let real = clip_after(c, real, &scale_value, &zero, dtype);
    let result = quantize(c, &real, &scale_value, &zero, dtype, axis)?;
    if axis.is_none() {
        c.w.quantized.insert(c.id, (scale_value, zero));
    }
    single(result)
}

/// Applies the bounds of a clip or of a rectifier that is the only user of the result to the real numbers.
fn clip_after(c: &mut Call<'_, '_>, real: Operand, scale: &Operand, zero: &Operand, dtype: DType) -> Operand {
    let Some(user) = c.w.units.only_user(c.id) else { return real };
    let Some((id, call)) = c.w.module.expr(user).as_op_call() else { return real };
    let params = op::Params::new(op::get(id), &call.attrs);
    let (low, high) = match params.def().name {
        "clip" => (params.float("a_min"), params.float("a_max")),
        "nn.relu" => (0.0, f64::INFINITY),
        _ => return real,
    };
    let one =
        |value: &Operand| value.constant().map(|tensor| tensor.view().to_f64s()).filter(|values| values.len() == 1);
    let (Some(step), Some(offset)) = (one(scale), one(zero)) else { return real };
    let Some((min, max)) = integer::range(dtype) else { return real };
    let bound = |value: f64, is_free: bool| {
        if is_free { Operand::Absent } else { scalar(DType::F32, (value.trunc() - offset[0]) * step[0]) }
    };
    c.w.absorbed.insert(user);
    match (low <= min, high >= max) {
        (true, true) => real,
        (false, true) if low == offset[0] => c.apply("Relu", &[&real]),
        (is_low_free, is_high_free) => {
            let bounds = [real, bound(low, is_low_free), bound(high, is_high_free)];
            c.node("Clip", &bounds, Vec::new())
        }
    }
}

fn dequantize(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (dtype, out) = (c.dtype(0)?, c.result()?.dtype);
    let real = match c.w.reals.get(&c.args[0]).cloned() {
        Some(real) => real,
        None => {
            let (x, scale, zero) = (c.arg(0)?, c.arg(1)?, zero_point(c, 2, dtype)?);
            let is_per_axis = is_vector(&scale, c, 1) || is_vector(&zero, c, 2);
            let axis = if is_per_axis { Some(normal_axis(c.params.int("axis"), c.rank(0)?)?) } else { None };
            dequantized(c, &x, dtype, &scale, &zero, axis)?
        }
    };
    single(c.cast(&real, DType::F32, out)?)
}

fn requantize(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let dtype = c.dtype(0)?;
    let real = match c.w.reals.get(&c.args[0]).cloned() {
        Some(real) => real,
        None => {
            let (x, scale, zero) = (c.arg(0)?, c.arg(1)?, zero_point(c, 2, dtype)?);
            let is_per_axis = is_vector(&scale, c, 1) || is_vector(&zero, c, 2);
            let axis = if is_per_axis { Some(normal_axis(c.params.int("axis"), c.rank(0)?)?) } else { None };
            dequantized(c, &x, dtype, &scale, &zero, axis)?
        }
    };
    quantized(c, real, 3)
}

fn binary(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    if [2, 3, 4, 5].into_iter().any(|i| c.rank(i).is_ok_and(|rank| rank == 1)) {
        return Err(Refusal::new("a scale for each channel"));
    }
    let (a, b) = (real_arg(c, 0, 2)?, real_arg(c, 1, 4)?);
    let real = c.apply(op, &[&a, &b]);
    quantized(c, real, 6)
}

fn unary(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let x = real_arg(c, 0, 1)?;
    let real = match op {
        "HardSwish" => {
            c.since(14, op)?;
            c.apply(op, &[&x])
        }
        "Reciprocal" => {
            let root = c.apply("Sqrt", &[&x]);
            c.apply(op, &[&root])
        }
        "Softmax" => {
            let axis = c.axis("axis", c.rank(0)?)?;
            c.node(op, &[x], vec![int("axis", axis)])
        }
        "LeakyRelu" => {
            let alpha = c.params.float("alpha");
            c.node(op, &[x], vec![float("alpha", alpha)])
        }
        _ => c.apply(op, &[&x]),
    };
    quantized(c, real, 3)
}

fn concatenate(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let dtype = c.result()?.dtype;
    let (fields, scales, zeros) = (c.fields(0)?, c.fields(1)?, c.fields(2)?);
    let mut reals = Vec::with_capacity(fields.len());
    for ((x, scale), zero) in fields.iter().zip(&scales).zip(&zeros) {
        let zero = c.cast(zero, DType::I32, dtype)?;
        reals.push(dequantized(c, x, dtype, scale, &zero, None)?);
    }
    let axis = c.axis("axis", c.result()?.dims.len())?;
    let real = c.concat(&reals, axis);
    quantized(c, real, 3)
}
