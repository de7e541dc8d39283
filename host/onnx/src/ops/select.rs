//! Selection of a data-dependent number of elements.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::ir::ExprId;
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("Compress", 9, compress),
    ("NonMaxSuppression", 10, non_max_suppression),
    ("NonZero", 9, |n| {
        let data = n.input(0)?;
        let rows = n.op_without_attrs("argwhere", &[data])?;
        single_output(n.transpose(rows, &[1, 0])?)
    }),
    ("Unique", 11, unique),
];

/// Selects the slices along an axis whose condition is true. Without an axis, the data is flattened first.
fn compress(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, condition) = (n.input(0)?, n.input(1)?);
    let (data, axis) = if n.has("axis") {
        (data, n.axis(n.int_attr("axis", 0)?, n.rank(data)?)? as i64)
    } else {
        (n.op("reshape", &[data], attrs![newshape: [-1i64]])?, 0)
    };
    // The condition is a vector by the specification. Paddle2ONNX writes a tensor, which ONNX Runtime flattens.
    let condition =
        if n.rank(condition)? == 1 { condition } else { n.op("reshape", &[condition], attrs![newshape: [-1i64]])? };
    let rows = n.op_without_attrs("argwhere", &[condition])?;
    let indices = n.op("squeeze", &[rows], attrs![axis: [1i64]])?;
    single_output(n.op("take", &[data, indices], attrs![axis: axis, mode: "fast"])?)
}

fn non_max_suppression(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (boxes, scores) = (n.input(0)?, n.input(1)?);
    let mut scalar_input = |i: usize, default: f64, dtype: DType| match n.optional_input(i) {
        Some(value) => value,
        None => n.scalar(dtype, default),
    };
    let max_boxes = scalar_input(2, 0.0, DType::I64);
    let (overlap, min_score) = (scalar_input(3, 0.0, DType::F32), scalar_input(4, f64::NEG_INFINITY, DType::F32));
    let is_center = n.int_attr("center_point_box", 0)? != 0;
    let arguments = [boxes, scores, max_boxes, overlap, min_score];
    let attributes = attrs![center_point_box: is_center];
    let boxes_and_counts = n.op("vision.all_class_non_max_suppression", &arguments, attributes)?;
    let (rows, count) = (n.project(boxes_and_counts, 0)?, n.project(boxes_and_counts, 1)?);
    single_output(first_rows(n, rows, count)?)
}

/// Returns the first `count` rows; `count` is a vector with one element.
fn first_rows(n: &mut Node<'_, '_>, rows: ExprId, count: ExprId) -> Result<ExprId> {
    let (start, step) = (n.vector(&[0i64]), n.vector(&[1i64]));
    n.op("dyn.strided_slice", &[rows, start, count, step], attrs![axes: [0i64]])
}

pub(super) fn unique(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let bytes = n.string_bytes(data);
    // Strings are compared by their rank, and selected by their positions.
    let keys = match bytes {
        Some(bytes) => n.op_without_attrs("text.rank", &[bytes, data])?,
        None => data,
    };
    let mut attributes = attrs![is_sorted: n.int_attr("sorted", 1)? != 0];
    if n.has("axis") {
        let axis = n.axis(n.int_attr("axis", 0)?, n.rank(data)?)?;
        attributes = attributes.with("axis", axis as i64);
    }
    let axis = attributes.get("axis").cloned();
    let unique_outputs = n.op("unique_slices", &[keys], attributes)?;
    let outputs = (0..n.output_count().min(4)).map(|i| n.project(unique_outputs, i as u32));
    let mut outputs: Outputs = outputs.collect::<Result<_>>()?;
    if let Some(bytes) = bytes {
        let positions = n.project(unique_outputs, 1)?;
        let (data, axis) = match axis {
            Some(axis) => (data, axis),
            None => (n.op("reshape", &[data], attrs![newshape: [-1i64]])?, 0.into()),
        };
        let values = n.op("take", &[data, positions], attrs![axis: axis, mode: "fast"])?;
        outputs[0] = n.with_bytes(values, bytes);
    }
    Ok(outputs)
}
