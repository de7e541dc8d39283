//! Operators on images whose dimensions may be computed at run time: cropping, sampling grids, unpooling.

use super::{Node, Outputs, Result, Row, attrs, one};
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
        one(n.op("nn.col2im", &inputs, attributes)?)
    }),
    ("Det", 11, |n| {
        let data = n.input(0)?;
        one(n.op_without_attrs("linalg.det", &[data])?)
    }),
    ("GridSample", 16, grid_sample),
    ("MaxUnpool", 9, max_unpool),
    ("RoiAlign", 10, |n| roi_align(n, "output_half_pixel")),
    ("RoiAlign", 16, |n| roi_align(n, "half_pixel")),
];

fn roi_align(n: &mut Node<'_, '_>, default: &str) -> Result<Outputs> {
    let (data, boxes, batches) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let aligned =
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
        aligned: aligned,
    ];
    let batches = n.cast(batches, n.dtype(boxes)?)?;
    let column = n.op("expand_dims", &[batches], attrs![axis: 1])?;
    let regions = n.concatenate(&[column, boxes], 1)?;
    one(n.op("vision.roi_align", &[data, regions], attributes)?)
}

fn grid_sample(n: &mut Node<'_, '_>) -> Result<Outputs> {
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
    let aligned = n.int_attr("align_corners", 0)? != 0;
    let attributes = attrs![method: method, layout: "NHWC", padding_mode: padding.as_str(), align_corners: aligned];
    one(n.op("image.grid_sample", &[data, grid], attributes)?)
}

/// Crops or pads each axis symmetrically to the requested dimension. For an odd difference, the end is cropped or
/// padded by one more element than the start.
fn center_crop_pad(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, wanted) = (n.input(0)?, n.input(1)?);
    let rank = n.rank(data)?;
    let axes: Vec<usize> = match n.ints_attr("axes")? {
        Some(axes) => axes.iter().map(|&axis| n.axis(axis, rank)).collect::<Result<_>>()?,
        None => (0..rank).collect(),
    };
    let all = n.shape_vector(data, 0..rank)?;
    let parts = axes.iter().map(|&axis| n.slice(all, 0, axis, axis + 1)).collect::<Result<Vec<_>>>()?;
    let own = n.concatenate(&parts, 0)?;
    let wanted = n.cast(wanted, DType::I64)?;
    let zero = n.scalar(DType::I64, 0.0);
    let mut excess = |from: ExprId, to: ExprId| {
        let difference = n.op_without_attrs("subtract", &[from, to])?;
        let positive = n.op_without_attrs("maximum", &[difference, zero])?;
        n.with_scalar("floor_divide", positive, 2.0)
    };
    let (begin, before) = (excess(own, wanted)?, excess(wanted, own)?);
    let kept = n.op_without_attrs("minimum", &[own, wanted])?;
    let end = n.op_without_attrs("add", &[begin, kept])?;
    let steps = n.vector(&vec![1i64; axes.len()]);
    let named = AttrValue::ints(axes.iter().map(|&axis| axis as i64));
    let cropped = n.op("dyn.strided_slice", &[data, begin, end, steps], attrs![axes: named])?;
    let rest = n.op_without_attrs("subtract", &[wanted, kept])?;
    let after = n.op_without_attrs("subtract", &[rest, before])?;
    // One row of widths per axis; axes that are not listed are not padded.
    let none = n.vector(&[0i64, 0]);
    let mut rows = vec![none; rank];
    for (i, &axis) in axes.iter().enumerate() {
        let sides = [n.slice(before, 0, i, i + 1)?, n.slice(after, 0, i, i + 1)?];
        rows[axis] = n.concatenate(&sides, 0)?;
    }
    let rows = n.tuple(&rows)?;
    let widths = n.op("stack", &[rows], attrs![axis: 0])?;
    let value = n.scalar(n.dtype(data)?, 0.0);
    one(n.op("dyn.nn.pad", &[cropped, widths, value], attrs![pad_mode: "constant"])?)
}

