//! Pooling.

use super::super::call::{Call, Outputs};
use super::super::proto_parts::{int, ints};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::conv::{canonical, inverse};
use super::{Row, single};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("nn.adaptive_avg_pool1d", |c| adaptive(c, "AveragePool")),
    ("nn.adaptive_avg_pool2d", |c| adaptive(c, "AveragePool")),
    ("nn.adaptive_avg_pool3d", |c| adaptive(c, "AveragePool")),
    ("nn.adaptive_max_pool1d", |c| adaptive(c, "MaxPool")),
    ("nn.adaptive_max_pool2d", |c| adaptive(c, "MaxPool")),
    ("nn.adaptive_max_pool3d", |c| adaptive(c, "MaxPool")),
    ("nn.avg_pool1d", |c| sliding(c, "AveragePool")),
    ("nn.avg_pool2d", |c| sliding(c, "AveragePool")),
    ("nn.avg_pool3d", |c| sliding(c, "AveragePool")),
    ("nn.contrib_lp_pool1d", |c| sliding(c, "LpPool")),
    ("nn.contrib_lp_pool2d", |c| sliding(c, "LpPool")),
    ("nn.contrib_lp_pool3d", |c| sliding(c, "LpPool")),
    ("nn.global_avg_pool2d", |c| global(c, "GlobalAveragePool")),
    ("nn.global_max_pool2d", |c| global(c, "GlobalMaxPool")),
    ("nn.max_pool1d", |c| sliding(c, "MaxPool")),
    ("nn.max_pool2d", |c| sliding(c, "MaxPool")),
    ("nn.max_pool3d", |c| sliding(c, "MaxPool")),
];

/// Appends a node on data with batch and channels first, and moves the axes of the result back.
fn pooled(
    c: &mut Call<'_, '_>,
    op: &str,
    data: &Operand,
    attributes: Vec<crate::proto::AttributeProto>,
) -> Result<Operand> {
    let axes = c.rank(0)?.saturating_sub(2);
    let data_axes = canonical(&c.params.string("layout"), "NC", axes)?;
    let result_axes = match c.params.string("out_layout") {
        layout if layout.is_empty() => data_axes.clone(),
        layout => canonical(&layout, "NC", axes)?,
    };
    let moved = c.transpose(data, &data_axes);
    let result = c.node(op, &[moved], attributes);
    Ok(c.transpose(&result, &inverse(&result_axes)))
}

/// Writes pooling with a sliding window; the data is given, as another operator may have computed it.
pub fn windows(c: &mut Call<'_, '_>, op: &str, data: &Operand) -> Result<Operand> {
    let axes = c.rank(0)?.saturating_sub(2);
    let (kernel, strides) = (c.params.per_axis("pool_size", axes), c.params.per_axis("strides", axes));
    let dilations = c.params.per_axis("dilation", axes);
    let pads = c.params.padding(axes);
    let pads: Vec<i64> = pads.iter().map(|pad| pad.0).chain(pads.iter().map(|pad| pad.1)).collect();
    let mut attributes = Vec::new();
    if c.params.bool("ceil_mode") {
        if op == "LpPool" {
            c.since(18, "ceil_mode of LpPool")?;
        }
        check_last_windows(c, [&kernel, &strides, &dilations], &c.params.padding(axes))?;
        attributes.push(int("ceil_mode", 1));
    }
    if op == "AveragePool" && c.params.bool("count_include_pad") {
        attributes.push(int("count_include_pad", 1));
    }
    if dilations.iter().any(|&dilation| dilation != 1) {
        match op {
            "AveragePool" => c.since(19, "dilations of AveragePool")?,
            "LpPool" => c.since(18, "dilations of LpPool")?,
            _ => {}
        }
        attributes.push(ints("dilations", &dilations));
    }
    attributes.push(ints("kernel_shape", &kernel));
    if op == "LpPool" {
        attributes.push(int("p", c.params.int("p")));
    }
    attributes.extend([ints("pads", &pads), ints("strides", &strides)]);
    pooled(c, op, data, attributes)
}

/// Checks that the last window of each axis begins in the data or in the padding before it. ONNX leaves out one that begins
/// in the padding after the data; Relay does not.
fn check_last_windows(c: &Call<'_, '_>, [kernel, strides, dilations]: [&[i64]; 3], pads: &[(i64, i64)]) -> Result<()> {
    let axes = canonical(&c.params.string("layout"), "NC", kernel.len())?;
    for (i, &(before, after)) in pads.iter().enumerate() {
        let Some(size) = axes.get(i + 2).and_then(|&axis| c.ty(0).ok()?.dims.get(axis)?.fixed()) else { continue };
        let extent = (kernel[i] - 1) * dilations[i] + 1;
        let rest = size as i64 + before + after - extent;
        let last = (rest + strides[i] - 1).div_euclid(strides[i].max(1)) * strides[i];
        if rest > 0 && last >= size as i64 + before {
            return Err(Refusal::new("a last window in the padding, by ceil_mode, has no form in ONNX"));
        }
    }
    Ok(())
}

/// Returns the type in which ONNX pools elements of a type.
fn computed_type(dtype: DType, op: &str) -> DType {
    match dtype {
        DType::I8 | DType::U8 if op == "MaxPool" => dtype,
        dtype if dtype.is_float() => dtype,
        _ => DType::F64,
    }
}

fn sliding(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let dtype = c.dtype(0)?;
    let computed = computed_type(dtype, op);
    let data = c.cast(&c.arg(0)?, dtype, computed)?;
    let result = windows(c, op, &data)?;
    single(c.cast(&result, computed, dtype)?)
}

fn global(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let dtype = c.dtype(0)?;
    let computed = if dtype.is_float() { dtype } else { DType::F64 };
    let data = c.cast(&c.arg(0)?, dtype, computed)?;
    let result = pooled(c, op, &data, Vec::new())?;
    single(c.cast(&result, computed, dtype)?)
}

/// Writes adaptive pooling: to one element per plane, or with windows that all have the same size.
fn adaptive(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let axes = c.rank(0)?.saturating_sub(2);
    let data_axes = canonical(&c.params.string("layout"), "NC", axes)?;
    let sizes = c.params.ints("output_size");
    let size = |i: usize| sizes.get(i).or(sizes.last()).copied();
    if (0..axes).all(|i| size(i) == Some(1)) {
        return global(c, if op == "MaxPool" { "GlobalMaxPool" } else { "GlobalAveragePool" });
    }
    let mut windows = Vec::new();
    for (i, &axis) in data_axes[2..].iter().enumerate() {
        let from = c.ty(0)?.dims[axis].fixed().and_then(|dim| i64::try_from(dim).ok());
        let (Some(from), Some(to)) = (from, size(i).or(from)) else {
            return Err(Refusal::new("adaptive pooling of unknown dimensions"));
        };
        if to < 1 || from % to != 0 {
            return Err(Refusal::new(format!("windows of different sizes: {from} elements to {to}")));
        }
        windows.push(from / to);
    }
    let x = c.arg(0)?;
    single(pooled(c, op, &x, vec![ints("kernel_shape", &windows), ints("strides", &windows)])?)
}
