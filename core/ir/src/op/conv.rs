//! Convolutions and transposed convolutions over one, two and three spatial axes, with arbitrary layouts and groups.

use super::blocked::{self, BlockedCall};
use super::spatial::{self, CanonicalDims, Window, WindowParams, each};
use super::sum::{Sum, with_sum};
use super::{AttrDef, AttrKind, Cost, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::{Diagnostic, codes, plural};
use crate::ir::{Dim, Type};
use crate::op::facts::{LayoutRule, Properties, elements_of};
use crate::tensor::{DType, TensorView, TensorViewMut};

/// Convolution with known dimensions.
#[derive(Clone, Debug)]
pub struct ConvShape {
    /// Number of channel groups.
    pub groups: usize,
    /// Dimensions of the data: batch, channels, spatial.
    pub data: CanonicalDims,
    /// Dimensions of the kernel: output channels, input channels per group, spatial; if transposed, data channels,
    /// output channels per group, spatial.
    pub weight: CanonicalDims,
    /// Dimensions of the result: batch, channels, spatial.
    pub out: CanonicalDims,
    /// Strides, dilation and padding.
    pub window: WindowParams,
}

impl ConvShape {
    /// Creates the shape from attributes and shapes that the type relation accepted.
    pub fn new(params: &Params<'_>, data: &[usize], weight: &[usize], out: &[usize]) -> ConvShape {
        let axes = data.len() - 2;
        let data_layout = params.string("data_layout");
        let out_layout = params.string("out_layout");
        let out_layout = if out_layout.is_empty() { &data_layout } else { &out_layout };
        let leading_letters = kernel_letters(axes, params.def().name.ends_with("_transpose"));
        ConvShape {
            groups: params.int("groups") as usize,
            data: CanonicalDims::new(data, &data_layout, "NC"),
            weight: CanonicalDims::new(weight, &params.string("kernel_layout"), leading_letters),
            out: CanonicalDims::new(out, out_layout, "NC"),
            window: WindowParams::new(params, axes),
        }
    }
}

/// Returns the two channel letters of a kernel layout. For a 1-d or 3-d transposed convolution, Relay names the axes of
/// the kernel after the convolution being transposed (whose result has the O channels); for a 2-d transposed
/// convolution, after its own inputs and outputs.
fn kernel_letters(axes: usize, is_transposed: bool) -> &'static str {
    if is_transposed && axes == 2 { "IO" } else { "OI" }
}

const DATA_LAYOUT: &str = "order of the data's axes";
const KERNEL_LAYOUT: &str = "order of the kernel's axes";
const OUT_LAYOUT: &str = "order of the result's axes; that of the data if empty";
const OUT_DTYPE: AttrDef = AttrDef::new(
    "out_dtype",
    AttrKind::DType,
    Default::Str(""),
    "element type of the result; that of the data if empty",
);

/// Returns the attributes of a convolution.
const fn conv_attrs(
    ones: &'static [i64],
    zeros: &'static [i64],
    data: &'static str,
    kernel: &'static str,
    out_dtype: AttrDef,
) -> [AttrDef; 10] {
    [
        AttrDef::new("strides", AttrKind::Ints, Default::Ints(ones), "stride of the window per axis"),
        AttrDef::new(
            "padding",
            AttrKind::Ints,
            Default::Ints(zeros),
            "zero padding: one value, one per axis, or all values before the axes followed by all values after",
        ),
        AttrDef::new("dilation", AttrKind::Ints, Default::Ints(ones), "distance between taps per axis"),
        AttrDef::new("groups", AttrKind::Int, Default::Int(1), "number of channel groups"),
        AttrDef::new(
            "channels",
            AttrKind::Int,
            Default::None,
            "number of output channels; derived from the weight if None",
        ),
        AttrDef::new("kernel_size", AttrKind::Ints, Default::None, "taps per axis; derived from the weight if None"),
        AttrDef::new("data_layout", AttrKind::Str, Default::Str(data), DATA_LAYOUT),
        AttrDef::new("kernel_layout", AttrKind::Str, Default::Str(kernel), KERNEL_LAYOUT),
        AttrDef::new("out_layout", AttrKind::Str, Default::Str(""), OUT_LAYOUT),
        out_dtype,
    ]
}

