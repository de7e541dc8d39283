//! Contractions with bias and requantization in one operator, for contractions that run on the host because no backend
//! supports them. These operators are not part of Relay; the pass `fuse_requantize` creates them.

use super::numerics::{range, rescale};
use super::params::{Kind, PerAxis, check_choice, check_one_of, check_parameter, requantization, scales, zero_points};
use super::quantize::integers;
use super::{Arity, AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation};
use crate::diag::Diagnostic;
use crate::ir::{Dim, Type};
use crate::op::conv::{self, ConvShape};
use crate::op::dense::{self, MatMulShape};
use crate::op::scalar::Writer;
use crate::op::spatial::CanonicalDims;
use crate::tensor::{DType, TensorView, TensorViewMut};

const BYTE_DTYPES: &[DType] = &[DType::I8, DType::U8];

const INPUTS: &[&str] = &[
    "data",
    "weight",
    "bias",
    "input_zero_point",
    "kernel_zero_point",
    "sum_scale",
    "output_scale",
    "output_zero_point",
];

const OUT_DTYPE: AttrDef =
    AttrDef::new("out_dtype", AttrKind::DType, Default::Str("int8"), "element type of the result: int8 or uint8");
const ROUNDING: AttrDef = AttrDef::new(
    "rounding",
    AttrKind::Str,
    Default::Str("None"),
    "rounding of the requantization: \"UPWARD\", \"TONEAREST\" or \"TOEVEN\"; \"None\": UPWARD",
);
const COMPUTE_DTYPE: AttrDef = AttrDef::new(
    "compute_dtype",
    AttrKind::Str,
    Default::Str("None"),
    "element type of the requantization: \"int64\" or \"float32\"; \"None\": int64",
);
const A_MIN: AttrDef = AttrDef::new(
    "a_min",
    AttrKind::Int,
    Default::None,
    "lower bound of the result's integers; that of its type if None",
);
const A_MAX: AttrDef = AttrDef::new(
    "a_max",
    AttrKind::Int,
    Default::None,
    "upper bound of the result's integers; that of its type if None",
);

const fn conv_attrs() -> [AttrDef; 14] {
    let [a, b, c, d, e, f, g, h, i, j] = conv::attrs_2d(OUT_DTYPE);
    [a, b, c, d, e, f, g, h, i, j, ROUNDING, COMPUTE_DTYPE, A_MIN, A_MAX]
}

operator! {
    name: "qnn.contrib_conv2d_requantize",
    doc: "clip(qnn.requantize(nn.bias_add(qnn.conv2d(data, weight), bias)), a_min, a_max) with int32 accumulators \
          and an int32 bias for each output channel; sum_scale, a scalar or a vector along the output channels, \
          is the input scale of the requantization.",
    arity: Arity::exactly(8),
    inputs: INPUTS,
    attrs: &conv_attrs(),
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| {
        let ty = conv::conv_relation::<2>(relation)?;
        let layout = relation.params.string("kernel_layout");
        check_fused(relation, layout.find('O').unwrap_or(0))?;
        Ok(ty)
    },
    reference: Some(|params, inputs, outputs| {
        let (accumulators, channel) = accumulate_conv(&params, inputs, outputs);
        requantize(&params, inputs, outputs, &accumulators, channel)
    }),
    flops: conv::conv_flops::<2>,
}

operator! {
    name: "qnn.contrib_dense_requantize",
    doc: "clip(qnn.requantize(nn.bias_add(qnn.dense(data, weight), bias, axis=-1)), a_min, a_max) with int32 \
          accumulators and an int32 bias for each unit; sum_scale, a scalar or a vector along the units, is the \
          input scale of the requantization.",
    arity: Arity::exactly(8),
    inputs: INPUTS,
    attrs: &[dense::UNITS, OUT_DTYPE, ROUNDING, COMPUTE_DTYPE, A_MIN, A_MAX],
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| {
        let ty = dense::matmul_relation(relation)?;
        check_fused(relation, 0)?;
        Ok(ty)
    },
    reference: Some(|params, inputs, outputs| {
        let accumulators = accumulate_dense(&params, inputs, outputs);
        requantize(&params, inputs, outputs, &accumulators, 1)
    }),
    flops: dense::flops,
}

