//! Operator table: the properties of each operator, and the function that translates it.

use super::{Translation, attr_error, shape_error};
use crate::elementwise::MathFn;
use crate::ir::{EltwiseParams, Kind, Result, Val};
use crate::library::ffi;
use byoc_plugin_api::DType;
use byoc_plugin_support::view::count;

/// Table row of a supported operator.
pub struct Row {
    pub name: &'static str,
    /// Translates a call and returns its results.
    pub translate: fn(&mut Translation<'_>) -> Result<Vec<Val>>,
    /// True if the operator makes a region profitable: its work exceeds the cost of moving data.
    pub computes: bool,
    /// True if the translation also applies to 8-bit data, because elements are only moved or compared.
    pub keeps_dtype: bool,
    /// True if the operator is supported only as a part of a composite.
    pub is_composite_only: bool,
    /// True for an operator on quantized data.
    pub is_quantized: bool,
}

impl Row {
    const fn new(name: &'static str, translate: fn(&mut Translation<'_>) -> Result<Vec<Val>>) -> Row {
        Row { name, translate, computes: false, keeps_dtype: false, is_composite_only: false, is_quantized: false }
    }

    const fn computes(self) -> Row {
        Row { computes: true, ..self }
    }

    const fn keeps_dtype(self) -> Row {
        Row { keeps_dtype: true, ..self }
    }

    const fn only_in_composites(self) -> Row {
        Row { is_composite_only: true, ..self }
    }

    const fn quantized(self) -> Row {
        Row { is_quantized: true, ..self }
    }
}

/// Returns the row of an operator.
pub fn row(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

/// Returns the names of the operators that are supported outside composites.
pub fn operators_outside_composites() -> impl Iterator<Item = &'static str> {
    ROWS.iter().filter(|row| !row.is_composite_only).map(|row| row.name)
}

