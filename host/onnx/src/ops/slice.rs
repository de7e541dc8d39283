//! Slices, splits and padding.

use super::index::wrap_negative;
use super::{Node, Outputs, Result, Row, attrs, single_output};
use crate::size::Size;
use byoc_ir::ir::{AttrValue, Dim, ExprId};
use byoc_ir::tensor::{DType, Tensor};

pub const ROWS: &[Row] = &[
    ("Pad", 2, |n| pad_by_attribute(n, "pads")),
    ("Pad", 11, pad_11),
    ("Slice", 1, slice_1),
    ("Slice", 10, slice_10),
    ("Split", 1, |n| {
        let sizes = n.ints_attr("split")?;
        split(n, sizes)
    }),
    ("Split", 13, |n| match n.computed_input(1) {
        Some(sizes) => split_at_run_time(n, sizes),
        None => {
            let sizes = n.ints(1, "split")?;
            split(n, sizes)
        }
    }),
];

fn slice_1(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let constant_sizes = |list: Option<Vec<i64>>| list.unwrap_or_default().into_iter().map(Size::constant).collect();
    let starts = constant_sizes(n.ints_attr("starts")?);
    let ends = constant_sizes(n.ints_attr("ends")?);
    let axes = n.ints_attr("axes")?;
    slice(n, starts, ends, axes, None)
}

fn slice_10(n: &mut Node<'_, '_>) -> Result<Outputs> {
    if n.computed_input(3).is_some() || n.computed_input(4).is_some() {
        return slice_along_computed_axes(n);
    }
    let (axes, steps) = (n.ints(3, "axes")?, n.ints(4, "steps")?);
    let constant_elements = |n: &Node<'_, '_>, i: usize| {
        n.optional_input(i).and_then(|v| n.tracked_elements(v)).is_some_and(|s| !s.contains(&None))
    };
    if !constant_elements(n, 1) || !constant_elements(n, 2) {
        return slice_at_run_time(n, axes, steps);
    }
    let starts = n.sizes(1, "starts")?.unwrap_or_default();
    let ends = n.sizes(2, "ends")?.unwrap_or_default();
    slice(n, starts, ends, axes, steps)
}

/// Slices with axes or steps computed at run time.
fn slice_along_computed_axes(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let count = bound_count(n)?;
    let [starts, ends] = [bound_vector(n, 1, count)?, bound_vector(n, 2, count)?];
    let steps = match n.optional_input(4) {
        Some(steps) => steps,
        None => n.vector(&vec![1i64; count]),
    };
    let axes = match n.optional_input(3) {
        Some(axes) => axes,
        None => n.vector(&(0..count as i64).collect::<Vec<_>>()),
    };
    single_output(n.op("dyn.strided_slice", &[data, starts, ends, steps, axes], attrs![])?)
}

/// Slices with bounds computed at run time.
fn slice_at_run_time(n: &mut Node<'_, '_>, axes: Option<Vec<i64>>, steps: Option<Vec<i64>>) -> Result<Outputs> {
    let data = n.input(0)?;
    let count = bound_count(n)?;
    let [starts, ends] = [bound_vector(n, 1, count)?, bound_vector(n, 2, count)?];
    let axes = axes.unwrap_or_else(|| (0..count as i64).collect());
    let steps = n.vector(&steps.unwrap_or_else(|| vec![1; count]));
    single_output(n.op("dyn.strided_slice", &[data, starts, ends, steps], attrs![axes: axes])?)
}

/// Returns the common length of the inputs `starts`, `ends`, `axes` and `steps`, at least one of which must have a
/// known length.
fn bound_count(n: &mut Node<'_, '_>) -> Result<usize> {
    let mut counts = Vec::new();
    for i in 1..5 {
        if let Some(vector) = n.optional_input(i) {
            counts.extend(n.dims(vector)?.iter().map(Dim::fixed).product::<Option<usize>>());
        }
    }
    let Some(&count) = counts.first() else {
        let ty = n.ty(n.input(1)?)?;
        return Err(n.unknown_dims_error(&ty));
    };
    if counts.iter().any(|other_count| *other_count != count) {
        return Err(
            n.invalid_node(format!("expected starts, ends, axes and steps of equal length, found lengths {counts:?}"))
        );
    }
    Ok(count)
}

