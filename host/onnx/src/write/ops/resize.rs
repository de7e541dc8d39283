//! Resizing. Relay's attributes are those of ONNX; sizes and scales of ONNX belong to all axes before operator set 18.

use super::super::call::{Call, Outputs, int_vector};
use super::super::proto_parts::{float, int, ints, string};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::{Row, single};
use crate::proto::AttributeProto;
use byoc_ir::op::spatial;
use byoc_ir::tensor::{DType, Tensor};
use std::sync::Arc;

pub const ROWS: &[Row] = &[
    ("dyn.image.resize_nd", resize_nd),
    ("image.resize1d", image),
    ("image.resize2d", image),
    ("image.resize3d", image),
    ("nn.upsampling", |c| upsampling(c, &["scale_h", "scale_w"])),
    ("nn.upsampling3d", |c| upsampling(c, &["scale_d", "scale_h", "scale_w"])),
];

fn method(name: &str) -> &str {
    match name {
        "nearest_neighbor" => "nearest",
        "bilinear" | "trilinear" => "linear",
        "bicubic" => "cubic",
        other => other,
    }
}

fn attributes(c: &Call<'_, '_>, mode: &str, coordinates: &str, rounding: &str) -> Result<Vec<AttributeProto>> {
    match coordinates {
        "tf_half_pixel_for_nn" => return Err(Refusal::new("tf_half_pixel_for_nn, which ONNX dropped")),
        "half_pixel_symmetric" => c.since(19, coordinates)?,
        _ => {}
    }
    let mut attrs = vec![string("coordinate_transformation_mode", coordinates)];
    if mode == "cubic" {
        attrs.push(float("cubic_coeff_a", c.params.float("cubic_alpha")));
        attrs.push(int("exclude_outside", c.params.int("cubic_exclude")));
    }
    if coordinates == "tf_crop_and_resize" {
        attrs.push(float("extrapolation_value", c.params.float("extrapolation_value")));
    }
    attrs.push(string("mode", mode));
    if mode == "nearest" {
        attrs.push(string("nearest_mode", rounding));
    }
    Ok(attrs)
}

fn resize_nd(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (mode, rank) = (c.params.string("method"), c.rank(0)?);
    let (coordinates, rounding) =
        (c.params.string("coordinate_transformation_mode"), c.params.string("rounding_method"));
    let mut attrs = attributes(c, method(&mode), &coordinates, &rounding)?;
    if mode != "cubic" && c.params.bool("cubic_exclude") {
        attrs.push(int("exclude_outside", 1));
    }
    let policy = c.params.string("policy");
    if policy != "stretch" {
        c.since(18, "the policy of Resize")?;
        attrs.push(string("keep_aspect_ratio_policy", &policy));
    }
    if c.params.bool("antialias") {
        c.since(18, "antialias of Resize")?;
        attrs.push(int("antialias", 1));
    }
    let axes = c.params.opt_ints("axes");
    let (x, extent, mut roi) = (c.arg(0)?, c.arg(1)?, c.arg(2)?);
    if coordinates != "tf_crop_and_resize" {
        roi = Operand::Absent;
    }
    let is_scale = c.dtype(1)?.is_float();
    let extent = match axes.filter(|axes| !axes.iter().copied().eq(0..rank as i64)) {
        Some(axes) if c.w.opset >= 18 => {
            attrs.push(ints("axes", &axes));
            extent
        }
        Some(axes) => all_axes(c, &extent, &axes, is_scale)?,
        None => extent,
    };
    attrs.sort_by(|a, b| a.name.cmp(&b.name));
    single(resize(c, x, roi, extent, attrs)?)
}

fn resize(
    c: &mut Call<'_, '_>,
    x: Operand,
    roi: Operand,
    extent: Operand,
    attrs: Vec<AttributeProto>,
) -> Result<Operand> {
    let dtype = c.dtype(1)?;
    Ok(if dtype.is_float() {
        let scales = c.cast(&extent, dtype, DType::F32)?;
        c.node("Resize", &[x, roi, scales], attrs)
    } else {
        let sizes = c.cast(&extent, dtype, DType::I64)?;
        c.node("Resize", &[x, roi, Operand::Absent, sizes], attrs)
    })
}