static ROWS: &[Row] = &[
    Row::new("nn.conv1d", |t| single_value(t.convolution(false)?)).computes(),
    Row::new("nn.conv2d", |t| single_value(t.convolution(false)?)).computes(),
    Row::new("nn.conv3d", |t| single_value(t.convolution(false)?)).computes(),
    Row::new("nn.conv1d_transpose", |t| single_value(t.convolution(true)?)).computes(),
    Row::new("nn.conv2d_transpose", |t| single_value(t.convolution(true)?)).computes(),
    Row::new("nn.conv3d_transpose", |t| single_value(t.convolution(true)?)).computes(),
    Row::new("nn.dense", |t| single_value(t.matmul(false, true)?)).computes(),
    Row::new("nn.matmul", matmul).computes(),
    Row::new("nn.batch_matmul", matmul).computes(),
    Row::new("nn.max_pool1d", |t| single_value(t.pool(ffi::POOLING_MAX)?)).keeps_dtype(),
    Row::new("nn.max_pool2d", |t| single_value(t.pool(ffi::POOLING_MAX)?)).keeps_dtype(),
    Row::new("nn.max_pool3d", |t| single_value(t.pool(ffi::POOLING_MAX)?)).keeps_dtype(),
    Row::new("nn.avg_pool1d", avg_pool),
    Row::new("nn.avg_pool2d", avg_pool),
    Row::new("nn.avg_pool3d", avg_pool),
    Row::new("nn.global_avg_pool2d", |t| single_value(t.adaptive_pool(ffi::POOLING_AVG_EXCLUDE_PADDING, true)?))
        .computes(),
    Row::new("nn.global_max_pool2d", |t| single_value(t.adaptive_pool(ffi::POOLING_MAX, true)?)).keeps_dtype(),
    Row::new("nn.adaptive_avg_pool1d", adaptive_avg_pool),
    Row::new("nn.adaptive_avg_pool2d", adaptive_avg_pool),
    Row::new("nn.adaptive_avg_pool3d", adaptive_avg_pool),
    Row::new("nn.adaptive_max_pool1d", adaptive_max_pool).keeps_dtype(),
    Row::new("nn.adaptive_max_pool2d", adaptive_max_pool).keeps_dtype(),
    Row::new("nn.adaptive_max_pool3d", adaptive_max_pool).keeps_dtype(),
    Row::new("nn.softmax", softmax).computes(),
    Row::new("nn.log_softmax", log_softmax),
    Row::new("nn.layer_norm", |t| single_value(t.layer_norm()?)).computes(),
    Row::new("nn.batch_norm", |t| t.batch_norm()),
    Row::new("nn.bias_add", |t| single_value(t.bias_add()?)),
    Row::new("add", |t| single_value(t.binary(ffi::BINARY_ADD)?)),
    Row::new("subtract", |t| single_value(t.binary(ffi::BINARY_SUB)?)),
    Row::new("multiply", |t| single_value(t.binary(ffi::BINARY_MUL)?)),
    Row::new("divide", |t| single_value(t.binary(ffi::BINARY_DIV)?)),
    Row::new("maximum", |t| single_value(t.binary(ffi::BINARY_MAX)?)),
    Row::new("minimum", |t| single_value(t.binary(ffi::BINARY_MIN)?)),
    Row::new("power", |t| single_value(t.power()?)),
    Row::new("nn.relu", |t| eltwise(t, EltwiseParams::plain(ffi::ELTWISE_RELU))),
    Row::new("nn.leaky_relu", leaky_relu),
    Row::new("nn.prelu", |t| single_value(t.prelu()?)),
    Row::new("clip", clip),
    Row::new("sigmoid", |t| eltwise(t, EltwiseParams::plain(ffi::ELTWISE_LOGISTIC))),
    Row::new("tanh", |t| eltwise(t, EltwiseParams::plain(ffi::ELTWISE_TANH))),
    Row::new("exp", |t| eltwise(t, EltwiseParams::plain(ffi::ELTWISE_EXP))),
    Row::new("log", |t| unary(t, Kind::MathFn(MathFn::Log))),
    Row::new("sqrt", |t| eltwise(t, EltwiseParams::plain(ffi::ELTWISE_SQRT))),
    Row::new("rsqrt", |t| eltwise(t, EltwiseParams::new(ffi::ELTWISE_POW, 1.0, -0.5))),
    Row::new("abs", |t| eltwise(t, EltwiseParams::plain(ffi::ELTWISE_ABS))),
    Row::new("negative", |t| {
        let x = t.inputs[0];
        single_value(t.ir.affine(-1.0, 0.0, x))
    }),
    Row::new("erf", |t| unary(t, Kind::Erf)).only_in_composites(),
    Row::new("isnan", |t| unary(t, Kind::IsNan)).only_in_composites(),
    Row::new("where", |t| single_value(t.nan_replacement()?)).only_in_composites(),
    Row::new("mean", |t| single_value(t.reduce(ffi::REDUCTION_MEAN)?)),
    Row::new("sum", |t| single_value(t.reduce(ffi::REDUCTION_SUM)?)),
    Row::new("max", |t| single_value(t.reduce(ffi::REDUCTION_MAX)?)),
    Row::new("min", |t| single_value(t.reduce(ffi::REDUCTION_MIN)?)),
    Row::new("prod", |t| single_value(t.reduce(ffi::REDUCTION_MUL)?)),
    Row::new("concatenate", concatenate).keeps_dtype(),
    Row::new("stack", stack),
    Row::new("image.resize2d", |t| single_value(t.resize("image.resize2d")?)),
    Row::new("nn.upsampling", |t| single_value(t.resize("nn.upsampling")?)),
    Row::new("nn.pad", |t| single_value(t.pad()?)),
    Row::new("reshape", reshape).keeps_dtype(),
    // Only the shape of the second operand matters.
    Row::new("reshape_like", reshape_like).keeps_dtype(),
    Row::new("nn.batch_flatten", batch_flatten).keeps_dtype(),
    Row::new("squeeze", squeeze).keeps_dtype(),
    Row::new("expand_dims", expand_dims).keeps_dtype(),
    Row::new("transpose", transpose).keeps_dtype(),
    Row::new("strided_slice", strided_slice).keeps_dtype(),
    Row::new("split", |t| t.split()).keeps_dtype(),
    Row::new("take", |t| single_value(t.take()?)),
    Row::new("copy", identity).keeps_dtype(),
    Row::new("qnn.conv2d", |t| single_value(t.quantized_conv2d()?)).computes().quantized(),
    Row::new("qnn.dense", |t| single_value(t.quantized_dense()?)).computes().quantized(),
    Row::new("qnn.requantize", |t| single_value(t.requantize(in_dtype(t), out_dtype(t))?)).quantized(),
    Row::new("qnn.quantize", |t| single_value(t.quantize(in_dtype(t), out_dtype(t))?)).quantized(),
    Row::new("qnn.dequantize", |t| single_value(t.dequantize(in_dtype(t), out_dtype(t))?)).quantized(),
    Row::new("qnn.add", |t| single_value(t.quantized_add(out_dtype(t))?)).quantized(),
    Row::new("qnn.mul", |t| single_value(t.quantized_mul(out_dtype(t))?)).quantized(),
    Row::new("qnn.abs", |t| quantized_function(t, f64::abs)).quantized(),
    Row::new("qnn.erf", |t| quantized_function(t, libm::erf)).quantized(),
    Row::new("qnn.exp", |t| quantized_function(t, f64::exp)).quantized(),
    Row::new("qnn.hardswish", |t| single_value(t.quantized_function(|x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0)?))
        .quantized(),
    Row::new("qnn.leaky_relu", |t| {
        let alpha = t.attrs.float("alpha", 0.25);
        quantized_function(t, move |x| if x > 0.0 { x } else { alpha * x })
    })
    .quantized(),
    Row::new("qnn.log", |t| quantized_function(t, f64::ln)).quantized(),
    Row::new("qnn.rsqrt", |t| quantized_function(t, |x| 1.0 / x.sqrt())).quantized(),
    Row::new("qnn.sigmoid", |t| quantized_function(t, |x| 1.0 / (1.0 + (-x).exp()))).quantized(),
    Row::new("qnn.sqrt", |t| quantized_function(t, f64::sqrt)).quantized(),
    Row::new("qnn.tanh", |t| quantized_function(t, f64::tanh)).quantized(),
    Row::new("qnn.concatenate", |t| single_value(t.quantized_concat(out_dtype(t))?)).quantized(),
    Row::new("qnn.avg_pool2d", |t| single_value(t.avg_pool(in_dtype(t), out_dtype(t))?)).quantized(),
    Row::new("cast", identity).only_in_composites(),
];

