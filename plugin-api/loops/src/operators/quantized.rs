//! Quantized operators: integer contractions with the zero points subtracted, and conversions to, from and between
//! quantized types.
//!
//! The results match the operator reference bit for bit: requantization uses 64-bit fixed point with the multiplier
//! from `fixed_point`, or float32 if the operator requests it; quantization uses float32.

use crate::nest::Expr;
use crate::types::{Types, integer_range};
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Op, RegionIr, Val};

/// Conversions to, from and between quantized types. Their scales and zero points may be vectors along an axis.
const CONVERSIONS: &[&str] = &["qnn.quantize", "qnn.dequantize", "qnn.requantize"];

/// Binary operators on quantized tensors.
const BINARY_OPERATORS: &[&str] = &["qnn.add", "qnn.subtract", "qnn.mul"];

/// Returns true for an elementwise operator of the QNN dialect.
pub fn is_elementwise(name: &str) -> bool {
    is_conversion(name) || BINARY_OPERATORS.contains(&name)
}

/// Returns true for a quantization, a dequantization or a requantization.
pub fn is_conversion(name: &str) -> bool {
    CONVERSIONS.contains(&name)
}

/// Returns the element types of a convolution or a matrix product.
pub fn types(ir: &RegionIr<'_>, op: &Op<'_>) -> Types {
    let dtype = |value: Val| ir.val(value).dtype;
    if !op.name.starts_with("qnn.") {
        return Types { a: dtype(op.inputs[0]), b: dtype(op.inputs[1]), sum: DType::F32 };
    }
    Types { a: dtype(op.inputs[0]), b: dtype(op.inputs[1]), sum: dtype(op.outputs[0]) }
}

