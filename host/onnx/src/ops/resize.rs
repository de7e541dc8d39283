//! Resize and Upsample.
//!
//! A resize of planes (batch, channels, height, width) becomes `image.resize2d` if its definition of the scale (input
//! size / output size) matches the model's. Otherwise, axes of known sizes are resized one by one: with a gather
//! (nearest), two weighted gathers (linear), or a matrix product with precomputed weights (cubic). A resize with sizes
//! or scales known only at run time, with antialiasing, or with regions of interest on other axes becomes
//! `dyn.image.resize_nd`.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use crate::tensor::from_f64s;
use byoc_ir::ir::{AttrValue, Dim, ExprId};
use byoc_ir::op::resize::{ResizedAxis, cubic_kernel, nearest_index};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] =
    &[("Resize", 10, resize_10), ("Resize", 11, resize_11), ("Upsample", 7, upsample_7), ("Upsample", 9, resize_10)];

/// Attributes of Resize.
struct Mode {
    method: String,
    coordinates: String,
    nearest: String,
    cubic: f64,
    exclude_outside: bool,
    extrapolation: f64,
    antialias: bool,
    policy: String,
}

fn upsample_7(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let scales = n.floats_attr("scales")?.ok_or_else(|| n.invalid_node("attribute scales is missing"))?;
    resize_before_11(n, scales)
}

fn resize_10(n: &mut Node<'_, '_>) -> Result<Outputs> {
    if n.computed_input(1).is_some() || n.ty(n.input(0)?)?.shape().is_none() {
        return resize_before_11_at_run_time(n);
    }
    let scales = n.constant(1, "scales")?.ok_or_else(|| n.invalid_node("input 1 (scales) is missing"))?;
    let scales = scales.view().to_f64s();
    resize_before_11(n, scales)
}

fn mode_before_11(n: &Node<'_, '_>, nearest: &str) -> Result<Mode> {
    Ok(Mode {
        method: n.str_attr("mode", "nearest")?,
        coordinates: "asymmetric".into(),
        nearest: nearest.into(),
        cubic: -0.75,
        exclude_outside: false,
        extrapolation: 0.0,
        antialias: false,
        policy: "stretch".into(),
    })
}

/// Converts Resize and Upsample before opset 11, whose specification defines no formula for the coordinates. As in ONNX
/// Runtime, the coordinate transformation is asymmetric, and `nearest` rounds down along an enlarged axis and up along
/// a reduced axis.
pub(super) fn resize_before_11(n: &mut Node<'_, '_>, scales: Vec<f64>) -> Result<Outputs> {
    let data = n.input(0)?;
    let shape = n.shape(data)?;
    let axes = axes_by_scales(n, &shape, &scales, &(0..shape.len()).collect::<Vec<_>>())?;
    let is_nearest = n.str_attr("mode", "nearest")? == "nearest";
    let shrinks = |axis: &ResizedAxis| is_nearest && axis.scale < 1.0;
    let grown_axes: Vec<ResizedAxis> =
        axes.iter().map(|axis| if shrinks(axis) { ResizedAxis::by_scale(axis.from, 1.0) } else { *axis }).collect();
    let leading_axes: Vec<ResizedAxis> =
        axes.iter().map(|axis| if shrinks(axis) { *axis } else { ResizedAxis::by_scale(axis.to, 1.0) }).collect();
    let (rounds_down, rounds_up) = (mode_before_11(n, "floor")?, mode_before_11(n, "ceil")?);
    let value = resize(n, data, &rounds_down, &grown_axes)?;
    single_output(resize(n, value, &rounds_up, &leading_axes)?)
}

