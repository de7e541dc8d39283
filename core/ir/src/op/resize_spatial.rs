//! Resizing of one and of three spatial axes, with the coordinates and weights of `image.resize2d`.

use super::image::{
    self, AxisTaps, COORDINATES, CUBIC_ALPHA, CUBIC_EXCLUDE, EXTRAPOLATION, METHODS, OUT_DTYPE, RESIZE_METHOD,
};
use super::scalar::Writer;
use super::spatial::{self, CanonicalDims, each};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::Diagnostic;
use crate::ir::{Dim, Type};
use crate::op::facts::{ErrorModel, Properties};
use crate::tensor::{TensorView, TensorViewMut};

const ROUNDING: AttrDef = AttrDef::new(
    "rounding_method",
    AttrKind::Str,
    Default::Str("round"),
    "for nearest_neighbor: round, round_prefer_floor, round_prefer_ceil, floor or ceil; \
     if empty, round with align_corners, otherwise floor",
);

const fn layout(default: &'static str) -> AttrDef {
    AttrDef::new("layout", AttrKind::Str, Default::Str(default), "order of the axes")
}

const UPSAMPLING_METHOD: AttrDef =
    AttrDef::new("method", AttrKind::Str, Default::Str("nearest_neighbor"), "nearest_neighbor or trilinear");

macro_rules! resizes {
    ($($axes:literal $name:literal $layout:literal $roi:tt;)*) => {$(
        operator! {
            name: $name,
            doc: "Resizes the spatial axes, with the coordinates, methods and roundings of image.resize2d. roi lists the \
                  first coordinates of all axes, then the last ones.",
            inputs: &["data"],
            attrs: &[
                AttrDef::new("size", AttrKind::Ints, Default::Required, "spatial dimensions of the result"),
                AttrDef::new("roi", AttrKind::Floats, Default::Floats(&$roi),
                    "part of the data that tf_crop_and_resize uses, in [0, 1]"),
                layout($layout), RESIZE_METHOD, COORDINATES, ROUNDING, CUBIC_ALPHA, CUBIC_EXCLUDE, EXTRAPOLATION,
                OUT_DTYPE,
            ],
            pattern: OpPattern::Injective,
            relation: |relation| {
                let size = spatial::per_axis(relation, "size", $axes, 1)?;
                image::check_modes(relation)?;
                resized_type(relation, $axes, |axis, _| Ok(Dim::Fixed(size[axis] as usize)))
            },
            reference: Some(reference),
            flops: image::flops,
            properties: Properties::EXACT.error(ErrorModel::Interpolation),
        }
    )*};
}

resizes! {
    1 "image.resize1d" "NCW" [0.0, 0.0];
    3 "image.resize3d" "NCDHW" [0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
}

const SCALES: [&str; 3] = ["scale_d", "scale_h", "scale_w"];

operator! {
    name: "nn.upsampling3d",
    doc: "Resizes depth, height and width by a scale, with rounded dimensions and the coordinates of image.resize3d.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("scale_d", AttrKind::Float, Default::Required, "ratio of the result's depth to the data's"),
        AttrDef::new("scale_h", AttrKind::Float, Default::Required, "ratio of the result's height to the data's"),
        AttrDef::new("scale_w", AttrKind::Float, Default::Required, "ratio of the result's width to the data's"),
        layout("NCDHW"), UPSAMPLING_METHOD, COORDINATES,
    ],
    pattern: OpPattern::Injective,
    relation: |relation| {
        check_coordinates(relation)?;
        resized_type(relation, 3, |axis, dim| {
            image::scaled_dim(relation, SCALES[axis], dim, relation.params.float(SCALES[axis]))
        })
    },
    reference: Some(reference),
    flops: image::flops,
    properties: Properties::EXACT.error(ErrorModel::Interpolation),
}

