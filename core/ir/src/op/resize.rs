//! Resizing along any axes, by scales or sizes that may be computed at run time.
//!
//! Axes are interpolated independently. Coordinates are computed in float32, as in PyTorch and ONNX Runtime, so that 10
//! elements scaled by 2.3 become 23, and the coordinate 3 / 0.6 is 5.

use super::facts::{ErrorModel, Properties};
use super::scalar::Writer;
use super::walk::split_at_axis;
use super::{AttrDef, AttrKind, Cost, Default, Evaluation, Params, ReferenceError, Relation, TypeResult, spatial};
use crate::cancel::Ticks;
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, Type};
use crate::tensor::{TensorView, TensorViewMut, memory};

/// Resize of one axis.
#[derive(Clone, Copy, Debug)]
pub struct ResizedAxis {
    /// Number of elements in the data.
    pub from: usize,
    /// Number of elements in the result.
    pub to: usize,
    /// Ratio of result to data, before `to` is rounded.
    pub scale: f64,
    /// First and last coordinate that `tf_crop_and_resize` samples, as fractions of the data.
    pub roi: (f64, f64),
}

impl ResizedAxis {
    /// Creates the resize by a scale, with the size of the result rounded down.
    pub fn by_scale(from: usize, scale: f64) -> ResizedAxis {
        let to = (from as f32 * scale as f32).floor() as usize;
        ResizedAxis { from, to, scale, roi: (0.0, 1.0) }
    }

    /// Creates the resize to a size.
    pub fn to_size(from: usize, to: usize) -> ResizedAxis {
        ResizedAxis { from, to, scale: to as f64 / from.max(1) as f64, roi: (0.0, 1.0) }
    }

    /// Returns the data coordinate of index `i` of the result; `None` for an unknown mode.
    pub fn source_coordinate(&self, mode: &str, i: usize) -> Option<f64> {
        let (x, from, to, scale) = (i as f32, self.from as f32, self.to as f32, self.scale as f32);
        let (first, last) = (self.roi.0 as f32, self.roi.1 as f32);
        let coordinate = match mode {
            "pytorch_half_pixel" if self.to <= 1 => 0.0,
            "half_pixel" | "pytorch_half_pixel" => (x + 0.5) / scale - 0.5,
            "half_pixel_symmetric" => {
                let adjustment = to / (scale * from);
                from / 2.0 * (1.0 - adjustment) + (x + 0.5) / scale - 0.5
            }
            "align_corners" if self.to <= 1 => 0.0,
            "align_corners" => x * (from - 1.0) / (to - 1.0),
            "asymmetric" => x / scale,
            "tf_half_pixel_for_nn" => (x + 0.5) / scale,
            "tf_crop_and_resize" if self.to > 1 => {
                first * (from - 1.0) + x * (last - first) * (from - 1.0) / (to - 1.0)
            }
            "tf_crop_and_resize" => 0.5 * (first + last) * (from - 1.0),
            _ => return None,
        };
        Some(f64::from(coordinate))
    }
}

/// Returns the index nearest to a coordinate; `None` for an unknown rounding method.
pub fn nearest_index(coordinate: f64, rounding: &str) -> Option<f64> {
    match rounding {
        "floor" => Some(coordinate.floor()),
        "ceil" => Some(coordinate.ceil()),
        "round_prefer_ceil" => Some((coordinate + 0.5).floor()),
        "round_prefer_floor" => Some((coordinate - 0.5).ceil()),
        _ => None,
    }
}

/// Computes the kernel of cubic convolution (R. Keys, 1981).
pub fn cubic_kernel(a: f64, distance: f64) -> f64 {
    let x = distance.abs();
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * a
    } else {
        0.0
    }
}

const METHODS: [&str; 3] = ["nearest_neighbor", "linear", "cubic"];
const MODES: [&str; 7] = [
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
];
const ROUNDINGS: [&str; 4] = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"];
const POLICIES: [&str; 3] = ["stretch", "not_larger", "not_smaller"];