/// Returns the attributes of `nn.conv2d` with the given `out_dtype`.
pub(super) const fn attrs_2d(out_dtype: AttrDef) -> [AttrDef; 10] {
    conv_attrs(&[1, 1], &[0, 0], "NCHW", "OIHW", out_dtype)
}

/// Returns the attributes of a transposed convolution.
const fn transpose_attrs(
    ones: &'static [i64],
    zeros: &'static [i64],
    data: &'static str,
    kernel: &'static str,
    out_dtype: AttrDef,
) -> [AttrDef; 11] {
    [
        AttrDef::new(
            "channels",
            AttrKind::Int,
            Default::None,
            "number of output channels; derived from the weight if None",
        ),
        AttrDef::new("kernel_size", AttrKind::Ints, Default::None, "taps per axis; derived from the weight if None"),
        AttrDef::new("strides", AttrKind::Ints, Default::Ints(ones), "stride of the window per axis"),
        AttrDef::new(
            "padding",
            AttrKind::Ints,
            Default::Ints(zeros),
            "padding cropped from the result: one value, one per axis, or all values before the axes followed by all after",
        ),
        AttrDef::new("output_padding", AttrKind::Ints, Default::Ints(zeros), "elements added at the end of each axis"),
        AttrDef::new("dilation", AttrKind::Ints, Default::Ints(ones), "distance between taps per axis"),
        AttrDef::new("groups", AttrKind::Int, Default::Int(1), "number of channel groups"),
        AttrDef::new("data_layout", AttrKind::Str, Default::Str(data), DATA_LAYOUT),
        AttrDef::new("kernel_layout", AttrKind::Str, Default::Str(kernel), KERNEL_LAYOUT),
        AttrDef::new("out_layout", AttrKind::Str, Default::Str(""), OUT_LAYOUT),
        out_dtype,
    ]
}

/// Returns the attributes of `nn.conv2d_transpose` with the given `out_dtype`.
pub(super) const fn transpose_attrs_2d(out_dtype: AttrDef) -> [AttrDef; 11] {
    transpose_attrs(&[1, 1], &[0, 0], "NCHW", "IOHW", out_dtype)
}

macro_rules! conv {
    ($($axes:literal $name:literal $ones:tt $zeros:tt $data:literal $kernel:literal $layout:ident;)*) => {$(
        operator! {
            name: $name,
            doc: "Cross-correlation of data with a kernel: out[n, o, p] = sum over i and taps t of \
                  data[n, i, p * strides + t * dilation - padding] * weight[o, i, t]. With groups, output channels \
                  of group g use only the input channels of group g; weight has in_channels / groups of them. \
                  Size: floor((size + before + after - dilation * (kernel - 1) - 1) / stride) + 1. Integers are \
                  summed exactly.",
            inputs: &["data", "weight"],
            attrs: &conv_attrs(&$ones, &$zeros, $data, $kernel, OUT_DTYPE),
            pattern: OpPattern::OutEWiseFusable,
            relation: conv_relation::<$axes>,
            reference: Some(conv_reference),
            flops: conv_flops::<$axes>,
            properties: Properties::EXACT.sum(elements_of::<1>).layout(LayoutRule::$layout),
        }
    )*};
}

conv! {
    1 "nn.conv1d" [1] [0] "NCW" "OIW" Fixed;
    2 "nn.conv2d" [1, 1] [0, 0] "NCHW" "OIHW" Conv2d;
    3 "nn.conv3d" [1, 1, 1] [0, 0, 0] "NCDHW" "OIDHW" Fixed;
    2 "nn.contrib_conv2d_NCHWc" [1, 1] [0, 0] "NCHW" "OIHW" Fixed;
    2 "nn.contrib_depthwise_conv2d_NCHWc" [1, 1] [0, 0] "NCHW" "OIHW" Fixed;
}

