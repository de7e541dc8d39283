//! Operators that sample an image in places given by boxes or by an affine map, and morphological dilation.

use super::index::{in_bounds, integer_argument, integers};
use super::scalar::{Writer, max_or_nan};
use super::spatial::{self, CanonicalDims, Window, WindowParams, each};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::codes;
use crate::ir::{AttrValue, Dim, Type};
use crate::op::facts::{ErrorModel, Properties};
use crate::tensor::{TensorView, TensorViewMut};

operator! {
    name: "image.crop_and_resize",
    doc: "Parts of images, resized to crop_size. A box is (y1, x1, y2, x2), where 0 and 1 are the first and the last \
          row or column; box_indices has the image of each. Coordinates outside of the image give extrapolation_value.",
    inputs: &["data", "boxes", "box_indices"],
    attrs: &[
        AttrDef::new("crop_size", AttrKind::Ints, Default::Required, "height and width of the result"),
        AttrDef::new("layout", AttrKind::Str, Default::Str("NCHW"), "order of the axes"),
        AttrDef::new("method", AttrKind::Str, Default::Str("bilinear"), "bilinear or nearest_neighbor"),
        AttrDef::new("extrapolation_value", AttrKind::Float, Default::Float(0.0), "value outside of the image"),
        AttrDef::new("out_dtype", AttrKind::DType, Default::Str(""), "element type of the result; that of data if empty"),
    ],
    pattern: OpPattern::Injective,
    relation: crop_type,
    reference: Some(crop_and_resize),
    flops: |cost| cost.ret_len().saturating_mul(8),
    properties: Properties::EXACT.error(ErrorModel::Interpolation),
}

fn crop_type(relation: &Relation<'_>) -> TypeResult {
    let (data, boxes, indices) = (relation.tensor(0)?, relation.tensor(1)?, integer_argument(relation, 2)?);
    let positions = spatial::layout(relation, "layout", "NCHW", "NCHW")?;
    let size = spatial::per_axis(relation, "crop_size", 2, 1)?;
    let method = relation.params.string("method");
    if method != "bilinear" && method != "nearest_neighbor" {
        let message = format!("method: expected \"bilinear\" or \"nearest_neighbor\", found \"{method}\"");
        return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
    }
    let ([count, corners], [index_count], 4) = (&boxes.dims[..], &indices.dims[..], data.dims.len()) else {
        let [a, b, c] = [0, 1, 2].map(|i| &relation.args[i]);
        return Err(relation.mismatch(format!(
            "expected images of rank 4, boxes (count, 4) and a vector of indices, found {a}, {b} and {c}"
        )));
    };
    relation.same_dim("corners of a box", &Dim::Fixed(4), corners)?;
    let count = relation.same_dim("boxes and indices", count, index_count)?;
    let mut dims = data.dims.to_vec();
    let sizes = size.iter().map(|&n| Dim::Fixed(n as usize));
    for (position, dim) in [positions[0], positions[2], positions[3]].into_iter().zip([count].into_iter().chain(sizes))
    {
        dims[position] = dim;
    }
    Ok(Type::tensor_of(relation.params.dtype("out_dtype").unwrap_or(data.dtype), dims))
}

/// Returns the coordinate of element `i` of `count` between the fractions `first` and `last` of an axis of `size`
/// elements; `None` outside of the axis.
fn crop_coordinate(i: usize, count: usize, size: usize, first: f64, last: f64) -> Option<f64> {
    let extent = size as f64 - 1.0;
    let fraction = match count {
        1 => 0.5 * (first + last),
        _ => first + i as f64 * (last - first) / (count as f64 - 1.0),
    };
    Some(fraction * extent).filter(|coordinate| (0.0..=extent).contains(coordinate))
}