operator! {
    name: "dyn.image.resize_nd",
    doc: "Resizes along `axes`, one axis after the other, by scales (floats) or to sizes (integers), which may be \
          computed at run time. A size given by a scale is the product in float32, rounded down. `roi` lists the \
          first and then the last coordinates that tf_crop_and_resize samples, as fractions of the data; it may be \
          empty.",
    inputs: &["data", "extent", "roi"],
    attrs: &[
        AttrDef::new("axes", AttrKind::Ints, Default::None, "axes of `extent`; all if None"),
        AttrDef::new("policy", AttrKind::Str, Default::Str("stretch"),
            "stretch, or one scale for all axes: not_larger or not_smaller than the given sizes"),
        AttrDef::new("method", AttrKind::Str, Default::Str("linear"), "nearest_neighbor, linear or cubic"),
        AttrDef::new("coordinate_transformation_mode", AttrKind::Str, Default::Str("half_pixel"),
            "mapping from result indices to data coordinates, as in ONNX"),
        AttrDef::new("rounding_method", AttrKind::Str, Default::Str("round_prefer_floor"),
            "nearest element: round_prefer_floor, round_prefer_ceil, floor or ceil"),
        AttrDef::new("cubic_alpha", AttrKind::Float, Default::Float(-0.75), "coefficient of cubic convolution"),
        AttrDef::new("cubic_exclude", AttrKind::Bool, Default::Bool(false),
            "true to exclude taps outside the data and to renormalize the others"),
        AttrDef::new("extrapolation_value", AttrKind::Float, Default::Float(0.0),
            "value outside the data, for tf_crop_and_resize"),
        AttrDef::new("antialias", AttrKind::Bool, Default::Bool(false),
            "true to widen the filter by the scale when the size is reduced"),
    ],
    relation: resize_type,
    reference: Some(reference),
    flops,
    properties: Properties::EXACT.error(ErrorModel::Interpolation),
}

/// Returns the resized axes: attribute `axes`, or all axes without it.
fn axes(relation: &Relation<'_>) -> Result<Vec<usize>, Box<Diagnostic>> {
    let rank = relation.tensor(0)?.dims.len();
    match relation.params.opt_ints("axes") {
        Some(axes) => axes.into_iter().map(|axis| relation.axis(axis, rank)).collect(),
        None => Ok((0..rank).collect()),
    }
}

fn check_attributes(relation: &Relation<'_>) -> Result<(), Box<Diagnostic>> {
    let attributes: [(&str, &[&str]); 4] = [
        ("method", &METHODS),
        ("coordinate_transformation_mode", &MODES),
        ("rounding_method", &ROUNDINGS),
        ("policy", &POLICIES),
    ];
    for (attribute, choices) in attributes {
        let value = relation.params.string(attribute);
        if !choices.contains(&value.as_str()) {
            let message = format!("{attribute}: expected one of {}, found \"{value}\"", choices.join(", "));
            return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
        }
    }
    Ok(())
}

fn resize_type(relation: &Relation<'_>) -> TypeResult {
    check_attributes(relation)?;
    let (data, extent, _) = (relation.tensor(0)?, relation.tensor(1)?, relation.tensor(2)?);
    let axes = axes(relation)?;
    if extent.dims.len() != 1 || extent.dims[0].fixed().is_some_and(|n| n != axes.len()) {
        let sizes_type = &relation.args[1];
        return Err(
            relation.mismatch(format!("extent: expected a vector of length {}, found {sizes_type}", axes.len()))
        );
    }
    let mut dims = data.dims.to_vec();
    let size_values = relation.values.get(1).copied().flatten();
    let sizes: Option<Vec<usize>> = axes.iter().map(|&axis| dims[axis].fixed()).collect();
    match (size_values, sizes) {
        (Some(extent), Some(sizes)) => {
            let resized = resized_axes(&relation.params, &sizes, &extent.view(), &[]);
            let resized = resized.map_err(|message| relation.error(codes::types::BAD_ATTRIBUTE, message))?;
            for (&axis, resized) in axes.iter().zip(&resized) {
                if resized.from == 0 && resized.to != 0 {
                    return Err(relation.mismatch(format!("axis {axis}: expected at least one element, found none")));
                }
                dims[axis] = spatial::to_dim(relation, resized.to as i128)?;
            }
        }
        _ => axes.iter().for_each(|&axis| dims[axis] = Dim::Any),
    }
    Ok(Type::tensor_of(data.dtype, dims))
}

