//! Element types of fewer than 16 bits other than int8 and uint8. In memory each element occupies one byte; only files
//! pack several elements into a byte.

use super::dtype::{DType, Element};
use std::cmp::Ordering;
use std::fmt;

/// Interpretation of the encodings with the largest exponent, and of the encoding of negative zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Special {
    /// Infinities and NaNs, as in IEEE 754.
    Ieee,
    /// NaN where exponent and mantissa are all ones; no infinities.
    NanAtEnd,
    /// NaN at the encoding of negative zero; no infinities, no negative zero.
    NanAtNegativeZero,
    /// Neither infinities nor NaN.
    None,
}

/// Binary floating-point format with a sign.
#[derive(Clone, Copy, Debug)]
struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    special: Special,
}

impl Format {
    const fn new(exponent_bits: u32, mantissa_bits: u32, bias: i32, special: Special) -> Format {
        Format { exponent_bits, mantissa_bits, bias, special }
    }

    const fn sign(self) -> u8 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    const fn nan(self) -> u8 {
        match self.special {
            // A format without NaN converts NaN to negative zero, as ONNX does.
            Special::NanAtNegativeZero | Special::None => self.sign(),
            _ => self.sign() - 1,
        }
    }

    const fn infinity(self) -> u8 {
        ((1 << self.exponent_bits) - 1) << self.mantissa_bits
    }

    /// Returns the encoding of the largest finite number.
    const fn largest(self) -> u8 {
        match self.special {
            Special::Ieee => self.infinity() - 1,
            Special::NanAtEnd => self.sign() - 2,
            _ => self.sign() - 1,
        }
    }

    fn decode(self, code: u8) -> f64 {
        let magnitude = code & (self.sign() - 1);
        let is_nan = match self.special {
            Special::Ieee => magnitude > self.infinity(),
            Special::NanAtEnd => magnitude == self.sign() - 1,
            Special::NanAtNegativeZero => code == self.sign(),
            Special::None => false,
        };
        if is_nan {
            return f64::NAN;
        }
        let value = if self.special == Special::Ieee && magnitude == self.infinity() {
            f64::INFINITY
        } else {
            let mantissa = magnitude & ((1 << self.mantissa_bits) - 1);
            let exponent = i32::from(magnitude >> self.mantissa_bits);
            // Subnormal numbers have the exponent of the smallest normal number, without the implicit bit.
            let (significand, exponent) = match exponent {
                0 => (f64::from(mantissa), 1),
                _ => (f64::from(mantissa) + f64::from(1u32 << self.mantissa_bits), exponent),
            };
            significand * f64::powi(2.0, exponent - self.bias - self.mantissa_bits as i32)
        };
        if code & self.sign() == 0 { value } else { -value }
    }

    /// Returns the encoding of the nearest number, ties to even. A value beyond the largest finite number is encoded as
    /// that number if `is_saturating` is true, otherwise as infinity, or as NaN in a format without infinities.
    fn encode(self, value: f64, is_saturating: bool) -> u8 {
        if value.is_nan() {
            return self.nan();
        }
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        let with_sign = |magnitude: u8| match (self.special, magnitude) {
            (Special::NanAtNegativeZero, 0) => 0,
            _ => sign | magnitude,
        };
        let overflow_code = || match (is_saturating || self.special == Special::None, self.special) {
            (true, _) => with_sign(self.largest()),
            (false, Special::Ieee) => sign | self.infinity(),
            // Where NaN has the encoding of negative zero, the sign bit is part of the encoding.
            (false, Special::NanAtNegativeZero) => self.nan(),
            (false, _) => sign | self.nan(),
        };
        let size = value.abs();
        if size.is_infinite() {
            return overflow_code();
        }
        if size == 0.0 {
            return with_sign(0);
        }
        // Unit in the last place of the value's binade, but at least the unit of the subnormal numbers.
        let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(1 - self.bias);
        let unit = f64::powi(2.0, exponent - self.mantissa_bits as i32);
        let count = (size / unit).round_ties_even() as u32;
        // `count` includes the implicit bit; a carry increments the exponent.
        let field = (exponent + self.bias - 1) as u32;
        let magnitude = (field << self.mantissa_bits) + count;
        if magnitude > u32::from(self.largest()) { overflow_code() } else { with_sign(magnitude as u8) }
    }
}

const E4M3FN: Format = Format::new(4, 3, 7, Special::NanAtEnd);
const E4M3FNUZ: Format = Format::new(4, 3, 8, Special::NanAtNegativeZero);
const E5M2: Format = Format::new(5, 2, 15, Special::Ieee);
const E5M2FNUZ: Format = Format::new(5, 2, 16, Special::NanAtNegativeZero);
const E2M1FN: Format = Format::new(2, 1, 1, Special::None);

