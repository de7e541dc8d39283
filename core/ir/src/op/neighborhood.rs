//! Convolution at positions that are themselves computed, and correlation of two images.

use super::conv::{ConvShape, conv_flops, conv_relation};
use super::scalar::Writer;
use super::spatial::{self, CanonicalDims, each};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::codes;
use crate::ir::{Dim, DimExpr, Type};
use crate::op::facts::{Properties, elements_of};
use crate::tensor::{TensorView, TensorViewMut};

operator! {
    name: "nn.deformable_conv2d",
    doc: "Convolution whose taps are moved (J. Dai et al., Deformable Convolutional Networks, 2017): offset has two \
          channels, y and x, for each tap of each deformable group of channels, and the size of the result. Elements \
          between those of the data are interpolated, elements outside are 0.",
    inputs: &["data", "offset", "weight"],
    attrs: &[
        AttrDef::new("strides", AttrKind::Ints, Default::Ints(&[1, 1]), "stride of the window per axis"),
        AttrDef::new("padding", AttrKind::Ints, Default::Ints(&[0, 0]),
            "zero padding: one value, one per axis, or all values before the axes followed by all values after"),
        AttrDef::new("dilation", AttrKind::Ints, Default::Ints(&[1, 1]), "distance between taps per axis"),
        AttrDef::new("deformable_groups", AttrKind::Int, Default::Int(1), "number of groups of channels with offsets of their own"),
        AttrDef::new("groups", AttrKind::Int, Default::Int(1), "number of channel groups"),
        AttrDef::new("channels", AttrKind::Int, Default::None, "number of output channels; derived from the weight if None"),
        AttrDef::new("kernel_size", AttrKind::Ints, Default::None, "taps per axis; derived from the weight if None"),
        AttrDef::new("data_layout", AttrKind::Str, Default::Str("NCHW"), "order of the axes of data and offset"),
        AttrDef::new("kernel_layout", AttrKind::Str, Default::Str("OIHW"), "order of the kernel's axes"),
        AttrDef::new("out_layout", AttrKind::Str, Default::Str(""), "order of the result's axes; that of data if empty"),
        AttrDef::new("out_dtype", AttrKind::DType, Default::Str(""), "element type of the result; that of data if empty"),
    ],
    pattern: OpPattern::OutEWiseFusable,
    relation: deformable_type,
    reference: Some(deformable),
    flops: |cost| match cost.args {
        [data, _, weight] => {
            let args = [data.clone(), weight.clone()];
            conv_flops::<2>(&super::Cost { args: &args, ..*cost }).saturating_mul(4)
        }
        _ => 0,
    },
    properties: Properties::EXACT.stable(elements_of::<2>),
}

fn deformable_type(relation: &Relation<'_>) -> TypeResult {
    let [data, offset, weight] = [relation.tensor(0)?, relation.tensor(1)?, relation.tensor(2)?];
    relation.same_dtype(data.dtype, offset.dtype)?;
    if !data.dtype.is_float() {
        return Err(relation.mismatch(format!("data: expected floats, found {}", relation.args[0])));
    }
    let layout = spatial::layout(relation, "data_layout", "NCHW", "NCHW")?;
    let out_layout = spatial::layout(relation, "out_layout", "NCHW", &relation.params.string("data_layout"))?;
    let kernel = spatial::layout(relation, "kernel_layout", "OIHW", "OIHW")?;
    let args = [relation.args[0].clone(), relation.args[2].clone()];
    let result = conv_relation::<2>(&Relation { args: &args, values: &[], ..*relation })?;
    let Some(out) = result.as_tensor() else { return Ok(result) };
    let groups = relation.params.int("deformable_groups");
    let is_divisible = |dim: &Dim| dim.fixed().is_none_or(|n| n as i64 % groups == 0);
    if !(1..=i64::from(i32::MAX)).contains(&groups) || !is_divisible(&data.dims[layout[1]]) {
        let message =
            format!("deformable_groups: expected a positive divisor of the number of channels, found {groups}");
        return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
    }
    if offset.dims.len() != 4 {
        return Err(relation.mismatch(format!("offset: expected 4 dimensions, found {}", relation.args[1])));
    }
    let taps = Dim::product([&weight.dims[kernel[2]], &weight.dims[kernel[3]], &Dim::Fixed(2 * groups as usize)]);
    relation.same_dim("channels of offset", &taps.unwrap_or(Dim::Any), &offset.dims[layout[1]])?;
    for (axis, name) in [(0, "batch"), (2, "height"), (3, "width")] {
        relation.same_dim(
            &format!("{name} of result and offset"),
            &out.dims[out_layout[axis]],
            &offset.dims[layout[axis]],
        )?;
    }
    Ok(result)
}