/// Returns the zero point of a contraction's data; 0 for an operator without zero points.
///
/// # Errors
/// If a zero point is non-constant, the weight's zero point is nonzero, or the data has several zero points.
pub fn zero_points(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<i64, String> {
    if !op.name.starts_with("qnn.") {
        return Ok(0);
    }
    let integers = |i: usize| op.inputs.get(i).and_then(|&v| ir.constant_ints(v));
    let data = integers(2)
        .ok_or_else(|| format!("{}: expected a constant zero point for the data, found a runtime value", op.name))?;
    let weight = integers(3)
        .ok_or_else(|| format!("{}: expected a constant zero point for the weight, found a runtime value", op.name))?;
    if weight.iter().any(|&zero| zero != 0) {
        return Err(format!("{}: expected a zero point of 0 for the weight, found {weight:?}", op.name));
    }
    match data[..] {
        [zero] => Ok(zero),
        _ => Err(format!("{}: expected one zero point for the data, found {}", op.name, data.len())),
    }
}

/// Returns the minimum and the maximum of an integer type of at most 32 bits.
fn range(dtype: DType) -> Option<[Expr; 2]> {
    let is_small = matches!(dtype, DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32);
    let (low, high) = integer_range(dtype);
    is_small.then(|| [low, high].map(|bound| Expr::Integer(DType::I32, bound as i128)))
}

fn is_zero(value: &Expr) -> bool {
    matches!(value, Expr::Integer(_, 0))
}

/// Returns an int32.
pub fn integer(value: i64) -> Expr {
    Expr::Integer(DType::I32, value.into())
}

fn single(value: f32) -> Expr {
    Expr::Number(DType::F32, value.into())
}

/// Returns `x - zero`, saturated to int32.
pub fn difference(dtype: DType, x: &Expr, zero: &Expr) -> Expr {
    let wide = x.clone().cast(DType::I32);
    match dtype {
        _ if is_zero(zero) => wide,
        DType::I32 => Expr::Call("byoc_difference", vec![x.clone(), zero.clone()]),
        _ => wide - zero.clone(),
    }
}

/// Returns `x + zero`, limited to the range of an integer type and converted to it.
fn clamp(to: DType, x: Expr, zero: Expr) -> Option<Expr> {
    let [low, high] = range(to)?;
    Some(Expr::Call("byoc_clamp", vec![x, zero, low, high]).cast(to))
}

/// Returns a rounded float32 plus a zero point, converted with saturation; NaN becomes 0.
fn saturated(to: DType, rounded: Expr, zero: &Expr) -> Option<Expr> {
    let value = if is_zero(zero) { rounded } else { rounded + zero.clone().cast(DType::F32) };
    range(to)?;
    let (low, high) = integer_range(to);
    let bounds = [low, high].map(|bound| Expr::Number(DType::F32, bound));
    Some(match to {
        DType::I32 => Expr::Call("byoc_saturate32", vec![value]),
        _ => Expr::Call("byoc_saturate", [value].into_iter().chain(bounds).collect()).cast(to),
    })
}

/// Returns an elementwise quantized operator. For `qnn.requantize`, the arguments are the data, the parameters of the
/// [`Rescale`], and the two zero points.
pub fn expression(ir: &RegionIr<'_>, op: &Op<'_>, args: &[Expr]) -> Option<Expr> {
    let (from, to) = (ir.val(op.inputs[0]).dtype, ir.val(op.outputs[0]).dtype);
    let rounding = op.attrs().text("rounding");
    match (op.name, args) {
        (name, [x, y, ..]) if BINARY_OPERATORS.contains(&name) => binary(ir, op, x, y),
        ("qnn.quantize", [x, scale, zero]) if from == DType::F32 => {
            let round = if rounding == "TOEVEN" { "round_to_even" } else { "round" };
            saturated(to, Expr::Math(round, DType::F32, vec![x.clone() / scale.clone()]), zero)
        }
        ("qnn.dequantize", [x, scale, zero]) if to == DType::F32 => {
            range(from)?;
            Some(difference(from, x, zero).cast(DType::F32) * scale.clone())
        }
        ("qnn.requantize", [x, ratio_args @ .., from_zero, to_zero]) => {
            let value = difference(from, x, from_zero);
            let rescaled_value = match ratio_args {
                [] => value,
                [ratio] => {
                    let product = value.cast(DType::F32) * ratio.clone();
                    let rounded = match rounding {
                        "TONEAREST" => Expr::Math("round", DType::F32, vec![product]),
                        "TOEVEN" => Expr::Math("round_to_even", DType::F32, vec![product]),
                        _ => Expr::Math("floor", DType::F32, vec![product + single(0.5)]),
                    };
                    return saturated(to, rounded, to_zero);
                }
                [multiplier, shift, ..] => {
                    let name = match rounding {
                        "TONEAREST" => "byoc_rescale_nearest",
                        "TOEVEN" => "byoc_rescale_even",
                        _ => "byoc_rescale_upward",
                    };
                    Expr::Call(name, vec![value, multiplier.clone(), shift.clone()])
                }
            };
            clamp(to, rescaled_value, to_zero.clone())
        }
        _ => None,
    }
}

/// Returns the only element of a float32 constant.
pub fn scale(ir: &RegionIr<'_>, value: Val) -> Option<f32> {
    let (_, constant) = ir.constant(value)?;
    let is_scalar = constant.dtype() == DType::F32 && constant.shape().iter().product::<usize>() == 1;
    is_scalar.then(|| constant.tensor().as_slice::<f32>()[0])
}

/// Returns the only element of an integer constant.
pub fn zero_point(ir: &RegionIr<'_>, value: Val) -> Option<i64> {
    match ir.constant_ints(value)?[..] {
        [zero] => Some(zero),
        _ => None,
    }
}

/// Returns the sum, the difference or the product of two quantized tensors with per-tensor scales and zero points.
fn binary(ir: &RegionIr<'_>, op: &Op<'_>, x: &Expr, y: &Expr) -> Option<Expr> {
    let dtype = ir.val(op.outputs[0]).dtype;
    let scales = |i: usize| scale(ir, *op.inputs.get(i)?);
    let zeros = |i: usize| zero_point(ir, *op.inputs.get(i)?);
    let (out_scale, out_zero) = (scales(6)?, zeros(7)?);
    let rescaled = |value: Expr, scale: f32| -> Option<Expr> {
        Some(match single_rescale(scale, out_scale).ok()? {
            Rescale::Fixed { multiplier, shift } => {
                Expr::Call("byoc_rescale_upward", vec![value, integer(multiplier.into()), integer(shift.into())])
            }
            _ => value,
        })
    };
    if op.name == "qnn.mul" {
        let (a, b) = (difference(dtype, x, &integer(zeros(3)?)), difference(dtype, y, &integer(zeros(5)?)));
        let product = Expr::Call("byoc_int32", vec![a.cast(DType::I64) * b]);
        return clamp(dtype, rescaled(product, scales(2)? * scales(4)?)?, integer(out_zero));
    }
    let [wide_low, wide_high] = range(DType::I32)?;
    let rescale = |x: &Expr, scale: f32, zero: i64| -> Option<Expr> {
        if scale == out_scale && zero == out_zero {
            return Some(x.clone().cast(DType::I32));
        }
        let value = rescaled(difference(dtype, x, &integer(zero)), scale)?;
        let bounds = [wide_low.clone(), wide_high.clone()];
        Some(match out_zero {
            0 => value,
            _ => Expr::Call("byoc_clamp", [value, integer(out_zero)].into_iter().chain(bounds).collect()),
        })
    };
    let (a, b) = (rescale(x, scales(2)?, zeros(3)?)?, rescale(y, scales(4)?, zeros(5)?)?);
    let function = if op.name == "qnn.add" { "byoc_sum" } else { "byoc_subtraction" };
    let [low, high] = range(dtype)?;
    Some(Expr::Call(function, vec![a, b, integer(out_zero), low, high]).cast(dtype))
}

/// Returns the requantization from scale `input` to scale `output`.
fn single_rescale(input: f32, output: f32) -> Result<Rescale, String> {
    if input == output { Ok(Rescale::Same) } else { fixed_point(input, output) }
}

/// Returns a float32 value, quantized with halves rounded away from zero.
pub fn quantized(dtype: DType, x: Expr, scale: f32, zero: i64) -> Option<Expr> {
    saturated(dtype, Expr::Math("round", DType::F32, vec![x / single(scale)]), &integer(zero))
}

/// Requantization of one channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rescale {
    /// Equal scales: values are unchanged.
    Same,
    /// Multiplication by `multiplier`, then a rounding right shift by `shift` bits.
    Fixed {
        /// Fraction with 31 bits after the binary point.
        multiplier: i32,
        /// Shift in bits, in 1..=62.
        shift: i32,
    },
    /// Multiplication in float32.
    Float(f32),
}

