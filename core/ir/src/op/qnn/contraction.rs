//! Contractions: convolutions and matrix products of integers minus their zero points, with integer accumulators.

use super::params::{Kind, NARROW_DTYPES, PerAxis, check_one_of, check_parameter, zero_points};
use super::quantize::integers;
use super::{Arity, AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation};
use crate::diag::Diagnostic;
use crate::ir::Dim;
use crate::op::conv::{self, ConvShape};
use crate::op::dense::{self, MatMulShape};
use crate::op::sum::Sum;
use crate::tensor::{DType, TensorView, TensorViewMut};

const INPUTS: &[&str] = &["data", "weight", "input_zero_point", "kernel_zero_point", "input_scale", "kernel_scale"];

const OUT_DTYPE: AttrDef = AttrDef::new(
    "out_dtype",
    AttrKind::DType,
    Default::Str("int32"),
    "element type of the accumulators: int32, or int64 where int32 would overflow",
);

operator! {
    name: "qnn.conv2d",
    doc: "Convolution (as nn.conv2d) of data - input_zero_point with weight - kernel_zero_point; padding \
          represents zero, so it consists of the input's zero point. The result has the scale input_scale * \
          kernel_scale and the zero point 0. Scale and zero point of the kernel may be vectors along its output \
          channels. Sums are exact modulo the range of out_dtype (they wrap instead of saturating) and do not \
          depend on the scales.",
    arity: Arity::exactly(6),
    inputs: INPUTS,
    attrs: &conv::attrs_2d(OUT_DTYPE),
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| {
        check_contraction(relation, true)?;
        conv::conv_relation::<2>(relation)
    },
    reference: Some(|params, inputs, outputs| {
        let shape = ConvShape::new(&params, inputs[0].shape, inputs[1].shape, outputs[0].shape);
        let (x, w) = differences(&params, inputs);
        let mut y = vec![0i64; outputs[0].len()];
        conv::convolve::<i64>(&shape, &x, &w, &mut y);
        <i64 as Sum>::store(&y, &mut outputs[0]);
        Ok(())
    }),
    flops: conv::conv_flops::<2>,
}

operator! {
    name: "qnn.conv2d_transpose",
    doc: "Transposed convolution (as nn.conv2d_transpose) of data - input_zero_point with weight - \
          kernel_zero_point. The result has the scale input_scale * kernel_scale and the zero point 0. Scale and \
          zero point of the kernel may be vectors along its output channels if there is one group. Sums are \
          exact modulo the range of out_dtype (they wrap instead of saturating).",
    arity: Arity::exactly(6),
    inputs: INPUTS,
    attrs: &conv::transpose_attrs_2d(OUT_DTYPE),
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| {
        check_contraction(relation, true)?;
        conv::transpose_relation::<2>(relation)
    },
    reference: Some(|params, inputs, outputs| {
        let shape = ConvShape::new(&params, inputs[0].shape, inputs[1].shape, outputs[0].shape);
        let (x, w) = differences(&params, inputs);
        let mut y = vec![0i64; outputs[0].len()];
        conv::convolve_transposed::<i64>(&shape, &x, &w, &mut y);
        <i64 as Sum>::store(&y, &mut outputs[0]);
        Ok(())
    }),
    flops: conv::transpose_flops::<2>,
}

operator! {
    name: "qnn.dense",
    doc: "Product (as nn.dense) of data - input_zero_point with the transposed weight - kernel_zero_point. The \
          result has the scale input_scale * kernel_scale and the zero point 0. Scale and zero point of the \
          kernel may be vectors along its units. Sums are exact modulo the range of out_dtype (they wrap \
          instead of saturating).",
    arity: Arity::exactly(6),
    inputs: INPUTS,
    attrs: &[dense::UNITS, OUT_DTYPE],
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| {
        check_contraction(relation, true)?;
        dense::matmul_relation(relation)
    },
    reference: Some(product),
    flops: dense::flops,
}

