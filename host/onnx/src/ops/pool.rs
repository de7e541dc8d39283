//! Pooling operators: average, maximum, Lp norm, and their global variants.

use super::conv::{AutoPad, Geometry, Windows, auto_pad, axis_attr, ints, spatial_dims, windows};
use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::ir::{AttrValue, Dim, ExprId};
use byoc_ir::tensor::{DType, Tensor};

pub const ROWS: &[Row] = &[
    ("AveragePool", 1, |n| pool(n, Kind::Average)),
    ("GlobalAveragePool", 1, |n| global_pool(n, "nn.global_avg_pool2d", "mean")),
    ("GlobalLpPool", 2, global_lp),
    ("GlobalMaxPool", 1, |n| global_pool(n, "nn.global_max_pool2d", "max")),
    ("LpPool", 2, |n| pool(n, Kind::Norm)),
    ("MaxPool", 1, |n| pool(n, Kind::Max)),
];

/// Reduction over a window.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Average,
    Max,
    Norm,
}

/// Converts GlobalLpPool to a pooling operator whose window covers the data.
fn global_lp(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let (dims, p) = (spatial_dims(n, data)?, n.int_attr("p", 2)?);
    if let Some(size) = dims.iter().map(|dim| dim.fixed().filter(|&size| size > 0)).collect::<Option<Vec<usize>>>() {
        return single_output(n.op(
            &format!("nn.contrib_lp_pool{}d", size.len()),
            &[data],
            attrs![pool_size: ints(&size), p: p],
        )?);
    }
    let spatial_attrs = attrs![axis: AttrValue::ints(2..dims.len() as i64 + 2), keepdims: true];
    let size = n.op_without_attrs("abs", &[data])?;
    let powers = n.with_scalar("power", size, p as f64)?;
    let sum = n.op("sum", &[powers], spatial_attrs)?;
    single_output(n.with_scalar("power", sum, 1.0 / p as f64)?)
}

fn global_pool(n: &mut Node<'_, '_>, planar: &str, reduction: &str) -> Result<Outputs> {
    let data = n.input(0)?;
    let rank = n.rank(data)?;
    if rank == 4 {
        return single_output(n.op_without_attrs(planar, &[data])?);
    }
    let axes = AttrValue::ints(2..rank as i64);
    single_output(n.op(reduction, &[data], attrs![axis: axes, keepdims: true])?)
}

fn pool(n: &mut Node<'_, '_>, kind: Kind) -> Result<Outputs> {
    let data = n.input(0)?;
    pool_of(n, data, kind)
}

/// Creates the call that pools `data` according to the node's attributes.
pub fn pool_of(n: &mut Node<'_, '_>, data: ExprId, kind: Kind) -> Result<Outputs> {
    let spatial = spatial_dims(n, data)?;
    let axes = spatial.len();
    if n.ints_attr("kernel_shape")?.is_none() {
        return Err(n.invalid_node("attribute kernel_shape is missing"));
    }
    let kernel = axis_attr(n, "kernel_shape", axes)?;
    let count_include_pad = kind == Kind::Average && n.int_attr("count_include_pad", 0)? != 0;
    if kind == Kind::Average && !count_include_pad && has_same_padding_with_strides(n, &spatial)? {
        return single_output(average_of_padded(n, data, kernel, &spatial)?);
    }
    let fill = if kind == Kind::Max { lowest(n.dtype(data)?) } else { 0.0 };
    let Windows { data, geometry: mut window } = windows(n, data, kernel, &spatial, fill)?;
    let mut ceil_mode = false;
    if n.int_attr("ceil_mode", 0)? != 0 {
        match round_up(n, &mut window, &spatial, count_include_pad)? {
            Rounding::All(rounds_up) => ceil_mode = rounds_up,
            Rounding::PerAxis(axes) => return single_output(pool_by_axis(n, data, kind, &window, &axes)?),
        }
    }
    let result = pool_padded(n, data, kind, &window, ceil_mode, count_include_pad)?;
    if kind == Kind::Max && n.has_output(1) {
        let positions = positions_of_maxima(n, data, result, &window)?;
        return Ok(vec![result, positions]);
    }
    single_output(result)
}

/// Creates the call to a pooling operator.
fn pool_padded(
    n: &mut Node<'_, '_>,
    data: ExprId,
    kind: Kind,
    window: &Geometry,
    ceil_mode: bool,
    count_include_pad: bool,
) -> Result<ExprId> {
    let axes = window.kernel.len();
    let name = match kind {
        Kind::Average => "nn.avg_pool",
        Kind::Max => "nn.max_pool",
        Kind::Norm => "nn.contrib_lp_pool",
    };
    let mut attributes = attrs![
        pool_size: ints(&window.kernel),
        strides: ints(&window.strides),
        dilation: ints(&window.dilations),
        padding: window.padding(),
        ceil_mode: ceil_mode,
    ];
    match kind {
        Kind::Average => attributes = attributes.with("count_include_pad", count_include_pad),
        Kind::Norm => attributes = attributes.with("p", n.int_attr("p", 2)?),
        Kind::Max => {}
    }
    n.op(&format!("{name}{axes}d"), &[data], attributes)
}