macro_rules! conv_transpose {
    ($($axes:literal $name:literal $ones:tt $zeros:tt $data:literal $kernel:literal;)*) => {$(
        operator! {
            name: $name,
            doc: "Transposed convolution, the gradient of a convolution with respect to its data: every input \
                  element adds weight[i, o, t] times itself at out[n, o, p * strides + t * dilation - padding]. \
                  Size: stride * (size - 1) + dilation * (kernel - 1) + 1 + output_padding - before - after. The \
                  first channel axis of the weight belongs to the data (written I for two spatial axes, O for one \
                  and three, as in Relay).",
            inputs: &["data", "weight"],
            attrs: &transpose_attrs(&$ones, &$zeros, $data, $kernel, OUT_DTYPE),
            pattern: OpPattern::OutEWiseFusable,
            relation: transpose_relation::<$axes>,
            reference: Some(transpose_reference),
            flops: transpose_flops::<$axes>,
            properties: Properties::EXACT.sum(elements_of::<1>),
        }
    )*};
}

conv_transpose! {
    1 "nn.conv1d_transpose" [1] [0] "NCW" "OIW";
    2 "nn.conv2d_transpose" [1, 1] [0, 0] "NCHW" "IOHW";
    3 "nn.conv3d_transpose" [1, 1, 1] [0, 0, 0] "NCDHW" "OIDHW";
}

/// Validated operands of a convolution or a transposed convolution, with dimensions in canonical order.
struct Operands {
    dtype: DType,
    out_layout: Vec<usize>,
    data: Vec<Dim>,
    /// The two channel dimensions, then the spatial dimensions.
    weight: Vec<Dim>,
    groups: usize,
    windows: Vec<Window>,
}

fn operands(relation: &Relation<'_>, axes: usize, is_transposed: bool) -> Result<Operands, Box<Diagnostic>> {
    let (data, weight) = (relation.tensor(0)?, relation.tensor(1)?);
    let order = format!("NC{}", spatial::spatial(axes));
    let kernel_order = format!("{}{}", kernel_letters(axes, is_transposed), spatial::spatial(axes));
    let data_layout = relation.params.string("data_layout");
    let positions = spatial::layout(relation, "data_layout", &order, &order)?;
    let kernel_at = spatial::layout(relation, "kernel_layout", &kernel_order, &kernel_order)?;
    let out_layout = spatial::layout(relation, "out_layout", &order, &data_layout)?;
    for (name, ty) in [("data", data), ("weight", weight)] {
        if ty.dims.len() != axes + 2 {
            let (actual, expected) = (ty.dims.len(), axes + 2);
            return Err(relation.mismatch(format!("{name}: expected {expected} dimensions, found {actual}")));
        }
    }
    let groups = relation.params.int("groups");
    if groups < 1 {
        return Err(
            relation.error(codes::types::BAD_ATTRIBUTE, format!("groups: expected an integer >= 1, found {groups}"))
        );
    }
    let mut taps: Vec<Dim> = kernel_at.iter().map(|&i| weight.dims[i].clone()).collect();
    if let Some(kernel_size) = relation.params.opt_ints("kernel_size") {
        if kernel_size.len() != axes || kernel_size.iter().any(|&v| v < 1) {
            return Err(relation.error(
                codes::types::BAD_ATTRIBUTE,
                format!("kernel_size: expected {} >= 1, found {kernel_size:?}", plural(axes, "integer")),
            ));
        }
        for (tap, &size) in taps[2..].iter_mut().zip(&kernel_size) {
            *tap = relation.same_dim("kernel_size and weight", &Dim::Fixed(size as usize), tap)?;
        }
    }
    let strides = spatial::per_axis(relation, "strides", axes, 1)?;
    let dilation = spatial::per_axis(relation, "dilation", axes, 1)?;
    let pads = spatial::padding(relation, axes)?;
    let window = |i: usize| Window { stride: strides[i], dilation: dilation[i], pads: pads[i] };
    Ok(Operands {
        dtype: product_dtype(relation, data.dtype, weight.dtype)?,
        out_layout,
        data: positions.iter().map(|&i| data.dims[i].clone()).collect(),
        weight: taps,
        groups: groups as usize,
        windows: (0..axes).map(window).collect(),
    })
}