/// Extends the scales or sizes of some axes to all.
fn all_axes(c: &Call<'_, '_>, extent: &Operand, axes: &[i64], is_scale: bool) -> Result<Operand> {
    let since_18 = || Refusal { since: Some(18), ..Refusal::new("axes of Resize are in operator set 18 and later") };
    if c.params.string("coordinate_transformation_mode") == "tf_crop_and_resize" {
        return Err(since_18());
    }
    let values = extent.constant().ok_or_else(since_18)?.view().to_f64s();
    let dims = &c.ty(0)?.dims;
    let mut all = Vec::with_capacity(dims.len());
    for (axis, dim) in dims.iter().enumerate() {
        let position = axes.iter().position(|&a| a == axis as i64 || a + dims.len() as i64 == axis as i64);
        let unchanged = if is_scale { Some(1.0) } else { dim.fixed().map(|size| size as f64) };
        all.push(position.and_then(|i| values.get(i).copied()).or(unchanged).ok_or_else(since_18)?);
    }
    let dtype = c.dtype(1)?;
    Ok(Operand::Constant(Arc::new(crate::tensor::from_f64s(dtype, &[all.len()], &all))))
}

fn image(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let mode = c.params.string("method");
    let coordinates = c.params.string("coordinate_transformation_mode");
    let rounding = match c.params.string("rounding_method").as_str() {
        "" if coordinates == "align_corners" => "round_prefer_ceil".to_owned(),
        "" => "floor".to_owned(),
        "round" => "round_prefer_ceil".to_owned(),
        other => other.to_owned(),
    };
    let attrs = attributes(c, method(&mode), &coordinates, &rounding)?;
    if coordinates == "tf_crop_and_resize" {
        return Err(Refusal::new("a part of an image"));
    }
    let sizes = c.params.ints("size");
    sized(c, &sizes, attrs)
}

/// Resizes the spatial axes to known sizes.
fn sized(c: &mut Call<'_, '_>, sizes: &[i64], mut attrs: Vec<AttributeProto>) -> Result<Outputs> {
    let (x, data) = (c.arg(0)?, c.ty(0)?);
    let axes = data.dims.len().saturating_sub(2);
    let order = format!("NC{}", spatial::spatial(axes));
    let positions =
        spatial::positions(&c.params.string("layout"), &order).ok_or_else(|| Refusal::new("a layout with blocks"))?;
    let mut all = vec![0; data.dims.len()];
    for (letter, &position) in positions.iter().enumerate() {
        all[position] = match letter {
            0 | 1 => data.dims[position].fixed().map_or(-1, |size| size as i64),
            spatial => sizes.get(spatial - 2).or(sizes.last()).copied().unwrap_or(-1),
        };
    }
    let sizes = if all.contains(&-1) {
        c.since(18, "axes of Resize")?;
        let spatial: Vec<i64> = positions[2..].iter().map(|&position| position as i64).collect();
        attrs.insert(0, ints("axes", &spatial));
        spatial.iter().map(|&position| all[position as usize]).collect()
    } else {
        all
    };
    let result = c.node("Resize", &[x, Operand::Absent, Operand::Absent, int_vector(&sizes)], attrs);
    let (from, to) = (data.dtype, c.result()?.dtype);
    single(c.cast(&result, from, to)?)
}

fn upsampling(c: &mut Call<'_, '_>, names: &[&str]) -> Result<Outputs> {
    let mode = c.params.string("method");
    let aligned = c.params.string("coordinate_transformation_mode");
    let coordinates = match aligned.as_str() {
        "" if c.params.bool("align_corners") => "align_corners",
        "" => "asymmetric",
        other => other,
    };
    let rounding = if coordinates == "align_corners" { "round_prefer_ceil" } else { "floor" };
    let attrs = attributes(c, method(&mode), coordinates, rounding)?;
    let axes = names.len();
    let order = format!("NC{}", spatial::spatial(axes));
    let positions =
        spatial::positions(&c.params.string("layout"), &order).ok_or_else(|| Refusal::new("a layout with blocks"))?;
    let mut scales = vec![1f32; axes + 2];
    for (name, &position) in names.iter().zip(&positions[2..]) {
        let scale = c.params.float(name);
        if scale.fract() != 0.0 {
            return Err(Refusal::new("a scale that is no integer, whose sizes Resize rounds down"));
        }
        scales[position] = scale as f32;
    }
    let x = c.arg(0)?;
    let scales = Operand::Constant(Arc::new(Tensor::from_slice(&[scales.len()], &scales)));
    single(c.node("Resize", &[x, Operand::Absent, scales], attrs))
}
