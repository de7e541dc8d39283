//! Operators whose axes are computed at run time: `dyn.NAME(data, axis)` is `NAME(data, axis=...)`. Type relations and
//! references are those of the static operator `NAME`, with the axes passed as its attribute `axis`.

use super::facts::{Properties, elements_along_axis, reduced_elements};
use super::reshape::unknown_dims;
use super::{AttrDef, AttrKind, Default, Evaluation, OpDef, OpPattern, Params, Relation, TypeResult, get, lookup};
use crate::diag::codes;
use crate::ir::{AttrValue, Attrs, Dim, Type};
use crate::tensor::{TensorView, TensorViewMut};

const KEEPDIMS: AttrDef =
    AttrDef::new("keepdims", AttrKind::Bool, Default::Bool(false), "true to keep reduced axes with dimension 1");
const SCAN: &[AttrDef] = &[
    AttrDef::new("dtype", AttrKind::DType, Default::Str(""), "element type of the result; that of the data if empty"),
    AttrDef::new("exclusive", AttrKind::Bool, Default::Bool(false), "true if the element itself is excluded"),
];

/// Returns the static operator `NAME` for the operator `dyn.NAME`.
fn static_operator(def: &OpDef) -> Option<&'static OpDef> {
    def.name.strip_prefix("dyn.").and_then(lookup).map(get)
}

/// Returns the attributes of the static operator, with `axes` as attribute `axis`.
fn attrs_with_axes(params: &Params<'_>, axes: &[i64]) -> Attrs {
    let value = if let [axis] = axes { AttrValue::from(*axis) } else { AttrValue::ints(axes.iter().copied()) };
    params.attrs().with("axis", value)
}

/// Returns the type of the call with known axes.
fn known_type(relation: &Relation<'_>, axes: &[i64]) -> TypeResult {
    let def = static_operator(relation.def)
        .ok_or_else(|| relation.error(codes::types::BAD_ATTRIBUTE, "the operator has no static counterpart"))?;
    def.infer(&attrs_with_axes(&relation.params, axes), &relation.args[..1], &[])
}

fn reduced_type(relation: &Relation<'_>) -> TypeResult {
    let (data, axes) = (relation.tensor(0)?, unknown_dims(relation, 1)?.len());
    if let Some(axes) = relation.known_ints(1) {
        return known_type(relation, &axes);
    }
    let rank = data.dims.len();
    let result_dims = match (relation.params.bool("keepdims"), axes) {
        (true, _) => rank,
        (false, 0) => 0,
        (false, axes) => rank.checked_sub(axes).ok_or_else(|| {
            relation.mismatch(format!("axis: expected a length <= {rank} for {}, found {axes}", relation.args[0]))
        })?,
    };
    Ok(Type::tensor_of(data.dtype, vec![Dim::Any; result_dims]))
}

/// Returns the type of a result with the dimensions of the data, for operators along a single axis.
fn same_dims(relation: &Relation<'_>) -> TypeResult {
    let (data, axis) = (relation.tensor(0)?, relation.tensor(1)?);
    if !axis.dtype.is_int() || axis.dims.iter().any(|dim| dim.fixed().is_some_and(|n| n != 1)) {
        return Err(relation.mismatch(format!("axis: expected one integer, found {}", relation.args[1])));
    }
    match relation.known_ints(1) {
        Some(axes) => known_type(relation, &axes),
        None if data.dims.is_empty() => {
            Err(relation.mismatch(format!("data: expected rank 1 or more, found {}", relation.args[0])))
        }
        None => {
            let dtype = relation.params.dtype("dtype").unwrap_or(data.dtype);
            Ok(Type::tensor_of(dtype, data.dims.iter().cloned()))
        }
    }
}

fn reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let axes = inputs[1]
        .to_i64s()
        .ok_or_else(|| format!("axis: expected integers that fit int64, found {}", inputs[1].dtype))?;
    let rank = inputs[0].shape.len() as i64;
    if let Some(axis) = axes.iter().find(|axis| !(-rank..rank).contains(axis)) {
        return Err(format!("axis {axis} is out of range for rank {rank}"));
    }
    let def = static_operator(params.def()).ok_or("the operator has no static counterpart")?;
    let reference = def.reference.ok_or_else(|| format!("{} has no reference", def.name))?;
    let attrs = attrs_with_axes(&params, &axes);
    reference(Params::new(def, &attrs), &inputs[..1], outputs)
}

macro_rules! operators {
    ($($name:literal, $attrs:expr, $pattern:ident, $relation:ident, $properties:expr, $doc:literal;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["data", "axis"],
            attrs: $attrs,
            pattern: OpPattern::$pattern,
            relation: $relation,
            reference: Some(reference),
            flops: |cost| cost.arg_len(0),
            properties: $properties,
        }
    )*};
}

operators! {
    "dyn.sum", &[KEEPDIMS], Opaque, reduced_type, Properties::EXACT.sum(reduced_elements),
        "Sum along the axes in an integer vector computed at run time; an empty vector means all axes.";
    "dyn.mean", &[KEEPDIMS], Opaque, reduced_type, Properties::EXACT.sum(reduced_elements),
        "Mean along the axes in an integer vector computed at run time; an empty vector means all axes.";
    "dyn.prod", &[KEEPDIMS], Opaque, reduced_type, Properties::EXACT.stable(reduced_elements),
        "Product along the axes in an integer vector computed at run time; an empty vector means all axes.";
    "dyn.max", &[KEEPDIMS], Opaque, reduced_type, Properties::EXACT,
        "Maximum along the axes in an integer vector computed at run time; an empty vector means all axes.";
    "dyn.min", &[KEEPDIMS], Opaque, reduced_type, Properties::EXACT,
        "Minimum along the axes in an integer vector computed at run time; an empty vector means all axes.";
    "dyn.cumsum", SCAN, Opaque, same_dims, Properties::EXACT.sum(elements_along_axis),
        "cumsum along an axis computed at run time: an integer scalar or a vector of one element.";
    "dyn.cumprod", SCAN, Opaque, same_dims, Properties::EXACT.stable(elements_along_axis),
        "cumprod along an axis computed at run time: an integer scalar or a vector of one element.";
    "dyn.reverse", &[], Opaque, same_dims, Properties::SELECTS,
        "reverse along an axis computed at run time: an integer scalar or a vector of one element.";
}
