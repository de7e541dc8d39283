//! Sampling of images at computed coordinates (M. Jaderberg et al., 2015).

use super::resize::cubic_kernel;
use super::scalar::Writer;
use super::walk::{for_each_index, offset, strides};
use super::{AttrDef, AttrKind, Cost, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::codes;
use crate::ir::{Dim, Type};
use crate::op::facts::{ErrorModel, Properties};
use crate::tensor::{TensorView, TensorViewMut};

/// Coefficient of cubic convolution, as in PyTorch.
const CUBIC: f64 = -0.75;

const METHODS: [&str; 4] = ["nearest", "bilinear", "linear", "bicubic"];
const PADDINGS: [&str; 3] = ["zeros", "border", "reflection"];

operator! {
    name: "image.grid_sample",
    doc: "Samples data (n, c, spatial..) at the coordinates of grid, for each output element one per spatial axis in \
          [-1, 1]. With layout NCHW the grid is (n, axes, spatial..), with NHWC (n, spatial.., axes). The first \
          coordinate belongs to the last axis of the data. Taps outside the data are 0 (zeros), the element at the \
          border, or the data reflected at its border.",
    inputs: &["data", "grid"],
    attrs: &[
        AttrDef::new("method", AttrKind::Str, Default::Str("bilinear"), "nearest, bilinear (or linear) or bicubic"),
        AttrDef::new("layout", AttrKind::Str, Default::Str("NCHW"), "NCHW (NCDHW), or NHWC: the grid's coordinates last"),
        AttrDef::new("padding_mode", AttrKind::Str, Default::Str("zeros"), "zeros, border or reflection"),
        AttrDef::new("align_corners", AttrKind::Bool, Default::Bool(true),
            "true if -1 and 1 are the centers of the corner elements, false if they are the edges of the image"),
    ],
    pattern: OpPattern::Injective,
    relation: sample_type,
    reference: Some(sample),
    flops,
    properties: Properties::EXACT.error(ErrorModel::Interpolation),
}

/// Returns true if the coordinates are the last axis of the grid.
fn has_coordinates_last(params: &Params<'_>) -> bool {
    params.string("layout").ends_with('C')
}

fn sample_type(relation: &Relation<'_>) -> TypeResult {
    for (attribute, choices) in [("method", &METHODS[..]), ("padding_mode", &PADDINGS[..])] {
        let value = relation.params.string(attribute);
        if !choices.contains(&value.as_str()) {
            let message = format!("{attribute}: expected one of {}, found \"{value}\"", choices.join(", "));
            return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
        }
    }
    let (data, grid) = (relation.tensor(0)?, relation.tensor(1)?);
    let rank = data.dims.len();
    if rank < 3 || grid.dims.len() != rank || !data.dtype.is_float() || !grid.dtype.is_float() {
        let [a, b] = [&relation.args[0], &relation.args[1]];
        return Err(
            relation.mismatch(format!("expected float data and a float grid of equal rank >= 3, found {a} and {b}"))
        );
    }
    let has_axes_last = has_coordinates_last(&relation.params);
    let (axes, spatial) =
        if has_axes_last { (&grid.dims[rank - 1], &grid.dims[1..rank - 1]) } else { (&grid.dims[1], &grid.dims[2..]) };
    if axes.fixed().is_some_and(|axes| axes != rank - 2) {
        return Err(relation.mismatch(format!("coordinates of grid: expected {}, found {axes}", rank - 2)));
    }
    if data.dims[2..].contains(&Dim::Fixed(0)) {
        return Err(relation.mismatch(format!("data: expected spatial dimensions >= 1, found {}", relation.args[0])));
    }
    let batch = relation.same_dim("batch", &data.dims[0], &grid.dims[0])?;
    let dims = [batch, data.dims[1].clone()].into_iter().chain(spatial.iter().cloned());
    Ok(Type::tensor_of(data.dtype, dims.collect::<Vec<_>>()))
}

/// Counts a multiply-add for every combination of taps along two axes.
fn flops(cost: &Cost<'_>) -> u64 {
    let flops_per_element = match cost.params.string("method").as_str() {
        "nearest" => 0,
        "bicubic" => 32,
        _ => 8,
    };
    cost.ret_len().saturating_mul(flops_per_element)
}

/// Coordinate conversion along one axis, with the padding mode.
struct Axis {
    size: f64,
    is_aligned: bool,
    padding: String,
}

impl Axis {
    /// Converts a coordinate in [-1, 1] to an index.
    fn index_of(&self, coordinate: f64) -> f64 {
        if self.is_aligned {
            (coordinate + 1.0) / 2.0 * (self.size - 1.0)
        } else {
            ((coordinate + 1.0) * self.size - 1.0) / 2.0
        }
    }

    /// Maps an index into the data for border and reflection padding; keeps it for zero padding.
    fn wrap(&self, index: f64) -> f64 {
        match self.padding.as_str() {
            "border" => index.clamp(0.0, self.size - 1.0),
            "reflection" => {
                let (low, high) = if self.is_aligned { (0.0, self.size - 1.0) } else { (-0.5, self.size - 0.5) };
                self.reflect(index, low, high).clamp(0.0, self.size - 1.0)
            }
            _ => index,
        }
    }

    fn reflect(&self, index: f64, low: f64, high: f64) -> f64 {
        let range = high - low;
        if range <= 0.0 || !index.is_finite() {
            return 0.0;
        }
        let distance = (index - low).rem_euclid(2.0 * range);
        low + if distance > range { 2.0 * range - distance } else { distance }
    }

    /// Returns the position in the data of the tap at an integer index; `None` for a tap outside, which counts as zero.
    fn tap(&self, index: f64) -> Option<usize> {
        let wrapped = self.wrap(index);
        (0.0..self.size).contains(&wrapped).then_some(wrapped as usize)
    }
}

/// Tap along one axis: its position, `None` outside the data, and its weight.
type Tap = (Option<usize>, f64);

/// Returns the taps along one axis.
fn taps(axis: &Axis, method: &str, coordinate: f64) -> Vec<Tap> {
    let index = axis.index_of(coordinate);
    match method {
        "nearest" => vec![(axis.tap(axis.wrap(index).round_ties_even()), 1.0)],
        "bicubic" => {
            let floor = index.floor();
            let tap = |i: i32| (axis.tap(floor + f64::from(i)), cubic_kernel(CUBIC, index - floor - f64::from(i)));
            (-1..=2).map(tap).collect()
        }
        _ => {
            let index = axis.wrap(index);
            let floor = index.floor();
            let part = index - floor;
            vec![(axis.tap(floor), 1.0 - part), (axis.tap(floor + 1.0), part)]
        }
    }
}

fn sample(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (data_shape, grid_shape) = (inputs[0].shape, inputs[1].shape);
    let axes = data_shape.len() - 2;
    let (data, grid) = (inputs[0].to_f64s(), inputs[1].to_f64s());
    let (data_strides, grid_strides) = (strides(data_shape), strides(grid_shape));
    let (last, method) = (has_coordinates_last(&params), params.string("method"));
    let (is_aligned, padding) = (params.bool("align_corners"), params.string("padding_mode"));
    let axis = |size: usize| Axis { size: size as f64, is_aligned, padding: padding.clone() };
    let data_axes: Vec<Axis> = data_shape[2..].iter().map(|&size| axis(size)).collect();
    let mut values = Vec::with_capacity(outputs[0].len());
    for_each_index(outputs[0].shape, |index| {
        let (batch, channel, coordinates) = (index[0], index[1], &index[2..]);
        let coordinate = |i: usize| {
            let within = if last {
                offset(coordinates, &grid_strides[1..=axes]) + i * grid_strides[axes + 1]
            } else {
                i * grid_strides[1] + offset(coordinates, &grid_strides[2..])
            };
            grid[batch * grid_strides[0] + within]
        };
        let base = batch * data_strides[0] + channel * data_strides[1];
        // Offset and weight of every combination of taps; `None` outside the data.
        let mut corners: Vec<(Option<usize>, f64)> = vec![(Some(base), 1.0)];
        for (d, axis) in data_axes.iter().enumerate() {
            let taps = taps(axis, &method, coordinate(axes - 1 - d));
            corners = corners
                .iter()
                .flat_map(|(at, weight)| {
                    let stride = data_strides[2 + d];
                    taps.iter().map(move |(tap, tap_weight)| {
                        (at.zip(*tap).map(|(at, tap)| at + tap * stride), weight * tap_weight)
                    })
                })
                .collect();
        }
        // A tap with weight zero contributes nothing, even if the data is not finite.
        let nonzero_corners = corners.iter().filter(|corner| corner.1 != 0.0);
        values.push(nonzero_corners.map(|(at, weight)| at.map_or(0.0, |at| data[at] * weight)).sum::<f64>());
    });
    Writer::new(&mut outputs[0]).store(values);
    Ok(())
}