/// Returns the resize of each axis, from the scales or sizes.
fn resized_axes(
    params: &Params<'_>,
    sizes: &[usize],
    extent: &TensorView<'_>,
    roi: &[f64],
) -> Result<Vec<ResizedAxis>, ReferenceError> {
    let numbers = extent.to_f64s();
    let is_valid = |n: &f64| if extent.dtype.is_float() { *n > 0.0 && *n < 1e9 } else { (0.0..1e12).contains(n) };
    if numbers.len() != sizes.len() || !numbers.iter().all(is_valid) {
        return Err(format!(
            "extent: expected a vector of length {} with scales in (0, 1e9) or sizes in [0, 1e12), found {numbers:?}",
            sizes.len()
        ));
    }
    let pairs = sizes.iter().zip(&numbers);
    let mut axes: Vec<ResizedAxis> = if extent.dtype.is_float() {
        pairs.map(|(&size, &scale)| ResizedAxis::by_scale(size, scale)).collect()
    } else {
        pairs.map(|(&size, &to)| ResizedAxis::to_size(size, to as usize)).collect()
    };
    let scales = axes.iter().map(|axis| axis.scale);
    let factor = match params.string("policy").as_str() {
        _ if extent.dtype.is_float() => None,
        "not_larger" => scales.reduce(f64::min),
        "not_smaller" => scales.reduce(f64::max),
        _ => None,
    };
    if let Some(scale) = factor {
        for axis in &mut axes {
            axis.scale = scale;
            axis.to = (scale * axis.from as f64 + 0.5).floor() as usize;
        }
    }
    if roi.len() == 2 * axes.len() {
        let count = axes.len();
        axes.iter_mut().enumerate().for_each(|(i, axis)| axis.roi = (roi[i], roi[count + i]));
    }
    Ok(axes)
}

/// Tap of the interpolation: an index of the data with its weight.
type Tap = (usize, f64);

/// Taps of one index of the result.
struct Taps {
    taps: Vec<Tap>,
    /// True if the coordinate is outside the data.
    outside: bool,
}

fn taps(params: &Params<'_>, axis: &ResizedAxis, i: usize) -> Result<Taps, ReferenceError> {
    let mode = params.string("coordinate_transformation_mode");
    let coordinate = axis.source_coordinate(&mode, i).ok_or_else(|| {
        format!("coordinate_transformation_mode: expected one of {}, found \"{mode}\"", MODES.join(", "))
    })?;
    let last = axis.from as f64 - 1.0;
    let is_outside = mode == "tf_crop_and_resize" && !(0.0..=last).contains(&coordinate);
    let clamp = |index: f64| index.clamp(0.0, last) as usize;
    let method = params.string("method");
    if method == "nearest_neighbor" {
        let rounding = params.string("rounding_method");
        let index = nearest_index(coordinate, &rounding).ok_or_else(|| {
            format!("rounding_method: expected one of {}, found \"{rounding}\"", ROUNDINGS.join(", "))
        })?;
        return Ok(Taps { taps: vec![(clamp(index), 1.0)], outside: is_outside });
    }
    // Downsampling widens the filter, so that it covers every element of the data.
    let width = if params.bool("antialias") { axis.scale.min(1.0) } else { 1.0 };
    let (radius, a) = if method == "cubic" { (2.0, params.float("cubic_alpha")) } else { (1.0, 0.0) };
    let weight = |distance: f64| match method.as_str() {
        "cubic" => cubic_kernel(a, distance * width),
        _ => (1.0 - (distance * width).abs()).max(0.0),
    };
    let (first, end) = ((coordinate - radius / width).floor() + 1.0, (coordinate + radius / width).floor() + 1.0);
    let excludes_outside = params.bool("cubic_exclude");
    let mut taps: Vec<Tap> = Vec::new();
    let mut index = first;
    while index < end {
        if !excludes_outside || (0.0..=last).contains(&index) {
            taps.push((clamp(index), weight(index - coordinate)));
        }
        index += 1.0;
    }
    if excludes_outside || width < 1.0 {
        let sum: f64 = taps.iter().map(|tap| tap.1).sum();
        taps.iter_mut().for_each(|tap| tap.1 /= sum);
    }
    Ok(Taps { taps, outside: is_outside })
}