/// Interpolates between the four elements around a position, of which those outside are 0; 0 for a position outside.
fn interpolated(y: f64, x: f64, [height, width]: [usize; 2], element: impl Fn(usize, usize) -> f64) -> f64 {
    if !((0.0..height as f64).contains(&y) && (0.0..width as f64).contains(&x)) {
        return 0.0;
    }
    let (top, left) = (y.floor(), x.floor());
    let mut sum = 0.0;
    for (row, a) in [(top, 1.0 - (y - top)), (top + 1.0, y - top)] {
        for (column, b) in [(left, 1.0 - (x - left)), (left + 1.0, x - left)] {
            if row < height as f64 && column < width as f64 && a * b != 0.0 {
                sum += a * b * element(row as usize, column as usize);
            }
        }
    }
    sum
}

fn deformable(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let s = ConvShape::new(&params, inputs[0].shape, inputs[2].shape, outputs[0].shape);
    let offset = CanonicalDims::new(inputs[1].shape, &params.string("data_layout"), "NC");
    let (data, offsets, weight) = (inputs[0].to_f64s(), inputs[1].to_f64s(), inputs[2].to_f64s());
    let channels_per_offset = (s.data.size[1] / params.int("deformable_groups") as usize).max(1);
    let [_, channels_per_group, _, kernel_height, kernel_width] = s.weight.size;
    let channels_of_result = (s.out.size[1] / s.groups).max(1);
    let mut result = vec![0.0; outputs[0].len()];
    let mut ticks = Ticks::every(channels_per_group * kernel_height * kernel_width);
    for (n, o) in (0..s.out.size[0]).flat_map(|n| (0..s.out.size[1]).map(move |o| (n, o))) {
        each(s.out.spatial(), |position| {
            if ticks.is_requested() {
                return;
            }
            let mut sum = 0.0;
            for i in 0..channels_per_group {
                let channel = o / channels_of_result * channels_per_group + i;
                each(s.weight.spatial(), |tap| {
                    let pair = ((channel / channels_per_offset * kernel_height + tap[1]) * kernel_width + tap[2]) * 2;
                    let place = |axis: usize| {
                        let base = position[axis] * s.window.stride[axis] + tap[axis] * s.window.dilation[axis];
                        base as f64 - s.window.before[axis] as f64 + offsets[offset.at(n, pair + axis - 1, position)]
                    };
                    let size = [s.data.size[3], s.data.size[4]];
                    let value = interpolated(place(1), place(2), size, |y, x| data[s.data.at(n, channel, [0, y, x])]);
                    sum += value * weight[s.weight.at(o, i, tap)];
                });
            }
            result[s.out.at(n, o, position)] = sum;
        });
    }
    Writer::new(&mut outputs[0]).store(result);
    Ok(())
}

operator! {
    name: "nn.correlation",
    doc: "Correlation of patches of two images (A. Dosovitskiy et al., FlowNet, 2015): for every displacement up to \
          max_displacement, in steps of stride2, a channel with the mean over channels and taps of the products of both \
          images, or of the absolute differences.",
    inputs: &["data1", "data2"],
    attrs: &[
        AttrDef::new("kernel_size", AttrKind::Int, Default::Int(1), "height and width of a patch, odd"),
        AttrDef::new("max_displacement", AttrKind::Int, Default::Int(1), "greatest displacement along each axis"),
        AttrDef::new("stride1", AttrKind::Int, Default::Int(1), "distance between patches of data1"),
        AttrDef::new("stride2", AttrKind::Int, Default::Int(1), "distance between displacements"),
        AttrDef::new("padding", AttrKind::Ints, Default::Ints(&[0, 0]),
            "zero padding: one value, one per axis, or all values before the axes followed by all values after"),
        AttrDef::new("is_multiply", AttrKind::Bool, Default::Bool(true), "true for products, false for absolute differences"),
        AttrDef::new("layout", AttrKind::Str, Default::Str("NCHW"), "order of the axes; only NCHW"),
    ],
    pattern: OpPattern::OutEWiseFusable,
    relation: correlation_type,
    reference: Some(correlation),
    flops: |cost| {
        let side = cost.params.int("kernel_size").max(1) as u64;
        let channels = cost.args.first().and_then(Type::as_tensor).and_then(|t| t.dims.get(1)).map_or(1, Dim::number);
        cost.ret_len().saturating_mul(2 * channels as u64).saturating_mul(side.saturating_mul(side))
    },
    properties: Properties::EXACT.sum(|params, shapes, _| {
        let side = params.int("kernel_size").max(1) as usize;
        side * side * shapes.first().and_then(|shape| shape.get(1)).copied().unwrap_or(1)
    }),
}