/// Same as [`resize_before_11`], for scales or dimensions that are known only at run time.
fn resize_before_11_at_run_time(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, scales) = (n.input(0)?, n.input(1)?);
    let rounds_down = mode_before_11(n, "floor")?;
    let constant_scales = n.constant_value(scales).map(|tensor| tensor.view().to_f64s());
    let only_grows = constant_scales.is_some_and(|scales| scales.iter().all(|scale| *scale >= 1.0));
    if rounds_down.method != "nearest" || only_grows {
        return single_output(resize_at_run_time(n, data, &rounds_down, scales, None, None)?);
    }
    let rounds_up = mode_before_11(n, "ceil")?;
    let growing_scales = n.with_scalar("maximum", scales, 1.0)?;
    let shrinking_scales = n.with_scalar("minimum", scales, 1.0)?;
    let value = resize_at_run_time(n, data, &rounds_down, growing_scales, None, None)?;
    single_output(resize_at_run_time(n, value, &rounds_up, shrinking_scales, None, None)?)
}

fn resize_11(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let rank = n.rank(data)?;
    let mode = Mode {
        method: n.str_attr("mode", "nearest")?,
        coordinates: n.str_attr("coordinate_transformation_mode", "half_pixel")?,
        nearest: n.str_attr("nearest_mode", "round_prefer_floor")?,
        cubic: n.float_attr("cubic_coeff_a", -0.75)?,
        exclude_outside: n.int_attr("exclude_outside", 0)? != 0,
        extrapolation: n.float_attr("extrapolation_value", 0.0)?,
        antialias: n.int_attr("antialias", 0)? != 0,
        policy: n.str_attr("keep_aspect_ratio_policy", "stretch")?,
    };
    let axis_list: Vec<usize> = match n.ints_attr("axes")? {
        Some(axes) => axes.iter().map(|&a| n.axis(a, rank)).collect::<Result<_, _>>()?,
        None => (0..rank).collect(),
    };
    let has_computed_input = (1..=3).any(|i| n.computed_input(i).is_some());
    let is_cropped = mode.coordinates == "tf_crop_and_resize";
    let is_planar = rank == 4 && axis_list.iter().all(|&axis| axis >= 2);
    if has_computed_input || mode.antialias || (is_cropped && !is_planar) || n.ty(data)?.shape().is_none() {
        let scales = match n.optional_input(2) {
            Some(scales) if n.dims(scales)?.as_slice() != [Dim::Fixed(0)] => Some(scales),
            _ => None,
        };
        let extent = match (scales, n.optional_input(3)) {
            (Some(scales), None) => scales,
            (None, Some(sizes)) => sizes,
            (Some(_), Some(_)) => return Err(n.invalid_node("expected either scales or sizes, found both")),
            (None, None) => return Err(n.invalid_node("expected either scales or sizes, found neither")),
        };
        let roi = if is_cropped { n.optional_input(1) } else { None };
        return single_output(resize_at_run_time(n, data, &mode, extent, roi, Some(&axis_list))?);
    }
    let shape = n.shape(data)?;
    let scales = n.constant(2, "scales")?.map(|t| t.view().to_f64s()).filter(|s| !s.is_empty());
    let sizes = n.ints(3, "sizes")?;
    let mut axes = match (scales, sizes) {
        (Some(scales), None) => axes_by_scales(n, &shape, &scales, &axis_list)?,
        (None, Some(sizes)) => axes_by_sizes(n, &shape, &sizes, &axis_list, &mode.policy)?,
        (Some(_), Some(_)) => return Err(n.invalid_node("expected either scales or sizes, found both")),
        (None, None) => return Err(n.invalid_node("expected either scales or sizes, found neither")),
    };
    if mode.coordinates == "tf_crop_and_resize" {
        let roi = n.constant(1, "roi")?.map(|t| t.view().to_f64s()).unwrap_or_default();
        if roi.len() != 2 * axis_list.len() {
            return Err(n.invalid_node(format!(
                "input 1 (roi): expected {} numbers, two per axis, found {}",
                2 * axis_list.len(),
                roi.len()
            )));
        }
        for (i, &axis) in axis_list.iter().enumerate() {
            axes[axis].roi = (roi[i], roi[axis_list.len() + i]);
        }
    }
    single_output(resize(n, data, &mode, &axes)?)
}

