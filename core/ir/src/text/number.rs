//! Numeric literals: parsing of numbers with suffixes, and printing of scalars.
//!
//! Relay writes `i16 i32 i64` and `f16 f32 f64`; the suffixes of the remaining element types (`i8`, `u8`, `u16`, `u32`,
//! `u64`, `bf16`) are additions, so that every scalar can be written inline. Literals in patterns have the same syntax.

use crate::tensor::{DType, Element, Tensor};
use half::{bf16, f16};

/// Numeric literal as written in the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer and its element type.
    Int(i128, DType),
    /// A float, not rounded yet, and its element type.
    Float(f64, DType),
}

/// Parses a literal (`42`, `42i16`, `1e-3f`), negated if `is_negative`.
///
/// # Errors
/// If the suffix is missing or unknown, or the value does not fit the element type.
pub fn parse(text: &str, is_negative: bool) -> Result<Number, String> {
    let bytes = text.as_bytes();
    let mut end = bytes.iter().position(|b| !b.is_ascii_digit() && *b != b'.').unwrap_or(bytes.len());
    if bytes.get(end).is_some_and(|b| matches!(b, b'e' | b'E')) {
        let sign = usize::from(bytes.get(end + 1).is_some_and(|b| matches!(b, b'+' | b'-')));
        let digits = bytes[end + 1 + sign..].iter().take_while(|b| b.is_ascii_digit()).count();
        if digits > 0 {
            end += 1 + sign + digits;
        }
    }
    let (digits, suffix) = text.split_at(end);
    let sign = if is_negative { "-" } else { "" };
    let is_integral = digits.bytes().all(|b| b.is_ascii_digit());
    let dtype = match suffix {
        "" if is_integral => None,
        "" => return Err(format!("expected a float with a suffix such as {text}f, found {text}")),
        "i" | "i32" => Some(DType::I32),
        "i8" => Some(DType::I8),
        "i16" => Some(DType::I16),
        "i64" => Some(DType::I64),
        "u8" => Some(DType::U8),
        "u16" => Some(DType::U16),
        "u32" => Some(DType::U32),
        "u64" => Some(DType::U64),
        "f" | "f32" => Some(DType::F32),
        "f16" => Some(DType::F16),
        "f64" => Some(DType::F64),
        "bf16" => Some(DType::BF16),
        _ => return Err(format!("unknown suffix \"{suffix}\" in the number {text}")),
    };
    if let Some(dtype) = dtype.filter(|d| d.is_float()) {
        let value: f64 = digits.parse().map_err(|_| format!("expected a number, found {text}"))?;
        if value.is_infinite() {
            return Err(format!("expected a number that fits float64, found {sign}{text}"));
        }
        return Ok(Number::Float(if is_negative { -value } else { value }, dtype));
    }
    if !is_integral {
        return Err(format!("expected an integer before the suffix {suffix}, found {text}"));
    }
    let value = digits.parse::<i128>().map(|v| if is_negative { -v } else { v });
    let value = value.map_err(|_| format!("expected an integer that fits int64 or uint64, found {sign}{text}"))?;
    let dtype = dtype.unwrap_or(if i32::try_from(value).is_ok() { DType::I32 } else { DType::I64 });
    let is_in_range = crate::with_dtype!(dtype, T => is_in_range::<T>(value));
    match is_in_range {
        true => Ok(Number::Int(value, dtype)),
        false => Err(format!("expected an integer that fits {dtype}, found {sign}{text}")),
    }
}

/// Returns true if the element type can represent the value. (64-bit integers are compared as integers.)
fn is_in_range<T: Element>(value: i128) -> bool {
    match T::DTYPE {
        DType::I64 => i64::try_from(value).is_ok(),
        DType::U64 => u64::try_from(value).is_ok(),
        _ => T::from_f64(value as f64).to_f64() == value as f64 && value.unsigned_abs() < 1 << 33,
    }
}

/// Parses `inff`, `nanf` and their forms with a width (`inff16`), which the lexer reads as names.
pub fn special(text: &str, is_negative: bool) -> Option<Number> {
    let (value, suffix) = match text {
        _ if text.starts_with("inf") => (f64::INFINITY, &text[3..]),
        _ if text.starts_with("nan") || text.starts_with("NaN") => (f64::NAN, &text[3..]),
        _ => return None,
    };
    let dtype = match suffix {
        "f" | "f32" => DType::F32,
        "f16" => DType::F16,
        "f64" => DType::F64,
        "bf16" => DType::BF16,
        _ => return None,
    };
    Some(Number::Float(if is_negative { -value } else { value }, dtype))
}

impl Number {
    /// Converts the number to a scalar tensor.
    ///
    /// # Errors
    /// If a float exceeds the range of its element type.
    pub fn to_tensor(self) -> Result<Tensor, String> {
        match self {
            Number::Int(value, dtype) => Ok(match dtype {
                DType::I64 => Tensor::scalar(value as i64),
                DType::U64 => Tensor::scalar(value as u64),
                _ => crate::with_dtype!(dtype, T => Tensor::scalar(<T as Element>::from_f64(value as f64))),
            }),
            Number::Float(value, dtype) => {
                let rounded = crate::with_dtype!(dtype, T => <T as Element>::from_f64(value).to_f64());
                // 65505 rounds to 65504, the largest float16, but Relay accepts no literal above it.
                let is_overflow = dtype == DType::F16 && value.abs() > f16::MAX.to_f64();
                if value.is_finite() && (rounded.is_infinite() || is_overflow) {
                    return Err(format!("expected a number that fits {dtype}, found {value:e}"));
                }
                Ok(crate::with_dtype!(dtype, T => Tensor::scalar(<T as Element>::from_f64(value))))
            }
        }
    }
}