fn crop_and_resize(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let layout = params.string("layout");
    let data = CanonicalDims::new(inputs[0].shape, &layout, "NC");
    let out = CanonicalDims::new(outputs[0].shape, &layout, "NC");
    let (elements, boxes) = (inputs[0].to_f64s(), inputs[1].to_f64s());
    let images = integers(&inputs[2], "box_indices")?;
    let is_linear = params.string("method") == "bilinear";
    let [_, _, _, height, width] = data.size;
    let mut result = vec![params.float("extrapolation_value"); outputs[0].len()];
    let mut ticks = Ticks::every(16);
    for (i, corners) in boxes.chunks_exact(4).enumerate() {
        let image = in_bounds(images[i], data.size[0]).map_err(|error| format!("box_indices: {error}"))?;
        each([out.size[1], out.size[3], out.size[4]], |[channel, row, column]| {
            if ticks.is_requested() {
                return;
            }
            let y = crop_coordinate(row, out.size[3], height, corners[0], corners[2]);
            let x = crop_coordinate(column, out.size[4], width, corners[1], corners[3]);
            let Some((y, x)) = y.zip(x) else { return };
            let pixel = |y: f64, x: f64| elements[data.at(image, channel, [0, y as usize, x as usize])];
            result[out.at(i, channel, [0, row, column])] = if is_linear {
                let ([top, left], [bottom, right]) = ([y.floor(), x.floor()], [y.ceil(), x.ceil()]);
                let along = |y: f64| pixel(y, left) + (pixel(y, right) - pixel(y, left)) * (x - left);
                along(top) + (along(bottom) - along(top)) * (y - top)
            } else {
                pixel(y.round(), x.round())
            };
        });
    }
    Writer::new(&mut outputs[0]).store(result);
    Ok(())
}

operator! {
    name: "image.affine_grid",
    doc: "Grid of coordinates for image.grid_sample: data is (batch, 2, 3), the result (batch, 2, height, width) with \
          data * (x, y, 1), where x and y run from -1 to 1.",
    inputs: &["data"],
    attrs: &[AttrDef::new("target_shape", AttrKind::Ints, Default::Required, "height and width of the grid")],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let data = relation.tensor(0)?;
        let size = spatial::per_axis(relation, "target_shape", 2, 1)?;
        let has_size = |axis: usize, n: usize| data.dims[axis].fixed().is_none_or(|dim| dim == n);
        if data.dims.len() != 3 || !has_size(1, 2) || !has_size(2, 3) || !data.dtype.is_float() {
            let message = format!("data: expected floats of shape (batch, 2, 3), found {}", relation.args[0]);
            return Err(relation.mismatch(message));
        }
        let sizes = [2, size[0] as usize, size[1] as usize].map(Dim::Fixed);
        Ok(Type::tensor_of(data.dtype, [data.dims[0].clone()].into_iter().chain(sizes)))
    },
    reference: Some(|_, inputs, outputs| {
        let (data, &[_, _, height, width]) = (inputs[0].to_f64s(), outputs[0].shape) else {
            return Err(format!("result: expected 4 dimensions, found {}", outputs[0].shape.len()));
        };
        let at = |i: usize, count: usize| if count > 1 { 2.0 * i as f64 / (count as f64 - 1.0) - 1.0 } else { -1.0 };
        let value = |i: usize| {
            let row = &data[i / (height * width) * 3..][..3];
            row[0] * at(i % width, width) + row[1] * at(i / width % height, height) + row[2]
        };
        let count = outputs[0].len();
        Writer::new(&mut outputs[0]).store((0..count).map(value));
        Ok(())
    }),
    flops: |cost| cost.ret_len().saturating_mul(4),
    properties: Properties::EXACT.sum(|_, _, _| 3),
}

