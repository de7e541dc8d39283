//! Operators that order elements along an axis. Equal elements keep their order; NaN counts as the largest.

use super::elementwise::{one_flop_per_element, same_as_input, with_element_type};
use super::scalar::{Reader, Writer};
use super::walk::split_at_axis;
use super::{AttrDef, AttrKind, Default, Evaluation, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::codes;
use crate::ir::{Dim, Type};
use crate::tensor::{DType, TensorView, TensorViewMut};

const AXIS: AttrDef =
    AttrDef::new("axis", AttrKind::Int, Default::Int(-1), "axis; a negative axis counts from the end");
const DTYPE: AttrDef = AttrDef::new("dtype", AttrKind::DType, Default::Str("int32"), "element type of the indices");

const fn is_ascend(default: bool) -> AttrDef {
    AttrDef::new("is_ascend", AttrKind::Bool, Default::Bool(default), "true if the smallest element comes first")
}

/// Returns, for each row along the axis, the indices of its first `count` elements in sorted order. The rows are in
/// row-major order.
fn ranking(input: &TensorView<'_>, axis: usize, is_ascending: bool, count: usize) -> Vec<Vec<usize>> {
    let (outer, size, inner) = split_at_axis(input.shape, axis);
    let mut rows = Vec::with_capacity(outer * inner);
    let data = Reader::new(input);
    // NaN is ordered after all other values.
    let compare = |a: usize, b: usize| {
        data.compare(a, &data, b).unwrap_or_else(|| data.float(a).is_nan().cmp(&data.float(b).is_nan()))
    };
    let mut ticks = Ticks::every(16 * size);
    for row in 0..outer * inner {
        if ticks.is_requested() {
            break;
        }
        let base = row / inner * size * inner + row % inner;
        let mut order: Vec<usize> = (0..size).collect();
        order.sort_by(|&a, &b| {
            let order = compare(base + a * inner, base + b * inner);
            if is_ascending { order } else { order.reverse() }
        });
        order.truncate(count);
        rows.push(order);
    }
    rows
}

/// Writes the ranked elements.
fn write_values(input: &TensorView<'_>, axis: usize, rows: &[Vec<usize>], output: &mut TensorViewMut<'_>) {
    let (size, (_, input_size, inner)) = (input.dtype.size(), split_at_axis(input.shape, axis));
    let output_size = output.shape[axis];
    for (row, order) in rows.iter().enumerate() {
        for (position, &i) in order.iter().enumerate() {
            let source = ((row / inner * input_size + i) * inner + row % inner) * size;
            let target = ((row / inner * output_size + position) * inner + row % inner) * size;
            output.data[target..target + size].copy_from_slice(&input.data[source..source + size]);
        }
    }
}

/// Writes the ranked indices.
fn write_indices(axis: usize, rows: &[Vec<usize>], output: &mut TensorViewMut<'_>) {
    let (_, output_size, inner) = split_at_axis(output.shape, axis);
    let mut out = Writer::new(output);
    for (row, order) in rows.iter().enumerate() {
        for (position, &i) in order.iter().enumerate() {
            out.set_float((row / inner * output_size + position) * inner + row % inner, i as f64);
        }
    }
}

fn axis_of(params: &Params<'_>, shape: &[usize]) -> usize {
    params.int("axis").rem_euclid(shape.len() as i64) as usize
}

operator! {
    name: "sort",
    doc: "Elements, sorted along the axis.",
    inputs: &["data"],
    attrs: &[AXIS, is_ascend(true)],
    relation: |relation| {
        relation.axis(relation.params.int("axis"), relation.tensor(0)?.dims.len())?;
        same_as_input(relation)
    },
    reference: Some(|params, inputs, outputs| {
        let axis = axis_of(&params, inputs[0].shape);
        let rows = ranking(&inputs[0], axis, params.bool("is_ascend"), usize::MAX);
        write_values(&inputs[0], axis, &rows, &mut outputs[0]);
        Ok(())
    }),
    flops: one_flop_per_element,
}

fn index_type(relation: &Relation<'_>) -> Result<DType, Box<crate::diag::Diagnostic>> {
    let missing_dtype = || relation.error(codes::types::BAD_ATTRIBUTE, "dtype: expected an element type, found \"\"");
    relation.params.dtype("dtype").ok_or_else(missing_dtype)
}

operator! {
    name: "argsort",
    doc: "Indices that sort the elements along the axis.",
    inputs: &["data"],
    attrs: &[AXIS, is_ascend(true), DTYPE],
    relation: |relation| {
        relation.axis(relation.params.int("axis"), relation.tensor(0)?.dims.len())?;
        with_element_type(relation, index_type(relation)?)
    },
    reference: Some(|params, inputs, outputs| {
        let axis = axis_of(&params, inputs[0].shape);
        let rows = ranking(&inputs[0], axis, params.bool("is_ascend"), usize::MAX);
        write_indices(axis, &rows, &mut outputs[0]);
        Ok(())
    }),
    flops: one_flop_per_element,
}

/// Returns the type of the result with `k` elements along the axis; the dimension is unknown if `k` is `None`.
fn topk_type(relation: &Relation<'_>, k: Option<i64>) -> TypeResult {
    let data = relation.tensor(0)?;
    let axis = relation.axis(relation.params.int("axis"), data.dims.len())?;
    let mut dims = data.dims.to_vec();
    match (k, dims[axis].fixed()) {
        (None, _) => dims[axis] = Dim::Any,
        (Some(k), Some(n)) if k > n as i64 => {
            return Err(relation.error(codes::types::BAD_ATTRIBUTE, format!("k: expected at most {n}, found {k}")));
        }
        (Some(k), _) if k >= 1 => dims[axis] = Dim::Fixed(k as usize),
        // A `k` below 1 selects all elements.
        (Some(_), _) => {}
    }
    let values = Type::tensor_of(data.dtype, dims.iter().cloned());
    let indices = Type::tensor_of(index_type(relation)?, dims);
    match relation.params.string("ret_type").as_str() {
        "both" => Ok(Type::tuple([values, indices])),
        "values" => Ok(values),
        "indices" => Ok(indices),
        other => Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("ret_type: expected \"both\", \"values\" or \"indices\", found \"{other}\""),
        )),
    }
}

