//! Fuses a quantized convolution or matrix product with the conversion to real numbers and the bias that follow, as
//! dynamic quantization writes them: multiply(cast(product), scale) + bias.

use super::calls::{as_called_op, channel_axis, constant, is_8_bit};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{AttrValue, Attrs, Call, Dim, ExprId, Module};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Rebuild;

type Result<T, E = Box<Diagnostic>> = std::result::Result<T, E>;

/// Fuses the multiplication of accumulators, cast to float32, by a scale that may be known in a run only.
pub(super) fn multiply(
    rebuild: &mut Rebuild<'_>,
    call: &Call,
    is_single_use: &dyn Fn(ExprId) -> bool,
) -> Result<Option<ExprId>> {
    let source = rebuild.old;
    for (real, scale) in [(call.args[0], call.args[1]), (call.args[1], call.args[0])] {
        let Some(("cast", cast)) = as_called_op(source, real) else { continue };
        let product = cast.args[0];
        if !is_single_use(real) || !is_single_use(product) || dtype(source, real) != Some(DType::F32) {
            continue;
        }
        if let Some(value) = fuse(rebuild, product, scale, None)? {
            rebuild.inherit_origin(value, source.nodes[real].origin);
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// Fuses the dequantization of accumulators.
pub(super) fn dequantize(
    rebuild: &mut Rebuild<'_>,
    call: &Call,
    is_single_use: &dyn Fn(ExprId) -> bool,
) -> Result<Option<ExprId>> {
    let (source, product) = (rebuild.old, call.args[0]);
    let is_zero = |zero: &Tensor| zero.as_slice::<i32>().iter().all(|&zero| zero == 0);
    let is_float = call.attrs.get("out_dtype").is_none_or(|dtype| dtype.as_str() == Some("float32"));
    if !is_single_use(product) || !is_float || !constant(source, call.args[2]).is_some_and(is_zero) {
        return Ok(None);
    }
    let axis = call.attrs.get("axis").and_then(AttrValue::as_int).unwrap_or(-1);
    fuse(rebuild, product, call.args[1], Some(axis))
}

/// Adds a bias, by `add` or `nn.bias_add`, to the fused operator that produces an operand.
pub(super) fn add_bias(
    rebuild: &mut Rebuild<'_>,
    call: &Call,
    name: &str,
    is_single_use: &dyn Fn(ExprId) -> bool,
) -> Result<Option<ExprId>> {
    let axis = (name == "nn.bias_add").then(|| call.attrs.get("axis").and_then(AttrValue::as_int).unwrap_or(1));
    for (operand, bias) in [(call.args[0], call.args[1]), (call.args[1], call.args[0])] {
        let producer = rebuild.get(operand);
        let Some((name, fused)) = as_called_op(&rebuild.new.module, producer) else { continue };
        let is_free = |bias: &Tensor| bias.as_slice::<f32>().iter().all(|&value| value == 0.0);
        if !name.ends_with("_dequantize")
            || !is_single_use(operand)
            || !constant(&rebuild.new.module, fused.args[2]).is_some_and(is_free)
        {
            continue;
        }
        let (mut args, attrs) = (fused.args.clone(), fused.attrs.clone());
        let Some(shape) = Channels::of(&rebuild.new.module, producer, name, &attrs) else { continue };
        let Some(bias) = shape.vector(rebuild, bias, axis)?.filter(|&(_, is_vector)| is_vector) else { continue };
        args[2] = bias.0;
        let origin = rebuild.new.module.nodes[producer].origin;
        let value = rebuild.new.op(name, &args, attrs)?;
        rebuild.inherit_origin(value, origin);
        return Ok(Some(value));
    }
    Ok(None)
}

fn dtype(module: &Module, id: ExprId) -> Option<DType> {
    module.ty(id).as_tensor().map(|ty| ty.dtype)
}

/// Axis and number of the output channels of a product.
struct Channels {
    rank: usize,
    axis: usize,
    count: usize,
}

impl Channels {
    fn of(module: &Module, id: ExprId, name: &str, attrs: &Attrs) -> Option<Channels> {
        let ty = module.ty(id).as_tensor()?;
        let rank = ty.dims.len();
        let axis = if name.contains("conv2d") { channel_axis(attrs) } else { rank.checked_sub(1)? };
        Some(Channels { rank, axis, count: ty.dims.get(axis)?.fixed()? })
    }

    /// Returns a value of the old module as a scalar or as a vector along the channels, if it is float32 and broadcasts
    /// like one; true for a vector. `axis` is the axis of a vector, if it does not broadcast from the last one.
    fn vector(&self, rebuild: &mut Rebuild<'_>, value: ExprId, axis: Option<i64>) -> Result<Option<(ExprId, bool)>> {
        let Some(ty) = rebuild.old.ty(value).as_tensor() else { return Ok(None) };
        let Some(shape) = ty.dims.iter().map(Dim::fixed).collect::<Option<Vec<usize>>>() else { return Ok(None) };
        if ty.dtype != DType::F32 || shape.len() > self.rank {
            return Ok(None);
        }
        let is_one = shape.iter().all(|&size| size == 1);
        let first = match axis {
            Some(axis) if shape.len() == 1 => (if axis < 0 { axis + self.rank as i64 } else { axis }) as usize,
            _ => self.rank - shape.len(),
        };
        let is_along = |(i, &size): (usize, &usize)| size == if first + i == self.axis { self.count } else { 1 };
        let is_vector = self.count > 1 || shape.len() == 1 && first == self.axis;
        let is_vector = is_vector && !shape.is_empty() && shape.iter().enumerate().all(is_along);
        if !is_one && !is_vector {
            return Ok(None);
        }
        let value = rebuild.get(value);
        let target: &[i64] = if is_vector { &[self.count as i64] } else { &[] };
        if shape.len() == target.len() {
            return Ok(Some((value, is_vector)));
        }
        let attrs = Attrs::new([("newshape", AttrValue::ints(target.iter().copied()))]);
        Ok(Some((rebuild.new.op("reshape", &[value], attrs)?, is_vector)))
    }
}

/// Replaces a product of 8-bit integers by one that scales its accumulators.
fn fuse(rebuild: &mut Rebuild<'_>, product: ExprId, scale: ExprId, axis: Option<i64>) -> Result<Option<ExprId>> {
    let source = rebuild.old;
    let Some((name, inner)) = as_called_op(source, product) else { return Ok(None) };
    let fused = match name {
        "qnn.conv2d" => "qnn.contrib_conv2d_dequantize",
        "qnn.dense" => "qnn.contrib_dense_dequantize",
        _ => return Ok(None),
    };
    if dtype(source, product) != Some(DType::I32) || !inner.args[..2].iter().all(|&arg| is_8_bit(source, arg)) {
        return Ok(None);
    }
    let Some(channels) = Channels::of(source, product, name, &inner.attrs) else { return Ok(None) };
    let Some((scale, _)) = channels.vector(rebuild, scale, axis)? else { return Ok(None) };
    let Ok(bias) = Tensor::zeros(DType::F32, &[channels.count]) else { return Ok(None) };
    let bias = rebuild.new.constant(bias);
    let [data, weight, zero_point, kernel_zero_point] = [0, 1, 2, 3].map(|i| rebuild.get(inner.args[i]));
    let args = [data, weight, bias, zero_point, kernel_zero_point, scale];
    let value = rebuild.new.op(fused, &args, inner.attrs.with("out_dtype", DType::F32))?;
    rebuild.inherit_origin(value, source.nodes[product].origin);
    Ok(Some(value))
}
