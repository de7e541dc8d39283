//! Quantized operators as C: contractions of integers minus their zero points, and conversions between scales.
//!
//! The results are those of the operator reference to the bit: requantization in 64-bit fixed point with the
//! multiplier of `fixed_point`, quantization in float32.

use crate::elementwise::{c_type, cast, literal};
use crate::schedule::contraction::Types;
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Op, RegionIr, Val};

/// Elementwise operators of the QNN dialect.
const ELEMENTWISE: &[&str] = &["qnn.quantize", "qnn.dequantize", "qnn.requantize"];

/// Returns true for an elementwise operator of the QNN dialect.
pub fn is_elementwise(name: &str) -> bool {
    ELEMENTWISE.contains(&name)
}

/// Returns the element types of a convolution or a matrix product.
pub fn types(ir: &RegionIr<'_>, op: &Op<'_>) -> Types {
    let dtype = |value: Val| ir.val(value).dtype;
    if !op.name.starts_with("qnn.") {
        return Types::FLOAT;
    }
    Types { a: dtype(op.inputs[0]), b: dtype(op.inputs[1]), sum: dtype(op.outputs[0]) }
}

/// Returns the zero point of the data of a contraction; 0 for an operator without zero points.
///
/// # Errors
/// If a zero point is not constant, or that of the weight is not 0.
pub fn zero_points(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<i64, String> {
    if !op.name.starts_with("qnn.") {
        return Ok(0);
    }
    let of = |i: usize| op.inputs.get(i).and_then(|&v| ir.constant_ints(v));
    let data = of(2).ok_or_else(|| format!("{}: expected a constant zero point of the data", op.name))?;
    let weight = of(3).ok_or_else(|| format!("{}: expected a constant zero point of the weight", op.name))?;
    if weight.iter().any(|&zero| zero != 0) {
        return Err(format!("{}: expected a zero point of 0 of the weight, found {weight:?}", op.name));
    }
    match data[..] {
        [zero] => Ok(zero),
        _ => Err(format!("{}: expected one zero point of the data, found {}", op.name, data.len())),
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

/// Formats `x - zero point`, saturated to int32.
fn difference(dtype: DType, x: &str, zero: &str) -> String {
    match zero {
        "0" => format!("(int32_t){x}"),
        _ if dtype == DType::I32 => format!("byoc_difference({x}, {zero})"),
        _ => format!("((int32_t){x} - ({zero}))"),
    }
}

/// Returns a C expression for an elementwise quantized operator; for `qnn.requantize` the arguments are the data, the
/// multiplier, the shift and the two zero points, as [`multipliers`] computes them.
pub fn expression(ir: &RegionIr<'_>, op: &Op<'_>, args: &[String]) -> Option<String> {
    let (from, to) = (ir.val(op.inputs[0]).dtype, ir.val(op.outputs[0]).dtype);
    let rounding = op.attrs().text("rounding");
    match (op.name, args) {
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
        ("qnn.requantize", [x, by @ .., from_zero, to_zero]) => {
            let value = difference(from, x, from_zero);
            let scaled = match by {
                [] => value,
                [ratio] => {
                    let round = match rounding {
                        "TONEAREST" => format!("roundf((float){value} * {ratio})"),
                        "TOEVEN" => format!("rintf((float){value} * {ratio})"),
                        _ => format!("floorf((float){value} * {ratio} + 0.5f)"),
                    };
                    let add = if to_zero == "0" { String::new() } else { format!(" + (float)({to_zero})") };
                    range(to)?;
                    let real = format!("({round}{add})");
                    return if to == DType::I32 { cast(DType::F32, to, &real) } else { Some(cast_once(to, &real)) };
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
            Some(format!("({})byoc_clamp({scaled}, {to_zero}, {low}, {high})", c_type(to)?))
        }
        _ => None,
    }
}

/// Formats a saturating conversion that evaluates `x` once.
fn cast_once(to: DType, x: &str) -> String {
    let bits = i32::from(to.bits);
    let (low, high) = if to.code == 1 {
        (0.0, 2f64.powi(bits) - 1.0)
    } else {
        (-(2f64.powi(bits - 1)), 2f64.powi(bits - 1) - 1.0)
    };
    let ty = c_type(to).unwrap_or("int8_t");
    format!("({ty})byoc_saturate({x}, {}, {})", literal(DType::F32, low), literal(DType::F32, high))
}

/// Rescaling of one channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rescale {
    /// Equal scales.
    Same,
    /// Product with `multiplier`, shifted right by `shift` bits with rounding.
    Fixed {
        /// Fraction with 31 bits after the binary point.
        multiplier: i32,
        /// Bits of the shift, in 1..=62.
        shift: i32,
    },
    /// Product in float32.
    Float(f32),
}

/// Returns the rescaling of a `qnn.requantize`, one per channel or one for all.
///
/// # Errors
/// If a scale is not constant, or a ratio of scales is out of range.
pub fn multipliers(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<Vec<Rescale>, String> {
    let scales = |i: usize| {
        let constant = op.inputs.get(i).and_then(|&v| ir.constant(v));
        let (_, constant) = constant.ok_or_else(|| format!("{}: expected constant scales", op.name))?;
        Ok::<Vec<f32>, String>(constant.tensor().as_slice::<f32>().to_vec())
    };
    let (input, output) = (scales(1)?, scales(3)?);
    let n = input.len().max(output.len());
    if input.is_empty() || output.is_empty() {
        return Err(format!("{}: expected at least one scale", op.name));
    }
    let pairs: Vec<(f32, f32)> =
        (0..n).map(|i| (input[i.min(input.len() - 1)], output[i.min(output.len() - 1)])).collect();
    if pairs.iter().all(|(a, b)| a == b) {
        return Ok(vec![Rescale::Same]);
    }
    let float = op.attrs().text("compute_dtype") == "float32";
    pairs.into_iter().map(|(a, b)| if float { Ok(Rescale::Float(a / b)) } else { fixed_point(a, b) }).collect()
}

/// Returns the ratio of two scales as a fixed-point multiplier: `multiplier * 2^-shift`, with 31 significant bits.
fn fixed_point(input: f32, output: f32) -> Result<Rescale, String> {
    let ratio = f64::from(input) / f64::from(output);
    if !ratio.is_finite() || ratio <= 0.0 {
        return Err(format!("expected finite scales above 0, found {input} and {output}"));
    }
    // The fraction of `frexp`, in [0.5, 1): scales of float32 have normal ratios in float64.
    let bits = ratio.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1022;
    let fraction = f64::from_bits((bits & !(0x7ff << 52)) | (1022 << 52));
    let mut multiplier = (fraction * f64::from(1u32 << 31)).round() as i64;
    if multiplier == 1 << 31 {
        (multiplier, exponent) = (1 << 30, exponent + 1);
    }
    match 31 - exponent {
        shift @ 1..=62 => Ok(Rescale::Fixed { multiplier: multiplier as i32, shift }),
        // Every product of an int32 rounds to 0.
        shift if shift > 62 => Ok(Rescale::Fixed { multiplier: 0, shift: 1 }),
        _ => Err(format!("expected a ratio of scales below 2^30, found {ratio}")),
    }
}
