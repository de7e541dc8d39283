//! Integer multiplication by fixed-point fractions.

use super::elementwise::same_as_input;
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, ReferenceError, Relation};
use crate::diag::{Diagnostic, codes};
use crate::tensor::{DType, TensorView, TensorViewMut};

operator! {
    name: "fixed_point_multiply",
    doc: "x * multiplier * 2^(shift - 31) in fixed point, halves rounded up: \
          ((x << max(shift, 0)) * multiplier + 2^(30 + r)) >> (31 + r) with r = max(-shift, 0). Every step is \
          exact; a result that does not fit int32 saturates.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("multiplier", AttrKind::Int, Default::Required, "fraction with 31 bits after the binary point"),
        AttrDef::new("shift", AttrKind::Int, Default::Required, "exponent of the power of two; a right shift if negative"),
    ],
    pattern: OpPattern::ElemWise,
    relation: |relation| {
        check_int32(relation, 0)?;
        let invalid = |message| Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
        let (multiplier, shift) = (relation.params.int("multiplier"), relation.params.int("shift"));
        if i32::try_from(multiplier).is_err() {
            return invalid(format!("multiplier: expected an int32, found {multiplier}"));
        }
        if !(-31..=31).contains(&shift) {
            return invalid(format!("shift: expected an integer in [-31, 31], found {shift}"));
        }
        same_as_input(relation)
    },
    reference: Some(|params, inputs, outputs| {
        let (multiplier, shift) = (params.int("multiplier") as i32, params.int("shift"));
        let (left, right) = (shift.max(0) as u32, (-shift).max(0) as u32);
        for (out, &x) in outputs[0].as_mut_slice::<i32>().iter_mut().zip(inputs[0].as_slice::<i32>()) {
            *out = multiply(x, multiplier, left, right);
        }
        Ok(())
    }),
    flops: |cost| 2 * cost.ret_len(),
}

operator! {
    name: "fixed_point_multiply_per_axis",
    doc: "fixed_point_multiply with a multiplier m, a left shift and a right shift for each index on one axis: \
          ((x << lshift) * m + 2^(30 + rshift)) >> (31 + rshift). Every step is exact; a result that does not fit \
          int32 saturates. Shifts are in [0, 31].",
    inputs: &["x", "m", "lshift", "rshift"],
    attrs: &[
        AttrDef::new("is_lshift_required", AttrKind::Bool, Default::Bool(false),
            "true if lshift is used; otherwise every left shift is 0"),
        AttrDef::new("is_rshift_required", AttrKind::Bool, Default::Bool(false),
            "true if rshift is used; otherwise every right shift is 0"),
        AttrDef::new("axes", AttrKind::Ints, Default::Ints(&[]), "axis of m and of the shifts, as a list of one element"),
    ],
    pattern: OpPattern::ElemWise,
    relation: |relation| {
        check_int32(relation, 0)?;
        let data = relation.tensor(0)?;
        let axes = relation.params.ints("axes");
        let [axis] = axes[..] else {
            return Err(relation.error(codes::types::BAD_ATTRIBUTE, format!("axes: expected one axis, found {axes:?}")));
        };
        let mut dims = data.dims.to_vec();
        let axis = relation.axis(axis, dims.len())?;
        for i in 1..4 {
            check_int32(relation, i)?;
            let name = relation.def.inputs[i];
            let [length] = &relation.tensor(i)?.dims[..] else {
                return Err(relation.mismatch(format!("{name}: expected 1 dimension, found {}", relation.args[i])));
            };
            dims[axis] = relation.same_dim(&format!("x and {name}"), &dims[axis], length)?;
        }
        Ok(crate::ir::Type::tensor_of(DType::I32, dims))
    },
    reference: Some(multiply_per_axis),
    flops: |cost| 2 * cost.ret_len(),
}

fn check_int32(relation: &Relation<'_>, i: usize) -> Result<(), Box<Diagnostic>> {
    match relation.tensor(i)?.dtype {
        DType::I32 => Ok(()),
        other => Err(relation.mismatch(format!("{}: expected int32, found {other}", relation.def.inputs[i]))),
    }
}

/// Evaluates the common formula of both operators; `left` and `right` must be at most 31.
fn multiply(x: i32, multiplier: i32, left: u32, right: u32) -> i32 {
    let product = (i128::from(x) << left) * i128::from(multiplier);
    let rounded_product = (product + (1i128 << (30 + right))) >> (31 + right);
    rounded_product.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as i32
}

fn multiply_per_axis(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let shape = outputs[0].shape;
    let axis = params.ints("axes").first().copied().unwrap_or(0).rem_euclid(shape.len().max(1) as i64) as usize;
    let inner: usize = shape[axis + 1..].iter().product();
    let multipliers = inputs[1].as_slice::<i32>();
    let shifts = |i: usize, attr: &str| -> Result<Vec<u32>, ReferenceError> {
        let shifts_in = inputs[i].as_slice::<i32>();
        let effective_shift = |&shift: &i32| match params.bool(attr) {
            false => Ok(0),
            true if (0..=31).contains(&shift) => Ok(shift as u32),
            true => Err(format!("{}: expected shifts in [0, 31], found {shift}", params.def().inputs[i])),
        };
        shifts_in.iter().map(effective_shift).collect()
    };
    let (left, right) = (shifts(2, "is_lshift_required")?, shifts(3, "is_rshift_required")?);
    let x = inputs[0].as_slice::<i32>();
    for (i, (out, &x)) in outputs[0].as_mut_slice::<i32>().iter_mut().zip(x).enumerate() {
        let position = i / inner % multipliers.len();
        *out = multiply(x, multipliers[position], left[position], right[position]);
    }
    Ok(())
}
