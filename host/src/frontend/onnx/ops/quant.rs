//! Quantisation as plain arithmetic, to the letter of the operators' definition.

use super::elementwise::half_to_even;
use super::{Fault, Node, Outputs, Row, attrs, one};
use byoc_core::ir::ExprId;
use byoc_core::tensor::DType;

pub const ROWS: &[Row] = &[
    ("DequantizeLinear", 10, dequantize),
    ("DynamicQuantizeLinear", 11, dynamic_quantize),
    ("QuantizeLinear", 10, quantize),
];

/// A scale or a zero point, laid along the axis when there is one for each place on it.
fn along(n: &mut Node<'_, '_>, value: ExprId, data: ExprId) -> Result<ExprId, Fault> {
    let (shape, rank) = (n.shape(value)?, n.rank(data)?);
    if n.int_attr("block_size", 0)? != 0 {
        return Err(n.bad("blocked quantisation is not supported"));
    }
    match shape[..] {
        [] => Ok(value),
        [1] => n.reshape(value, &[]),
        [size] => {
            let axis = n.axis(n.int_attr("axis", 1)?, rank)?;
            let mut wide = vec![1; rank];
            wide[axis] = size;
            n.reshape(value, &wide)
        }
        _ => Err(n.bad(format!("a scale or zero point of shape {:?}", shape.as_slice()))),
    }
}

/// (x - zero point) * scale.
fn dequantize(n: &mut Node<'_, '_>) -> Outputs {
    let (x, scale) = (n.input(0)?, n.input(1)?);
    let dtype = n.dtype(scale)?;
    let scale = along(n, scale, x)?;
    let mut value = n.cast(x, DType::I32)?;
    if let Some(zero) = n.maybe(2) {
        let zero = along(n, zero, x)?;
        let zero = n.cast(zero, DType::I32)?;
        value = n.plain("subtract", &[value, zero])?;
    }
    let value = n.cast(value, dtype)?;
    one(n.plain("multiply", &[value, scale])?)
}

/// The least and the greatest value of a type of at most 16 bits.
fn range(n: &Node<'_, '_>, dtype: DType) -> Result<(f64, f64), Fault> {
    match dtype {
        DType::I8 => Ok((-128.0, 127.0)),
        DType::U8 => Ok((0.0, 255.0)),
        DType::I16 => Ok((-32768.0, 32767.0)),
        DType::U16 => Ok((0.0, 65535.0)),
        other => Err(n.bad(format!("quantisation to {other} is not supported"))),
    }
}

/// saturate(round(x / scale) + zero point), halves to even.
fn quantize(n: &mut Node<'_, '_>) -> Outputs {
    let (x, scale) = (n.input(0)?, n.input(1)?);
    let wanted = match n.maybe(2) {
        Some(zero) => n.dtype(zero)?,
        None => match n.int_attr("output_dtype", 0)? {
            0 => DType::U8,
            number => crate::frontend::onnx::tensor::dtype(number as i32)
                .ok_or_else(|| n.bad(format!("element type number {number}")))?,
        },
    };
    let (low, high) = range(n, wanted)?;
    let scale = along(n, scale, x)?;
    let dtype = n.dtype(scale)?;
    let x = n.cast(x, dtype)?;
    let ratio = n.plain("divide", &[x, scale])?;
    let mut value = half_to_even(n, ratio)?;
    if let Some(zero) = n.maybe(2) {
        let zero = along(n, zero, x)?;
        let zero = n.cast(zero, dtype)?;
        value = n.plain("add", &[value, zero])?;
    }
    let value = n.op("clip", &[value], attrs![a_min: low, a_max: high])?;
    one(n.cast(value, wanted)?)
}

/// To uint8, by the range of the data itself (which is made to hold 0).
fn dynamic_quantize(n: &mut Node<'_, '_>) -> Outputs {
    let x = n.input(0)?;
    let dtype = n.dtype(x)?;
    let zero = n.scalar(dtype, 0.0);
    let max = n.plain("max", &[x])?;
    let max = n.plain("maximum", &[max, zero])?;
    let min = n.plain("min", &[x])?;
    let min = n.plain("minimum", &[min, zero])?;
    let width = n.plain("subtract", &[max, min])?;
    let scale = n.with_scalar("divide", width, 255.0)?;
    let below = n.plain("subtract", &[zero, min])?;
    let place = n.plain("divide", &[below, scale])?;
    let place = n.op("clip", &[place], attrs![a_min: 0.0, a_max: 255.0])?;
    let point = half_to_even(n, place)?;
    let ratio = n.plain("divide", &[x, scale])?;
    let whole = half_to_even(n, ratio)?;
    let moved = n.plain("add", &[whole, point])?;
    let value = n.op("clip", &[moved], attrs![a_min: 0.0, a_max: 255.0])?;
    Ok(vec![n.cast(value, DType::U8)?, scale, n.cast(point, DType::U8)?])
}
