//! Operators on spatial axes: pooling, resizing, pixel blocks, padding.

use super::{Constraint, Recipe, argument_type, attrs, first_argument, ints, operand, recipe, unconstrained};
use crate::generate::draw::{Fill, Sampler};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::OpDef;
use byoc_ir::tensor::DType;

pub(super) fn propose(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let is_pool = def.name.contains("pool");
    if is_pool {
        let axes = if def.name.ends_with("1d") {
            1
        } else if def.name.ends_with("2d") {
            2
        } else {
            3
        };
        return pooling(def, sampler, constraints, axes);
    }
    let layout = sampler.pick(&["NCHW", "NCHW", "NHWC"]);
    match def.name {
        "image.resize2d" => {
            let (dtype, shape) = plane(sampler, constraints, layout)?;
            let size = [sampler.spatial_dim(), sampler.spatial_dim()];
            let method = sampler.pick(&["linear", "nearest_neighbor", "cubic"]);
            let coordinates = sampler.pick(&["half_pixel", "asymmetric", "align_corners"]);
            let mut pairs = vec![
                ("size", ints(size)),
                ("layout", layout.into()),
                ("method", method.into()),
                ("coordinate_transformation_mode", coordinates.into()),
            ];
            if method == "nearest_neighbor" {
                pairs.push(("rounding_method", sampler.pick(&["", "floor", "ceil", "round"]).into()));
            }
            recipe([operand(dtype, shape, resize_fill(method))], Attrs::new(pairs))
        }
        "nn.upsampling" => {
            let (dtype, shape) = plane(sampler, constraints, layout)?;
            let scale = |sampler: &mut Sampler| AttrValue::Float(sampler.pick(&[1.0, 2.0, 2.0, 3.0]));
            let method = sampler.pick(&["nearest_neighbor", "bilinear"]);
            let pairs = [
                ("scale_h", scale(sampler)),
                ("scale_w", scale(sampler)),
                ("layout", layout.into()),
                ("method", method.into()),
                ("align_corners", sampler.chance(2).into()),
            ];
            recipe([operand(dtype, shape, resize_fill(method))], attrs(pairs))
        }
        "nn.depth_to_space" | "nn.space_to_depth" => {
            let block = sampler.int(1, 3) as usize;
            let (dtype, shape) = match argument_type(constraints, 0) {
                Some(input_type) => input_type,
                None => {
                    let (n, mut c, mut h, mut w) = (
                        sampler.batch(),
                        sampler.spatial_dim(),
                        sampler.spatial_dim().min(6),
                        sampler.spatial_dim().min(6),
                    );
                    match def.name {
                        "nn.depth_to_space" => c *= block * block,
                        _ => (h, w) = (h * block, w * block),
                    }
                    (sampler.theme.dtype, if layout == "NCHW" { vec![n, c, h, w] } else { vec![n, h, w, c] })
                }
            };
            let mut pairs = vec![("block_size", AttrValue::Int(block as i64)), ("layout", layout.into())];
            if def.attr("mode").is_some() {
                pairs.push(("mode", sampler.pick(&["DCR", "CRD"]).into()));
            }
            recipe([unconstrained(dtype, shape)], Attrs::new(pairs))
        }
        "nn.pad" => {
            let (dtype, shape) = first_argument(sampler, constraints, 1, 4);
            let is_common = sampler.common_attrs;
            let mode = if is_common { "constant" } else { sampler.pick(&["constant", "constant", "edge", "reflect"]) };
            let max_pad = |sampler: &mut Sampler, dim: usize| match mode {
                "reflect" => sampler.below(dim.clamp(1, 3)),
                "edge" if dim == 0 => 0,
                _ => sampler.below(3),
            };
            let widths: Vec<AttrValue> =
                shape.iter().map(|&dim| ints([max_pad(sampler, dim), max_pad(sampler, dim)])).collect();
            let pairs = [("pad_width", AttrValue::List(widths.into())), ("pad_mode", mode.into())];
            let value = argument_type(constraints, 1).unwrap_or((dtype, Vec::new()));
            // Most models pad with zeros.
            let fill = if is_common { Fill::Within(0.0, 0.0) } else { Fill::Factors };
            recipe([unconstrained(dtype, shape), super::weight(value.0, value.1, fill)], attrs(pairs))
        }
        _ => None,
    }
}

