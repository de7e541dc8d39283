//! Concatenation of quantized tensors with different scales.

use super::numerics::{range, rescale};
use super::params::{
    Kind, NARROW_DTYPES, check, check_one_of, check_parameter, default_requantization, scale, zero_points,
};
use super::quantize::{difference, integers};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::op::concat;
use crate::op::scalar::Writer;
use crate::tensor::{TensorView, TensorViewMut};

operator! {
    name: "qnn.concatenate",
    doc: "Tensors of a tuple, concatenated along an axis, each requantized (UPWARD, int64, saturating) from \
          its scale and zero point, in two further tuples, to those of the output. A tensor that already has them \
          is copied.",
    inputs: &["data", "input_scales", "input_zero_points", "output_scale", "output_zero_point"],
    attrs: &[AttrDef::new("axis", AttrKind::Int, Default::Int(0), "axis; a negative axis counts from the end")],
    pattern: OpPattern::Injective,
    relation,
    reference: Some(concatenate),
    flops: |cost| 4 * cost.ret_len(),
}

fn relation(relation: &Relation<'_>) -> TypeResult {
    let ty = concat::concatenate_type(relation)?;
    let fields = relation.tensors(0)?;
    check_one_of(relation, "data", fields[0].dtype, NARROW_DTYPES)?;
    for (i, kind) in [(1, Kind::Scale), (2, Kind::ZeroPoint)] {
        let (name, fields_of_input) = (relation.def.inputs[i], relation.tensors(i)?);
        if fields_of_input.len() != fields.len() {
            let (found, expected) = (fields_of_input.len(), fields.len());
            return Err(
                relation.mismatch(format!("{name}: expected a field per tensor, {expected} in total, found {found}"))
            );
        }
        for (index, ty) in fields_of_input.into_iter().enumerate() {
            check(relation, &format!("{name}.{index}"), ty, None, kind, None)?;
        }
    }
    check_parameter(relation, 3, Kind::Scale, None)?;
    check_parameter(relation, 4, Kind::ZeroPoint, None)?;
    Ok(ty)
}

fn concatenate(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    // Tuples are flattened: n tensors, n scales, n zero points, and the two parameters of the output.
    let count = (inputs.len() - 2) / 3;
    let (result_scale, to_zero) = (scale(&params, 3, &inputs[3 * count])?, zero_points(&inputs[3 * count + 1])[0]);
    let limits = range(outputs[0].dtype);
    let mut parts = Vec::with_capacity(count);
    for (i, view) in inputs[..count].iter().enumerate() {
        let source_scale = scale(&params, 1, &inputs[count + i])?;
        let from_zero = zero_points(&inputs[2 * count + i])[0];
        let factor = default_requantization(&[source_scale], &[result_scale])[0];
        let values = integers(view).into_iter().map(|x| rescale(difference(x, from_zero), factor, to_zero, limits));
        let mut bytes = vec![0; view.data.len()];
        Writer::new(&mut TensorViewMut { dtype: view.dtype, shape: view.shape, data: &mut bytes })
            .store(values.map(|v| v as f64));
        parts.push(bytes);
    }
    let views: Vec<_> = inputs.iter().zip(&parts).map(|(view, data)| TensorView { data, ..*view }).collect();
    concat::concatenate(params, &views, outputs)
}