/// Resizes arbitrary axes with `dyn.image.resize_nd`. `extent` is a vector of scales or sizes.
fn resize_at_run_time(
    n: &mut Node<'_, '_>,
    data: ExprId,
    mode: &Mode,
    extent: ExprId,
    roi: Option<ExprId>,
    axes: Option<&[usize]>,
) -> Result<ExprId> {
    let roi = roi.unwrap_or_else(|| n.vector::<f32>(&[]));
    let mut attributes = attrs![
        method: method(n, mode)?,
        policy: mode.policy.as_str(),
        coordinate_transformation_mode: mode.coordinates.as_str(),
        rounding_method: mode.nearest.as_str(),
        cubic_alpha: mode.cubic,
        cubic_exclude: mode.exclude_outside,
        extrapolation_value: mode.extrapolation,
        antialias: mode.antialias,
    ];
    let rank = n.rank(data)?;
    if let Some(axes) = axes.filter(|axes| !axes.iter().copied().eq(0..rank)) {
        attributes = attributes.with("axes", AttrValue::ints(axes.iter().map(|&axis| axis as i64)));
    }
    n.op("dyn.image.resize_nd", &[data, extent, roi], attributes)
}

/// Returns Relay's name for the interpolation method.
fn method(n: &Node<'_, '_>, mode: &Mode) -> Result<&'static str> {
    match mode.method.as_str() {
        "nearest" => Ok("nearest_neighbor"),
        "linear" | "bilinear" => Ok("linear"),
        "cubic" => Ok("cubic"),
        other => Err(n.invalid_node(format!("attribute mode: expected nearest, linear or cubic, found \"{other}\""))),
    }
}

fn axes_by_scales(n: &Node<'_, '_>, shape: &[usize], scales: &[f64], axis_list: &[usize]) -> Result<Vec<ResizedAxis>> {
    if scales.len() != axis_list.len() || scales.iter().any(|s| !(*s > 0.0 && *s < 1e9)) {
        return Err(n.invalid_node(format!("scales: expected {} numbers > 0, found {scales:?}", axis_list.len())));
    }
    let mut axes: Vec<ResizedAxis> = shape.iter().map(|&d| ResizedAxis::by_scale(d, 1.0)).collect();
    for (&axis, &scale) in axis_list.iter().zip(scales) {
        axes[axis] = ResizedAxis::by_scale(shape[axis], scale);
    }
    Ok(axes)
}

fn axes_by_sizes(
    n: &Node<'_, '_>,
    shape: &[usize],
    sizes: &[i64],
    axis_list: &[usize],
    policy: &str,
) -> Result<Vec<ResizedAxis>> {
    if sizes.len() != axis_list.len() || sizes.iter().any(|s| !(0..1 << 40).contains(s)) {
        return Err(n.invalid_node(format!("sizes: expected {} integers >= 0, found {sizes:?}", axis_list.len())));
    }
    let ratio = |axis: usize, size: i64| size as f64 / shape[axis].max(1) as f64;
    let ratios = axis_list.iter().zip(sizes).map(|(&axis, &size)| ratio(axis, size));
    let common_scale = match policy {
        "stretch" => None,
        "not_larger" => ratios.reduce(f64::min),
        "not_smaller" => ratios.reduce(f64::max),
        other => {
            return Err(n.invalid_node(format!(
                "attribute keep_aspect_ratio_policy: expected stretch, not_larger or not_smaller, found \"{other}\""
            )));
        }
    };
    let mut axes: Vec<ResizedAxis> = shape.iter().map(|&d| ResizedAxis::by_scale(d, 1.0)).collect();
    for (&axis, &size) in axis_list.iter().zip(sizes) {
        axes[axis].scale = common_scale.unwrap_or_else(|| ratio(axis, size));
        axes[axis].to = match common_scale {
            Some(scale) => (scale * shape[axis] as f64 + 0.5).floor() as usize,
            None => size as usize,
        };
    }
    Ok(axes)
}

