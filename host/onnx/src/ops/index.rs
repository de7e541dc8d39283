//! Gathering and scattering by indices, and sorting.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::ir::{AttrValue, Dim, ExprId};
use byoc_ir::tensor::{DType, Tensor};

pub const ROWS: &[Row] = &[
    ("Gather", 1, gather),
    ("GatherElements", 11, gather_elements),
    ("GatherND", 11, gather_nd),
    ("OneHot", 9, one_hot),
    ("ReverseSequence", 10, reverse_sequence),
    ("Scatter", 9, scatter_elements),
    ("ScatterElements", 11, scatter_elements),
    ("ScatterND", 11, scatter_nd),
    ("TopK", 1, |n| {
        let k = n.int_attr("k", -1)?;
        top_k(n, Some(k))
    }),
    ("TopK", 10, |n| match n.computed_input(1) {
        Some(k) => top_k_at_run_time(n, k),
        None => {
            let k = n.int(1, "k")?;
            top_k(n, k)
        }
    }),
];

/// Converts negative indices, which count from the end of `size` elements, to non-negative indices. The flag is true if
/// the indices are constant.
fn normalize_indices(n: &mut Node<'_, '_>, indices: ExprId, size: usize) -> Result<(ExprId, bool)> {
    if let Some(tensor) = n.constant_value(indices)
        && let Some(values) = tensor.view().to_i64s()
    {
        let size = size as i64;
        if let Some(out_of_range) = values.iter().find(|v| !(-size..size).contains(v)) {
            return Err(n.invalid_node(format!("index {out_of_range} is out of range for a dimension of {size}")));
        }
        if values.iter().all(|v| *v >= 0) {
            return Ok((indices, true));
        }
        let non_negative: Vec<i64> = values.iter().map(|&v| if v < 0 { v + size } else { v }).collect();
        let tensor = Tensor::from_slice(tensor.shape(), &non_negative);
        return Ok((n.tensor(tensor), true));
    }
    let size = n.scalar(n.dtype(indices)?, size as f64);
    Ok((wrap_negative(n, indices, size)?, false))
}

/// Adds `size` to negative indices.
pub(super) fn wrap_negative(n: &mut Node<'_, '_>, indices: ExprId, size: ExprId) -> Result<ExprId> {
    let zero = n.scalar(n.dtype(indices)?, 0.0);
    let is_negative = n.op_without_attrs("less", &[indices, zero])?;
    let wrapped_indices = n.op_without_attrs("add", &[indices, size])?;
    n.op_without_attrs("where", &[is_negative, wrapped_indices, indices])
}

fn gather(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, indices) = (n.input(0)?, n.input(1)?);
    let axis = n.axis(n.int_attr("axis", 0)?, n.rank(data)?)?;
    single_output(gather_along(n, data, indices, axis)?)
}

/// Takes the slices of `data` at `indices` along an axis; negative indices count from the end.
pub(super) fn gather_along(n: &mut Node<'_, '_>, data: ExprId, indices: ExprId, axis: usize) -> Result<ExprId> {
    let dims = n.dims(data)?;
    let (indices, has_known_size) = match dims[axis].fixed() {
        Some(size) => normalize_indices(n, indices, size)?,
        // On a symbolic axis, constant non-negative indices remain unchanged.
        None => {
            let are_non_negative =
                |tensor: &Tensor| tensor.view().to_i64s().is_some_and(|values| values.iter().all(|v| *v >= 0));
            if n.constant_value(indices).is_some_and(|tensor| are_non_negative(&tensor)) {
                (indices, false)
            } else {
                let size = n.shape_vector(data, axis..axis + 1)?;
                let size = n.reshape(size, &[])?;
                let size = n.cast(size, n.dtype(indices)?)?;
                (wrap_negative(n, indices, size)?, false)
            }
        }
    };
    // Indices that are known only at run time are checked at run time (mode `fast`).
    let mode = if has_known_size { "clip" } else { "fast" };
    n.op("take", &[data, indices], attrs![axis: axis as i64, mode: mode])
}

fn gather_elements(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, indices) = (n.input(0)?, n.input(1)?);
    let axis = n.axis(n.int_attr("axis", 0)?, n.rank(data)?)? as i64;
    single_output(n.op("gather", &[data, indices], attrs![axis: axis])?)
}

/// Moves the components of an index from the last axis (ONNX) to the first axis (Relay).
fn components_first(n: &mut Node<'_, '_>, indices: ExprId) -> Result<ExprId> {
    let rank = n.rank(indices)?;
    if rank == 0 {
        return Err(n.invalid_node("expected indices of rank 1 or more, found a scalar"));
    }
    let axes: Vec<usize> = std::iter::once(rank - 1).chain(0..rank - 1).collect();
    n.transpose(indices, &axes)
}