fn topk(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let axis = axis_of(&params, inputs[0].shape);
    let rows = ranking(&inputs[0], axis, params.bool("is_ascend"), outputs[0].shape[axis]);
    let ret_type = params.string("ret_type");
    if ret_type == "indices" {
        write_indices(axis, &rows, &mut outputs[0]);
        return Ok(());
    }
    write_values(&inputs[0], axis, &rows, &mut outputs[0]);
    if ret_type == "both" {
        write_indices(axis, &rows, &mut outputs[1]);
    }
    Ok(())
}

const RET_TYPE: AttrDef =
    AttrDef::new("ret_type", AttrKind::Str, Default::Str("both"), "\"both\", \"values\" or \"indices\"");

operator! {
    name: "topk",
    doc: "k largest (or smallest) elements along the axis, sorted, and their indices.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("k", AttrKind::Int, Default::Int(1), "number of elements; all if less than 1"),
        AXIS,
        RET_TYPE,
        is_ascend(false),
        DTYPE,
    ],
    relation: |relation| topk_type(relation, Some(relation.params.int("k"))),
    reference: Some(topk),
    flops: |cost| cost.arg_len(0),
}

operator! {
    name: "dyn.topk",
    doc: "topk with k computed at run time: an integer scalar or a vector of one element.",
    inputs: &["data", "k"],
    attrs: &[AXIS, RET_TYPE, is_ascend(false), DTYPE],
    relation: |relation| topk_type(relation, relation.known_ints(1).and_then(|k| k.first().copied())),
    reference: Some(topk),
    flops: |cost| cost.arg_len(0),
}