/// Returns input `i`, a vector of `count` elements; if its length is unknown, it is checked at run time.
fn bound_vector(n: &mut Node<'_, '_>, i: usize, count: usize) -> Result<ExprId> {
    let vector = n.input(i)?;
    if n.dims(vector)?.iter().all(|dim| dim.fixed().is_some()) {
        return Ok(vector);
    }
    n.reshape(vector, &[count])
}

fn slice(
    n: &mut Node<'_, '_>,
    starts: Vec<Size>,
    ends: Vec<Size>,
    axes: Option<Vec<i64>>,
    steps: Option<Vec<i64>>,
) -> Result<Outputs> {
    let data = n.input(0)?;
    let dims = n.dims(data)?;
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err(n.invalid_node(format!(
            "expected starts, ends, axes and steps of equal length, found {}, {}, {} and {}",
            starts.len(),
            ends.len(),
            axes.len(),
            steps.len()
        )));
    }
    let (mut begin, mut end, mut strides, mut cut_axes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // Axes sliced to the length of a symbolic dimension.
    let mut lanes = Vec::new();
    for i in 0..starts.len() {
        let axis = n.axis(axes[i], dims.len())?;
        if cut_axes.contains(&(axis as i64)) || lanes.iter().any(|(sliced_axis, _)| *sliced_axis == axis) {
            return Err(n.invalid_node(format!("axes: duplicate axis {axis}")));
        }
        let step = steps[i];
        if step == 0 {
            return Err(n.invalid_node("expected a non-zero step, found 0"));
        }
        let (start, stop) = match (starts[i].as_constant(), ends[i].as_constant(), dims[axis].fixed()) {
            (Some(start), Some(end), Some(size)) => {
                let size = size as i64;
                if size == 0 {
                    continue;
                }
                // Exporters emit bounds that are far out of range; these are clamped to the nearest equivalent bounds.
                let resolve_bound = |v: i64| if v < 0 { v.saturating_add(size) } else { v };
                let (start, end) = if step > 0 {
                    (resolve_bound(start).clamp(0, size), resolve_bound(end).clamp(0, size))
                } else {
                    // The position before the first element is -size - 1, counted from the end.
                    let (start, end) =
                        (resolve_bound(start).clamp(0, size - 1), resolve_bound(end).clamp(-1, size - 1));
                    (start, if end < 0 { -size - 1 } else { end })
                };
                if (start, end, step) == (0, size, 1) {
                    continue;
                }
                strides.push(step.clamp(-size.max(1) - 1, size.max(1) + 1));
                (start, end)
            }
            (Some(0), None, _) if step == 1 && ends[i].is_non_negative() => {
                let end_dim = Dim::from(ends[i].clone());
                if end_dim != dims[axis] {
                    lanes.push((axis, end_dim));
                }
                continue;
            }
            (Some(start), Some(stop), None) => {
                if (start, step) == (0, 1) && stop >= i64::from(i32::MAX) {
                    continue;
                }
                strides.push(step);
                (start, stop)
            }
            _ => return slice_at_run_time(n, Some(axes), Some(steps)),
        };
        begin.push(start);
        end.push(stop);
        cut_axes.push(axis as i64);
    }
    let mut value = data;
    if !cut_axes.is_empty() {
        value = n.op("strided_slice", &[value], attrs![begin: begin, end: end, strides: strides, axes: cut_axes])?;
    }
    for (axis, dim) in lanes {
        value = n.slice_to(value, axis, &dim)?;
    }
    single_output(if value == data { n.forward(data) } else { value })
}