/// Returns the element type of a contraction's result: `out_dtype` if given, otherwise the type of the first operand.
/// Two integer operands may have different element types.
pub(super) fn product_dtype(relation: &Relation<'_>, a: DType, b: DType) -> Result<DType, Box<Diagnostic>> {
    if !(a.is_int() && b.is_int()) {
        relation.same_dtype(a, b)?;
    }
    Ok(relation.params.dtype("out_dtype").unwrap_or(a))
}

/// Returns the type of the result, with the dimensions in the result's layout. `channels` must equal the attribute of
/// that name, if that is given.
fn result(relation: &Relation<'_>, operands: Operands, channels: Dim, spatial: Vec<Dim>) -> TypeResult {
    let mut channels = channels;
    if let Some(channel_count) = relation.params.opt_int("channels") {
        if channel_count < 1 {
            return Err(relation.error(
                codes::types::BAD_ATTRIBUTE,
                format!("channels: expected an integer >= 1, found {channel_count}"),
            ));
        }
        channels = relation.same_dim("channels and weight", &Dim::Fixed(channel_count as usize), &channels)?;
    }
    let canonical = [operands.data[0].clone(), channels].into_iter().chain(spatial);
    let mut dims = vec![Dim::Any; operands.out_layout.len()];
    for (dim, &position) in canonical.zip(&operands.out_layout) {
        dims[position] = dim;
    }
    Ok(Type::tensor_of(operands.dtype, dims))
}

/// Multiplies a dimension by `n`.
fn multiply_dim(relation: &Relation<'_>, dim: &Dim, n: usize) -> Result<Dim, Box<Diagnostic>> {
    match dim {
        Dim::Fixed(d) => spatial::to_dim(relation, *d as i128 * n as i128),
        other => Ok(Dim::compute([other, &Dim::Fixed(n)], |[dim, n]| dim.mul(&n))),
    }
}

pub(super) fn conv_relation<const AXES: usize>(relation: &Relation<'_>) -> TypeResult {
    if let Some(ty) = blocked::relation(relation, conv_relation::<AXES>) {
        return ty;
    }
    let operands = operands(relation, AXES, false)?;
    let data_channels = multiply_dim(relation, &operands.weight[1], operands.groups)?;
    relation.same_dim("channels of data and weight", &operands.data[1], &data_channels)?;
    check_divisible(relation, &operands.weight[0], operands.groups)?;
    let spatial: Result<Vec<Dim>, _> = (0..AXES)
        .map(|i| operands.windows[i].output_size(relation, &operands.data[2 + i], &operands.weight[2 + i], false))
        .collect();
    let channels = operands.weight[0].clone();
    result(relation, operands, channels, spatial?)
}

pub(super) fn transpose_relation<const AXES: usize>(relation: &Relation<'_>) -> TypeResult {
    let operands = operands(relation, AXES, true)?;
    relation.same_dim("channels of data and weight", &operands.data[1], &operands.weight[0])?;
    check_divisible(relation, &operands.weight[0], operands.groups)?;
    check_divisible(relation, &operands.data[1], operands.groups)?;
    let output_padding = spatial::per_axis(relation, "output_padding", AXES, 0)?;
    let spatial: Result<Vec<Dim>, _> = (0..AXES)
        .map(|i| {
            operands.windows[i].input_size(relation, &operands.data[2 + i], &operands.weight[2 + i], output_padding[i])
        })
        .collect();
    let channels = multiply_dim(relation, &operands.weight[1], operands.groups)?;
    result(relation, operands, channels, spatial?)
}

fn check_divisible(relation: &Relation<'_>, channels: &Dim, groups: usize) -> Result<(), Box<Diagnostic>> {
    match channels {
        Dim::Fixed(n) if n % groups != 0 => {
            Err(relation.mismatch(format!("expected a number of channels divisible by groups = {groups}, found {n}")))
        }
        _ => Ok(()),
    }
}

