//! Binary operators on quantized tensors, with NumPy's broadcasting.

use super::numerics::{range, rescale, saturate};
use super::params::{
    Kind, NARROW_DTYPES, PerAxis, axis_dim, check_one_of, check_parameter, default_requantization, scale, scales,
    zero_points,
};
use super::quantize::{difference, integers};
use super::{Arity, AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, ReferenceError, Relation, TypeResult};
use crate::ir::Type;
use crate::op::broadcast::{broadcast_dims, for_each_pair};
use crate::op::scalar::Writer;
use crate::tensor::{TensorView, TensorViewMut};

const INPUTS: &[&str] =
    &["lhs", "rhs", "lhs_scale", "lhs_zero_point", "rhs_scale", "rhs_zero_point", "output_scale", "output_zero_point"];

const ATTRS: &[AttrDef] = &[
    AttrDef::new("lhs_axis", AttrKind::Int, Default::Int(-1), "axis of lhs along which its scale and zero point vary"),
    AttrDef::new("rhs_axis", AttrKind::Int, Default::Int(-1), "axis of rhs along which its scale and zero point vary"),
];

macro_rules! binary {
    ($($name:literal $doc:literal $reference:expr;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            arity: Arity::exactly(8),
            inputs: INPUTS,
            attrs: ATTRS,
            pattern: OpPattern::Broadcast,
            relation,
            reference: Some($reference),
            flops: |cost| 10 * cost.ret_len(),
        }
    )*};
}

binary! {
    "qnn.add" "Sum of two quantized tensors: each is requantized to the output's scale and zero point in int32 \
               (UPWARD, int64, saturating) unless it already has them; then lhs + rhs - output_zero_point, saturated \
               to the common element type."
        |params, inputs, outputs| sum(&params, inputs, outputs, 1);
    "qnn.subtract" "Difference of two quantized tensors: each is requantized to the output's scale and zero point \
                    in int32 (UPWARD, int64, saturating) unless it already has them; then lhs - rhs + \
                    output_zero_point, saturated to the common element type."
        |params, inputs, outputs| sum(&params, inputs, outputs, -1);
    "qnn.mul" "Product of two quantized tensors: (lhs - lhs_zero_point) * (rhs - rhs_zero_point) in int32 \
               (saturating), requantized (UPWARD, int64) from the scale lhs_scale * rhs_scale, a float32, to the \
               output's scale and zero point, saturated to the common element type. Scales and zero points are \
               scalars."
        product;
}

fn relation(relation: &Relation<'_>) -> TypeResult {
    let (lhs, rhs) = (relation.tensor(0)?, relation.tensor(1)?);
    check_one_of(relation, "lhs", lhs.dtype, NARROW_DTYPES)?;
    relation.same_dtype(lhs.dtype, rhs.dtype)?;
    let is_mul = relation.def.name == "qnn.mul";
    for (attr, side, first_param) in [("lhs_axis", lhs, 2), ("rhs_axis", rhs, 4)] {
        let dim = if is_mul { None } else { axis_dim(relation, attr, side)? };
        check_parameter(relation, first_param, Kind::Scale, dim.as_ref())?;
        check_parameter(relation, first_param + 1, Kind::ZeroPoint, dim.as_ref())?;
    }
    check_parameter(relation, 6, Kind::Scale, None)?;
    check_parameter(relation, 7, Kind::ZeroPoint, None)?;
    Ok(Type::tensor_of(lhs.dtype, broadcast_dims(relation, [lhs, rhs])?))
}

/// Requantizes one operand to the output's scale and zero point, in `int32`.
fn requantized(
    params: &Params<'_>,
    inputs: &[TensorView<'_>],
    side: usize,
    attr: &str,
) -> Result<Vec<i64>, ReferenceError> {
    let (view, axis) = (&inputs[side], params.int(attr));
    let source_scales = scales(params, 2 + 2 * side, &inputs[2 + 2 * side])?;
    let from_zero = PerAxis::new(zero_points(&inputs[3 + 2 * side]), view.shape, axis);
    let (result_scale, result_zero) = (scale(params, 6, &inputs[6])?, zero_points(&inputs[7])[0]);
    let int32 = (i64::from(i32::MIN), i64::from(i32::MAX));
    let factors = PerAxis::new(default_requantization(&source_scales, &[result_scale]), view.shape, axis);
    if source_scales.iter().all(|&source_scales| source_scales == result_scale)
        && from_zero.values.iter().all(|&zero| zero == result_zero)
    {
        return Ok(integers(view));
    }
    let requantize = |(i, x)| rescale(difference(x, from_zero.at(i)), factors.at(i), result_zero, int32);
    Ok(integers(view).into_iter().enumerate().map(requantize).collect())
}

fn sum(params: &Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], sign: i64) -> Evaluation {
    let lhs = requantized(params, inputs, 0, "lhs_axis")?;
    let rhs = requantized(params, inputs, 1, "rhs_axis")?;
    let zero = i64::from(zero_points(&inputs[7])[0]);
    store(inputs, outputs, |i, j| lhs[i] + sign * (rhs[j] - zero))
}

fn product(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let side = |side: usize| -> Vec<i32> {
        let zero = zero_points(&inputs[3 + 2 * side])[0];
        integers(&inputs[side]).into_iter().map(|x| difference(x, zero)).collect()
    };
    let (lhs, rhs) = (side(0), side(1));
    let product_scale = scale(&params, 2, &inputs[2])? * scale(&params, 4, &inputs[4])?;
    if !(product_scale.is_finite() && product_scale > 0.0) {
        return Err(format!("lhs_scale * rhs_scale: expected a finite float32 above 0, found {product_scale}"));
    }
    let factor = default_requantization(&[product_scale], &[scale(&params, 6, &inputs[6])?])[0];
    let (zero, limits) = (zero_points(&inputs[7])[0], range(outputs[0].dtype));
    store(inputs, outputs, |i, j| rescale(saturate(i128::from(lhs[i]) * i128::from(rhs[j])), factor, zero, limits))
}

/// Fills the output with the saturated results of `f`, which receives the offsets into both operands.
fn store(inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], f: impl Fn(usize, usize) -> i64) -> Evaluation {
    let (shape, limits) = (outputs[0].shape, range(outputs[0].dtype));
    let mut out = Writer::new(&mut outputs[0]);
    let mut positions = 0..out.len();
    for_each_pair(inputs[0].shape, inputs[1].shape, shape, |i, j| {
        if let Some(position) = positions.next() {
            out.set_int(position, i128::from(f(i, j).clamp(limits.0, limits.1)));
        }
        Ok(())
    })
}
