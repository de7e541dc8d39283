//! Operators on images whose dimensions may be computed at run time: cropping, sampling grids, unpooling.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::ir::{AttrValue, ExprId};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("AffineGrid", 20, affine_grid),
    ("CenterCropPad", 18, center_crop_pad),
    ("Col2Im", 18, |n| {
        let inputs = [n.input(0)?, n.input(1)?, n.input(2)?];
        let mut attributes = attrs![];
        for (name, relay) in [("strides", "strides"), ("pads", "padding"), ("dilations", "dilation")] {
            if let Some(values) = n.ints_attr(name)? {
                attributes = attributes.with(relay, AttrValue::from(values));
            }
        }
        single_output(n.op("nn.col2im", &inputs, attributes)?)
    }),
    ("Det", 11, |n| {
        let data = n.input(0)?;
        single_output(n.op_without_attrs("linalg.det", &[data])?)
    }),
    ("GridSample", 16, grid_sample),
    ("MaxUnpool", 9, max_unpool),
    ("RoiAlign", 10, |n| roi_align(n, "output_half_pixel")),
    ("RoiAlign", 16, |n| roi_align(n, "half_pixel")),
];

fn roi_align(n: &mut Node<'_, '_>, default: &str) -> Result<Outputs> {
    let (data, boxes, batches) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let is_aligned =
        match n.str_attr("coordinate_transformation_mode", default)?.as_str() {
            "half_pixel" => true,
            "output_half_pixel" => false,
            other => return Err(n.invalid_node(format!(
                "attribute coordinate_transformation_mode: expected half_pixel or output_half_pixel, found \"{other}\""
            ))),
        };
    let mode = n.str_attr("mode", "avg")?;
    let size = [n.int_attr("output_height", 1)?, n.int_attr("output_width", 1)?];
    let attributes = attrs![
        pooled_size: size,
        spatial_scale: n.float_attr("spatial_scale", 1.0)?,
        sample_ratio: n.int_attr("sampling_ratio", 0)?,
        mode: mode.as_str(),
        aligned: is_aligned,
    ];
    let batches = n.cast(batches, n.dtype(boxes)?)?;
    let column = n.op("expand_dims", &[batches], attrs![axis: 1])?;
    let regions = n.concatenate(&[column, boxes], 1)?;
    single_output(n.op("vision.roi_align", &[data, regions], attributes)?)
}

pub(super) fn grid_sample(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, grid) = (n.input(0)?, n.input(1)?);
    let method = match n.str_attr("mode", "linear")?.as_str() {
        "nearest" => "nearest",
        "linear" | "bilinear" => "bilinear",
        "cubic" | "bicubic" => "bicubic",
        other => {
            let message = format!("attribute mode: expected nearest, linear or cubic, found \"{other}\"");
            return Err(n.invalid_node(message));
        }
    };
    let padding = n.str_attr("padding_mode", "zeros")?;
    let is_aligned = n.int_attr("align_corners", 0)? != 0;
    let attributes = attrs![method: method, layout: "NHWC", padding_mode: padding.as_str(), align_corners: is_aligned];
    single_output(n.op("image.grid_sample", &[data, grid], attributes)?)
}