/// Rounding to a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerRounding {
    /// Toward larger powers.
    Up,
    /// Toward smaller powers.
    Down,
    /// To the nearest power, ties up.
    Nearest,
}

/// Returns the encoding in `float8_e8m0fnu`: `e` encodes 2^(e - 127), and 255 encodes NaN. A negative number has the
/// encoding of its magnitude.
pub fn encode_e8m0(value: f64, rounding: PowerRounding, is_saturating: bool) -> u8 {
    const NAN: u8 = 255;
    let size = value.abs();
    if value.is_nan() || (size.is_infinite() && !is_saturating) {
        return NAN;
    }
    if size.is_infinite() {
        return NAN - 1;
    }
    if size < f64::powi(2.0, -126) {
        let lower = f64::powi(2.0, -127);
        let rounds_up = match rounding {
            PowerRounding::Up => size > lower,
            PowerRounding::Down => false,
            PowerRounding::Nearest => size >= 1.5 * lower,
        };
        return u8::from(rounds_up);
    }
    let (exponent, fraction) = ((size.to_bits() >> 52) as i32 - 1023, size.to_bits() & ((1 << 52) - 1));
    let rounds_up = match rounding {
        PowerRounding::Up => fraction != 0,
        PowerRounding::Down => false,
        PowerRounding::Nearest => fraction >= 1 << 51,
    };
    match exponent + 127 + i32::from(rounds_up) {
        code if code <= 254 => code as u8,
        _ if is_saturating => NAN - 1,
        _ => NAN,
    }
}

fn decode_e8m0(code: u8) -> f64 {
    if code == 255 { f64::NAN } else { f64::powi(2.0, i32::from(code) - 127) }
}

/// Returns the encoding of a value in a small floating-point type; `None` for other types.
pub fn encode(dtype: DType, value: f64, rounding: PowerRounding, is_saturating: bool) -> Option<u8> {
    match dtype {
        DType::F8E4M3Fn => Some(E4M3FN.encode(value, is_saturating)),
        DType::F8E4M3FnUz => Some(E4M3FNUZ.encode(value, is_saturating)),
        DType::F8E5M2 => Some(E5M2.encode(value, is_saturating)),
        DType::F8E5M2FnUz => Some(E5M2FNUZ.encode(value, is_saturating)),
        DType::F8E8M0Fnu => Some(encode_e8m0(value, rounding, is_saturating)),
        DType::F4E2M1Fn => Some(E2M1FN.encode(value, is_saturating)),
        _ => None,
    }
}

macro_rules! floats {
    ($($name:ident $doc:literal, $decode:expr, $encode:expr;)*) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
        #[repr(transparent)]
        pub struct $name(pub u8);

        impl Element for $name {
            const DTYPE: DType = DType::$name;
            fn to_f64(self) -> f64 { ($decode)(self.0) }
            fn from_f64(value: f64) -> Self { $name(($encode)(value)) }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool { self.to_f64() == other.to_f64() }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> { self.to_f64().partial_cmp(&other.to_f64()) }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.to_f64().fmt(f) }
        }
    )*};
}

floats! {
    F8E4M3Fn "8-bit float with 4 exponent bits, without infinities.", |c| E4M3FN.decode(c), |v| E4M3FN.encode(v, true);
    F8E4M3FnUz "8-bit float with 4 exponent bits, without infinities or negative zero.",
        |c| E4M3FNUZ.decode(c), |v| E4M3FNUZ.encode(v, true);
    F8E5M2 "8-bit float with 5 exponent bits.", |c| E5M2.decode(c), |v| E5M2.encode(v, true);
    F8E5M2FnUz "8-bit float with 5 exponent bits, without infinities or negative zero.",
        |c| E5M2FNUZ.decode(c), |v| E5M2FNUZ.encode(v, true);
    F8E8M0Fnu "8-bit power of two.", decode_e8m0, |v| encode_e8m0(v, PowerRounding::Up, true);
    F4E2M1Fn "4-bit float.", |c| E2M1FN.decode(c & 15), |v| E2M1FN.encode(v, true);
}

macro_rules! integers {
    ($($name:ident $repr:ident $bits:literal $doc:literal;)*) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, bytemuck::Zeroable, bytemuck::Pod)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// Returns `value` wrapped to the range of the type.
            pub fn wrapping(value: i128) -> $name {
                const UNUSED: u32 = 8 - $bits;
                $name((value as $repr) << UNUSED >> UNUSED)
            }
        }

        impl Element for $name {
            const DTYPE: DType = DType::$name;
            fn to_f64(self) -> f64 { f64::from(self.0) }
            fn from_f64(value: f64) -> Self {
                const UNUSED: u32 = 8 - $bits;
                $name((value as $repr).clamp($repr::MIN >> UNUSED, $repr::MAX >> UNUSED))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) }
        }
    )*};
}