/// Writes a scalar inline. Returns false for a tensor that has no inline form: one with dimensions, or a NaN with a
/// payload.
pub(super) fn write_scalar(tensor: &Tensor, out: &mut String) -> bool {
    use std::fmt::Write;
    if !tensor.shape().is_empty() {
        return false;
    }
    let dtype = tensor.dtype();
    let suffix = match dtype {
        DType::I32 => "",
        DType::I64 => "i64",
        DType::I16 => "i16",
        DType::I8 => "i8",
        DType::U8 => "u8",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
        DType::F32 => "f",
        DType::F16 => "f16",
        DType::F64 => "f64",
        DType::BF16 => "bf16",
        DType::Bool => {
            let text = match tensor.bytes() {
                [0] => "False",
                [1] => "True",
                _ => return false,
            };
            out.push_str(text);
            return true;
        }
        _ => return false,
    };
    let start = out.len();
    // Writing to a string cannot fail.
    let _ = match dtype {
        DType::I64 => write!(out, "{}", tensor.as_slice::<i64>()[0]),
        DType::U64 => write!(out, "{}", tensor.as_slice::<u64>()[0]),
        DType::F64 => write_float(out, tensor.as_slice::<f64>()[0]),
        DType::F32 => write!(out, "{:?}", tensor.as_slice::<f32>()[0]),
        DType::F16 => write!(out, "{:?}", tensor.as_slice::<f16>()[0].to_f32()),
        DType::BF16 => write!(out, "{:?}", tensor.as_slice::<bf16>()[0].to_f32()),
        _ => write!(out, "{}", tensor.view().to_f64s()[0]),
    };
    if dtype.is_float() {
        if out.ends_with(".0") {
            out.truncate(out.len() - 2);
        }
        if out[start..].contains("NaN") {
            // Only the NaN that `nanf` denotes is preserved bit for bit.
            let parsed = Number::Float(f64::NAN, dtype).to_tensor();
            out.truncate(start);
            if parsed.is_ok_and(|parsed| parsed == *tensor) {
                out.push_str("nan");
            } else {
                return false;
            }
        }
    }
    out.push_str(suffix);
    true
}

fn write_float(out: &mut String, value: f64) -> std::fmt::Result {
    use std::fmt::Write;
    write!(out, "{value:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_and_ranges() {
        assert_eq!(parse("1", false), Ok(Number::Int(1, DType::I32)));
        assert_eq!(parse("2147483648", false), Ok(Number::Int(2147483648, DType::I64)));
        assert_eq!(parse("2147483648", true), Ok(Number::Int(-2147483648, DType::I32)));
        assert_eq!(parse("42i16", false), Ok(Number::Int(42, DType::I16)));
        assert_eq!(parse("1e-3f", false), Ok(Number::Float(1e-3, DType::F32)));
        assert_eq!(parse("3f16", false), Ok(Number::Float(3.0, DType::F16)));
        for invalid in ["2147483648i32", "32768i16", "1.5", "1.5i", "1q", "9223372036854775808", "256u8"] {
            assert!(parse(invalid, false).is_err(), "{invalid}");
        }
        for invalid in ["3.40283e+38f32", "65505f16"] {
            assert!(parse(invalid, false).unwrap().to_tensor().is_err(), "{invalid}");
        }
        assert!(parse("1u8", true).is_err());
        assert_eq!(special("inff", true), Some(Number::Float(f64::NEG_INFINITY, DType::F32)));
        assert_eq!(special("infinity", false), None);
    }

    #[test]
    fn scalars_round_trip() {
        let mut values: Vec<Tensor> = vec![
            Tensor::scalar(-0.0f32),
            Tensor::scalar(f32::MIN_POSITIVE / 4.0),
            Tensor::scalar(f32::MAX),
            Tensor::scalar(f32::NAN),
            Tensor::scalar(1e-5f32),
            Tensor::scalar(0.1f64),
            Tensor::scalar(f64::NEG_INFINITY),
            Tensor::scalar(i64::MIN),
            Tensor::scalar(u64::MAX),
            Tensor::scalar(-128i8),
        ];
        values.extend((0..=u16::MAX).map(|bits| Tensor::scalar(f16::from_bits(bits))));
        values.extend((0..=u16::MAX).map(|bits| Tensor::scalar(bf16::from_bits(bits))));
        let mut inline = 0;
        for value in &values {
            let mut text = String::new();
            if !write_scalar(value, &mut text) {
                continue;
            }
            inline += 1;
            let (digits, negative) = match text.strip_prefix('-') {
                Some(magnitude) => (magnitude, true),
                None => (text.as_str(), false),
            };
            let number = special(digits, negative).map_or_else(|| parse(digits, negative), Ok);
            assert_eq!(number.and_then(Number::to_tensor).as_ref(), Ok(value), "{text}");
        }
        assert!(inline > 128_000, "all but NaNs with a payload are written inline");
    }
}
