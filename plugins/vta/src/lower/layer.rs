//! Extracts and validates the geometry of the layers that begin nodes.

use super::HINTS;
use super::range::{INT32, Range};
use byoc_plugin_api::{DType, RefusalCode};
use byoc_plugin_support::refusal::{CompileError, refuse, refuse_with_hint};
use byoc_plugin_support::region::{Op, RegionIr, Val};
use byoc_vta_program::tile::MAX_PAD;

/// Convolution of (N, C, H, W) data with (O, I, KH, KW) weights, or dense layer on (N, C) data with (O, C) weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// True for a dense layer, whose rows are its batch.
    pub dense: bool,
    /// Number of images, or of rows of a dense layer.
    pub batch: usize,
    /// Number of input channels.
    pub channels: usize,
    /// Number of rows and columns of the data.
    pub size: [usize; 2],
    /// Number of output channels.
    pub kernels: usize,
    /// Number of channel groups.
    pub groups: usize,
    /// Number of rows and columns of a kernel.
    pub kernel: [usize; 2],
    /// Row stride and column stride.
    pub strides: [usize; 2],
    /// Zero padding before and after, for rows and for columns.
    pub pads: [[usize; 2]; 2],
    /// Index of the weight constant.
    pub weight: usize,
}

/// Max pooling of (N, C, H, W) data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// Number of images.
    pub batch: usize,
    /// Number of channels.
    pub channels: usize,
    /// Number of rows and columns of the data.
    pub size: [usize; 2],
    /// Number of rows and columns of a window.
    pub kernel: [usize; 2],
    /// Row stride and column stride.
    pub strides: [usize; 2],
    /// Number of padding rows above and of padding columns on the left.
    pub pads: [usize; 2],
    /// Number of rows and columns of the result.
    pub results: [usize; 2],
}

/// Returns the output channel axis of a convolution or dense layer.
pub fn channel_axis(op: &Op<'_>) -> ChannelAxis {
    if op.name.ends_with("dense") { ChannelAxis::Last } else { ChannelAxis::Second }
}

/// Channel axis of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelAxis {
    /// Axis 1, for a convolution.
    Second,
    /// Last axis, for a dense layer.
    Last,
    /// No channel axis: the tensor is read element by element.
    None,
}

impl ChannelAxis {
    /// Returns the index of the axis.
    pub fn index(self, rank: usize) -> Option<usize> {
        match self {
            ChannelAxis::Second => Some(1),
            ChannelAxis::Last => rank.checked_sub(1),
            ChannelAxis::None => None,
        }
    }
}