/// Returns the product of all kernel dimensions except the first in canonical order; 0 if unknown.
fn kernel_volume<const AXES: usize>(cost: &Cost<'_>, is_transposed: bool) -> u64 {
    let weight_volume = || {
        let mut shape = cost.args.get(1)?.as_tensor()?.shape()?;
        let order = format!("{}{}", kernel_letters(AXES, is_transposed), spatial::spatial(AXES));
        let mut layout = cost.params.string("kernel_layout");
        if let Some((source, target)) =
            BlockedCall::of(&cost.params).and_then(|blocked| blocked.inputs.into_iter().nth(1))
        {
            shape = blocked::plain_shape(&source, &shape)?;
            layout = target;
        }
        let positions = spatial::positions(&layout, &order)?;
        positions[1..].iter().try_fold(1u64, |n, &i| n.checked_mul(*shape.get(i)? as u64))
    };
    weight_volume().unwrap_or(0)
}

pub(super) fn conv_flops<const AXES: usize>(cost: &Cost<'_>) -> u64 {
    2u64.saturating_mul(cost.ret_len()).saturating_mul(kernel_volume::<AXES>(cost, false))
}

pub(super) fn transpose_flops<const AXES: usize>(cost: &Cost<'_>) -> u64 {
    2u64.saturating_mul(cost.arg_len(0)).saturating_mul(kernel_volume::<AXES>(cost, true))
}

fn conv_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    if let Some(blocked_result) = blocked::reference(&params, inputs, outputs, conv_reference) {
        return blocked_result;
    }
    let shape = ConvShape::new(&params, inputs[0].shape, inputs[1].shape, outputs[0].shape);
    with_sum!(inputs[0].dtype, A => {
        let mut y = vec![A::ZERO; outputs[0].len()];
        convolve::<A>(&shape, &A::load(&inputs[0]), &A::load(&inputs[1]), &mut y);
        A::store(&y, &mut outputs[0]);
    });
    Ok(())
}

/// Computes the convolution by its definition, as nested loops.
pub(super) fn convolve<A: Sum>(s: &ConvShape, x: &[A], w: &[A], y: &mut [A]) {
    let [batch, out_channels, ..] = s.out.size;
    let channels_per_group = s.weight.size[1];
    let mut ticks = Ticks::every(channels_per_group * s.weight.spatial().iter().product::<usize>());
    for n in 0..batch {
        for o in 0..out_channels {
            let group = o / (out_channels / s.groups);
            each(s.out.spatial(), |position| {
                let mut sum = A::ZERO;
                if ticks.is_requested() {
                    return;
                }
                for i in 0..channels_per_group {
                    each(s.weight.spatial(), |tap| {
                        if let Some(index) = s.window.tap(position, tap, s.data.spatial()) {
                            let value = x[s.data.at(n, group * channels_per_group + i, index)];
                            sum = sum.plus_product(value, w[s.weight.at(o, i, tap)]);
                        }
                    });
                }
                y[s.out.at(n, o, position)] = sum;
            });
        }
    }
}

fn transpose_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let shape = ConvShape::new(&params, inputs[0].shape, inputs[1].shape, outputs[0].shape);
    with_sum!(inputs[0].dtype, A => {
        let mut y = vec![A::ZERO; outputs[0].len()];
        convolve_transposed::<A>(&shape, &A::load(&inputs[0]), &A::load(&inputs[1]), &mut y);
        A::store(&y, &mut outputs[0]);
    });
    Ok(())
}

pub(super) fn convolve_transposed<A: Sum>(s: &ConvShape, x: &[A], w: &[A], y: &mut [A]) {
    let [batch, in_channels, ..] = s.data.size;
    let channels_per_group = s.weight.size[1];
    let mut ticks = Ticks::every(channels_per_group * s.weight.spatial().iter().product::<usize>());
    for n in 0..batch {
        for i in 0..in_channels {
            let group = i / (in_channels / s.groups);
            each(s.data.spatial(), |position| {
                let value = x[s.data.at(n, i, position)];
                if ticks.is_requested() {
                    return;
                }
                for o in 0..channels_per_group {
                    each(s.weight.spatial(), |tap| {
                        if let Some(index) = s.window.tap(position, tap, s.out.spatial()) {
                            let offset = s.out.at(n, group * channels_per_group + o, index);
                            y[offset] = y[offset].plus_product(value, w[s.weight.at(i, o, tap)]);
                        }
                    });
                }
            });
        }
    }
}