fn single_value(value: Val) -> Result<Vec<Val>> {
    Ok(vec![value])
}

fn eltwise(t: &mut Translation<'_>, params: EltwiseParams) -> Result<Vec<Val>> {
    single_value(t.ir.eltwise(params, t.inputs[0]))
}

/// Adds a unary operator whose result has the shape of the operand.
fn unary(t: &mut Translation<'_>, kind: Kind) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let shape = t.shape(x);
    single_value(t.ir.push(kind, &[x], shape))
}

/// Adds a function of bytes, which is computed in 64-bit floats and rounded to 32 bits.
fn quantized_function(t: &mut Translation<'_>, function: impl Fn(f64) -> f64) -> Result<Vec<Val>> {
    single_value(t.quantized_function(|x| function(x.into()) as f32)?)
}

fn in_dtype(t: &Translation<'_>) -> DType {
    t.ir.get(t.inputs[0]).dtype
}

fn out_dtype(t: &Translation<'_>) -> DType {
    t.node.outputs[0].dtype
}

fn identity(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    single_value(t.inputs[0])
}

fn softmax(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let axis = t.attrs.axis("axis", -1, t.rank(x))?;
    let shape = t.shape(x);
    single_value(t.ir.push(Kind::Softmax { alg: ffi::SOFTMAX_ACCURATE, axis }, &[x], shape))
}

/// Lowers to `x - max(x) - ln(sum(exp(x - max(x))))`. oneDNN 3.2's log-softmax primitive loses digits where the sum is
/// near 1.
fn log_softmax(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let axis = t.attrs.axis("axis", -1, t.rank(x))?;
    let shape = t.shape(x);
    let mut reduced_shape = shape.clone();
    reduced_shape[axis] = 1;
    let max = t.ir.push(Kind::Reduce { alg: ffi::REDUCTION_MAX, axes: vec![axis] }, &[x], reduced_shape.clone());
    let differences = t.ir.binary(ffi::BINARY_SUB, x, max, shape.clone());
    let powers = t.ir.eltwise(EltwiseParams::plain(ffi::ELTWISE_EXP), differences);
    let sum = t.ir.push(Kind::Reduce { alg: ffi::REDUCTION_SUM, axes: vec![axis] }, &[powers], reduced_shape.clone());
    let log = t.ir.push(Kind::MathFn(MathFn::Log), &[sum], reduced_shape);
    single_value(t.ir.binary(ffi::BINARY_SUB, differences, log, shape))
}