operator! {
    name: "qnn.contrib_dense_pack",
    doc: "qnn.dense with a weight in blocks of units and inputs, (units / n, in / c, n, c), as in nn.contrib_dense_pack. \
          Scale and zero point of the kernel are scalars.",
    arity: Arity::exactly(6),
    inputs: INPUTS,
    attrs: &dense::pack_attrs(OUT_DTYPE),
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| {
        check_contraction(relation, false)?;
        match relation.tensor(1)?.dims.len() {
            4 => dense::pack_relation(relation),
            rank => Err(relation.mismatch(format!("weight: expected 4 dimensions, found {rank}"))),
        }
    },
    reference: Some(|params, inputs, outputs| {
        let shape = dense::PackedShape::new(inputs[0].shape, inputs[1].shape);
        let (x, w) = differences(&params, inputs);
        let mut y = vec![0i64; outputs[0].len()];
        shape.multiply::<i64>(&x, &w, &mut y);
        <i64 as Sum>::store(&y, &mut outputs[0]);
        Ok(())
    }),
    flops: dense::flops,
}

operator! {
    name: "qnn.batch_matmul",
    doc: "Products (as nn.batch_matmul) of x - x_zero_point with y - y_zero_point. The result has the scale \
          x_scale * y_scale and the zero point 0. Sums are exact modulo the range of out_dtype (they wrap \
          instead of saturating).",
    inputs: &["x", "y", "x_zero_point", "y_zero_point", "x_scale", "y_scale"],
    attrs: &[OUT_DTYPE, dense::TRANSPOSE_A, dense::TRANSPOSE_B],
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| {
        check_contraction(relation, false)?;
        dense::batch_relation(relation)
    },
    reference: Some(product),
    flops: dense::flops,
}

/// Checks element types, scales and zero points; the shapes are checked elsewhere. If `is_per_channel`, the scale and
/// the zero point of argument 1 may vary along its output channels.
fn check_contraction(relation: &Relation<'_>, is_per_channel: bool) -> Result<(), Box<Diagnostic>> {
    let (data, weight) = (relation.tensor(0)?, relation.tensor(1)?);
    check_one_of(relation, relation.def.inputs[0], data.dtype, NARROW_DTYPES)?;
    check_one_of(relation, relation.def.inputs[1], weight.dtype, NARROW_DTYPES)?;
    let out = relation.params.dtype("out_dtype").unwrap_or(DType::I32);
    check_one_of(relation, "out_dtype", out, &[DType::I32, DType::I64])?;
    let channels: Option<Dim> = match is_per_channel {
        true => Some(weight.dims.get(channel_axis(&relation.params, weight.dims.len())).cloned().unwrap_or(Dim::Any)),
        false => None,
    };
    check_parameter(relation, 2, Kind::ZeroPoint, None)?;
    check_parameter(relation, 3, Kind::ZeroPoint, channels.as_ref())?;
    check_parameter(relation, 4, Kind::Scale, None)?;
    check_parameter(relation, 5, Kind::Scale, channels.as_ref())
}

/// Returns the axis of the output channels of a kernel (the units of a dense weight).
fn channel_axis(params: &Params<'_>, rank: usize) -> usize {
    let layout = params.string("kernel_layout");
    if layout.is_empty() { 0 } else { layout.find('O').unwrap_or(0).min(rank.saturating_sub(1)) }
}

/// Returns data and kernel with their zero points subtracted.
fn differences(params: &Params<'_>, inputs: &[TensorView<'_>]) -> (Vec<i64>, Vec<i64>) {
    let zero = i64::from(zero_points(&inputs[2])[0]);
    let shape = inputs[1].shape;
    let kernel_zero = PerAxis::new(zero_points(&inputs[3]), shape, channel_axis(params, shape.len()) as i64);
    let x = integers(&inputs[0]).into_iter().map(|x| x - zero).collect();
    let w = integers(&inputs[1]).into_iter().enumerate().map(|(i, w)| w - i64::from(kernel_zero.at(i))).collect();
    (x, w)
}

fn product(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let s = MatMulShape::new(&params, inputs[0].shape, inputs[1].shape, outputs[0].shape);
    let (x, w) = differences(&params, inputs);
    let mut y = vec![0i64; outputs[0].len()];
    dense::multiply::<i64>(&s, &x, &w, &mut y);
    <i64 as Sum>::store(&y, &mut outputs[0]);
    Ok(())
}