/// Counts a multiply-add for every tap of each axis of a two-dimensional interpolation.
fn flops(cost: &Cost<'_>) -> u64 {
    let flops_per_element = match cost.params.string("method").as_str() {
        "linear" => 8,
        "cubic" => 32,
        _ => 0,
    };
    cost.ret_len().saturating_mul(flops_per_element)
}

fn reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let mut shape = inputs[0].shape.to_vec();
    let rank = shape.len() as i64;
    let axis_list: Vec<usize> = match params.opt_ints("axes") {
        Some(axes) => axes.iter().map(|&a| (if a < 0 { a + rank } else { a }) as usize).collect(),
        None => (0..shape.len()).collect(),
    };
    let sizes: Vec<usize> = axis_list.iter().map(|&axis| shape[axis]).collect();
    let resized = resized_axes(&params, &sizes, &inputs[1], &inputs[2].to_f64s())?;
    let mut values = inputs[0].to_f64s();
    let mut outside: Vec<(usize, Vec<bool>)> = Vec::new();
    for (&axis, resized) in axis_list.iter().zip(&resized) {
        let is_cropped = params.string("coordinate_transformation_mode") == "tf_crop_and_resize";
        if resized.to == resized.from && resized.scale == 1.0 && (!is_cropped || resized.roi == (0.0, 1.0)) {
            continue;
        }
        let (outer, size, inner) = split_at_axis(&shape, axis);
        let count = outer.saturating_mul(resized.to).saturating_mul(inner);
        let _reservation = memory::reserve(count.saturating_mul(8)).map_err(|e| e.to_string())?;
        let mut resampled = vec![0.0; count];
        let mut outside_flags = Vec::with_capacity(resized.to);
        let mut ticks = Ticks::every(outer.saturating_mul(inner));
        for position in 0..resized.to {
            if ticks.is_requested() {
                return Err("cancelled".into());
            }
            let taps = taps(&params, resized, position)?;
            outside_flags.push(taps.outside);
            for (block, inner_index) in
                (0..outer).flat_map(|block| (0..inner).map(move |inner_index| (block, inner_index)))
            {
                // A tap with weight zero contributes nothing, even if the data is not finite.
                let nonzero_taps = taps.taps.iter().filter(|tap| tap.1 != 0.0);
                let sum =
                    nonzero_taps.map(|(i, weight)| values[(block * size + i) * inner + inner_index] * weight).sum();
                resampled[(block * resized.to + position) * inner + inner_index] = sum;
            }
        }
        (values, shape[axis]) = (resampled, resized.to);
        if outside_flags.contains(&true) {
            outside.push((axis, outside_flags));
        }
    }
    for (axis, outside_flags) in outside {
        let (_, size, inner) = split_at_axis(&shape, axis);
        for (i, value) in values.iter_mut().enumerate() {
            if outside_flags[i / inner % size] {
                *value = params.float("extrapolation_value");
            }
        }
    }
    if !outputs[0].dtype.is_float() {
        values.iter_mut().for_each(|value| *value = value.trunc());
    }
    Writer::new(&mut outputs[0]).store(values);
    Ok(())
}