integers! {
    I4 i8 4 "4-bit signed integer.";
    U4 u8 4 "4-bit unsigned integer.";
    I2 i8 2 "2-bit signed integer.";
    U2 u8 2 "2-bit unsigned integer.";
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [Format; 5] = [E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ, E2M1FN];

    #[test]
    fn largest_and_smallest_numbers_are_those_of_the_formats() {
        // Maximum and minimum positive number of each format, from the papers that define the formats (OCP 8-bit
        // Floating Point, MX; Graphcore for fnuz).
        let table = [
            (448.0, f64::powi(2.0, -9)),
            (240.0, f64::powi(2.0, -10)),
            (57344.0, f64::powi(2.0, -16)),
            (57344.0, f64::powi(2.0, -17)),
            (6.0, 0.5),
        ];
        for (format, (largest, smallest)) in FORMATS.into_iter().zip(table) {
            assert_eq!(format.decode(format.largest()), largest, "{format:?}");
            assert_eq!(format.decode(1), smallest, "{format:?}");
            assert_eq!(format.decode(format.sign() | 1), -smallest, "{format:?}");
        }
        assert_eq!(E5M2.decode(0x7c), f64::INFINITY);
        assert!((0x7d..=0x7f).chain(0xfd..=0xff).all(|code| E5M2.decode(code).is_nan()));
        assert!(E4M3FN.decode(0x7f).is_nan() && E4M3FN.decode(0xff).is_nan());
        assert!(E4M3FNUZ.decode(0x80).is_nan() && E5M2FNUZ.decode(0x80).is_nan());
        let quarters: Vec<f64> = (0..8).map(|code| E2M1FN.decode(code)).collect();
        assert_eq!(quarters, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
    }

    #[test]
    fn every_code_survives_a_round_trip() {
        for format in FORMATS {
            for code in 0..=(format.sign() << 1).wrapping_sub(1) {
                let value = format.decode(code);
                let encoded = format.encode(value, false);
                assert!(encoded == code || (value.is_nan() && format.decode(encoded).is_nan()), "{format:?} {code}");
            }
        }
        for code in 0..=254 {
            assert_eq!(encode_e8m0(decode_e8m0(code), PowerRounding::Up, true), code);
        }
        assert!(decode_e8m0(encode_e8m0(f64::NAN, PowerRounding::Up, true)).is_nan());
    }

    #[test]
    fn rounds_to_the_nearest_number_and_ties_to_even() {
        for format in FORMATS {
            for code in 0..format.largest() {
                let (low, high) = (format.decode(code), format.decode(code + 1));
                let even_code = if code % 2 == 0 { code } else { code + 1 };
                let (half, little) = ((low + high) / 2.0, (high - low) / 64.0);
                assert_eq!(format.encode(half, true), even_code, "{format:?} {code}");
                assert_eq!(format.encode(half - little, true), code, "{format:?} {code}");
                assert_eq!(format.encode(half + little, true), code + 1, "{format:?} {code}");
            }
        }
    }

    #[test]
    fn numbers_beyond_the_range_saturate_or_overflow() {
        for format in FORMATS {
            let largest = format.decode(format.largest());
            assert_eq!(format.decode(format.encode(-1e9, true)), -largest);
            assert_eq!(format.decode(format.encode(f64::INFINITY, true)), largest);
        }
        assert_eq!(E5M2.decode(E5M2.encode(-1e9, false)), f64::NEG_INFINITY);
        assert!(E4M3FN.decode(E4M3FN.encode(1e9, false)).is_nan());
        assert_eq!(E4M3FNUZ.encode(-1e9, false), 0x80);
        assert_eq!((E4M3FN.encode(-0.0, true), E4M3FNUZ.encode(-0.0, true)), (0x80, 0));
    }

    #[test]
    fn powers_round_as_requested() {
        let code = |value, rounding| encode_e8m0(value, rounding, true);
        assert_eq!(code(3.0, PowerRounding::Up), 129);
        assert_eq!(code(3.0, PowerRounding::Down), 128);
        assert_eq!(code(2.9, PowerRounding::Nearest), 128);
        assert_eq!(code(3.0, PowerRounding::Nearest), 129);
        assert_eq!((code(0.0, PowerRounding::Up), code(f64::MAX, PowerRounding::Up)), (0, 254));
        assert_eq!(encode_e8m0(f64::MAX, PowerRounding::Up, false), 255);
    }

    #[test]
    fn integers_wrap_or_saturate() {
        assert_eq!((I4::wrapping(9).0, I4::wrapping(-9).0, U4::wrapping(17).0), (-7, 7, 1));
        assert_eq!((I2::wrapping(2).0, U2::wrapping(-1).0), (-2, 3));
        assert_eq!((I4::from_f64(100.0).0, I4::from_f64(-100.0).0, U2::from_f64(7.5).0), (7, -8, 3));
    }
}