pub(super) fn gather_nd(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, indices) = (n.input(0)?, n.input(1)?);
    let batch = n.int_attr("batch_dims", 0)?;
    let indices = components_first(n, indices)?;
    single_output(n.op("gather_nd", &[data, indices], attrs![batch_dims: batch])?)
}

/// Returns Relay's name for the value of the attribute `reduction`.
fn reduction_mode(n: &Node<'_, '_>) -> Result<&'static str> {
    match n.str_attr("reduction", "none")?.as_str() {
        "none" => Ok("update"),
        "add" => Ok("add"),
        "mul" => Ok("mul"),
        "min" => Ok("min"),
        "max" => Ok("max"),
        other => {
            Err(n.invalid_node(format!("attribute reduction: expected none, add, mul, min or max, found \"{other}\"")))
        }
    }
}

fn scatter_elements(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let args = [n.input(0)?, n.input(1)?, n.input(2)?];
    let axis = n.axis(n.int_attr("axis", 0)?, n.rank(args[0])?)? as i64;
    let reduction = reduction_mode(n)?;
    single_output(n.op("scatter_elements", &args, attrs![axis: axis, reduction: reduction])?)
}

fn scatter_nd(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, indices, updates) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let mode = reduction_mode(n)?;
    let indices = components_first(n, indices)?;
    single_output(n.op("scatter_nd", &[data, indices, updates], attrs![mode: mode])?)
}

/// Converts OneHot. The input `values` is (off, on); an index outside [-depth, depth) yields only `off_value`.
fn one_hot(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (indices, values) = (n.input(0)?, n.input(2)?);
    if let Some(depth) = n.computed_input(1) {
        return one_hot_at_run_time(n, depth);
    }
    let depth = match n.constant(1, "depth")? {
        Some(tensor) if tensor.len() == 1 => tensor.view().to_f64s()[0] as i64,
        Some(tensor) => {
            return Err(n.invalid_node(format!("input 1 (depth): expected one element, found {}", tensor.len())));
        }
        None => return Err(n.invalid_node("input 1 (depth) is missing")),
    };
    if !(1..1 << 32).contains(&depth) {
        return Err(n.invalid_node(format!("input 1 (depth): expected an integer >= 1, found {depth}")));
    }
    let axis = n.int_attr("axis", -1)?;
    let integers = if n.dtype(indices)?.is_float() { n.cast(indices, DType::I64)? } else { indices };
    let (integers, _) = match n.constant_value(integers) {
        Some(_) => (integers, true),
        None => normalize_indices(n, integers, depth as usize)?,
    };
    let integers = match n.constant_value(integers) {
        Some(tensor) => {
            let values = tensor.view().to_i64s().unwrap_or_default();
            let non_negative: Vec<i64> =
                values.iter().map(|&v| if (-depth..0).contains(&v) { v + depth } else { v }).collect();
            let tensor = Tensor::from_slice(tensor.shape(), &non_negative);
            n.tensor(tensor)
        }
        None => integers,
    };
    let ([off_value, on_value], dtype) = (off_and_on_values(n)?, n.dtype(values)?);
    single_output(n.op("one_hot", &[integers, on_value, off_value], attrs![depth: depth, axis: axis, dtype: dtype])?)
}

/// Returns the two elements of the input `values` of OneHot.
fn off_and_on_values(n: &mut Node<'_, '_>) -> Result<[ExprId; 2]> {
    let values = n.input(2)?;
    if n.shape(values)?.as_slice() != [2] {
        return Err(n.invalid_node(format!("input 2 (values): expected shape [2], found {}", n.ty(values)?)));
    }
    let mut pair = [values; 2];
    for (i, value) in pair.iter_mut().enumerate() {
        let part = n.slice(values, 0, i, i + 1)?;
        *value = n.reshape(part, &[])?;
    }
    Ok(pair)
}

/// Converts OneHot with a depth computed at run time.
fn one_hot_at_run_time(n: &mut Node<'_, '_>, depth: ExprId) -> Result<Outputs> {
    let (indices, axis) = (n.input(0)?, n.int_attr("axis", -1)?);
    let integers = n.cast(indices, DType::I64)?;
    let depth = n.cast(depth, DType::I64)?;
    let depth = n.reshape(depth, &[])?;
    // Only indices >= -depth count from the end.
    let wrapped_indices = wrap_negative(n, integers, depth)?;
    let ([off_value, on_value], dtype) = (off_and_on_values(n)?, n.dtype(n.input(2)?)?);
    single_output(n.op(
        "dyn.one_hot",
        &[wrapped_indices, on_value, off_value, depth],
        attrs![axis: axis, dtype: dtype],
    )?)
}