/// Returns the geometry of a convolution or a dense layer.
///
/// # Errors
/// If the device does not support an element type, a zero point, a layout, an attribute or a shape.
pub fn conv_shape(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<ConvShape, CompileError> {
    HINTS.check_layer(ir, op)?;
    let Some((weight, _)) = op.inputs.get(1).and_then(|weight| ir.constant(*weight)) else {
        return refuse(RefusalCode::NotConstant, "weight: expected a constant, found a runtime value");
    };
    let shape = if op.name.ends_with("dense") { dense(ir, op, weight)? } else { conv(ir, op, weight)? };
    let sizes = [shape.batch, shape.channels, shape.kernels].into_iter().chain(shape.size).chain(shape.kernel);
    if sizes.into_iter().any(|size| size == 0) {
        let [data, weight] = [0, 1].map(|input| &ir.val(op.inputs[input]).shape);
        let detail = format!("{}: expected non-empty tensors, found data {data:?} and weight {weight:?}", op.name);
        return refuse(RefusalCode::UnsupportedShape, detail);
    }
    if let Some(pad) = shape.pads.iter().flatten().find(|pad| **pad > MAX_PAD) {
        let detail = format!("padding: expected at most {MAX_PAD}, found {pad}");
        return refuse_with_hint(
            RefusalCode::UnsupportedAttr,
            detail,
            "pad the data with nn.pad before the convolution",
        );
    }
    Ok(shape)
}

fn check_layout(op: &Op<'_>, keys: &[(&str, &str)]) -> Result<(), CompileError> {
    for (key, expected) in keys {
        let layout = op.attrs().text(key);
        if layout != *expected && !(layout.is_empty() && *key == "out_layout") {
            let detail = format!("{key}: expected {expected}, found {layout}");
            let hint = "convert the layout: byoc opt --pass convert_layout --layout OPERATOR=NCHW";
            return refuse_with_hint(RefusalCode::UnsupportedLayout, detail, hint);
        }
    }
    let dilation = op.attrs().ints("dilation").unwrap_or_default();
    if dilation.iter().any(|&d| d != 1) {
        return refuse(RefusalCode::UnsupportedAttr, format!("dilation: expected [1, 1], found {dilation:?}"));
    }
    Ok(())
}

/// Converts a shape to `N` sizes; `None` if the rank differs or a dimension is negative.
fn sizes<const N: usize>(shape: &[i64]) -> Option<[usize; N]> {
    let sizes: Vec<usize> = shape.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<_>>()?;
    sizes.try_into().ok()
}

fn shape_of<const N: usize>(ir: &RegionIr<'_>, value: Val, name: &str) -> Result<[usize; N], CompileError> {
    let shape = &ir.val(value).shape;
    match sizes(shape) {
        Some(sizes) => Ok(sizes),
        None => refuse(RefusalCode::UnsupportedShape, format!("{name}: expected rank {N}, found {}", shape.len())),
    }
}

fn attribute(op: &Op<'_>, key: &str, value: i64) -> Result<usize, CompileError> {
    match usize::try_from(value) {
        Ok(value) if value <= usize::from(u16::MAX) => Ok(value),
        _ => refuse(RefusalCode::UnsupportedAttr, format!("{key} of {}: expected 0 to 65535, found {value}", op.name)),
    }
}

/// Returns strides and padding (before, after) for rows and columns.
fn window(op: &Op<'_>) -> Result<([usize; 2], [[usize; 2]; 2]), CompileError> {
    let strides = op.attrs().per_axis("strides", 2, 1);
    let padding = op.attrs().padding(2);
    let strides = [attribute(op, "strides", strides[0])?, attribute(op, "strides", strides[1])?];
    if strides.contains(&0) {
        return refuse(RefusalCode::UnsupportedAttr, "strides: expected at least 1, found 0");
    }
    let mut pads = [[0; 2]; 2];
    for (pad, (pad_before, pad_after)) in pads.iter_mut().zip(padding) {
        *pad = [attribute(op, "padding", pad_before)?, attribute(op, "padding", pad_after)?];
    }
    Ok((strides, pads))
}

fn conv(ir: &RegionIr<'_>, op: &Op<'_>, weight: usize) -> Result<ConvShape, CompileError> {
    check_layout(op, &[("data_layout", "NCHW"), ("kernel_layout", "OIHW"), ("out_layout", "NCHW")])?;
    let [batch, channels, height, width] = shape_of(ir, op.inputs[0], "data")?;
    let [kernels, group_channels, kernel_height, kernel_width] = shape_of(ir, op.inputs[1], "kernel")?;
    let groups = attribute(op, "groups", op.attrs().int("groups", 1))?;
    if groups == 0 || channels != group_channels * groups || !kernels.is_multiple_of(groups) {
        let detail = format!(
            "expected channels and kernels divisible by {groups} groups, found {channels} channels, {group_channels} per \
             group, and {kernels} kernels"
        );
        return refuse(RefusalCode::UnsupportedShape, detail);
    }
    let (strides, pads) = window(op)?;
    let (size, kernel) = ([height, width], [kernel_height, kernel_width]);
    Ok(ConvShape { dense: false, batch, channels, size, kernels, groups, kernel, strides, pads, weight })
}

fn dense(ir: &RegionIr<'_>, op: &Op<'_>, weight: usize) -> Result<ConvShape, CompileError> {
    let [kernels, channels] = shape_of(ir, op.inputs[1], "weight")?;
    let data = &ir.val(op.inputs[0]).shape;
    if data.last() != Some(&(channels as i64)) {
        let features = data.last().map_or_else(|| "no".to_owned(), ToString::to_string);
        let detail = format!("weight: expected {features} input features, found {channels}");
        return refuse(RefusalCode::UnsupportedShape, detail);
    }
    if data.len() == 4 {
        // Tensors of rank 4 are packed as images, with the channels in axis 1.
        let detail = format!("data of {}: expected rank 1, 2 or 3, found 4", op.name);
        return refuse_with_hint(RefusalCode::UnsupportedShape, detail, "reshape the data to rank 2 before the layer");
    }
    let rows = data[..data.len() - 1].iter().fold(1i64, |product, &dim| product.saturating_mul(dim));
    let batch = usize::try_from(rows).unwrap_or(usize::MAX);
    Ok(ConvShape {
        dense: true,
        batch,
        channels,
        size: [1, 1],
        kernels,
        groups: 1,
        kernel: [1, 1],
        strides: [1, 1],
        pads: [[0; 2]; 2],
        weight,
    })
}

/// Returns the geometry of a pooling layer.
///
/// # Errors
/// If the device does not support an element type, a layout, an attribute or a shape.
pub fn pool(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<PoolShape, CompileError> {
    let dtype = ir.val(op.inputs[0]).dtype;
    if dtype != DType::I8 {
        let hint = if dtype.is_float() { HINTS.quantize } else { "" };
        return refuse_with_hint(RefusalCode::UnsupportedDtype, format!("input 0: expected int8, found {dtype}"), hint);
    }
    check_layout(op, &[("layout", "NCHW"), ("out_layout", "NCHW")])?;
    let [batch, channels, height, width] = shape_of(ir, op.inputs[0], "data")?;
    let [.., rows, columns] = shape_of::<4>(ir, op.outputs[0], "result")?;
    let (strides, pads) = window(op)?;
    let kernel = op.attrs().per_axis("pool_size", 2, 1);
    let kernel = [attribute(op, "pool_size", kernel[0])?, attribute(op, "pool_size", kernel[1])?];
    if kernel.contains(&0) {
        return refuse(RefusalCode::UnsupportedAttr, "pool_size: expected at least 1, found 0");
    }
    let pads = [pads[0][0], pads[1][0]];
    Ok(PoolShape { batch, channels, size: [height, width], kernel, strides, pads, results: [rows, columns] })
}

/// Returns the accumulator range of each output channel.
///
/// # Errors
/// If an accumulator may overflow int32.
pub fn ranges(ir: &RegionIr<'_>, shape: &ConvShape) -> Result<Vec<Range>, CompileError> {
    let Some(weight) = ir.constants.get(shape.weight) else {
        return refuse(RefusalCode::NotConstant, "weight: expected a constant, found a runtime value");
    };
    let tensor = weight.tensor();
    let taps = shape.channels / shape.groups * shape.kernel[0] * shape.kernel[1];
    let range = |row: &[i8]| {
        row.iter().fold([0i64; 2], |[low, high], &w| {
            let ends = [i64::from(w) * -128, i64::from(w) * 127];
            [low + ends[0].min(ends[1]), high + ends[0].max(ends[1])]
        })
    };
    let ranges: Vec<Range> = tensor.as_slice::<i8>().chunks_exact(taps).map(range).collect();
    match ranges.iter().find(|range| range[0] < INT32[0] || range[1] > INT32[1]) {
        Some(range) => {
            let detail = format!("expected accumulators < 2^31 in magnitude, found up to {}", range[1].max(-range[0]));
            refuse(RefusalCode::ResourceLimit, detail)
        }
        None => Ok(ranges),
    }
}