operator! {
    name: "dyn.nn.upsampling3d",
    doc: "nn.upsampling3d with scales computed at run time: three scalars.",
    inputs: &["data", "scale_d", "scale_h", "scale_w"],
    attrs: &[layout("NCDHW"), UPSAMPLING_METHOD, COORDINATES],
    pattern: OpPattern::Injective,
    relation: |relation| {
        check_coordinates(relation)?;
        resized_type(relation, 3, |axis, dim| {
            if !relation.tensor(1 + axis)?.dims.is_empty() {
                let found = &relation.args[1 + axis];
                return Err(relation.mismatch(format!("{}: expected a scalar, found {found}", SCALES[axis])));
            }
            match relation.values.get(1 + axis).copied().flatten() {
                Some(scale) => image::scaled_dim(relation, SCALES[axis], dim, scale.view().to_f64s()[0]),
                None => Ok(Dim::Any),
            }
        })
    },
    reference: Some(reference),
    flops: image::flops,
    properties: Properties::EXACT.error(ErrorModel::Interpolation),
}

/// Checks the attribute for coordinates of a call that has none for rounding.
fn check_coordinates(relation: &Relation<'_>) -> Result<(), Box<Diagnostic>> {
    let mode = relation.params.string("coordinate_transformation_mode");
    let choices = ["half_pixel", "align_corners", "asymmetric"];
    if choices.contains(&mode.as_str()) {
        return Ok(());
    }
    Err(image::invalid_attribute(relation, "coordinate_transformation_mode", &choices, &mode))
}

/// Returns the type of the data, with the spatial dimensions that `size` computes.
fn resized_type(
    relation: &Relation<'_>,
    axes: usize,
    size: impl Fn(usize, &Dim) -> Result<Dim, Box<Diagnostic>>,
) -> TypeResult {
    let data = relation.tensor(0)?;
    let order = format!("NC{}", spatial::spatial(axes));
    let positions = spatial::layout(relation, "layout", &order, &order)?;
    if data.dims.len() != axes + 2 {
        let found = &relation.args[0];
        return Err(relation.mismatch(format!("data: expected {} dimensions, found {found}", axes + 2)));
    }
    let method = relation.params.string("method");
    if image::method(&method).is_none() {
        return Err(image::invalid_attribute(relation, "method", &METHODS, &method));
    }
    let mut dims = data.dims.to_vec();
    for (axis, &position) in positions[2..].iter().enumerate() {
        dims[position] = size(axis, &data.dims[position])?;
        if data.dims[position] == Dim::Fixed(0) && dims[position] != Dim::Fixed(0) {
            return Err(relation.mismatch(format!("data: expected at least one element, found {}", relation.args[0])));
        }
    }
    Ok(Type::tensor_of(relation.params.dtype("out_dtype").unwrap_or(data.dtype), dims))
}

fn reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let layout = params.string("layout");
    let (data, out) =
        (CanonicalDims::new(inputs[0].shape, &layout, "NC"), CanonicalDims::new(outputs[0].shape, &layout, "NC"));
    let (axes, roi) = (inputs[0].shape.len() - 2, params.floats("roi"));
    let mut taps = Vec::with_capacity(3);
    for axis in 0..3 {
        taps.push(match usize::checked_sub(axis, 3 - axes) {
            Some(position) => AxisTaps::new(&params, &roi, position, data.size[2 + axis], out.size[2 + axis])?,
            None => AxisTaps { per_index: 1, index: vec![0], weight: vec![1.0], outside: vec![false] },
        });
    }
    let counts = [taps[0].per_index, taps[1].per_index, taps[2].per_index];
    let elements = inputs[0].to_f64s();
    let mut result = vec![0.0; outputs[0].len()];
    let mut ticks = Ticks::every(counts.iter().product());
    for (n, c) in (0..out.size[0]).flat_map(|n| (0..out.size[1]).map(move |c| (n, c))) {
        each(out.spatial(), |position| {
            if ticks.is_requested() {
                return;
            }
            let target = out.at(n, c, position);
            if (0..3).any(|axis| taps[axis].outside[position[axis]]) {
                result[target] = params.float("extrapolation_value");
                return;
            }
            each(counts, |tap| {
                let tap: [usize; 3] = std::array::from_fn(|axis| position[axis] * counts[axis] + tap[axis]);
                let weight: f64 = (0..3).map(|axis| taps[axis].weight[tap[axis]]).product();
                // A tap with weight zero contributes nothing, even if the data is not finite.
                if weight != 0.0 {
                    let index = std::array::from_fn(|axis| taps[axis].index[tap[axis]]);
                    result[target] += weight * elements[data.at(n, c, index)];
                }
            });
        });
    }
    Writer::new(&mut outputs[0]).store(result);
    Ok(())
}
