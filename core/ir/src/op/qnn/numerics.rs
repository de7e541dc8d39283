//! Requantization of integers: multiplication by the ratio of the scales, in fixed point or in binary32.

use crate::tensor::DType;

/// Tie-breaking rule for rounding to the nearest integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Ties toward the larger integer.
    Upward,
    /// Ties away from zero.
    ToNearest,
    /// Ties to the even integer.
    ToEven,
}

impl Rounding {
    /// Parses the value of the attribute `rounding`.
    pub fn parse(name: &str) -> Option<Rounding> {
        match name {
            "UPWARD" => Some(Rounding::Upward),
            "TONEAREST" => Some(Rounding::ToNearest),
            "TOEVEN" => Some(Rounding::ToEven),
            _ => None,
        }
    }

    /// Rounds `x` to an integer.
    #[inline(always)]
    pub fn round(self, x: f32) -> f32 {
        match self {
            Rounding::Upward => (x + 0.5).floor(),
            Rounding::ToNearest => x.round(),
            Rounding::ToEven => x.round_ties_even(),
        }
    }
}

/// Ratio of scales as multiplier * 2^(exponent - 31), with 2^30 <= multiplier < 2^31 (or 0 for 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedPoint {
    /// Fraction with 31 bits after the binary point.
    pub multiplier: i32,
    /// Exponent of the power of two.
    pub exponent: i32,
}

impl FixedPoint {
    /// Computes the ratio of two finite, positive scales, like Relay's `GetFixedPointMultiplierShift`.
    pub fn ratio(input: f32, output: f32) -> FixedPoint {
        let (fraction, exponent) = libm::frexp(f64::from(input) / f64::from(output));
        match (fraction * f64::from(1u32 << 31)).round() as i64 {
            // A fraction of at least 1 - 2^-32 rounds up to the next power of two.
            0x8000_0000 => FixedPoint { multiplier: 1 << 30, exponent: exponent + 1 },
            multiplier => FixedPoint { multiplier: multiplier as i32, exponent },
        }
    }

    /// Multiplies `value` by the ratio exactly, then rounds and saturates once.
    pub fn apply(self, value: i32, rounding: Rounding) -> i32 {
        // Beyond these bounds the result saturates, or is zero.
        let (left, right) = (self.exponent.clamp(0, 63), (-self.exponent).clamp(0, 63));
        let product = (i128::from(value) << left) * i128::from(self.multiplier);
        let (half, shift) = (1i128 << (30 + right), 31 + right);
        let rounded = match rounding {
            Rounding::Upward => (product + half) >> shift,
            Rounding::ToNearest => (product + half - i128::from(product < 0)) >> shift,
            Rounding::ToEven => (product + half - 1 + (product >> shift & 1)) >> shift,
        };
        saturate(rounded)
    }
}

/// Saturates to `int32`.
pub fn saturate(value: i128) -> i32 {
    value.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as i32
}

/// Method of requantizing `int32` values from one scale to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rescale {
    /// No multiplication, for equal scales.
    Same,
    /// Multiplication by the ratio of the scales in 64-bit fixed point.
    Fixed(FixedPoint, Rounding),
    /// Multiplication by the ratio of the scales in binary32.
    Float(f32, Rounding),
}

/// Requantizes `value`, from which its zero point has been subtracted, to the output's scale and zero point, saturating
/// to the range `out`.
pub fn rescale(value: i32, factor: Rescale, zero_point: i32, out: (i64, i64)) -> i64 {
    let scaled_value = match factor {
        Rescale::Same => value,
        Rescale::Fixed(ratio, rounding) => ratio.apply(value, rounding),
        Rescale::Float(ratio, rounding) => {
            let real_value = rounding.round(value as f32 * ratio) + zero_point as f32;
            return (real_value as i64).clamp(out.0, out.1);
        }
    };
    (i64::from(scaled_value) + i64::from(zero_point)).clamp(out.0, out.1)
}

/// Returns the minimum and the maximum of an integer type of at most 32 bits.
pub fn range(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::U8 => (0, u8::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::U16 => (0, u16::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        _ => (i32::MIN.into(), i32::MAX.into()),
    }
}