/// Returns the accumulators of a convolution, and the distance between the results of two channels.
pub(super) fn accumulate_conv(
    params: &Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &[TensorViewMut<'_>],
) -> (Vec<i64>, usize) {
    let s = ConvShape::new(params, inputs[0].shape, inputs[1].shape, outputs[0].shape);
    let mut accumulators = vec![0i64; outputs[0].len()];
    let (x, w) = differences(inputs, &s.weight, s.weight.size[0]);
    conv::convolve::<i64>(&s, &x, &w, &mut accumulators);
    (accumulators, s.out.stride[1])
}

/// Returns the accumulators of a matrix product.
pub(super) fn accumulate_dense(
    params: &Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &[TensorViewMut<'_>],
) -> Vec<i64> {
    let s = MatMulShape::new(params, inputs[0].shape, inputs[1].shape, outputs[0].shape);
    let weight = CanonicalDims { size: [s.n, s.k, 1, 1, 1], stride: [s.k, 1, 0, 0, 0] };
    let (x, w) = differences(inputs, &weight, s.n);
    let mut accumulators = vec![0i64; outputs[0].len()];
    dense::multiply::<i64>(&s, &x, &w, &mut accumulators);
    accumulators
}

/// Checks data and weights, a vector of `bias` elements, and the zero points, which are the first five arguments; `axis`
/// of the weight holds the output channels. Returns their number.
pub(super) fn check_operands(relation: &Relation<'_>, axis: usize, bias: DType) -> Result<Dim, Box<Diagnostic>> {
    let weight = relation.tensor(1)?;
    check_one_of(relation, "data", relation.tensor(0)?.dtype, BYTE_DTYPES)?;
    check_one_of(relation, "weight", weight.dtype, BYTE_DTYPES)?;
    let channels = weight.dims.get(axis).cloned().unwrap_or(Dim::Any);
    let (expected, bias) = (bias, relation.tensor(2)?);
    check_one_of(relation, "bias", bias.dtype, &[expected])?;
    let [length] = &bias.dims[..] else {
        return Err(relation.mismatch(format!(
            "bias: expected a vector, found {}",
            Type::tensor_of(bias.dtype, bias.dims.iter().cloned())
        )));
    };
    relation.same_dim("bias and output channels", length, &channels)?;
    check_parameter(relation, 3, Kind::ZeroPoint, None)?;
    check_parameter(relation, 4, Kind::ZeroPoint, Some(&channels))?;
    Ok(channels)
}

/// Checks element types, scales, zero points and bias; `axis` of the weight holds the output channels.
fn check_fused(relation: &Relation<'_>, axis: usize) -> Result<(), Box<Diagnostic>> {
    let channels = check_operands(relation, axis, DType::I32)?;
    check_one_of(relation, "out_dtype", relation.params.dtype("out_dtype").unwrap_or(DType::I8), BYTE_DTYPES)?;
    check_parameter(relation, 5, Kind::Scale, Some(&channels))?;
    check_parameter(relation, 6, Kind::Scale, None)?;
    check_parameter(relation, 7, Kind::ZeroPoint, None)?;
    check_choice(relation, "rounding", &["None", "UPWARD", "TONEAREST", "TOEVEN"])?;
    check_choice(relation, "compute_dtype", &["None", "int64", "float32"])
}

/// Returns the bounds of the result: attributes `a_min` and `a_max`, clamped to the given range.
pub fn fused_bounds(params: &Params<'_>, (low, high): (i64, i64)) -> (i64, i64) {
    let bound = |name: &str, default: i64| params.opt_int(name).unwrap_or(default).clamp(low, high);
    (bound("a_min", low), bound("a_max", high))
}

/// Returns data and weight with their zero points subtracted.
fn differences(inputs: &[TensorView<'_>], weight: &CanonicalDims, channels: usize) -> (Vec<i64>, Vec<i64>) {
    let zero = i64::from(zero_points(&inputs[3])[0]);
    let kernel_zero = PerAxis { values: zero_points(&inputs[4]), inner: weight.stride[0].max(1) };
    debug_assert!(kernel_zero.values.len() == 1 || kernel_zero.values.len() == channels);
    let x = integers(&inputs[0]).into_iter().map(|x| x - zero).collect();
    let w = integers(&inputs[1]).into_iter().enumerate().map(|(i, w)| w - i64::from(kernel_zero.at(i))).collect();
    (x, w)
}

/// Adds the bias to the accumulators and requantizes the sums; consecutive channels are `inner` elements apart.
fn requantize(
    params: &Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
    accumulators: &[i64],
    inner: usize,
) -> Evaluation {
    let factors = requantization(params, &scales(params, 5, &inputs[5])?, &scales(params, 6, &inputs[6])?);
    let factors = PerAxis { values: factors, inner };
    let bias = PerAxis { values: inputs[2].as_slice::<i32>().to_vec(), inner };
    let zero_point = zero_points(&inputs[7])[0];
    let limits = range(outputs[0].dtype);
    let (low, high) = fused_bounds(params, limits);
    let requantize_one = |(i, &sum): (usize, &i64)| {
        let sum = (sum as i32).wrapping_add(bias.at(i));
        rescale(sum, factors.at(i), zero_point, limits).max(low).min(high) as f64
    };
    Writer::new(&mut outputs[0]).store(accumulators.iter().enumerate().map(requantize_one));
    Ok(())
}
