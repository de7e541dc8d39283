//! Quantized operators: DequantizeLinear, the float operator, QuantizeLinear. Accumulators that nothing but a requantization
//! or a dequantization reads have no integer form in the model; all others are sums of ConvInteger and MatMulInteger.

use super::super::Form;
use super::super::call::{Call, Outputs, normal_axis, scalar};
use super::super::proto_parts::{float, int};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::conv::Convolution;
use super::matrix::swapped;
use super::pool::windows;
use super::{Row, integer, single};
use byoc_ir::ir::ExprId;
use byoc_ir::op;
use byoc_ir::tensor::{DType, Tensor};
use std::sync::Arc;

pub const ROWS: &[Row] = &[
    ("qnn.abs", |c| unary(c, "Abs")),
    ("qnn.add", |c| binary(c, "Add")),
    ("qnn.avg_pool2d", |c| {
        let data = real_arg(c, 0, 1)?;
        let mean = windows(c, "AveragePool", &data)?;
        quantized(c, mean, 3)
    }),
    ("qnn.batch_matmul", contraction),
    ("qnn.concatenate", concatenate),
    ("qnn.contrib_conv2d_requantize", fused),
    ("qnn.contrib_dense_requantize", fused),
    ("qnn.conv2d", contraction),
    ("qnn.conv2d_transpose", contraction),
    ("qnn.dense", contraction),
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
fn zero_point(c: &mut Call<'_, '_>, i: usize, dtype: DType) -> Result<Operand> {
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

fn is_vector(value: &Operand, c: &Call<'_, '_>, i: usize) -> bool {
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
fn dequantized(
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

fn quantize(
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

/// Constant scales of a contraction: of the data, of the weight, and their products.
struct Scales {
    data: Operand,
    weight: Operand,
    product: Vec<f32>,
}

fn scales(c: &Call<'_, '_>) -> Option<Scales> {
    let (data, weight) = (c.arg(4).ok()?, c.arg(5).ok()?);
    let (a, b) = (data.constant()?, weight.constant()?);
    let a = a.as_slice::<f32>().first().copied()?;
    let product = b.as_slice::<f32>().iter().map(|b| a * b).collect();
    Some(Scales { data, weight, product })
}

/// Follows the accumulators of a call to the operator that reads their real value; returns the bias on the way to it.
/// `None` if integers are needed.
fn real_user(c: &Call<'_, '_>, scales: &Scales) -> Option<Option<ExprId>> {
    let (mut id, mut bias) = (c.id, None);
    loop {
        let user = c.w.units.only_user(id)?;
        let (op, call) = c.w.module.expr(user).as_op_call()?;
        let constant = |i: usize| c.w.module.expr(*call.args.get(i)?).as_constant();
        if call.args.first() != Some(&id) {
            return None;
        }
        match op::get(op).name {
            "nn.bias_add" if bias.is_none() && constant(1).is_some() => bias = Some(user),
            "nn.relu" => {}
            "qnn.requantize" | "qnn.dequantize" => {
                let found = constant(1)?.view().to_f64s();
                let zero = constant(2)?.view().to_i64s()?;
                let is_near = |(&a, &b): (&f64, &f32)| (a - f64::from(b)).abs() <= 1e-5 * a.abs();
                let is_same = found.len() == scales.product.len() && found.iter().zip(&scales.product).all(is_near);
                return (is_same && zero.iter().all(|&zero| zero == 0)).then_some(bias);
            }
            _ => return None,
        }
        id = user;
    }
}

/// Returns the axis of the output channels of the weight.
fn channel_axis(c: &Call<'_, '_>) -> i64 {
    let layout = c.params.string("kernel_layout");
    layout.find('O').unwrap_or(0) as i64
}

fn contraction(c: &mut Call<'_, '_>) -> Result<Outputs> {
    if c.w.options.form == Form::Qdq
        && let Some(scales) = scales(c)
        && let Some(bias) = real_user(c, &scales)
    {
        return real_contraction(c, &scales, bias);
    }
    let out = c.result()?.dtype;
    let narrow = |dtype: DType| matches!(dtype, DType::I8 | DType::U8);
    if !narrow(c.dtype(0)?) || !narrow(c.dtype(1)?) {
        return Err(Refusal::new("integers of more than 8 bits"));
    }
    let (x, weight) = (c.arg(0)?, c.arg(1)?);
    let (zero, weight_zero) = (zero_point(c, 2, c.dtype(0)?)?, zero_point(c, 3, c.dtype(1)?)?);
    let sum = match c.params.def().name {
        "qnn.conv2d" => {
            let convolution = Convolution::of(c, &x, &weight)?;
            let inputs = [convolution.data.clone(), convolution.weight.clone(), zero, weight_zero];
            let sum = c.node("ConvInteger", &inputs, convolution.attributes.clone());
            convolution.finish(c, &sum)
        }
        "qnn.conv2d_transpose" => return Err(Refusal::new("integer sums of a transposed convolution")),
        name => {
            let (x, weight) = operands(c, name, &x, &weight)?;
            c.node("MatMulInteger", &[x, weight, zero, weight_zero], Vec::new())
        }
    };
    single(c.cast(&sum, DType::I32, out)?)
}

/// Returns the operands of a product with the columns of the second one last.
fn operands(c: &mut Call<'_, '_>, name: &str, x: &Operand, weight: &Operand) -> Result<(Operand, Operand)> {
    if name == "qnn.dense" {
        return Ok((x.clone(), swapped(c, weight, 1)?));
    }
    let x = if c.params.bool("transpose_a") { swapped(c, x, 0)? } else { x.clone() };
    let weight = if c.params.bool("transpose_b") { swapped(c, weight, 1)? } else { weight.clone() };
    Ok((x, weight))
}

/// Writes a contraction of dequantized operands, with its bias as third input.
fn real_contraction(c: &mut Call<'_, '_>, scales: &Scales, bias: Option<ExprId>) -> Result<Outputs> {
    let (dtype, weight_dtype) = (c.dtype(0)?, c.dtype(1)?);
    let (x, zero) = (c.arg(0)?, zero_point(c, 2, dtype)?);
    let data = dequantized(c, &x, dtype, &scales.data, &zero, None)?;
    let (w, zero) = (c.arg(1)?, zero_point(c, 3, weight_dtype)?);
    let axis = (scales.product.len() > 1 || is_vector(&scales.weight, c, 5)).then(|| channel_axis(c));
    let zero = matching(&zero, &scales.weight);
    let weight = dequantized(c, &w, weight_dtype, &scales.weight, &zero, axis)?;
    let bias_value = bias.and_then(|id| c.w.module.expr(id).as_op_call()?.1.args.get(1).copied());
    let bias_value = match bias_value.and_then(|id| c.w.module.expr(id).as_constant()) {
        Some(tensor) => Some(real_bias(c, tensor, &scales.product)?),
        None => None,
    };
    let real = linear(c, &data, &weight, bias_value)?;
    c.w.reals.insert(c.id, real);
    c.w.absorbed.extend(bias);
    single(Operand::Absent)
}

/// Returns a zero point that has an element for each scale.
fn matching(zero: &Operand, scale: &Operand) -> Operand {
    match (zero.constant(), scale.constant()) {
        (Some(zero), Some(scale)) if zero.shape() != scale.shape() && zero.len() == 1 => {
            let value = zero.view().to_f64s()[0];
            let values = vec![value; scale.len()];
            Operand::Constant(Arc::new(crate::tensor::from_f64s(zero.dtype(), scale.shape(), &values)))
        }
        _ => zero.clone(),
    }
}

/// Dequantizes a bias of accumulators.
fn real_bias(c: &mut Call<'_, '_>, bias: &Arc<Tensor>, product: &[f32]) -> Result<Operand> {
    let scale = match product {
        [one] => Tensor::scalar(*one),
        all => Tensor::from_slice(&[all.len()], all),
    };
    let axis = (product.len() > 1).then_some(0);
    let (bias, scale) = (Operand::Constant(bias.clone()), Operand::Constant(Arc::new(scale)));
    dequantized(c, &bias, DType::I32, &scale, &Operand::Absent, axis)
}

/// Writes the float operator of a contraction.
fn linear(c: &mut Call<'_, '_>, data: &Operand, weight: &Operand, bias: Option<Operand>) -> Result<Operand> {
    let name = c.params.def().name;
    if !name.contains("conv2d") {
        let rank = c.rank(0)?;
        if name.contains("dense") && rank == 2 {
            let inputs: Vec<Operand> = [data.clone(), weight.clone()].into_iter().chain(bias).collect();
            return Ok(c.node("Gemm", &inputs, vec![int("transB", 1)]));
        }
        let (data, weight) = operands(c, if name.contains("dense") { "qnn.dense" } else { name }, data, weight)?;
        let sum = c.apply("MatMul", &[&data, &weight]);
        return Ok(bias.map_or(sum.clone(), |bias| c.apply("Add", &[&sum, &bias])));
    }
    let convolution = Convolution::of(c, data, weight)?;
    let inputs: Vec<Operand> = [convolution.data.clone(), convolution.weight.clone()].into_iter().chain(bias).collect();
    let op = if name.ends_with("_transpose") { "ConvTranspose" } else { "Conv" };
    let sum = c.node(op, &inputs, convolution.attributes.clone());
    Ok(convolution.finish(c, &sum))
}

/// Writes a contraction with bias, requantization and clip in one. Only the product of its scales is known, which becomes
/// that of the weight.
fn fused(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (dtype, weight_dtype, out) = (c.dtype(0)?, c.dtype(1)?, c.result()?.dtype);
    let sum_scale = c.arg(5)?;
    let Some(product) = sum_scale.constant().map(|scale| scale.as_slice::<f32>().to_vec()) else {
        return Err(Refusal::new("a scale that is computed"));
    };
    let (x, zero) = (c.arg(0)?, zero_point(c, 3, dtype)?);
    let data = dequantized(c, &x, dtype, &scalar(DType::F32, 1.0), &zero, None)?;
    let (w, zero) = (c.arg(1)?, zero_point(c, 4, weight_dtype)?);
    let axis = is_vector(&sum_scale, c, 5).then(|| channel_axis(c));
    let weight = dequantized(c, &w, weight_dtype, &sum_scale, &matching(&zero, &sum_scale), axis)?;
    let bias = match c.arg(2)?.constant().cloned() {
        Some(bias) => real_bias(c, &bias, &product)?,
        None => return Err(Refusal::new("a bias that is computed")),
    };
    let mut real = linear(c, &data, &weight, Some(bias))?;
    let (scale, zero) = (c.arg(6)?, zero_point(c, 7, out)?);
    let (min, max) = integer::range(out).unwrap_or((0.0, 0.0));
    let bound = |name: &str, default: f64| c.params.opt_int(name).map_or(default, |bound| bound as f64);
    let (low, high) = (bound("a_min", min), bound("a_max", max));
    if (low, high) != (min, max) {
        let one = |value: &Operand| value.constant().and_then(|tensor| tensor.view().to_f64s().first().copied());
        let (Some(step), Some(offset)) = (one(&scale), one(&zero)) else {
            return Err(Refusal::new("a scale that is computed"));
        };
        let bounds = [low, high].map(|bound| scalar(DType::F32, (bound - offset) * step));
        real = c.apply("Clip", &[&real, &bounds[0], &bounds[1]]);
    }
    let result = quantize(c, &real, &scale, &zero, out, None)?;
    c.w.quantized.insert(c.id, (scale, zero));
    single(result)
}