/// Converts Split: parts with the given sizes, or equal parts with a smaller last part if the dimension is not
/// divisible by the number of parts.
fn split(n: &mut Node<'_, '_>, sizes: Option<Vec<i64>>) -> Result<Outputs> {
    let data = n.input(0)?;
    let dims = n.dims(data)?;
    let axis = n.axis(n.int_attr("axis", 0)?, dims.len())?;
    let part_count = n.output_count();
    let Some(size) = dims[axis].fixed() else { return split_open(n, data, axis, sizes) };
    let sizes: Vec<usize> = match sizes {
        Some(sizes) => {
            let part_sizes: Option<Vec<usize>> = sizes.iter().map(|&s| usize::try_from(s).ok()).collect();
            part_sizes.ok_or_else(|| n.invalid_node(format!("expected part sizes >= 0, found {sizes:?}")))?
        }
        None => {
            if let Some(output_count) = n.has("num_outputs").then(|| n.int_attr("num_outputs", 0)).transpose()?
                && output_count != part_count as i64
            {
                return Err(
                    n.invalid_node(format!("attribute num_outputs: expected {part_count}, found {output_count}"))
                );
            }
            let part_size = size.div_ceil(part_count.max(1));
            (0..part_count).map(|i| part_size.min(size.saturating_sub(i * part_size))).collect()
        }
    };
    if sizes.iter().try_fold(0usize, |sum, &s| sum.checked_add(s)) != Some(size) || sizes.len() != part_count {
        return Err(n.invalid_node(format!("part sizes: expected length {part_count} and sum {size}, found {sizes:?}")));
    }
    if part_count == 1 {
        return single_output(n.forward(data));
    }
    let sections = if sizes.iter().all(|&s| s == sizes[0]) {
        AttrValue::from(part_count as i64)
    } else {
        let mut offset = 0;
        AttrValue::ints(sizes[..part_count - 1].iter().map(|&s| {
            offset += s as i64;
            offset
        }))
    };
    let split_outputs = n.op("split", &[data], attrs![indices_or_sections: sections, axis: axis as i64])?;
    (0..part_count).map(|i| n.project(split_outputs, i as u32)).collect()
}

/// Splits an axis of unknown dimension. Execution fails if the axis cannot be split into equal parts or into parts of
/// the given sizes.
fn split_open(n: &mut Node<'_, '_>, data: ExprId, axis: usize, sizes: Option<Vec<i64>>) -> Result<Outputs> {
    let part_count = n.output_count();
    let sections = match sizes {
        None if n.has("num_outputs") => {
            // The last part may be smaller: the part size is rounded up, and slices end at the end of the data.
            let size = n.shape_vector(data, axis..axis + 1)?;
            let rounded_size = n.with_scalar("add", size, part_count as f64 - 1.0)?;
            let part_size = n.with_scalar("floor_divide", rounded_size, part_count as f64)?;
            let step = n.vector(&[1i64]);
            let mut part = |i: usize| {
                let (start, end) = (
                    n.with_scalar("multiply", part_size, i as f64)?,
                    n.with_scalar("multiply", part_size, i as f64 + 1.0)?,
                );
                n.op("dyn.strided_slice", &[data, start, end, step], attrs![axes: [axis as i64]])
            };
            return (0..part_count).map(&mut part).collect();
        }
        None => AttrValue::from(part_count as i64),
        Some(sizes) if sizes.len() == part_count && sizes.iter().all(|size| *size >= 0) => {
            let mut offset = 0i64;
            AttrValue::ints(sizes[..part_count - 1].iter().map(|size| {
                offset = offset.saturating_add(*size);
                offset
            }))
        }
        Some(sizes) => {
            let ty = n.ty(data)?;
            return Err(n.invalid_node(format!(
                "part sizes of axis {axis} of {ty}: expected length {part_count} and values >= 0, found {sizes:?}"
            )));
        }
    };
    if part_count == 1 {
        return single_output(n.forward(data));
    }
    let split_outputs = n.op("split", &[data], attrs![indices_or_sections: sections, axis: axis as i64])?;
    (0..part_count).map(|i| n.project(split_outputs, i as u32)).collect()
}

/// Splits into parts with sizes computed at run time: one slice per part, starting at the sum of the preceding sizes.
fn split_at_run_time(n: &mut Node<'_, '_>, sizes: ExprId) -> Result<Outputs> {
    let data = n.input(0)?;
    let axis = n.axis(n.int_attr("axis", 0)?, n.rank(data)?)?;
    let ends = n.op("cumsum", &[sizes], attrs![axis: 0])?;
    let starts = n.op_without_attrs("subtract", &[ends, sizes])?;
    let step = n.vector(&[1i64]);
    (0..n.output_count())
        .map(|i| {
            let (start, end) = (n.slice(starts, 0, i, i + 1)?, n.slice(ends, 0, i, i + 1)?);
            n.op("dyn.strided_slice", &[data, start, end, step], attrs![axes: [axis as i64]])
        })
        .collect()
}