/// Converts ReverseSequence: each sequence of the batch is reversed up to its length.
fn reverse_sequence(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let (batch, time) = (n.int_attr("batch_axis", 1)?, n.int_attr("time_axis", 0)?);
    let known_shape = n.ty(data)?.shape();
    let (None, Some(shape)) = (n.computed_input(1), known_shape) else { return reverse_sequence_at_run_time(n) };
    let lengths = n.ints(1, "sequence_lens")?.ok_or_else(|| n.invalid_node("input 1 (sequence_lens) is missing"))?;
    if shape.len() < 2 || !matches!((batch, time), (0, 1) | (1, 0)) {
        return Err(n.invalid_node(format!(
            "expected batch_axis and time_axis to be 0 and 1 in either order, found {batch} and {time}"
        )));
    }
    let (batches, times) = (shape[batch as usize], shape[time as usize]);
    let is_valid_length = |l: &i64| usize::try_from(*l).is_ok_and(|l| l <= times);
    if lengths.len() != batches || !lengths.iter().all(is_valid_length) || batches.saturating_mul(times) > 1 << 24 {
        return Err(n.invalid_node(format!(
            "input 1 (sequence_lens): expected {batches} integers from 0 to {times}, found {lengths:?}"
        )));
    }
    // Source index of each element, with the two leading axes merged.
    let mut positions = Vec::with_capacity(batches * times);
    for i in 0..shape[0] {
        for j in 0..shape[1] {
            let (b, t) = if batch == 0 { (i, j) } else { (j, i) };
            let length = lengths[b] as usize;
            let source = if t < length { length - 1 - t } else { t };
            positions.push((if batch == 0 { b * times + source } else { source * batches + b }) as i64);
        }
    }
    let mut merged_dims = vec![shape[0] * shape[1]];
    merged_dims.extend_from_slice(&shape[2..]);
    let flat_data = n.reshape(data, &merged_dims)?;
    let positions = n.vector(&positions);
    let gathered_data = n.op("take", &[flat_data, positions], attrs![axis: 0])?;
    single_output(n.reshape(gathered_data, &shape)?)
}

/// Reverses sequences with lengths computed at run time: element t is read from length - 1 - t if t < length.
fn reverse_sequence_at_run_time(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, lengths) = (n.input(0)?, n.input(1)?);
    let dims = n.dims(data)?;
    let (batch, time) = (n.axis(n.int_attr("batch_axis", 1)?, dims.len())?, n.int_attr("time_axis", 0)?);
    let time = n.axis(time, dims.len())?;
    let mut batch_shape = vec![Dim::Fixed(1); dims.len()];
    batch_shape[batch] = dims[batch].clone();
    let lengths = n.cast(lengths, DType::I64)?;
    let lengths = n.reshape_to(lengths, &batch_shape)?;
    let steps = n.indices_along(data, time)?;
    let last_index = n.with_scalar("subtract", lengths, 1.0)?;
    let mirrored_steps = n.op_without_attrs("subtract", &[last_index, steps])?;
    let is_inside = n.op_without_attrs("less", &[steps, lengths])?;
    let positions = n.op_without_attrs("where", &[is_inside, mirrored_steps, steps])?;
    let positions = n.broadcast_to(positions, &dims)?;
    single_output(n.op("gather", &[data, positions], attrs![axis: time as i64])?)
}

/// Converts TopK with a `k` computed at run time.
fn top_k_at_run_time(n: &mut Node<'_, '_>, k: ExprId) -> Result<Outputs> {
    let data = n.input(0)?;
    let axis = n.axis(n.int_attr("axis", -1)?, n.rank(data)?)?;
    let is_ascending = n.int_attr("largest", 1)? == 0;
    let attributes = attrs![
        axis: axis as i64,
        ret_type: "both",
        is_ascend: is_ascending,
        dtype: AttrValue::from(DType::I64),
    ];
    let values_and_indices = n.op("dyn.topk", &[data, k], attributes)?;
    Ok(vec![n.project(values_and_indices, 0)?, n.project(values_and_indices, 1)?])
}

fn top_k(n: &mut Node<'_, '_>, k: Option<i64>) -> Result<Outputs> {
    let data = n.input(0)?;
    let dims = n.dims(data)?;
    let axis = n.axis(n.int_attr("axis", -1)?, dims.len())?;
    let k = k.ok_or_else(|| n.invalid_node("k is missing"))?;
    if k < 0 || dims[axis].fixed().is_some_and(|size| k > size as i64) {
        return Err(n.invalid_node(format!("k: expected 0 to {}, found {k}", n.ty(data)?.dims[axis])));
    }
    if k == 0 {
        // Relay's `topk` interprets 0 as all elements.
        let empty_slice = n.slice(data, axis, 0, 0)?;
        let indices = n.cast(empty_slice, DType::I64)?;
        return Ok(vec![empty_slice, indices]);
    }
    let is_ascending = n.int_attr("largest", 1)? == 0;
    let attributes = attrs![
        k: k,
        axis: axis as i64,
        ret_type: "both",
        is_ascend: is_ascending,
        dtype: AttrValue::from(DType::I64),
    ];
    let values_and_indices = n.op("topk", &[data], attributes)?;
    Ok(vec![n.project(values_and_indices, 0)?, n.project(values_and_indices, 1)?])
}