/// Crops or pads each axis symmetrically to the requested dimension. For an odd difference, the end is cropped or
/// padded by one more element than the start.
fn center_crop_pad(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, target_size) = (n.input(0)?, n.input(1)?);
    let rank = n.rank(data)?;
    let axes: Vec<usize> = match n.ints_attr("axes")? {
        Some(axes) => axes.iter().map(|&axis| n.axis(axis, rank)).collect::<Result<_>>()?,
        None => (0..rank).collect(),
    };
    let input_shape = n.shape_vector(data, 0..rank)?;
    let axis_sizes = axes.iter().map(|&axis| n.slice(input_shape, 0, axis, axis + 1)).collect::<Result<Vec<_>>>()?;
    let input_size = n.concatenate(&axis_sizes, 0)?;
    let target_size = n.cast(target_size, DType::I64)?;
    let zero = n.scalar(DType::I64, 0.0);
    let mut half_excess = |minuend: ExprId, subtrahend: ExprId| {
        let difference = n.op_without_attrs("subtract", &[minuend, subtrahend])?;
        let positive_difference = n.op_without_attrs("maximum", &[difference, zero])?;
        n.with_scalar("floor_divide", positive_difference, 2.0)
    };
    let (begin, pad_before) = (half_excess(input_size, target_size)?, half_excess(target_size, input_size)?);
    let common_size = n.op_without_attrs("minimum", &[input_size, target_size])?;
    let end = n.op_without_attrs("add", &[begin, common_size])?;
    let steps = n.vector(&vec![1i64; axes.len()]);
    let axes_attr = AttrValue::ints(axes.iter().map(|&axis| axis as i64));
    let crop = n.op("dyn.strided_slice", &[data, begin, end, steps], attrs![axes: axes_attr])?;
    let remaining_pad = n.op_without_attrs("subtract", &[target_size, common_size])?;
    let pad_after = n.op_without_attrs("subtract", &[remaining_pad, pad_before])?;
    // One row of widths per axis; axes that are not listed are not padded.
    let zero_padding = n.vector(&[0i64, 0]);
    let mut rows = vec![zero_padding; rank];
    for (i, &axis) in axes.iter().enumerate() {
        let pad_pair = [n.slice(pad_before, 0, i, i + 1)?, n.slice(pad_after, 0, i, i + 1)?];
        rows[axis] = n.concatenate(&pad_pair, 0)?;
    }
    let rows = n.tuple(&rows)?;
    let widths = n.op("stack", &[rows], attrs![axis: 0])?;
    let value = n.scalar(n.dtype(data)?, 0.0);
    single_output(n.op("dyn.nn.pad", &[crop, widths, value], attrs![pad_mode: "constant"])?)
}

/// Applies affine maps to the positions of the image elements, in [-1, 1]. With `align_corners`, -1 and 1 are the
/// centers of the corner elements; otherwise, they are the edges of the image.
fn affine_grid(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (maps, size) = (n.input(0)?, n.input(1)?);
    let is_aligned = n.int_attr("align_corners", 0)? != 0;
    let shape = n.shape(maps)?;
    let axes = match shape[..] {
        [_, 2, 3] => 2,
        [_, 3, 4] => 3,
        _ => return Err(n.invalid_node(format!("theta: expected shape (N, 2, 3) or (N, 3, 4), found {}", n.ty(maps)?))),
    };
    let dtype = n.dtype(maps)?;
    // The last axis of the image is x, the first coordinate.
    let mut positions = Vec::with_capacity(axes);
    for i in 0..axes {
        let count = n.slice(size, 0, 2 + axes - 1 - i, 3 + axes - 1 - i)?;
        let count = n.reshape(count, &[])?;
        let line = position(n, count, dtype, is_aligned)?;
        let mut broadcast_shape = vec![1i64; axes + 1];
        broadcast_shape[axes - i] = -1;
        positions.push(n.op("reshape", &[line], attrs![newshape: AttrValue::from(broadcast_shape)])?);
    }
    let mut entry = |row: usize, column: usize| {
        let part = n.slice(maps, 1, row, row + 1)?;
        let part = n.slice(part, 2, column, column + 1)?;
        let mut broadcast_shape = vec![1; axes + 1];
        broadcast_shape[0] = shape[0];
        n.reshape(part, &broadcast_shape)
    };
    let entries: Vec<Vec<ExprId>> =
        (0..axes).map(|row| (0..=axes).map(|column| entry(row, column)).collect()).collect::<Result<_>>()?;
    let mut coordinates = Vec::with_capacity(axes);
    for row in &entries {
        let mut sum = row[axes];
        for (&factor, &line) in row.iter().zip(&positions) {
            let term = n.op_without_attrs("multiply", &[factor, line])?;
            sum = n.op_without_attrs("add", &[sum, term])?;
        }
        coordinates.push(sum);
    }
    let tuple = n.tuple(&coordinates)?;
    single_output(n.op("stack", &[tuple], attrs![axis: -1])?)
}

