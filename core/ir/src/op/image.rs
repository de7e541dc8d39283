//! Resizing: each element of the result is interpolated from the elements around the corresponding coordinate in the
//! data.

use super::scalar::Writer;
use super::spatial::{self, CanonicalDims};
use super::{AttrDef, AttrKind, Cost, Default, Evaluation, OpPattern, Params, ReferenceError, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, Type};
use crate::op::facts::{ErrorModel, Properties};
use crate::tensor::{TensorView, TensorViewMut, memory};

const UPSAMPLING_METHOD: AttrDef =
    AttrDef::new("method", AttrKind::Str, Default::Str("nearest_neighbor"), "nearest_neighbor, bilinear or bicubic");
const ALIGN_CORNERS: AttrDef = AttrDef::new(
    "align_corners",
    AttrKind::Bool,
    Default::Bool(false),
    "true to align the corner elements of data and result",
);
const LAYOUT: AttrDef = AttrDef::new("layout", AttrKind::Str, Default::Str("NCHW"), "order of the axes");
pub(super) const RESIZE_METHOD: AttrDef =
    AttrDef::new("method", AttrKind::Str, Default::Str("linear"), "nearest_neighbor, linear or cubic");
pub(super) const COORDINATES: AttrDef = AttrDef::new(
    "coordinate_transformation_mode",
    AttrKind::Str,
    Default::Str("half_pixel"),
    "mapping from indices of the result to coordinates of the data",
);
const ROUNDING: AttrDef = AttrDef::new(
    "rounding_method",
    AttrKind::Str,
    Default::Str(""),
    "for nearest_neighbor: round, round_prefer_floor, round_prefer_ceil, floor or ceil; \
     if empty, round with align_corners, otherwise floor",
);
pub(super) const CUBIC_ALPHA: AttrDef =
    AttrDef::new("cubic_alpha", AttrKind::Float, Default::Float(-0.5), "coefficient a of cubic convolution");
pub(super) const CUBIC_EXCLUDE: AttrDef = AttrDef::new(
    "cubic_exclude",
    AttrKind::Int,
    Default::Int(0),
    "1 to exclude taps outside the data and to renormalize the other weights",
);
pub(super) const EXTRAPOLATION: AttrDef = AttrDef::new(
    "extrapolation_value",
    AttrKind::Float,
    Default::Float(0.0),
    "value outside the data, for tf_crop_and_resize",
);
pub(super) const OUT_DTYPE: AttrDef = AttrDef::new(
    "out_dtype",
    AttrKind::DType,
    Default::Str(""),
    "element type of the result; that of the data if empty",
);

operator! {
    name: "image.resize2d",
    doc: "Resizes height and width. Index x of a result of n elements maps to, in data of m elements with scale \
          s = m / n: half_pixel (x + 0.5) * s - 0.5; pytorch_half_pixel the same, 0 where n is 1; asymmetric x * s; \
          align_corners x * (m - 1) / (n - 1); tf_half_pixel_for_nn (x + 0.5) * s; tf_crop_and_resize inside roi. \
          Then the nearest element, linear interpolation, or cubic convolution (R. Keys, 1981) with cubic_alpha. \
          Coordinates outside the data use the nearest border element.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("size", AttrKind::Ints, Default::Required, "height and width of the result"),
        AttrDef::new("roi", AttrKind::Floats, Default::Floats(&[0.0, 0.0, 0.0, 0.0]),
            "part of the data that tf_crop_and_resize uses, as y1, x1, y2, x2 in [0, 1]"),
        LAYOUT, RESIZE_METHOD, COORDINATES, ROUNDING, CUBIC_ALPHA, CUBIC_EXCLUDE, EXTRAPOLATION, OUT_DTYPE,
    ],
    pattern: OpPattern::Injective,
    relation: resize_relation,
    reference: Some(reference),
    flops,
    properties: Properties::EXACT.error(ErrorModel::Interpolation),
}