operator! {
    name: "image.dilation2d",
    doc: "Grayscale dilation: out[n, c, p] = max over taps t of data[n, c, p * strides + t * dilations - padding] + \
          weight[c, t]. Padding counts as 0.",
    inputs: &["data", "weight"],
    attrs: &[
        AttrDef::new("strides", AttrKind::Ints, Default::Ints(&[1, 1]), "stride of the window per axis"),
        AttrDef::new("padding", AttrKind::Ints, Default::Ints(&[0, 0]),
            "padding: one value, one per axis, or all values before the axes followed by all values after"),
        AttrDef::new("dilations", AttrKind::Ints, Default::Ints(&[1, 1]), "distance between taps per axis"),
        AttrDef::new("data_layout", AttrKind::Str, Default::Str("NCHW"), "order of the axes of data and result"),
        AttrDef::new("kernel_layout", AttrKind::Str, Default::Str("IHW"), "order of the axes of weight"),
        AttrDef::new("out_dtype", AttrKind::DType, Default::Str(""), "element type of the result; that of data if empty"),
    ],
    pattern: OpPattern::OutEWiseFusable,
    relation: dilation_type,
    reference: Some(dilation),
    flops: |cost| cost.ret_len().saturating_mul(cost.arg_len(1)),
    properties: Properties::EXACT.ulps(1.0),
}

fn dilation_type(relation: &Relation<'_>) -> TypeResult {
    let (data, weight) = (relation.tensor(0)?, relation.tensor(1)?);
    let dtype = relation.same_dtype(data.dtype, weight.dtype)?;
    let positions = spatial::layout(relation, "data_layout", "NCHW", "NCHW")?;
    let kernel = spatial::layout(relation, "kernel_layout", "IHW", "IHW")?;
    if data.dims.len() != 4 || weight.dims.len() != 3 {
        let [data, weight] = [&relation.args[0], &relation.args[1]];
        return Err(relation.mismatch(format!("expected ranks 4 and 3, found {data} and {weight}")));
    }
    let channels = relation.same_dim("channels", &data.dims[positions[1]], &weight.dims[kernel[0]])?;
    let (strides, dilations) =
        (spatial::per_axis(relation, "strides", 2, 1)?, spatial::per_axis(relation, "dilations", 2, 1)?);
    let pads = spatial::padding(relation, 2)?;
    let mut dims = data.dims.to_vec();
    dims[positions[1]] = channels;
    for i in 0..2 {
        let window = Window { stride: strides[i], dilation: dilations[i], pads: pads[i] };
        let position = positions[2 + i];
        dims[position] = window.output_size(relation, &data.dims[position], &weight.dims[kernel[1 + i]], false)?;
    }
    Ok(Type::tensor_of(relation.params.dtype("out_dtype").unwrap_or(dtype), dims))
}

fn dilation(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let layout = params.string("data_layout");
    let data = CanonicalDims::new(inputs[0].shape, &layout, "NC");
    let out = CanonicalDims::new(outputs[0].shape, &layout, "NC");
    // A kernel has one channel axis; the second one is a dimension of 1.
    let kernel_layout = format!("O{}", params.string("kernel_layout"));
    let kernel_shape: Vec<usize> = [1].into_iter().chain(inputs[1].shape.iter().copied()).collect();
    let weight = CanonicalDims::new(&kernel_shape, &kernel_layout, "OI");
    let attrs = params.attrs().with("dilation", AttrValue::ints(params.ints("dilations")));
    let window = WindowParams::new(&Params::new(params.def(), &attrs), 2);
    let (x, w) = (inputs[0].to_f64s(), inputs[1].to_f64s());
    let mut result = vec![f64::NEG_INFINITY; outputs[0].len()];
    let mut ticks = Ticks::every(weight.spatial().iter().product());
    for (n, c) in (0..out.size[0]).flat_map(|n| (0..out.size[1]).map(move |c| (n, c))) {
        each(out.spatial(), |position| {
            if ticks.is_requested() {
                return;
            }
            let target = out.at(n, c, position);
            each(weight.spatial(), |tap| {
                let element = window.tap(position, tap, data.spatial()).map_or(0.0, |index| x[data.at(n, c, index)]);
                result[target] = max_or_nan(result[target], element + w[weight.at(0, c, tap)]);
            });
        });
    }
    Writer::new(&mut outputs[0]).store(result);
    Ok(())
}