/// Maximum total number of window taps in a plane for which the positions of the maxima are computed.
const MAX_TAPS: usize = 1 << 24;

/// Returns the position of each window's maximum in the flattened data; of several equal maxima, the first in window
/// order.
fn positions_of_maxima(n: &mut Node<'_, '_>, data: ExprId, result: ExprId, window: &Geometry) -> Result<ExprId> {
    let ty = n.ty(data)?;
    let (Some(shape), Some(out)) = (ty.shape(), n.ty(result)?.shape()) else { return Err(n.unknown_dims_error(&ty)) };
    let (size, output_dims) = (&shape[2..], &out[2..]);
    let (plane, windows): (usize, usize) = (size.iter().product(), output_dims.iter().product());
    let taps: usize = window.kernel.iter().product();
    if windows.saturating_mul(taps) > MAX_TAPS {
        return Err(n.invalid_node(format!(
            "expected at most {MAX_TAPS} window elements for output Indices, found {windows} windows of {taps} elements"
        )));
    }
    let is_column_major = n.int_attr("storage_order", 0)? != 0;
    // For each tap of each window: the row-major index of the element in the plane, and its index in the requested
    // storage order; -1 in the padding.
    let (mut elements, mut flat_indices) = (Vec::with_capacity(windows * taps), Vec::with_capacity(windows * taps));
    for output_index in 0..windows {
        for tap_index in 0..taps {
            let (mut element, mut flat_index) = (0, 0);
            let (output_index, tap_index) = (unravel(output_index, output_dims), unravel(tap_index, &window.kernel));
            for axis in 0..size.len() {
                let offset = output_index[axis] * window.strides[axis] + tap_index[axis] * window.dilations[axis];
                let offset = offset as i64 - window.begin[axis];
                if element < 0 || !(0..size[axis] as i64).contains(&offset) {
                    element = -1;
                    continue;
                }
                element = element * size[axis] as i64 + offset;
                flat_index += offset * size[..axis].iter().product::<usize>() as i64;
            }
            elements.push(element);
            flat_indices.push(if is_column_major { flat_index } else { element });
        }
    }
    let is_inside: Vec<i64> = elements.iter().map(|&element| i64::from(element >= 0)).collect();
    let elements: Vec<i64> = elements.iter().map(|&element| element.max(0)).collect();
    let flat = n.reshape(data, &[shape[0], shape[1], plane])?;
    let elements = n.tensor(Tensor::from_slice(&[windows, taps], &elements));
    let values = n.op("take", &[flat, elements], attrs![axis: 2])?;
    let is_inside = n.tensor(Tensor::from_slice(&[windows, taps], &is_inside));
    let is_inside = n.cast(is_inside, DType::Bool)?;
    let lowest_value = n.scalar(ty.dtype, lowest(ty.dtype));
    let values = n.op_without_attrs("where", &[is_inside, values, lowest_value])?;
    let argmax = n.op("argmax", &[values], attrs![axis: [3]])?;
    let argmax = n.cast(argmax, DType::I64)?;
    let starts: Vec<i64> = (0..windows).map(|window| (window * taps) as i64).collect();
    let starts = n.vector(&starts);
    let argmax = n.op_without_attrs("add", &[argmax, starts])?;
    let flat_indices = n.vector(&flat_indices);
    let flat_indices = n.op("take", &[flat_indices, argmax], attrs![axis: 0])?;
    let planes: Vec<i64> = (0..shape[0] * shape[1]).map(|plane_index| (plane_index * plane) as i64).collect();
    let planes = n.tensor(Tensor::from_slice(&[shape[0], shape[1], 1], &planes));
    let flat_indices = n.op_without_attrs("add", &[flat_indices, planes])?;
    n.reshape(flat_indices, &out)
}

/// Converts the flat index `i` of an element of a row-major tensor to one index per axis.
fn unravel(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&size| {
            let index = i % size.max(1);
            i /= size.max(1);
            index
        })
        .collect();
    index.reverse();
    index
}