operator! {
    name: "dyn.image.resize2d",
    doc: "image.resize2d with a size (height, width) and a roi (y1, x1, y2, x2) computed at run time.",
    inputs: &["data", "size", "roi"],
    attrs: &[
        LAYOUT, RESIZE_METHOD, COORDINATES, ROUNDING, CUBIC_ALPHA, CUBIC_EXCLUDE, EXTRAPOLATION, OUT_DTYPE,
    ],
    pattern: OpPattern::Injective,
    relation: dynamic_resize_relation,
    reference: Some(reference),
    flops,
    properties: Properties::EXACT.error(ErrorModel::Interpolation),
}

operator! {
    name: "nn.upsampling",
    doc: "Resizes height and width by a scale, with rounded dimensions. Index x of the result maps to x / scale, or, \
          with align_corners, to x * (from - 1) / (to - 1).",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("scale_h", AttrKind::Float, Default::Float(1.0), "ratio of the result's height to the data's"),
        AttrDef::new("scale_w", AttrKind::Float, Default::Float(1.0), "ratio of the result's width to the data's"),
        LAYOUT, UPSAMPLING_METHOD, ALIGN_CORNERS,
    ],
    pattern: OpPattern::Injective,
    relation: upsampling_relation,
    reference: Some(reference),
    flops,
    properties: Properties::EXACT.error(ErrorModel::Interpolation),
}

operator! {
    name: "dyn.nn.upsampling",
    doc: "nn.upsampling with scales computed at run time: two scalars.",
    inputs: &["data", "scale_h", "scale_w"],
    attrs: &[LAYOUT, UPSAMPLING_METHOD, ALIGN_CORNERS],
    pattern: OpPattern::Injective,
    relation: dynamic_upsampling_relation,
    reference: Some(reference),
    flops,
    properties: Properties::EXACT.error(ErrorModel::Interpolation),
}

/// Interpolation method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Nearest element.
    Nearest,
    /// Linear interpolation between two elements per axis.
    Linear,
    /// Cubic convolution of four elements per axis.
    Cubic,
}

pub(super) const METHODS: [&str; 6] = ["nearest_neighbor", "linear", "bilinear", "trilinear", "cubic", "bicubic"];
const MODES: [&str; 6] =
    ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn", "tf_crop_and_resize"];
const ROUNDINGS: [&str; 6] = ["", "round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"];

pub(super) fn method(name: &str) -> Option<Method> {
    match name {
        "nearest_neighbor" => Some(Method::Nearest),
        "linear" | "bilinear" | "trilinear" => Some(Method::Linear),
        "cubic" | "bicubic" => Some(Method::Cubic),
        _ => None,
    }
}

/// Resizing with known dimensions: for each element of the result, the taps in the data and their weights.
pub struct ResizeShape {
    /// Dimensions of the data: batch, channels, 1, height, width.
    pub data: CanonicalDims,
    /// Dimensions of the result: batch, channels, 1, height, width.
    pub out: CanonicalDims,
    /// Taps along height and width.
    pub axes: [AxisTaps; 2],
}

/// Taps along one axis: `per_index` taps for every index of the result.
pub struct AxisTaps {
    /// Number of taps per index of the result.
    pub per_index: usize,
    /// Indices of the taps.
    pub index: Vec<usize>,
    /// Weights of the taps.
    pub weight: Vec<f64>,
    /// True for each index of the result that maps outside the data and receives the extrapolation value.
    pub outside: Vec<bool>,
}

impl ResizeShape {
    /// Creates the taps from attributes and shapes that the type relation accepted.
    ///
    /// # Errors
    /// If the taps of a long axis exceed the available memory, or the work is cancelled.
    pub fn new(params: &Params<'_>, data: &[usize], out: &[usize]) -> Result<ResizeShape, ReferenceError> {
        ResizeShape::with_roi(params, &params.floats("roi"), data, out)
    }