/// Pads by the widths in the attribute `name`.
pub(super) fn pad_by_attribute(n: &mut Node<'_, '_>, name: &str) -> Result<Outputs> {
    let pads = n.ints_attr(name)?.ok_or_else(|| n.invalid_node(format!("attribute {name} is missing")))?;
    let value = n.float_attr("value", 0.0)?;
    let data = n.input(0)?;
    let value = n.scalar(n.dtype(data)?, value);
    let axes = (0..n.rank(data)?).collect();
    pad(n, data, &pads, value, axes)
}

pub(super) fn pad_11(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let (dtype, rank) = (n.dtype(data)?, n.rank(data)?);
    let value = match n.optional_input(2) {
        Some(value) => n.reshape(value, &[])?,
        None => n.scalar(dtype, 0.0),
    };
    if n.computed_input(1).is_some() || n.computed_input(3).is_some() {
        return pad_at_run_time(n, data, value);
    }
    let pads = n.ints(1, "pads")?.ok_or_else(|| n.invalid_node("input 1 (pads) is missing"))?;
    let axes = match n.ints(3, "axes")? {
        Some(axes) => axes.iter().map(|&a| n.axis(a, rank)).collect::<Result<_, _>>()?,
        None => (0..rank).collect(),
    };
    pad(n, data, &pads, value, axes)
}

/// Pads by widths, or along axes, computed at run time. The widths of the given axes are scattered into a list for all
/// axes.
fn pad_at_run_time(n: &mut Node<'_, '_>, data: ExprId, value: ExprId) -> Result<Outputs> {
    let mode = n.str_attr("mode", "constant")?;
    let rank = n.rank(data)?;
    let pads = n.input(1)?;
    let count = n.shape(pads)?.iter().product::<usize>();
    let pad_rows = n.reshape(pads, &[2, count / 2])?;
    let mut width = n.transpose(pad_rows, &[1, 0])?;
    if let Some(axes) = n.optional_input(3) {
        let size = n.scalar(n.dtype(axes)?, rank as f64);
        let axes = wrap_negative(n, axes, size)?;
        let zero_padding = n.zeros(DType::I64, &[rank, 2])?;
        let axis_indices = n.reshape(axes, &[1, count / 2])?;
        width = n.op("scatter_nd", &[zero_padding, axis_indices, width], attrs![mode: "update"])?;
    }
    if mode == "wrap" {
        return single_output(wrap_at_run_time(n, data, width)?);
    }
    single_output(n.op("dyn.nn.pad", &[data, width, value], attrs![pad_mode: mode.as_str()])?)
}

/// Pads periodically by `width`, a tensor of shape (rank, 2) computed at run time. Negative widths crop first; the
/// result element at index i is then the data element at (i - before) modulo the remaining size.
fn wrap_at_run_time(n: &mut Node<'_, '_>, data: ExprId, width: ExprId) -> Result<ExprId> {
    let (zero, step) = (n.scalar(DType::I64, 0.0), n.scalar(DType::I64, 1.0));
    let mut value = data;
    for axis in 0..n.rank(data)? {
        let row = n.slice(width, 0, axis, axis + 1)?;
        let mut pad_side = |i: usize| {
            let pad_side = n.slice(row, 1, i, i + 1)?;
            n.reshape(pad_side, &[])
        };
        let [pad_before, pad_after] = [pad_side(0)?, pad_side(1)?];
        let size = n.shape_vector(data, axis..axis + 1)?;
        let size = n.reshape(size, &[])?;
        let pad_sum = n.op_without_attrs("add", &[pad_before, pad_after])?;
        let padded_size = n.op_without_attrs("add", &[size, pad_sum])?;
        let (crop_before, crop_after) =
            (n.op_without_attrs("minimum", &[pad_before, zero])?, n.op_without_attrs("minimum", &[pad_after, zero])?);
        let crop_sum = n.op_without_attrs("add", &[crop_before, crop_after])?;
        let size = n.op_without_attrs("add", &[size, crop_sum])?;
        let source_positions = n.op("arange", &[zero, padded_size, step], attrs![dtype: DType::I64])?;
        let positive_pad = n.op_without_attrs("maximum", &[pad_before, zero])?;
        let source_positions = n.op_without_attrs("subtract", &[source_positions, positive_pad])?;
        let source_positions = n.op_without_attrs("floor_mod", &[source_positions, size])?;
        let source_positions = n.op_without_attrs("subtract", &[source_positions, crop_before])?;
        value = n.op("take", &[value, source_positions], attrs![axis: axis as i64, mode: "fast"])?;
    }
    Ok(value)
}