/// Returns the constraint on the data of a resize operator. An infinity with weight 0 yields NaN or is skipped,
/// depending on the backend, so interpolation operates on finite values.
fn resize_fill(method: &str) -> Fill {
    if method == "nearest_neighbor" { Fill::Terms } else { Fill::Factors }
}

fn plane(sampler: &mut Sampler, constraints: &[Constraint], layout: &str) -> Option<(DType, Vec<usize>)> {
    if let Some(input_type) = argument_type(constraints, 0) {
        return (input_type.1.len() == 4).then_some(input_type);
    }
    let (n, c, h, w) = (sampler.batch(), sampler.spatial_dim(), sampler.spatial_dim(), sampler.spatial_dim());
    Some((sampler.theme.dtype, if layout == "NCHW" { vec![n, c, h, w] } else { vec![n, h, w, c] }))
}

fn pooling(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint], axes: usize) -> Option<Recipe> {
    let spatial_axes = &"DHW"[3 - axes..];
    let (first_layout, last_layout) = (format!("NC{spatial_axes}"), format!("N{spatial_axes}C"));
    let is_channels_last = match sampler.declared_layouts(def.name).as_deref() {
        Some([layout, ..]) if *layout == last_layout => true,
        Some([layout, ..]) if *layout == first_layout => false,
        _ => sampler.chance(3),
    };
    let (dtype, shape) = match argument_type(constraints, 0) {
        Some(input_type) => input_type,
        None => {
            let mut shape = vec![sampler.batch()];
            let spatial_dims =
                (0..axes).map(|_| if axes == 3 { sampler.spatial_dim().min(7) } else { sampler.spatial_dim() });
            shape.extend(spatial_dims.collect::<Vec<_>>());
            let channels = sampler.spatial_dim();
            shape.insert(if is_channels_last { shape.len() } else { 1 }, channels);
            (sampler.theme.dtype, shape)
        }
    };
    if shape.len() != axes + 2 {
        return None;
    }
    let layout = if is_channels_last { last_layout } else { first_layout };
    let mut pairs = vec![("layout", AttrValue::from(layout.as_str()))];
    if def.attr("pool_size").is_some() {
        let taps: Vec<usize> = (0..axes).map(|_| sampler.pick(&[1, 2, 3, 3])).collect();
        let padding: Vec<usize> = match sampler.below(3) {
            0 => vec![0; axes],
            1 => taps.iter().map(|tap| tap / 2).collect(),
            _ => taps.iter().chain(&taps).map(|tap| sampler.below(*tap)).collect(),
        };
        pairs.push(("strides", ints((0..axes).map(|_| sampler.pick(&[1, 2, 2, 3])))));
        pairs.push(("dilation", ints((0..axes).map(|_| if sampler.chance(4) { 2 } else { 1 }))));
        pairs.push(("padding", ints(padding)));
        pairs.push(("pool_size", ints(taps)));
        pairs.push(("ceil_mode", sampler.chance(3).into()));
        if def.attr("count_include_pad").is_some() {
            pairs.push(("count_include_pad", sampler.chance(2).into()));
        }
        if def.attr("p").is_some() {
            pairs.push(("p", AttrValue::Int(sampler.int(1, 3))));
        }
    } else if def.attr("output_size").is_some() && !sampler.chance(4) {
        pairs.push(("output_size", ints((0..axes).map(|_| 1 + sampler.below(4)))));
    }
    let fill = if def.name.contains("max") { Fill::Free } else { Fill::Terms };
    recipe([operand(dtype, shape, fill)], Attrs::new(pairs))
}
