//! Quantized operators as C: integer contractions with the zero points subtracted, and conversions to, from and between
//! quantized types.
//!
//! The results match the operator reference bit for bit: requantization uses 64-bit fixed point with the multiplier
//! from `fixed_point`, or float32 if the operator requests it; quantization uses float32.

use crate::literals::{c_type, cast, literal};
use crate::schedule::contraction::Types;
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
fn range(dtype: DType) -> Option<(&'static str, &'static str)> {
    Some(match dtype {
        DType::I8 => ("INT8_MIN", "INT8_MAX"),
        DType::U8 => ("0", "UINT8_MAX"),
        DType::I16 => ("INT16_MIN", "INT16_MAX"),
        DType::U16 => ("0", "UINT16_MAX"),
        DType::I32 => ("INT32_MIN", "INT32_MAX"),
        _ => return None,
    })
}

/// Formats `x - zero`, saturated to int32.
fn difference(dtype: DType, x: &str, zero: &str) -> String {
    match zero {
        "0" => format!("(int32_t){x}"),
        _ if dtype == DType::I32 => format!("byoc_difference({x}, {zero})"),
        _ => format!("((int32_t){x} - ({zero}))"),
    }
}

/// Returns a C expression for an elementwise quantized operator. For `qnn.requantize`, the arguments are the data, the
/// parameters of the [`Rescale`], and the two zero points.
pub fn expression(ir: &RegionIr<'_>, op: &Op<'_>, args: &[String]) -> Option<String> {
    let (from, to) = (ir.val(op.inputs[0]).dtype, ir.val(op.outputs[0]).dtype);
    let rounding = op.attrs().text("rounding");
    match (op.name, args) {
        (name, [x, y, ..]) if BINARY_OPERATORS.contains(&name) => binary(ir, op, x, y),
        ("qnn.quantize", [x, scale, zero]) if from == DType::F32 => {
            let round = if rounding == "TOEVEN" { "rintf" } else { "roundf" };
            let add = if zero == "0" { String::new() } else { format!(" + (float)({zero})") };
            range(to)?;
            let value = format!("({round}({x} / {scale}){add})");
            // The conversion saturates; NaN becomes 0.
            (to != DType::I32).then(|| cast_once(to, &value)).or_else(|| cast(DType::F32, to, &value))
        }
        ("qnn.dequantize", [x, scale, zero]) if to == DType::F32 => {
            range(from)?;
            Some(format!("(float){} * {scale}", difference(from, x, zero)))
        }
        ("qnn.requantize", [x, ratio_args @ .., from_zero, to_zero]) => {
            let value = difference(from, x, from_zero);
            let rescaled_value = match ratio_args {
                [] => value,
                [ratio] => {
                    let round = match rounding {
                        "TONEAREST" => format!("roundf((float){value} * {ratio})"),
                        "TOEVEN" => format!("rintf((float){value} * {ratio})"),
                        _ => format!("floorf((float){value} * {ratio} + 0.5f)"),
                    };
                    let add = if to_zero == "0" { String::new() } else { format!(" + (float)({to_zero})") };
                    range(to)?;
                    let float_value = format!("({round}{add})");
                    return if to == DType::I32 {
                        cast(DType::F32, to, &float_value)
                    } else {
                        Some(cast_once(to, &float_value))
                    };
                }
                [multiplier, shift, ..] => {
                    let mode = match rounding {
                        "TONEAREST" => "nearest",
                        "TOEVEN" => "even",
                        _ => "upward",
                    };
                    format!("byoc_rescale_{mode}({value}, {multiplier}, {shift})")
                }
            };
            let (low, high) = range(to)?;
            Some(format!("({})byoc_clamp({rescaled_value}, {to_zero}, {low}, {high})", c_type(to)?))
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

/// Returns a C expression for the sum, the difference or the product of two quantized tensors with per-tensor scales
/// and zero points.
fn binary(ir: &RegionIr<'_>, op: &Op<'_>, x: &str, y: &str) -> Option<String> {
    let dtype = ir.val(op.outputs[0]).dtype;
    let (ty, (low, high)) = (c_type(dtype)?, range(dtype)?);
    let scales = |i: usize| scale(ir, *op.inputs.get(i)?);
    let zeros = |i: usize| zero_point(ir, *op.inputs.get(i)?);
    let (out_scale, out_zero) = (scales(6)?, zeros(7)?);
    if op.name == "qnn.mul" {
        let (a, b) = (difference(dtype, x, &zeros(3)?.to_string()), difference(dtype, y, &zeros(5)?.to_string()));
        let product = format!("byoc_int32((int64_t){a} * {b})");
        let rescaled_value = match single_rescale(scales(2)? * scales(4)?, out_scale).ok()? {
            Rescale::Fixed { multiplier, shift } => format!("byoc_rescale_upward({product}, {multiplier}, {shift})"),
            _ => product,
        };
        return Some(format!("({ty})byoc_clamp({rescaled_value}, {out_zero}, {low}, {high})"));
    }
    let rescale = |x: &str, scale: f32, zero: i64| -> Option<String> {
        if scale == out_scale && zero == out_zero {
            return Some(format!("(int32_t){x}"));
        }
        let value = difference(dtype, x, &zero.to_string());
        let rescaled_value = match single_rescale(scale, out_scale).ok()? {
            Rescale::Fixed { multiplier, shift } => format!("byoc_rescale_upward({value}, {multiplier}, {shift})"),
            _ => value,
        };
        Some(if out_zero == 0 {
            rescaled_value
        } else {
            format!("byoc_clamp({rescaled_value}, {out_zero}, INT32_MIN, INT32_MAX)")
        })
    };
    let (a, b) = (rescale(x, scales(2)?, zeros(3)?)?, rescale(y, scales(4)?, zeros(5)?)?);
    let function = if op.name == "qnn.add" { "byoc_sum" } else { "byoc_subtraction" };
    Some(format!("({ty}){function}({a}, {b}, {out_zero}, {low}, {high})"))
}

/// Returns the requantization from scale `input` to scale `output`.
fn single_rescale(input: f32, output: f32) -> Result<Rescale, String> {
    if input == output { Ok(Rescale::Same) } else { fixed_point(input, output) }
}

/// Returns a C expression that quantizes the float expression `x`, rounding halves away from zero.
pub fn quantized(dtype: DType, x: &str, scale: f32, zero: i64) -> String {
    let add = if zero == 0 { String::new() } else { format!(" + (float)({zero})") };
    cast_once(dtype, &format!("(roundf({x} / {}){add})", literal(DType::F32, f64::from(scale))))
}

/// Formats a saturating conversion that evaluates `x` once.
fn cast_once(to: DType, x: &str) -> String {
    let bits = i32::from(to.bits);
    let (low, high) =
        if to.code == 1 { (0.0, 2f64.powi(bits) - 1.0) } else { (-(2f64.powi(bits - 1)), 2f64.powi(bits - 1) - 1.0) };
    let ty = c_type(to).unwrap_or("int8_t");
    format!("({ty})byoc_saturate({x}, {}, {})", literal(DType::F32, low), literal(DType::F32, high))
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
