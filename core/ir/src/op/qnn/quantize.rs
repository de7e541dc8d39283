//! Quantization, dequantization and requantization.

use super::numerics::{Rounding, range, rescale, saturate};
use super::params::{
    AXIS, Kind, PerAxis, QUANTIZED_DTYPES, axis_dim, check_choice, check_one_of, check_parameter, requantization,
    rounding_of, scales, zero_points,
};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, ReferenceError, Relation};
use crate::diag::{Diagnostic, codes};
use crate::op::elementwise::with_element_type;
use crate::op::facts::Properties;
use crate::op::scalar::Writer;
use crate::tensor::{DType, TensorView, TensorViewMut};

/// Floating-point types that can be quantized.
const REAL_DTYPES: &[DType] = &[DType::F32, DType::F16];

operator! {
    name: "qnn.quantize",
    doc: "clip(round(data / output_scale) + output_zero_point) to the range of out_dtype, computed in float32. \
          Halves are rounded away from zero (TONEAREST, as in Relay) or to the even integer (TOEVEN, as in \
          ONNX). Values outside the range, including infinities, saturate; NaN becomes 0. compute_dtype float32 \
          keeps the operators before it in float32: no pass replaces them by operators on integers.",
    inputs: &["data", "output_scale", "output_zero_point"],
    attrs: &[
        AttrDef::new("out_dtype", AttrKind::DType, Default::Str("int8"), "element type of the result"),
        AXIS,
        AttrDef::new("rounding", AttrKind::Str, Default::Str("TONEAREST"), "\"TONEAREST\" or \"TOEVEN\""),
        AttrDef::new("compute_dtype", AttrKind::Str, Default::Str("None"), "\"float32\" or \"None\""),
    ],
    pattern: OpPattern::ElemWise,
    relation: |relation| {
        let data = relation.tensor(0)?;
        check_one_of(relation, "data", data.dtype, REAL_DTYPES)?;
        let dim = axis_dim(relation, "axis", data)?;
        check_parameter(relation, 1, Kind::Scale, dim.as_ref())?;
        check_parameter(relation, 2, Kind::ZeroPoint, dim.as_ref())?;
        check_choice(relation, "rounding", &["TONEAREST", "TOEVEN"])?;
        check_choice(relation, "compute_dtype", &["None", "float32"])?;
        with_element_type(relation, out_dtype(relation, QUANTIZED_DTYPES)?)
    },
    reference: Some(quantize),
    flops: |cost| 4 * cost.ret_len(),
}

operator! {
    name: "qnn.dequantize",
    doc: "input_scale * (data - input_zero_point), the difference in int32 (saturating), the product in float32; \
          a float16 result saturates.",
    inputs: &["data", "input_scale", "input_zero_point"],
    attrs: &[
        AXIS,
        AttrDef::new("out_dtype", AttrKind::DType, Default::Str("float32"), "float32 or float16"),
    ],
    pattern: OpPattern::ElemWise,
    relation: |relation| {
        let data = relation.tensor(0)?;
        check_one_of(relation, "data", data.dtype, QUANTIZED_DTYPES)?;
        let dim = axis_dim(relation, "axis", data)?;
        check_parameter(relation, 1, Kind::Scale, dim.as_ref())?;
        check_parameter(relation, 2, Kind::ZeroPoint, dim.as_ref())?;
        with_element_type(relation, out_dtype(relation, REAL_DTYPES)?)
    },
    reference: Some(dequantize),
    flops: |cost| 2 * cost.ret_len(),
    properties: Properties::EXACT.ulps(1.0),
}

operator! {
    name: "qnn.requantize",
    doc: "Converts to another scale and zero point. With t = data - input_zero_point and m = input_scale / \
          output_scale: round(t * m) + output_zero_point, clipped to the range of out_dtype. compute_dtype int64 \
          (also for None) represents m, computed in float64, as M * 2^(e - 31) with M = round(fraction * 2^31) and \
          computes exactly: UPWARD (also for None) is (t * 2^max(e, 0) * M + 2^(30 + r)) >> (31 + r) with r = \
          max(-e, 0); TONEAREST rounds halves away from zero, TOEVEN to the even integer. compute_dtype float32 \
          computes t * m in float32 and rounds it likewise. Equal scales leave t unchanged. Overflow saturates: t \
          and the rescaled t are clamped to int32 and the result to out_dtype instead of wrapping.",
    inputs: &["data", "input_scale", "input_zero_point", "output_scale", "output_zero_point"],
    attrs: &[
        AXIS,
        AttrDef::new("rounding", AttrKind::Str, Default::Str("None"),
            "\"UPWARD\", \"TONEAREST\" or \"TOEVEN\"; \"None\": UPWARD"),
        AttrDef::new("compute_dtype", AttrKind::Str, Default::Str("None"),
            "\"int64\" or \"float32\"; \"None\": int64"),
        AttrDef::new("out_dtype", AttrKind::DType, Default::Str("int8"), "element type of the result"),
    ],
    pattern: OpPattern::ElemWise,
    relation: |relation| {
        let data = relation.tensor(0)?;
        check_one_of(relation, "data", data.dtype, QUANTIZED_DTYPES)?;
        let dim = axis_dim(relation, "axis", data)?;
        for (i, kind) in [Kind::Scale, Kind::ZeroPoint, Kind::Scale, Kind::ZeroPoint].into_iter().enumerate() {
            check_parameter(relation, i + 1, kind, dim.as_ref())?;
        }
        check_choice(relation, "rounding", &["None", "UPWARD", "TONEAREST", "TOEVEN"])?;
        check_choice(relation, "compute_dtype", &["None", "int64", "float32"])?;
        with_element_type(relation, out_dtype(relation, QUANTIZED_DTYPES)?)
    },
    reference: Some(requantize),
    flops: |cost| 4 * cost.ret_len(),
}