/// Converts Pad; negative padding crops.
fn pad(n: &mut Node<'_, '_>, data: ExprId, pads: &[i64], value: ExprId, axes: Vec<usize>) -> Result<Outputs> {
    let mode = n.str_attr("mode", "constant")?;
    let dims = n.dims(data)?;
    if pads.len() != 2 * axes.len() || pads.iter().any(|p| p.unsigned_abs() > 1 << 40) {
        return Err(n.invalid_node(format!("pads: expected {} integers, two per axis, found {pads:?}", 2 * axes.len())));
    }
    let mut paddings = vec![(0i64, 0i64); dims.len()];
    for (i, &axis) in axes.iter().enumerate() {
        paddings[axis] = (pads[i], pads[axes.len() + i]);
    }
    let mut cropped_data = data;
    for (axis, (pad_before, pad_after)) in paddings.iter_mut().enumerate() {
        if *pad_before < 0 || *pad_after < 0 {
            let (crop_before, crop_after) = ((-*pad_before).max(0), (-*pad_after).max(0));
            cropped_data = match dims[axis].fixed().map(|size| size as i64) {
                Some(size) if crop_before + crop_after > size => {
                    return Err(n.invalid_node(format!(
                        "pads: expected axis {axis} to be cropped by at most {size}, found {}",
                        crop_before + crop_after
                    )));
                }
                Some(size) => n.slice(cropped_data, axis, crop_before as usize, (size - crop_after) as usize)?,
                // A negative end index counts from the end of the axis.
                None => {
                    let end = if crop_after == 0 { i64::from(i32::MAX) } else { -crop_after };
                    let bounds = attrs![begin: [crop_before], end: [end], strides: [1], axes: [axis as i64]];
                    n.op("strided_slice", &[cropped_data], bounds)?
                }
            };
            (*pad_before, *pad_after) = ((*pad_before).max(0), (*pad_after).max(0));
        }
    }
    if paddings.iter().all(|&p| p == (0, 0)) {
        return single_output(if cropped_data == data { n.forward(data) } else { cropped_data });
    }
    if mode == "wrap" {
        if n.ty(cropped_data)?.shape().is_none() {
            let rows: Vec<i64> = paddings.iter().flat_map(|&(pad_before, pad_after)| [pad_before, pad_after]).collect();
            let width = n.tensor(Tensor::from_slice(&[paddings.len(), 2], &rows));
            return single_output(wrap_at_run_time(n, cropped_data, width)?);
        }
        return single_output(wrap_pad(n, cropped_data, &paddings)?);
    }
    let width = AttrValue::List(
        paddings.iter().map(|&(pad_before, pad_after)| AttrValue::from([pad_before, pad_after])).collect(),
    );
    single_output(n.op("nn.pad", &[cropped_data, value], attrs![pad_width: width, pad_mode: mode.as_str()])?)
}

/// Pads periodically, axis by axis.
fn wrap_pad(n: &mut Node<'_, '_>, data: ExprId, paddings: &[(i64, i64)]) -> Result<ExprId> {
    let mut value = data;
    for (axis, &(pad_before, pad_after)) in paddings.iter().enumerate() {
        if (pad_before, pad_after) == (0, 0) {
            continue;
        }
        let size = n.shape(value)?[axis] as i64;
        let padded_size = pad_before + size + pad_after;
        if size == 0 || padded_size > 1 << 24 {
            return Err(n.invalid_node(format!(
                "mode wrap, axis {axis}: expected a size >= 1 and a padded size <= 2^24, found {size} and {padded_size}"
            )));
        }
        let source_positions: Vec<i64> = (0..padded_size).map(|i| (i - pad_before).rem_euclid(size)).collect();
        let source_positions = n.vector(&source_positions);
        value = n.op("take", &[value, source_positions], attrs![axis: axis as i64])?;
    }
    Ok(value)
}
