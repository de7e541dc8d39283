//! Deformable convolution: each filter tap samples the image at its own position.

use super::conv::kernel_sizes;
use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::ir::ExprId;
use byoc_ir::tensor::{DType, Tensor};

pub const ROWS: &[Row] = &[("DeformConv", 19, deform_conv)];

/// Dimensions of a 2D deformable convolution.
struct Sizes {
    batch: usize,
    channels: usize,
    image: [usize; 2],
    kernel: [usize; 2],
    result: [usize; 2],
    /// Number of offset groups: channel groups that share sampling positions.
    groups: usize,
}

/// Samples the image bilinearly, and multiplies the samples by the weights. One call samples all taps, as an image of
/// (taps * rows, columns).
fn deform_conv(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, weight, offset) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let sizes = sizes(n, data, weight, offset)?;
    let Sizes { batch, channels, kernel: [kernel_rows, kernel_columns], result: [rows, columns], groups, .. } = sizes;
    let taps = kernel_rows * kernel_columns;
    let sample_positions = coordinates(n, &sizes, offset)?;
    let mask = match n.optional_input(4) {
        Some(mask) => Some(n.reshape(mask, &[batch, groups, taps * rows, columns])?),
        None => None,
    };
    let attributes = attrs![method: "bilinear", layout: "NHWC", padding_mode: "zeros", align_corners: false];
    let mut group_samples = Vec::with_capacity(groups);
    for (group, coordinate) in sample_positions.into_iter().enumerate() {
        let width = channels / groups;
        let part = n.slice(data, 1, group * width, (group + 1) * width)?;
        let mut samples = n.op("image.grid_sample", &[part, coordinate], attributes.clone())?;
        if let Some(mask) = mask {
            let group_mask = n.slice(mask, 1, group, group + 1)?;
            samples = n.op_without_attrs("multiply", &[samples, group_mask])?;
        }
        group_samples.push(samples);
    }
    let samples = n.concatenate(&group_samples, 1)?;
    let samples = n.reshape(samples, &[batch, channels * taps, rows, columns])?;
    let shape = n.shape(weight)?;
    let weight = n.reshape(weight, &[shape[0], shape[1] * taps, 1, 1])?;
    let product = n.op(
        "nn.conv2d",
        &[samples, weight],
        attrs![groups: n.int_attr("group", 1)?, channels: shape[0] as i64, kernel_size: [1i64, 1]],
    )?;
    single_output(match n.optional_input(3) {
        Some(bias) => n.op("nn.bias_add", &[product, bias], attrs![axis: 1])?,
        None => product,
    })
}

fn sizes(n: &Node<'_, '_>, data: ExprId, weight: ExprId, offset: ExprId) -> Result<Sizes> {
    let (image, weights, offsets) = (n.shape(data)?, n.shape(weight)?, n.shape(offset)?);
    let groups = usize::try_from(n.int_attr("offset_group", 1)?).unwrap_or(0);
    let ([batch, channels, height, width], [_, _, _, _], [_, count, rows, columns]) =
        (&image[..], &weights[..], &offsets[..])
    else {
        return Err(n.invalid_node(format!(
            "expected an image, weights and offsets of rank 4, found shapes {image:?}, {weights:?} and {offsets:?}"
        )));
    };
    let kernel = kernel_sizes(n, &n.ty(weight)?.dims)?;
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(n.invalid_node(format!(
            "offset_group: expected a divisor of {channels}, the number of channels, found {groups}"
        )));
    }
    let expected_count = 2 * groups * kernel[0] * kernel[1];
    if *count != expected_count {
        return Err(n.invalid_node(format!(
            "offset: expected {expected_count} channels, 2 per offset group and kernel element, found {count}"
        )));
    }
    Ok(Sizes {
        batch: *batch,
        channels: *channels,
        image: [*height, *width],
        kernel: [kernel[0], kernel[1]],
        result: [*rows, *columns],
        groups,
    })
}

/// Returns the sampling positions of each offset group, (batch, taps * rows, columns, 2), in the grid format of
/// GridSample.
fn coordinates(n: &mut Node<'_, '_>, sizes: &Sizes, offset: ExprId) -> Result<Vec<ExprId>> {
    let attribute = |n: &Node<'_, '_>, name: &str, default: i64, count: usize| {
        n.ints_attr(name).map(|values| values.unwrap_or_else(|| vec![default; count]))
    };
    let (strides, dilations) = (attribute(n, "strides", 1, 2)?, attribute(n, "dilations", 1, 2)?);
    let pads = attribute(n, "pads", 0, 4)?;
    if [strides.len(), dilations.len(), pads.len()] != [2, 2, 4] {
        return Err(n.invalid_node(format!(
            "expected 2 strides, 2 dilations and 4 pads, found {}, {} and {}",
            strides.len(),
            dilations.len(),
            pads.len()
        )));
    }
    let taps = sizes.kernel[0] * sizes.kernel[1];
    let [rows, columns] = sizes.result;
    let dtype = n.dtype(offset)?;
    let split_offset = n.reshape(offset, &[sizes.batch, sizes.groups, taps, 2, rows, columns])?;
    let mut axes = Vec::with_capacity(2);
    for axis in 0..2 {
        let mut starts = Vec::with_capacity(taps * sizes.result[axis]);
        for tap_index in 0..taps {
            let step = if axis == 0 { tap_index / sizes.kernel[1] } else { tap_index % sizes.kernel[1] } as i64;
            let first_offset = step * dilations[axis] - pads[axis];
            starts.extend((0..sizes.result[axis] as i64).map(|i| (i * strides[axis] + first_offset) as f32));
        }
        let shape = if axis == 0 { [taps, rows, 1] } else { [taps, 1, columns] };
        let starts = n.tensor(Tensor::from_slice(&shape, &starts));
        let starts = n.cast(starts, dtype)?;
        let axis_offsets = n.slice(split_offset, 3, axis, axis + 1)?;
        let axis_offsets = n.reshape(axis_offsets, &[sizes.batch, sizes.groups, taps, rows, columns])?;
        let coordinate = n.op_without_attrs("add", &[axis_offsets, starts])?;
        // The image edges are at -1 and 1: pixel i is at (2 i + 1) / size - 1.
        let doubled_coordinate = n.with_scalar("multiply", coordinate, 2.0)?;
        let center = n.with_scalar("add", doubled_coordinate, 1.0)?;
        let ratio = n.with_scalar("divide", center, sizes.image[axis] as f64)?;
        axes.push(n.with_scalar("subtract", ratio, 1.0)?);
    }
    let pair = n.tuple(&[axes[1], axes[0]])?;
    let index_grid = n.op("stack", &[pair], attrs![axis: -1])?;
    let mut grids = Vec::with_capacity(sizes.groups);
    for group in 0..sizes.groups {
        let grid = n.slice(index_grid, 1, group, group + 1)?;
        let grid = n.reshape(grid, &[sizes.batch, taps * rows, columns, 2])?;
        grids.push(n.cast(grid, DType::F32)?);
    }
    Ok(grids)
}