fn correlation_type(relation: &Relation<'_>) -> TypeResult {
    let (a, b) = (relation.tensor(0)?, relation.tensor(1)?);
    relation.same_dtype(a.dtype, b.dtype)?;
    let params = relation.params;
    let [kernel, displacement, stride1, stride2] =
        ["kernel_size", "max_displacement", "stride1", "stride2"].map(|name| params.int(name));
    let limit = 1..=1i64 << 15;
    let is_valid = limit.contains(&kernel) && kernel % 2 == 1 && (0..=1 << 15).contains(&displacement);
    if !is_valid || !limit.contains(&stride1) || !limit.contains(&stride2) || params.string("layout") != "NCHW" {
        return Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!(
                "expected an odd kernel_size, max_displacement >= 0, strides >= 1 and layout NCHW, found {kernel}, \
                 {displacement}, {stride1}, {stride2} and \"{}\"",
                params.string("layout")
            ),
        ));
    }
    let pads = spatial::padding(relation, 2)?;
    let (4, 4) = (a.dims.len(), b.dims.len()) else {
        let [a, b] = [&relation.args[0], &relation.args[1]];
        return Err(relation.mismatch(format!("expected images of rank 4, found {a} and {b}")));
    };
    let mut dims = Vec::with_capacity(4);
    for (axis, (x, y)) in a.dims.iter().zip(&b.dims).enumerate() {
        dims.push(relation.same_dim(&format!("axis {axis}"), x, y)?);
    }
    let side = 2 * (displacement / stride2) + 1;
    dims[1] = Dim::Fixed((side * side) as usize);
    let border = 2 * displacement + kernel - 1;
    for (i, (before, after)) in pads.iter().enumerate() {
        let amount = before + after - border + stride1 - 1;
        dims[2 + i] = match dims[2 + i].fixed() {
            Some(n) => spatial::to_dim(relation, (n as i128 + i128::from(amount)).div_euclid(i128::from(stride1)))?,
            None => Dim::compute([&dims[2 + i]], |[n]| n.offset(amount)?.floor_div(&DimExpr::constant(stride1))),
        };
    }
    Ok(Type::tensor_of(a.dtype, dims))
}

fn correlation(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (a, b) = (inputs[0].to_f64s(), inputs[1].to_f64s());
    let data = CanonicalDims::new(inputs[0].shape, "NCHW", "NC");
    let out = CanonicalDims::new(outputs[0].shape, "NCHW", "NC");
    let [kernel, displacement, stride1, stride2] =
        ["kernel_size", "max_displacement", "stride1", "stride2"].map(|name| params.int(name));
    let (radius, pads) = (displacement / stride2, params.padding(2));
    let side = 2 * radius + 1;
    let multiplies = params.bool("is_multiply");
    let channels = data.size[1];
    let mut result = vec![0.0; outputs[0].len()];
    let mut ticks = Ticks::every(channels * (kernel * kernel) as usize);
    each([out.size[0], out.size[1], 1], |[n, q, _]| {
        let shift = [q as i64 / side - radius, q as i64 % side - radius].map(|steps| steps * stride2);
        each(out.spatial(), |position| {
            if ticks.is_requested() {
                return;
            }
            let mut sum = 0.0;
            each([channels, kernel as usize, kernel as usize], |[channel, h, w]| {
                let place = |axis: usize, tap: usize, shift: i64| {
                    let padded = position[1 + axis] as i64 * stride1 + displacement + tap as i64 + shift;
                    usize::try_from(padded - pads[axis].0).ok().filter(|&i| i < data.size[3 + axis])
                };
                let value = |elements: &[f64], shift: [i64; 2]| {
                    let place = place(0, h, shift[0]).zip(place(1, w, shift[1]));
                    place.map_or(0.0, |(y, x)| elements[data.at(n, channel, [0, y, x])])
                };
                let (x, y) = (value(&a, [0, 0]), value(&b, shift));
                sum += if multiplies { x * y } else { (x - y).abs() };
            });
            result[out.at(n, q, position)] = sum / (kernel as f64 * kernel as f64 * channels as f64);
        });
    });
    Writer::new(&mut outputs[0]).store(result);
    Ok(())
}