fn matmul(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let (a, b) = (t.attrs.flag("transpose_a", false), t.attrs.flag("transpose_b", false));
    single_value(t.matmul(a, b)?)
}

fn avg_pool(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let includes_padding = t.attrs.flag("count_include_pad", false);
    single_value(t.pool(if includes_padding {
        ffi::POOLING_AVG_INCLUDE_PADDING
    } else {
        ffi::POOLING_AVG_EXCLUDE_PADDING
    })?)
}

fn adaptive_avg_pool(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    single_value(t.adaptive_pool(ffi::POOLING_AVG_EXCLUDE_PADDING, false)?)
}

fn adaptive_max_pool(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    single_value(t.adaptive_pool(ffi::POOLING_MAX, false)?)
}

fn leaky_relu(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let alpha = t.attrs.float("alpha", 0.25) as f32;
    single_value(t.ir.eltwise(EltwiseParams::new(ffi::ELTWISE_RELU, alpha, 0.0), x))
}

fn clip(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let low = t.attrs.float("a_min", f64::NEG_INFINITY).max(f64::from(f32::MIN)) as f32;
    let high = t.attrs.float("a_max", f64::INFINITY).min(f64::from(f32::MAX)) as f32;
    single_value(t.ir.eltwise(EltwiseParams::new(ffi::ELTWISE_CLIP, low, high), x))
}

fn concatenate(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let axis = t.attrs.axis("axis", 0, t.rank(x))?;
    let operands = t.inputs.to_vec();
    single_value(t.concat(&operands, axis)?)
}

fn stack(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let mut shape = t.shape(x);
    let axis = t.attrs.axis("axis", 0, shape.len() + 1)?;
    shape.insert(axis, 1);
    let mut operands = Vec::with_capacity(t.inputs.len());
    for &operand in t.inputs {
        operands.push(t.reshape(operand, shape.clone())?);
    }
    single_value(t.concat(&operands, axis)?)
}

fn reshape(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let shape = t.attrs.reshaped_dims(&t.shape(x))?;
    single_value(t.reshape(x, shape)?)
}

fn reshape_like(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let shape = t.shape(*t.inputs.get(1).ok_or_else(|| shape_error("expected 2 inputs, found 1"))?);
    single_value(t.reshape(x, shape)?)
}

fn batch_flatten(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let shape = t.shape(x);
    let Some((&first_dim, remaining_dims)) = shape.split_first() else {
        return Err(shape_error("expected at least 1 dimension, found a scalar"));
    };
    single_value(t.reshape(x, vec![first_dim, count(remaining_dims)])?)
}

fn squeeze(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let shape = t.attrs.squeezed_shape(&t.shape(x))?;
    single_value(t.reshape(x, shape)?)
}

fn expand_dims(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let mut shape = t.shape(x);
    let axis = t.attrs.axis("axis", 0, shape.len() + 1)?;
    for _ in 0..t.attrs.int("num_newaxis", 1).clamp(0, ffi::MAX_NDIMS as i64) {
        shape.insert(axis, 1);
    }
    single_value(t.reshape(x, shape)?)
}

fn transpose(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let axes = t.attrs.permutation(t.rank(x))?;
    single_value(t.transpose(x, axes))
}

fn strided_slice(t: &mut Translation<'_>) -> Result<Vec<Val>> {
    let x = t.inputs[0];
    let (begin, step, shape) = t.attrs.slice(&t.shape(x))?;
    if step.iter().any(|&s| s < 1) {
        return Err(attr_error(format!("attribute strides: expected integers >= 1, found {step:?}")));
    }
    single_value(t.ir.slice(x, begin, step, shape))
}