fn resize(n: &mut Node<'_, '_>, data: ExprId, mode: &Mode, axes: &[ResizedAxis]) -> Result<ExprId> {
    let resized_axes: Vec<usize> =
        (0..axes.len()).filter(|&i| axes[i].to != axes[i].from || axes[i].scale != 1.0).collect();
    let is_cropped = mode.coordinates == "tf_crop_and_resize";
    if resized_axes.is_empty() && !is_cropped {
        return Ok(n.forward(data));
    }
    if axes.iter().any(|a| a.to == 0) {
        let shape: Vec<usize> = axes.iter().map(|axis| axis.to).collect();
        return n.zeros(n.dtype(data)?, &shape);
    }
    if let Some(axis) = axes.iter().position(|a| a.from == 0) {
        return Err(n.invalid_node(format!("axis {axis}: expected a size >= 1, found 0")));
    }
    let is_planar = axes.len() == 4 && resized_axes.iter().all(|&i| i >= 2);
    let is_exact = axes.iter().all(|a| (a.scale * a.from as f64 - a.to as f64).abs() < 1e-6 * a.to as f64);
    let has_exact_mode = !matches!(mode.coordinates.as_str(), "half_pixel_symmetric");
    if is_planar && has_exact_mode && (is_exact || is_cropped) {
        return resize_images(n, data, mode, axes);
    }
    // First spatial axis. As in ONNX Runtime, data of rank 2 or 4 has two spatial axes, and data of rank 3 or 5 has
    // three.
    let spatial = axes.len() - (if axes.len().is_multiple_of(2) { 2 } else { 3 }).min(axes.len());
    let dtype = n.dtype(data)?;
    if mode.method == "linear" && !dtype.is_float() && resized_axes.iter().all(|&axis| axis >= spatial) {
        return multilinear(n, data, mode, axes, spatial);
    }
    let mut value = data;
    for axis in resized_axes {
        value = resize_axis(n, value, mode, axis, axes[axis])?;
    }
    Ok(value)
}

/// Interpolates integers linearly along axis `spatial` and all later axes in one step, in float32. The order of the
/// additions is ONNX Runtime's, because the result is truncated to an integer: a difference in the last bit of the sum
/// would be visible.
fn multilinear(
    n: &mut Node<'_, '_>,
    data: ExprId,
    mode: &Mode,
    axes: &[ResizedAxis],
    spatial: usize,
) -> Result<ExprId> {
    let dtype = n.dtype(data)?;
    let value = n.cast(data, DType::F32)?;
    let mut sum = None;
    // Bit k of `corner_index` selects the upper element along the k-th axis from the end.
    for corner_index in 0..1usize << (axes.len() - spatial) {
        let (mut corner_value, mut weight) = (value, None);
        for (bit, axis) in (spatial..axes.len()).rev().enumerate() {
            let (upper, last_index) = (corner_index >> bit & 1 == 1, (axes[axis].from - 1) as f32);
            let (mut indices, mut weights) = (Vec::new(), Vec::new());
            for i in 0..axes[axis].to {
                let x = (source_coordinate(n, mode, axes[axis], i)? as f32).clamp(0.0, last_index);
                let (lower_index, upper_index) = (x.floor(), (x.floor() + 1.0).min(last_index));
                let (own_index, other) = if upper { (upper_index, lower_index) } else { (lower_index, upper_index) };
                indices.push(own_index as i64);
                weights.push(f64::from(if lower_index == upper_index { 0.5 } else { (x - other).abs() }));
            }
            let indices = n.vector(&indices);
            corner_value = n.op("take", &[corner_value, indices], attrs![axis: axis as i64])?;
            let mut shape = vec![1; axes.len()];
            shape[axis] = axes[axis].to;
            let weights = n.tensor(from_f64s(DType::F32, &shape, &weights));
            weight = Some(weight.map_or(Ok(weights), |weight| n.op_without_attrs("multiply", &[weight, weights]))?);
        }
        let term = n.op_without_attrs("multiply", &[weight.unwrap_or(corner_value), corner_value])?;
        sum = Some(sum.map_or(Ok(term), |sum| n.op_without_attrs("add", &[sum, term]))?);
    }
    n.cast(sum.unwrap_or(value), dtype)
}