/// Returns the positions of `count` elements along an axis, scaled to [-1, 1].
fn position(n: &mut Node<'_, '_>, count: ExprId, dtype: DType, is_aligned: bool) -> Result<ExprId> {
    let compute_dtype = if dtype == DType::F64 { dtype } else { DType::F32 };
    let count = n.cast(count, compute_dtype)?;
    let (zero, step) = (n.scalar(compute_dtype, 0.0), n.scalar(compute_dtype, 1.0));
    let index = n.op("arange", &[zero, count, step], attrs![dtype: compute_dtype])?;
    let doubled_index = n.with_scalar("multiply", index, 2.0)?;
    let coordinate = if is_aligned {
        let last_index = n.with_scalar("subtract", count, 1.0)?;
        let last_index = n.op_without_attrs("maximum", &[last_index, step])?;
        n.op_without_attrs("divide", &[doubled_index, last_index])?
    } else {
        let center = n.with_scalar("add", doubled_index, 1.0)?;
        n.op_without_attrs("divide", &[center, count])?
    };
    let coordinate = n.with_scalar("subtract", coordinate, 1.0)?;
    n.cast(coordinate, dtype)
}

/// Scatters elements to the positions that MaxPool returned, in an image of zeros. A larger `output_shape` adds zeros
/// at the end of each axis.
fn max_unpool(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, positions) = (n.input(0)?, n.input(1)?);
    let shape = n.shape(data)?;
    let kernel = n.ints_attr("kernel_shape")?.ok_or_else(|| n.invalid_node("attribute kernel_shape is missing"))?;
    let axes = kernel.len();
    let strides = n.ints_attr("strides")?.unwrap_or_else(|| vec![1; axes]);
    let pads = n.ints_attr("pads")?.unwrap_or_else(|| vec![0; 2 * axes]);
    if shape.len() != axes + 2 || strides.len() != axes || pads.len() != 2 * axes {
        return Err(n.invalid_node(format!(
            "kernel_shape, strides and pads: expected lengths {0}, {0} and {1}, found {axes}, {2} and {3}",
            shape.len().saturating_sub(2),
            2 * shape.len().saturating_sub(2),
            strides.len(),
            pads.len()
        )));
    }
    let mut inferred_sizes = vec![shape[0] as i64, shape[1] as i64];
    for i in 0..axes {
        inferred_sizes.push((shape[2 + i] as i64 - 1) * strides[i] + kernel[i] - pads[i] - pads[axes + i]);
    }
    let sizes: Option<Vec<usize>> = inferred_sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
    let sizes =
        sizes.ok_or_else(|| n.invalid_node(format!("expected inferred dimensions >= 0, found {inferred_sizes:?}")))?;
    let count = byoc_ir::tensor::element_count(&sizes)
        .ok_or_else(|| n.invalid_node(format!("the size of shape {sizes:?} overflows")))?;
    let element_count = shape.iter().product::<usize>();
    let zeros = n.zeros(n.dtype(data)?, &[count])?;
    let (values, positions) = (n.reshape(data, &[element_count])?, n.reshape(positions, &[element_count])?);
    let attributes = attrs![axis: 0, reduction: "update"];
    let flat = n.op("scatter_elements", &[zeros, positions, values], attributes)?;
    let image = n.reshape(flat, &sizes)?;
    let Some(target_size) = n.optional_input(2) else { return single_output(image) };
    let input_size = n.vector(&inferred_sizes);
    let pad_after = n.op_without_attrs("subtract", &[target_size, input_size])?;
    let pad_before = n.vector(&vec![0i64; shape.len()]);
    let pad_pair = n.tuple(&[pad_before, pad_after])?;
    let widths = n.op("stack", &[pad_pair], attrs![axis: 1])?;
    let value = n.scalar(n.dtype(data)?, 0.0);
    single_output(n.op("dyn.nn.pad", &[image, widths, value], attrs![pad_mode: "constant"])?)
}
