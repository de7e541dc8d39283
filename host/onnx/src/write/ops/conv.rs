//! Convolutions and transposed convolutions. ONNX has batch and channels first; other layouts are permuted.

use super::super::call::{Call, Outputs};
use super::super::proto_parts::{int, ints};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::{Row, single};
use crate::proto::AttributeProto;
use byoc_ir::ir::TensorType;
use byoc_ir::op::spatial;
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("nn.conv1d", conv),
    ("nn.conv1d_transpose", transpose),
    ("nn.conv2d", conv),
    ("nn.conv2d_transpose", transpose),
    ("nn.conv3d", conv),
    ("nn.conv3d_transpose", transpose),
];

/// Returns the axes of a layout in the order of `leading` and the spatial axes.
pub fn canonical(layout: &str, leading: &str, axes: usize) -> Result<Vec<usize>> {
    let order = format!("{leading}{}", spatial::spatial(axes));
    spatial::positions(layout, &order)
        .ok_or_else(|| Refusal::new(format!("expected a layout of the axes {order}, found \"{layout}\"")))
}

/// Returns the permutation that undoes another one.
pub fn inverse(axes: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; axes.len()];
    axes.iter().enumerate().for_each(|(i, &axis)| inverse[axis] = i);
    inverse
}

/// Operands of a convolution with batch and channels first, its attributes, and the axes of the result.
pub struct Convolution {
    pub data: Operand,
    pub weight: Operand,
    pub attributes: Vec<AttributeProto>,
    /// Axes of the result in Relay, batch and channels first.
    result: Vec<usize>,
}

impl Convolution {
    /// Reads a call whose data and weight are given, as another operator may have computed them.
    pub fn of(c: &mut Call<'_, '_>, data: &Operand, weight: &Operand) -> Result<Convolution> {
        let axes = c.rank(0)?.saturating_sub(2);
        let is_transposed = c.params.def().name.ends_with("_transpose");
        let letters = if is_transposed && axes == 2 { "IO" } else { "OI" };
        let data_axes = canonical(&c.params.string("data_layout"), "NC", axes)?;
        let kernel_axes = canonical(&c.params.string("kernel_layout"), letters, axes)?;
        let result = match c.params.string("out_layout") {
            layout if layout.is_empty() => data_axes.clone(),
            layout => canonical(&layout, "NC", axes)?,
        };
        let pads = c.params.padding(axes);
        let pads: Vec<i64> = pads.iter().map(|pad| pad.0).chain(pads.iter().map(|pad| pad.1)).collect();
        let mut attributes = vec![
            ints("dilations", &c.params.per_axis("dilation", axes)),
            int("group", c.params.int("groups")),
            ints("pads", &pads),
            ints("strides", &c.params.per_axis("strides", axes)),
        ];
        attributes.extend(kernel_shape(c.ty(1)?, &kernel_axes[2..]));
        if is_transposed {
            attributes.push(ints("output_padding", &c.params.ints("output_padding")));
        }
        attributes.sort_by(|a, b| a.name.cmp(&b.name));
        let (data, weight) = (c.transpose(data, &data_axes), c.transpose(weight, &kernel_axes));
        Ok(Convolution { data, weight, attributes, result })
    }

    /// Moves the axes of a result to the layout that the call has.
    pub fn finish(&self, c: &mut Call<'_, '_>, result: &Operand) -> Operand {
        c.transpose(result, &inverse(&self.result))
    }
}

fn kernel_shape(weight: &TensorType, spatial: &[usize]) -> Option<AttributeProto> {
    let size = |&axis: &usize| i64::try_from(weight.dims.get(axis)?.fixed()?).ok();
    spatial.iter().map(size).collect::<Option<Vec<i64>>>().map(|shape| ints("kernel_shape", &shape))
}

fn conv(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (data, weight, result) = (c.arg(0)?, c.arg(1)?, c.result()?.dtype);
    let dtype = c.dtype(0)?;
    let is_narrow = |dtype: DType| matches!(dtype, DType::I8 | DType::U8);
    if is_narrow(dtype) && is_narrow(c.dtype(1)?) && result == DType::I32 {
        let Convolution { data, weight, attributes, result } = Convolution::of(c, &data, &weight)?;
        let sum = c.node("ConvInteger", &[data, weight], attributes);
        return single(c.transpose(&sum, &inverse(&result)));
    }
    // Integers of up to 24 bits are exact in float64.
    let computed = if dtype.is_float() { dtype } else { DType::F64 };
    let (data, weight) = (c.cast(&data, dtype, computed)?, c.cast(&weight, c.dtype(1)?, computed)?);
    let convolution = Convolution::of(c, &data, &weight)?;
    let inputs = [convolution.data.clone(), convolution.weight.clone()];
    let sum = c.node("Conv", &inputs, convolution.attributes.clone());
    let sum = convolution.finish(c, &sum);
    single(c.cast(&sum, computed, result)?)
}

fn transpose(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (data, weight, dtype) = (c.arg(0)?, c.arg(1)?, c.dtype(0)?);
    if !dtype.is_float() || c.result()?.dtype != dtype {
        return Err(Refusal::new(format!("a transposed convolution of {dtype}")));
    }
    let convolution = Convolution::of(c, &data, &weight)?;
    let inputs = [convolution.data.clone(), convolution.weight.clone()];
    let sum = c.node("ConvTranspose", &inputs, convolution.attributes.clone());
    single(convolution.finish(c, &sum))
}