/// Resizes height and width with `image.resize2d`.
fn resize_images(n: &mut Node<'_, '_>, data: ExprId, mode: &Mode, axes: &[ResizedAxis]) -> Result<ExprId> {
    let method = method(n, mode)?;
    let mut attributes = attrs![
        size: [axes[2].to as i64, axes[3].to as i64],
        layout: "NCHW",
        method: method,
        coordinate_transformation_mode: mode.coordinates.as_str(),
    ];
    match method {
        "nearest_neighbor" => attributes = attributes.with("rounding_method", mode.nearest.as_str()),
        "cubic" => {
            let exclude = i64::from(mode.exclude_outside);
            attributes = attributes.with("cubic_alpha", mode.cubic).with("cubic_exclude", exclude);
        }
        _ => {}
    }
    if mode.coordinates == "tf_crop_and_resize" {
        let (rows, columns) = (axes[2].roi, axes[3].roi);
        let roi = [rows.0, columns.0, rows.1, columns.1].map(AttrValue::Float);
        attributes = attributes.with("roi", AttrValue::List(roi.into()));
    }
    if mode.extrapolation != 0.0 {
        attributes = attributes.with("extrapolation_value", mode.extrapolation);
    }
    n.op("image.resize2d", &[data], attributes)
}

/// Resizes one axis: gathers the nearest elements, interpolates between two elements, or multiplies by a weight matrix.
fn resize_axis(n: &mut Node<'_, '_>, value: ExprId, mode: &Mode, axis: usize, size: ResizedAxis) -> Result<ExprId> {
    if size.from.max(1).saturating_mul(size.to.max(1)) > 1 << 24 {
        return Err(n.invalid_node(format!(
            "axis {axis}: expected input size * output size <= {}, found {} * {}",
            1 << 24,
            size.from,
            size.to
        )));
    }
    let coordinates: Vec<f64> = (0..size.to).map(|i| source_coordinate(n, mode, size, i)).collect::<Result<_, _>>()?;
    let last_index = size.from as i64 - 1;
    if mode.method == "nearest" {
        let nearest = |&x: &f64| nearest_index(x, &mode.nearest).map(|i| (i as i64).clamp(0, last_index));
        let indices: Option<Vec<i64>> = coordinates.iter().map(nearest).collect();
        let indices = indices.ok_or_else(|| {
            n.invalid_node(format!(
                "attribute nearest_mode: expected round_prefer_floor, round_prefer_ceil, floor or ceil, found \"{}\"",
                mode.nearest
            ))
        })?;
        let indices = n.vector(&indices);
        return n.op("take", &[value, indices], attrs![axis: axis as i64]);
    }
    // Integers and 16-bit floats are interpolated in float32; only the result is converted back, and truncated toward
    // zero for integers.
    let dtype = n.dtype(value)?;
    let compute_dtype = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let value = n.cast(value, compute_dtype)?;
    let result = match mode.method.as_str() {
        "linear" => linear_along_axis(n, value, axis, last_index, &coordinates)?,
        "cubic" => cubic_along_axis(n, value, mode, axis, last_index, &coordinates)?,
        other => {
            return Err(n.invalid_node(format!("attribute mode: expected nearest, linear or cubic, found \"{other}\"")));
        }
    };
    n.cast(result, dtype)
}