    /// Creates the taps; `roi` is the part of the data that `tf_crop_and_resize` samples.
    fn with_roi(
        params: &Params<'_>,
        roi: &[f64],
        data: &[usize],
        out: &[usize],
    ) -> Result<ResizeShape, ReferenceError> {
        let layout = params.string("layout");
        let (data, out) = (CanonicalDims::new(data, &layout, "NC"), CanonicalDims::new(out, &layout, "NC"));
        let axis = |i: usize| AxisTaps::new(params, roi, i, data.size[3 + i], out.size[3 + i]);
        Ok(ResizeShape { data, out, axes: [axis(0)?, axis(1)?] })
    }
}

impl AxisTaps {
    /// Creates the taps of a spatial axis, which is the `axis`-th one of `roi`.
    pub(super) fn new(
        params: &Params<'_>,
        roi: &[f64],
        axis: usize,
        size: usize,
        places: usize,
    ) -> Result<AxisTaps, ReferenceError> {
        let is_upsampling = params.def().name.ends_with("nn.upsampling");
        let mode = match params.bool("align_corners") {
            true => "align_corners".to_owned(),
            false if is_upsampling => "asymmetric".to_owned(),
            false => params.string("coordinate_transformation_mode"),
        };
        let method = method(&params.string("method")).unwrap_or(Method::Linear);
        let rounding = match params.string("rounding_method").as_str() {
            "" if mode == "align_corners" => "round".to_owned(),
            "" => "floor".to_owned(),
            configured => configured.to_owned(),
        };
        // All first coordinates precede all last ones.
        let axes = roi.len() / 2;
        let (first, last) = if axis < axes { (roi[axis], roi[axis + axes]) } else { (0.0, 1.0) };
        let per_index = match method {
            Method::Nearest => 1,
            Method::Linear => 2,
            Method::Cubic => 4,
        };
        // The taps of a long axis can occupy more memory than the data and the result together.
        let count = places.saturating_mul(per_index);
        let bytes = count.saturating_mul(size_of::<(usize, f64)>()).saturating_add(places);
        let _reservation = memory::reserve(bytes).map_err(|e| e.to_string())?;
        let mut taps = AxisTaps {
            per_index,
            index: Vec::with_capacity(count),
            weight: Vec::with_capacity(count),
            outside: Vec::with_capacity(places),
        };
        let mut ticks = Ticks::every(16 * per_index);
        for position in 0..places {
            if ticks.is_requested() {
                return Err("cancelled".into());
            }
            let coordinate = source_coordinate(&mode, position, size, places, (first, last));
            taps.outside.push(mode == "tf_crop_and_resize" && !(0.0..=size as f64 - 1.0).contains(&coordinate));
            let (start, weights) = match method {
                Method::Nearest => (nearest_index(coordinate, &rounding), vec![1.0]),
                Method::Linear => {
                    (coordinate.floor(), vec![1.0 - (coordinate - coordinate.floor()), coordinate - coordinate.floor()])
                }
                Method::Cubic => {
                    (coordinate.floor() - 1.0, cubic(coordinate - coordinate.floor(), params.float("cubic_alpha")))
                }
            };
            let is_inside = |tap: usize| (0.0..size as f64).contains(&(start + tap as f64));
            let excludes_outside = method == Method::Cubic && params.int("cubic_exclude") != 0;
            let kept_weight = |tap: usize| if excludes_outside && !is_inside(tap) { 0.0 } else { weights[tap] };
            let sum: f64 = if excludes_outside { (0..per_index).map(kept_weight).sum() } else { 1.0 };
            for tap in 0..per_index {
                taps.index.push((start + tap as f64).clamp(0.0, size as f64 - 1.0) as usize);
                taps.weight.push(kept_weight(tap) / sum);
            }
        }
        Ok(taps)
    }
}