/// Applies affine maps to the positions of the image elements, in [-1, 1]. With `align_corners`, -1 and 1 are the
/// centers of the corner elements; otherwise, they are the edges of the image.
fn affine_grid(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (maps, size) = (n.input(0)?, n.input(1)?);
    let aligned = n.int_attr("align_corners", 0)? != 0;
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
        let line = position(n, count, dtype, aligned)?;
        let mut wanted = vec![1i64; axes + 1];
        wanted[axes - i] = -1;
        positions.push(n.op("reshape", &[line], attrs![newshape: AttrValue::from(wanted)])?);
    }
    let mut entry = |row: usize, column: usize| {
        let part = n.slice(maps, 1, row, row + 1)?;
        let part = n.slice(part, 2, column, column + 1)?;
        let mut wanted = vec![1; axes + 1];
        wanted[0] = shape[0];
        n.reshape(part, &wanted)
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
    one(n.op("stack", &[tuple], attrs![axis: -1])?)
}

/// Returns the positions of `count` elements in [-1, 1].
fn position(n: &mut Node<'_, '_>, count: ExprId, dtype: DType, aligned: bool) -> Result<ExprId> {
    let wide = if dtype == DType::F64 { dtype } else { DType::F32 };
    let count = n.cast(count, wide)?;
    let (zero, step) = (n.scalar(wide, 0.0), n.scalar(wide, 1.0));
    let index = n.op("arange", &[zero, count, step], attrs![dtype: wide])?;
    let doubled = n.with_scalar("multiply", index, 2.0)?;
    let place = if aligned {
        let last = n.with_scalar("subtract", count, 1.0)?;
        let last = n.op_without_attrs("maximum", &[last, step])?;
        n.op_without_attrs("divide", &[doubled, last])?
    } else {
        let center = n.with_scalar("add", doubled, 1.0)?;
        n.op_without_attrs("divide", &[center, count])?
    };
    let place = n.with_scalar("subtract", place, 1.0)?;
    n.cast(place, dtype)
}

/// Scatters elements to the positions that MaxPool returned, in an image of zeros. A larger `output_shape` adds zeros
/// at the end of each axis.
fn max_unpool(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, places) = (n.input(0)?, n.input(1)?);
    let shape = n.shape(data)?;
    let kernel = n.ints_attr("kernel_shape")?.ok_or_else(|| n.invalid_node("attribute kernel_shape is missing"))?;
    let axes = kernel.len();
    let strides = n.ints_attr("strides")?.unwrap_or_else(|| vec![1; axes]);
    let pads = n.ints_attr("pads")?.unwrap_or_else(|| vec![0; 2 * axes]);
    if shape.len() != axes + 2 || strides.len() != axes || pads.len() != 2 * axes {
        return Err(n.invalid_node(format!(
            "expected kernel_shape, strides and pads for {} axes, found {axes}, {} and {} values",
            shape.len().saturating_sub(2),
            strides.len(),
            pads.len()
        )));
    }
    let mut inferred = vec![shape[0] as i64, shape[1] as i64];
    for i in 0..axes {
        inferred.push((shape[2 + i] as i64 - 1) * strides[i] + kernel[i] - pads[i] - pads[axes + i]);
    }
    let sizes: Option<Vec<usize>> = inferred.iter().map(|&size| usize::try_from(size).ok()).collect();
    let sizes =
        sizes.ok_or_else(|| n.invalid_node(format!("expected inferred dimensions >= 0, found {inferred:?}")))?;
    let count = byoc_ir::tensor::element_count(&sizes)
        .ok_or_else(|| n.invalid_node(format!("the size of shape {sizes:?} overflows")))?;
    let given = shape.iter().product::<usize>();
    let empty = n.zeros(n.dtype(data)?, &[count])?;
    let (values, places) = (n.reshape(data, &[given])?, n.reshape(places, &[given])?);
    let attributes = attrs![axis: 0, reduction: "update"];
    let flat = n.op("scatter_elements", &[empty, places, values], attributes)?;
    let image = n.reshape(flat, &sizes)?;
    let Some(wanted) = n.optional_input(2) else { return one(image) };
    let own = n.vector(&inferred);
    let after = n.op_without_attrs("subtract", &[wanted, own])?;
    let before = n.vector(&vec![0i64; shape.len()]);
    let sides = n.tuple(&[before, after])?;
    let widths = n.op("stack", &[sides], attrs![axis: 1])?;
    let value = n.scalar(n.dtype(data)?, 0.0);
    one(n.op("dyn.nn.pad", &[image, widths, value], attrs![pad_mode: "constant"])?)
}
