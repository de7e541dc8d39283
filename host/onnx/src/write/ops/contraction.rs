//! Quantized convolutions and products. Accumulators that nothing but a requantization or a dequantization reads have no
//! integer form in the model; all others are sums of ConvInteger and MatMulInteger.

use super::super::Form;
use super::super::call::{Call, Outputs, scalar};
use super::super::proto_parts::int;
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::conv::Convolution;
use super::matrix::swapped;
use super::qnn::{dequantized, is_vector, quantize, zero_point};
use super::{Row, integer, single};
use byoc_ir::ir::ExprId;
use byoc_ir::op;
use byoc_ir::tensor::{DType, Tensor};
use std::sync::Arc;

pub const ROWS: &[Row] = &[
    ("qnn.batch_matmul", contraction),
    ("qnn.contrib_conv2d_requantize", fused),
    ("qnn.contrib_dense_requantize", fused),
    ("qnn.conv2d", contraction),
    ("qnn.conv2d_transpose", contraction),
    ("qnn.dense", contraction),
];

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
    if c.w.options.float_bias && !product.is_empty() {
        let scale = |i: usize| f64::from(product[i % product.len()]);
        let values = bias.view().to_f64s();
        let values: Vec<f32> = values.iter().enumerate().map(|(i, value)| (value * scale(i)) as f32).collect();
        return Ok(Operand::Constant(Arc::new(Tensor::from_slice(bias.shape(), &values))));
    }
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