/// Returns one requantization per channel for a `qnn.requantize`, or a single one for the whole tensor.
///
/// # Errors
/// If a scale is missing or non-constant, or a ratio of scales is out of range.
pub fn multipliers(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<Vec<Rescale>, String> {
    let scales = |i: usize| {
        let constant = op.inputs.get(i).and_then(|&v| ir.constant(v));
        let (_, constant) =
            constant.ok_or_else(|| format!("{}: expected constant scales, found runtime values", op.name))?;
        Ok::<Vec<f32>, String>(constant.tensor().as_slice::<f32>().to_vec())
    };
    let (input, output) = (scales(1)?, scales(3)?);
    let n = input.len().max(output.len());
    if input.is_empty() || output.is_empty() {
        return Err(format!("{}: expected at least one scale, found none", op.name));
    }
    let pairs: Vec<(f32, f32)> =
        (0..n).map(|i| (input[i.min(input.len() - 1)], output[i.min(output.len() - 1)])).collect();
    if pairs.iter().all(|(a, b)| a == b) {
        return Ok(vec![Rescale::Same]);
    }
    let is_float = op.attrs().text("compute_dtype") == "float32";
    pairs.into_iter().map(|(a, b)| if is_float { Ok(Rescale::Float(a / b)) } else { fixed_point(a, b) }).collect()
}

/// Returns the ratio of two scales as a fixed-point multiplier: `multiplier * 2^-shift`, with 31 significant bits.
fn fixed_point(input: f32, output: f32) -> Result<Rescale, String> {
    let ratio = f64::from(input) / f64::from(output);
    if !ratio.is_finite() || ratio <= 0.0 {
        return Err(format!("expected finite scales > 0, found {input} and {output}"));
    }
    // Fraction in [0.5, 1), as returned by `frexp`. The bit manipulation requires a normal float64, which every ratio
    // of float32 scales is.
    let bits = ratio.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1022;
    let fraction = f64::from_bits((bits & !(0x7ff << 52)) | (1022 << 52));
    let mut multiplier = (fraction * f64::from(1u32 << 31)).round() as i64;
    if multiplier == 1 << 31 {
        (multiplier, exponent) = (1 << 30, exponent + 1);
    }
    match 31 - exponent {
        shift @ 1..=62 => Ok(Rescale::Fixed { multiplier: multiplier as i32, shift }),
        // The product with any int32 rounds to 0.
        shift if shift > 62 => Ok(Rescale::Fixed { multiplier: 0, shift: 1 }),
        _ => Err(format!("expected a ratio of scales < 2^30, found {ratio}")),
    }
}