/// Returns the element type in attribute `out_dtype`, which must be one of `allowed`.
fn out_dtype(relation: &Relation<'_>, allowed: &[DType]) -> Result<DType, Box<Diagnostic>> {
    let requested = relation.params.dtype("out_dtype");
    let requested = requested.ok_or_else(|| {
        relation.error(codes::types::BAD_ATTRIBUTE, "out_dtype: expected an element type, found \"\"")
    })?;
    check_one_of(relation, "out_dtype", requested, allowed)?;
    Ok(requested)
}

/// Quantizes one element, except for the final saturating conversion to the integer type.
#[inline(always)]
pub fn quantize_f32(x: f32, scale: f32, zero_point: i32, out: (i64, i64), rounding: Rounding) -> f32 {
    let value = rounding.round(x / scale) + zero_point as f32;
    // Both comparisons are false for NaN, which is kept.
    let value = if value < out.0 as f32 { out.0 as f32 } else { value };
    if value > out.1 as f32 { out.1 as f32 } else { value }
}

fn quantize(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let axis = params.int("axis");
    let scale = PerAxis::new(scales(&params, 1, &inputs[1])?, inputs[0].shape, axis);
    let zero = PerAxis::new(zero_points(&inputs[2]), inputs[0].shape, axis);
    let (rounding, limits) = (rounding_of(&params, Rounding::ToNearest), range(outputs[0].dtype));
    let x = inputs[0].to_f64s();
    let quantize_one = |(i, x)| f64::from(quantize_f32(x as f32, scale.at(i), zero.at(i), limits, rounding));
    Writer::new(&mut outputs[0]).store(x.into_iter().enumerate().map(quantize_one));
    Ok(())
}

/// Returns x - zero point as an `int32`, saturated.
#[inline(always)]
pub(super) fn difference(x: i64, zero_point: i32) -> i32 {
    saturate(i128::from(x) - i128::from(zero_point))
}

/// Returns the elements of a view of an integer type of at most 32 bits.
pub(super) fn integers(view: &TensorView<'_>) -> Vec<i64> {
    view.to_i64s().unwrap_or_default()
}

/// Dequantizes all elements.
pub(super) fn dequantized(
    params: &Params<'_>,
    data: &TensorView<'_>,
    scale: (usize, &TensorView<'_>),
    zero_point: &TensorView<'_>,
    axis: i64,
) -> Result<Vec<f32>, ReferenceError> {
    let scale = PerAxis::new(scales(params, scale.0, scale.1)?, data.shape, axis);
    let zero = PerAxis::new(zero_points(zero_point), data.shape, axis);
    let values = integers(data).into_iter().enumerate();
    Ok(values.map(|(i, x)| difference(x, zero.at(i)) as f32 * scale.at(i)).collect())
}

fn dequantize(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let values = dequantized(&params, &inputs[0], (1, &inputs[1]), &inputs[2], params.int("axis"))?;
    let is_half = outputs[0].dtype == DType::F16;
    let limit = f32::from(half::f16::MAX);
    let saturate = |x: f32| f64::from(if is_half { x.clamp(-limit, limit) } else { x });
    Writer::new(&mut outputs[0]).store(values.into_iter().map(saturate));
    Ok(())
}

fn requantize(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (shape, axis) = (inputs[0].shape, params.int("axis"));
    let factors = requantization(&params, &scales(&params, 1, &inputs[1])?, &scales(&params, 3, &inputs[3])?);
    let factors = PerAxis::new(factors, shape, axis);
    let from_zero = PerAxis::new(zero_points(&inputs[2]), shape, axis);
    let to_zero = PerAxis::new(zero_points(&inputs[4]), shape, axis);
    let limits = range(outputs[0].dtype);
    let x = integers(&inputs[0]);
    let requantize_one = |(i, x)| rescale(difference(x, from_zero.at(i)), factors.at(i), to_zero.at(i), limits) as f64;
    Writer::new(&mut outputs[0]).store(x.into_iter().enumerate().map(requantize_one));
    Ok(())
}