/// Maps index `x` of a result of `n` elements to a coordinate in data of `m` elements.
fn source_coordinate(mode: &str, x: usize, m: usize, n: usize, roi: (f64, f64)) -> f64 {
    let scale = m as f64 / n as f64;
    let x = x as f64;
    match mode {
        "align_corners" if n > 1 => x * (m as f64 - 1.0) / (n as f64 - 1.0),
        "align_corners" => 0.0,
        "asymmetric" => x * scale,
        "pytorch_half_pixel" if n == 1 => 0.0,
        "tf_half_pixel_for_nn" => (x + 0.5) * scale,
        "tf_crop_and_resize" if n > 1 => (m as f64 - 1.0) * (roi.0 + x * (roi.1 - roi.0) / (n as f64 - 1.0)),
        "tf_crop_and_resize" => 0.5 * (roi.0 + roi.1) * (m as f64 - 1.0),
        _ => (x + 0.5) * scale - 0.5,
    }
}

/// Rounds a coordinate to an index. As in Relay, floor and ceil tolerate an error of 1e-5: the floor of 2.9999999 is 3.
fn nearest_index(coordinate: f64, rounding: &str) -> f64 {
    match rounding {
        "floor" => (coordinate + 1e-5).floor(),
        "ceil" => (coordinate - 1e-5).ceil(),
        "round_prefer_floor" => (coordinate - 0.5).ceil(),
        "round_prefer_ceil" => (coordinate + 0.5).floor(),
        _ => coordinate.round(),
    }
}

/// Returns the weights of the four taps around a coordinate at distance `t` past the second tap.
fn cubic(t: f64, a: f64) -> Vec<f64> {
    let inner_piece = |x: f64| ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    let outer_piece = |x: f64| ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    vec![outer_piece(1.0 + t), inner_piece(t), inner_piece(1.0 - t), outer_piece(2.0 - t)]
}

/// Returns the type of the data, with height and width replaced.
fn resized_type(relation: &Relation<'_>, size: impl Fn(usize, &Dim) -> Result<Dim, Box<Diagnostic>>) -> TypeResult {
    let data = relation.tensor(0)?;
    let positions = spatial::layout(relation, "layout", "NCHW", "NCHW")?;
    if data.dims.len() != 4 {
        return Err(relation.mismatch(format!("data: expected 4 dimensions, found {}", data.dims.len())));
    }
    let method_name = relation.params.string("method");
    if method(&method_name).is_none() {
        return Err(invalid_attribute(relation, "method", &METHODS, &method_name));
    }
    let mut dims = data.dims.to_vec();
    for axis in 0..2 {
        let dim = &data.dims[positions[2 + axis]];
        dims[positions[2 + axis]] = size(axis, dim)?;
        if *dim == Dim::Fixed(0) && dims[positions[2 + axis]] != Dim::Fixed(0) {
            return Err(relation.mismatch(format!("data: expected a nonempty plane, found {}", relation.args[0])));
        }
    }
    let dtype = relation.params.dtype("out_dtype").unwrap_or(data.dtype);
    Ok(Type::tensor_of(dtype, dims))
}

pub(super) fn invalid_attribute(relation: &Relation<'_>, attr: &str, choices: &[&str], value: &str) -> Box<Diagnostic> {
    let choices: Vec<String> = choices.iter().map(|choice| format!("\"{choice}\"")).collect();
    let message = format!("{attr}: expected one of {}, found \"{value}\"", choices.join(", "));
    relation.error(codes::types::BAD_ATTRIBUTE, message)
}

pub(super) fn check_modes(relation: &Relation<'_>) -> Result<(), Box<Diagnostic>> {
    for (attr, choices) in [("coordinate_transformation_mode", &MODES), ("rounding_method", &ROUNDINGS)] {
        let value = relation.params.string(attr);
        if !choices.contains(&value.as_str()) {
            return Err(invalid_attribute(relation, attr, choices, &value));
        }
    }
    Ok(())
}

fn resize_relation(relation: &Relation<'_>) -> TypeResult {
    let size = spatial::per_axis(relation, "size", 2, 1)?;
    check_modes(relation)?;
    resized_type(relation, |axis, _| Ok(Dim::Fixed(size[axis] as usize)))
}