/// Interpolates between the two elements adjacent to each position: x[i] * (1 - part) + x[i + 1] * part. For a position
/// outside the data, the result is the border element.
fn linear_along_axis(
    n: &mut Node<'_, '_>,
    value: ExprId,
    axis: usize,
    last_index: i64,
    coordinates: &[f64],
) -> Result<ExprId> {
    let (dtype, rank) = (n.dtype(value)?, n.rank(value)?);
    let mut shape = vec![1; rank];
    shape[axis] = coordinates.len();
    let clamped_coordinates: Vec<f64> = coordinates.iter().map(|&x| x.clamp(0.0, last_index as f64)).collect();
    let mut term = |index: fn(f64) -> f64, weight: fn(f64) -> f64| {
        let indices: Vec<i64> = clamped_coordinates.iter().map(|&x| (index(x) as i64).min(last_index)).collect();
        let weights: Vec<f64> = clamped_coordinates.iter().map(|&x| weight(x)).collect();
        let indices = n.vector(&indices);
        let samples = n.op("take", &[value, indices], attrs![axis: axis as i64])?;
        let weights = n.tensor(from_f64s(dtype, &shape, &weights));
        n.op_without_attrs("multiply", &[samples, weights])
    };
    let lower_term = term(f64::floor, |x| 1.0 - (x - x.floor()))?;
    let upper_term = term(|x| x.floor() + 1.0, |x| x - x.floor())?;
    n.op_without_attrs("add", &[lower_term, upper_term])
}

/// Multiplies by the weight matrix of cubic convolution.
fn cubic_along_axis(
    n: &mut Node<'_, '_>,
    value: ExprId,
    mode: &Mode,
    axis: usize,
    last_index: i64,
    coordinates: &[f64],
) -> Result<ExprId> {
    let (input_size, output_size) = (last_index as usize + 1, coordinates.len());
    let mut matrix = vec![0.0; output_size * input_size];
    for (row, &x) in coordinates.iter().enumerate() {
        let floor = x.floor();
        let tap_position = |tap: i64| floor as i64 + tap;
        let is_counted = |tap: i64| !mode.exclude_outside || (0..=last_index).contains(&tap_position(tap));
        let weight = |tap: i64| cubic_kernel(mode.cubic, x - floor - tap as f64);
        let weight_sum: f64 =
            if mode.exclude_outside { (-1..=2).filter(|&tap| is_counted(tap)).map(weight).sum() } else { 1.0 };
        for tap in (-1..=2).filter(|&tap| is_counted(tap)) {
            matrix[row * input_size + tap_position(tap).clamp(0, last_index) as usize] += weight(tap) / weight_sum;
        }
    }
    let weights = n.tensor(from_f64s(n.dtype(value)?, &[output_size, input_size], &matrix));
    let rank = n.rank(value)?;
    // The axis is transposed to the end, multiplied, and transposed back.
    let mut order: Vec<usize> = (0..rank).filter(|&i| i != axis).collect();
    order.push(axis);
    let mut back_axes: Vec<usize> = (0..rank - 1).collect();
    back_axes.insert(axis, rank - 1);
    let front_axes = n.transpose(value, &order)?;
    let product = n.op("nn.dense", &[front_axes, weights], attrs![units: output_size as i64])?;
    n.transpose(product, &back_axes)
}

/// Returns the data coordinate for result index `i`.
fn source_coordinate(n: &Node<'_, '_>, mode: &Mode, size: ResizedAxis, i: usize) -> Result<f64> {
    let coordinate = size.source_coordinate(&mode.coordinates, i);
    coordinate.ok_or_else(|| {
        n.invalid_node(format!(
            "attribute coordinate_transformation_mode: expected half_pixel, half_pixel_symmetric, pytorch_half_pixel, \
             align_corners, asymmetric, tf_half_pixel_for_nn or tf_crop_and_resize, found \"{}\"",
            mode.coordinates
        ))
    })
}
