//! Concatenation, stacking and splitting of tensors.

use super::walk::split_at_axis;
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::{Diagnostic, codes};
use crate::ir::{AttrValue, Dim, TensorType, Type};
use crate::op::facts::{LayoutRule, Properties, ResultMemory};
use crate::tensor::{TensorView, TensorViewMut};

const AXIS: AttrDef = AttrDef::new("axis", AttrKind::Int, Default::Int(0), "axis; a negative axis counts from the end");

/// Returns the field types of the tuple argument: at least one, all of the same element type and rank.
fn fields<'a>(relation: &Relation<'a>) -> Result<Vec<&'a TensorType>, Box<Diagnostic>> {
    let fields = relation.tensors(0)?;
    let Some(first) = fields.first() else {
        return Err(relation.mismatch("expected at least one tensor, found an empty tuple"));
    };
    for field in &fields {
        relation.same_dtype(first.dtype, field.dtype)?;
        if field.dims.len() != first.dims.len() {
            return Err(relation.mismatch(format!("expected tensors of equal rank, found {}", relation.args[0])));
        }
    }
    Ok(fields)
}

pub(super) fn concatenate_type(relation: &Relation<'_>) -> TypeResult {
    let fields = fields(relation)?;
    let axis = relation.axis(relation.params.int("axis"), fields[0].dims.len())?;
    let mut dims = fields[0].dims.to_vec();
    for field in &fields[1..] {
        for (i, (result_dim, dim)) in dims.iter_mut().zip(&field.dims).enumerate() {
            *result_dim = if i != axis {
                relation.same_dim(&format!("axis {i}"), result_dim, dim)?
            } else {
                let sum = result_dim.fixed().zip(dim.fixed()).map(|(a, b)| a.checked_add(b));
                match sum {
                    Some(Some(sum)) => Dim::Fixed(sum),
                    Some(None) => {
                        let message =
                            format!("axis {i}: expected a result dimension < 2^64, found {result_dim} + {dim}");
                        return Err(relation.mismatch(message));
                    }
                    None => Dim::compute([result_dim, dim], |[a, b]| a.add(&b)),
                }
            };
        }
    }
    Ok(Type::tensor_of(fields[0].dtype, dims))
}

/// Copies the inputs one after another into each of the `outer` blocks of the output.
fn concat(inputs: &[TensorView<'_>], output: &mut TensorViewMut<'_>, outer: usize) {
    if outer == 0 {
        return;
    }
    let block_bytes = output.data.len() / outer;
    for block in 0..outer {
        let mut offset = block * block_bytes;
        for input in inputs {
            let size = input.data.len() / outer;
            output.data[offset..offset + size].copy_from_slice(&input.data[block * size..(block + 1) * size]);
            offset += size;
        }
    }
}

pub(super) fn concatenate(
    params: Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
) -> Evaluation {
    let axis = params.int("axis").rem_euclid(outputs[0].shape.len() as i64) as usize;
    let outer = split_at_axis(outputs[0].shape, axis).0;
    concat(inputs, &mut outputs[0], outer);
    Ok(())
}

operator! {
    name: "concatenate",
    doc: "Tensors of a tuple, concatenated along an axis; all other dimensions must be equal.",
    inputs: &["data"],
    attrs: &[AXIS],
    pattern: OpPattern::Injective,
    relation: concatenate_type,
    reference: Some(concatenate),
    properties: Properties::EXACT.layout(LayoutRule::Concatenation).result(ResultMemory::Concatenation),
}

operator! {
    name: "stack",
    doc: "Tensors of a tuple, all of the same shape, stacked along a new axis.",
    inputs: &["data"],
    attrs: &[AXIS],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let fields = fields(relation)?;
        let axis = relation.axis(relation.params.int("axis"), fields[0].dims.len() + 1)?;
        let mut dims = fields[0].dims.to_vec();
        for field in &fields[1..] {
            for (i, (result_dim, dim)) in dims.iter_mut().zip(&field.dims).enumerate() {
                *result_dim = relation.same_dim(&format!("axis {i}"), result_dim, dim)?;
            }
        }
        dims.insert(axis, Dim::Fixed(fields.len()));
        Ok(Type::tensor_of(fields[0].dtype, dims))
    },
    reference: Some(concatenate),
}

fn split_type(relation: &Relation<'_>) -> TypeResult {
    let data = relation.tensor(0)?;
    let axis = relation.axis(relation.params.int("axis"), data.dims.len())?;
    let dim = &data.dims[axis];
    let attribute_error = |message: String| relation.error(codes::types::BAD_ATTRIBUTE, message);
    let value = relation.params.value("indices_or_sections");
    let sizes: Vec<Dim> = if let (AttrValue::List(_), Some(points)) = (&value, value.as_ints()) {
        let mut sizes = Vec::with_capacity(points.len() + 1);
        let mut previous_point = 0usize;
        for &point in &points {
            let split_point =
                usize::try_from(point).ok().filter(|&p| p >= previous_point && dim.fixed().is_none_or(|n| p <= n));
            let split_point = split_point.ok_or_else(|| {
                attribute_error(format!(
                    "indices_or_sections: expected ascending indices on an axis of {dim} elements, found {points:?}"
                ))
            })?;
            sizes.push(Dim::Fixed(split_point - previous_point));
            previous_point = split_point;
        }
        sizes.push(match dim.fixed() {
            Some(n) => Dim::Fixed(n - previous_point),
            // An out-of-range index is reported at run time.
            None => Dim::compute([dim, &Dim::Fixed(previous_point)], |[dim, previous_point]| dim.sub(&previous_point)),
        });
        sizes
    } else {
        let sections = value.as_int().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=1 << 16).contains(n));
        let sections = sections.ok_or_else(|| {
            attribute_error(format!("indices_or_sections: expected an integer from 1 to 65536, found {value}"))
        })?;
        let size = match dim.fixed() {
            Some(n) if n.is_multiple_of(sections) => Dim::Fixed(n / sections),
            Some(n) => {
                let message = format!("expected a dimension divisible into {sections} equal parts, found {n}");
                return Err(relation.mismatch(message));
            }
            None => Dim::compute([dim, &Dim::Fixed(sections)], |[dim, sections]| dim.floor_div(&sections)),
        };
        vec![size; sections]
    };
    Ok(Type::tuple(sizes.into_iter().map(|size| {
        let mut dims = data.dims.to_vec();
        dims[axis] = size;
        Type::tensor_of(data.dtype, dims)
    })))
}

fn split(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let axis = params.int("axis").rem_euclid(inputs[0].shape.len() as i64) as usize;
    let outer = split_at_axis(inputs[0].shape, axis).0;
    if outer == 0 {
        return Ok(());
    }
    let row = inputs[0].data.len() / outer;
    for block in 0..outer {
        let mut offset = block * row;
        for output in outputs.iter_mut() {
            let size = output.data.len() / outer;
            output.data[block * size..(block + 1) * size].copy_from_slice(&inputs[0].data[offset..offset + size]);
            offset += size;
        }
    }
    Ok(())
}

operator! {
    name: "split",
    doc: "A tuple of parts along an axis: a given number of equal parts, or parts that begin at the given indices.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new(
            "indices_or_sections",
            AttrKind::IntOrInts,
            Default::Required,
            "number of equal parts, or the first index of every part but the first",
        ),
        AXIS,
    ],
    pattern: OpPattern::Injective,
    relation: split_type,
    reference: Some(split),
}