fn dynamic_resize_relation(relation: &Relation<'_>) -> TypeResult {
    check_modes(relation)?;
    for (i, count) in [(1, 2), (2, 4)] {
        let ty = relation.tensor(i)?;
        if ty.dims.len() != 1 || ty.dims[0].fixed().is_some_and(|n| n != count) {
            let name = relation.def.inputs[i];
            return Err(
                relation.mismatch(format!("{name}: expected a vector of {count} elements, found {}", relation.args[i]))
            );
        }
    }
    let size = relation.known_ints(1);
    resized_type(relation, |axis, _| match &size {
        Some(size) if size[axis] >= 1 => spatial::to_dim(relation, i128::from(size[axis])),
        Some(size) => {
            Err(relation.error(codes::types::BAD_ATTRIBUTE, format!("size: expected 2 integers >= 1, found {size:?}")))
        }
        None => Ok(Dim::Any),
    })
}

/// Multiplies a dimension by a scale and rounds the product.
pub(super) fn scaled_dim(relation: &Relation<'_>, name: &str, dim: &Dim, scale: f64) -> Result<Dim, Box<Diagnostic>> {
    if !(scale > 0.0 && scale <= 1e6) {
        return Err(relation
            .error(codes::types::BAD_ATTRIBUTE, format!("{name}: expected a scale in (0, 1000000], found {scale}")));
    }
    match dim {
        Dim::Fixed(n) => spatial::to_dim(relation, (*n as f64 * scale).round() as i128),
        _ if scale.fract() == 0.0 => Ok(Dim::compute([dim], |[n]| n.scale(scale as i64))),
        _ => Ok(Dim::Any),
    }
}

fn upsampling_relation(relation: &Relation<'_>) -> TypeResult {
    resized_type(relation, |axis, dim| {
        let attr = ["scale_h", "scale_w"][axis];
        scaled_dim(relation, attr, dim, relation.params.float(attr))
    })
}

fn dynamic_upsampling_relation(relation: &Relation<'_>) -> TypeResult {
    resized_type(relation, |axis, dim| {
        let (i, name) = (1 + axis, relation.def.inputs[1 + axis]);
        if !relation.tensor(i)?.dims.is_empty() {
            return Err(relation.mismatch(format!("{name}: expected a scalar, found {}", relation.args[i])));
        }
        match relation.values.get(i).copied().flatten() {
            Some(scale) => scaled_dim(relation, name, dim, scale.view().to_f64s()[0]),
            None => Ok(Dim::Any),
        }
    })
}

/// Counts a multiply-add for every tap of the interpolation.
pub(super) fn flops(cost: &Cost<'_>) -> u64 {
    let per_element = match method(&cost.params.string("method")) {
        Some(Method::Linear) => 8,
        Some(Method::Cubic) => 32,
        _ => 0,
    };
    cost.ret_len().saturating_mul(per_element)
}

fn reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let roi = match params.def().name {
        "dyn.image.resize2d" => inputs[2].to_f64s(),
        _ => params.floats("roi"),
    };
    let s = ResizeShape::with_roi(&params, &roi, inputs[0].shape, outputs[0].shape)?;
    let x = inputs[0].to_f64s();
    let mut y = vec![0.0; outputs[0].len()];
    let [rows, cols] = &s.axes;
    let [batch, channels, _, height, width] = s.out.size;
    for n in 0..batch {
        for c in 0..channels {
            for h in 0..height {
                for w in 0..width {
                    let offset = s.out.at(n, c, [0, h, w]);
                    if rows.outside[h] || cols.outside[w] {
                        y[offset] = params.float("extrapolation_value");
                        continue;
                    }
                    for i in h * rows.per_index..(h + 1) * rows.per_index {
                        for j in w * cols.per_index..(w + 1) * cols.per_index {
                            let value = x[s.data.at(n, c, [0, rows.index[i], cols.index[j]])];
                            let weight = rows.weight[i] * cols.weight[j];
                            // A tap with weight zero contributes nothing, even if the data is not finite.
                            y[offset] += if weight == 0.0 { 0.0 } else { value * weight };
                        }
                    }
                }
            }
        }
    }
    Writer::new(&mut outputs[0]).store(y);
    Ok(())
}