/// Averages windows of data that is padded at run time, excluding the padding: divides the mean of the padded data by
/// the mean of a tensor of ones with the same padding.
fn average_of_padded(n: &mut Node<'_, '_>, data: ExprId, kernel: Vec<usize>, spatial: &[Dim]) -> Result<ExprId> {
    let dims = n.dims(data)?;
    let one = n.scalar(n.dtype(data)?, 1.0);
    let one_tensor = n.broadcast_to(one, &dims)?;
    let mut average = |value: ExprId| {
        let Windows { data, geometry } = windows(n, value, kernel.clone(), spatial, 0.0)?;
        pool_padded(n, data, Kind::Average, &geometry, false, true)
    };
    let (sum, count) = (average(data)?, average(one_tensor)?);
    n.op_without_attrs("divide", &[sum, count])
}

/// Averages along one axis at a time, each with a separate `ceil_mode`. The result equals that of joint averaging,
/// because the number of elements in a window is the product of the counts along its axes.
fn pool_by_axis(
    n: &mut Node<'_, '_>,
    data: ExprId,
    kind: Kind,
    window: &Geometry,
    round_up: &[bool],
) -> Result<ExprId> {
    let mut value = data;
    for (axis, &rounds_up) in round_up.iter().enumerate() {
        let axis_values =
            |values: &[usize]| values.iter().enumerate().map(|(i, &v)| if i == axis { v } else { 1 }).collect();
        let padding = |values: &[i64]| values.iter().enumerate().map(|(i, &v)| if i == axis { v } else { 0 }).collect();
        let part = Geometry {
            kernel: axis_values(&window.kernel),
            strides: axis_values(&window.strides),
            dilations: axis_values(&window.dilations),
            begin: padding(&window.begin),
            end: padding(&window.end),
        };
        value = pool_padded(n, value, kind, &part, rounds_up, true)?;
    }
    Ok(value)
}

/// Returns the identity element of the maximum: -inf for floats, the minimum of an integer type.
fn lowest(dtype: DType) -> f64 {
    match dtype {
        dtype if dtype.is_float() => f64::NEG_INFINITY,
        DType::I8 => f64::from(i8::MIN),
        _ => 0.0,
    }
}

/// Returns true if the padding depends on a dimension known only at run time.
fn has_same_padding_with_strides(n: &Node<'_, '_>, spatial: &[Dim]) -> Result<bool> {
    let is_same = matches!(auto_pad(n)?, AutoPad::SameUpper | AutoPad::SameLower);
    let strides = axis_attr(n, "strides", spatial.len())?;
    Ok(is_same && spatial.iter().zip(strides).any(|(dim, stride)| dim.fixed().is_none() && stride > 1))
}

/// Rounding of the number of windows.
enum Rounding {
    /// Rounding of all axes by Relay's `ceil_mode`.
    All(bool),
    /// Rounding of each axis if the axes differ: true if rounded up.
    PerAxis(Vec<bool>),
}

/// Handles `ceil_mode`: an incomplete last stride yields a window too, unless that window would begin in the padding
/// after the data. Relay's `ceil_mode` applies to all axes, so if only some axes have such a window, their padding
/// after the data is extended instead, which affects neither the maximum nor a mean that excludes padding.
///
/// # Errors
/// If the number of windows depends on an unknown dimension.
fn round_up(n: &Node<'_, '_>, window: &mut Geometry, spatial: &[Dim], counts_padding: bool) -> Result<Rounding> {
    let mut extra_padding = vec![0i64; spatial.len()];
    let (mut has_extra, mut has_fewer) = (false, false);
    for (axis, dim) in spatial.iter().enumerate() {
        let stride = window.strides[axis] as i64;
        let Some(size) = dim.fixed() else {
            // No incomplete window exists if the padding after the data is too short for one.
            if stride > 1 && window.end[axis] + stride > window.extent(axis) as i64 {
                let message = format!("ceil_mode: expected a known dimension to count the windows, found {dim}");
                return Err(n.invalid_node(message));
            }
            has_extra |= stride > 1;
            continue;
        };
        let free_size = size as i64 + window.begin[axis] + window.end[axis] - window.extent(axis) as i64;
        let is_incomplete = free_size >= 0 && free_size % stride != 0;
        let next_start = (free_size / stride + 1) * stride;
        if is_incomplete && next_start < size as i64 + window.begin[axis] {
            extra_padding[axis] = next_start - free_size;
            has_extra = true;
        } else if is_incomplete {
            has_fewer = true;
        }
    }
    if has_extra && has_fewer {
        if spatial.iter().any(|dim| dim.fixed().is_none()) {
            return Err(n.invalid_node(
                "ceil_mode: expected known dimensions to round each axis separately, found an unknown dimension",
            ));
        }
        if counts_padding {
            return Ok(Rounding::PerAxis(extra_padding.iter().map(|&padding| padding > 0).collect()));
        }
        for (end, extra_padding) in window.end.iter_mut().zip(extra_padding) {
            *end += extra_padding;
        }
        return Ok(Rounding::All(false));
    }
    Ok(Rounding::All(has_extra))
}
