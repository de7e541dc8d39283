//! Element types: how each one is stored and computed, and the values of constants.

use byoc_plugin_api::{Constant, DType};

/// Element types of a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types {
    /// Type of `a`.
    pub a: DType,
    /// Type of `b`.
    pub b: DType,
    /// Type of the sums.
    pub sum: DType,
}

impl Types {
    /// Contraction in float32.
    pub const FLOAT: Types = Types { a: DType::F32, b: DType::F32, sum: DType::F32 };
}

/// Returns the computation type of an element type: float32 for float16, which exists only in memory.
pub fn computed(dtype: DType) -> DType {
    if dtype == DType::F16 { DType::F32 } else { dtype }
}

/// Returns true if the kernels of a device compute values of an element type. The dialects of kernels have a type for
/// each of them.
pub fn is_computed_on_device(dtype: DType) -> bool {
    let types = [DType::F32, DType::I8, DType::I32, DType::I64, DType::U8, DType::BOOL, DType::U32, DType::U64];
    types.contains(&computed(dtype))
}

/// Returns the minimum and the maximum of an integer type.
pub fn integer_range(dtype: DType) -> (f64, f64) {
    let bits = i32::from(dtype.bits);
    if dtype.code == 1 { (0.0, 2f64.powi(bits) - 1.0) } else { (-(2f64.powi(bits - 1)), 2f64.powi(bits - 1) - 1.0) }
}

/// Decodes a little-endian float16.
pub fn half(bits: [u8; 2]) -> f32 {
    let bits = u16::from_le_bytes(bits);
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let magnitude = match exponent {
        0 => mantissa * 2f32.powi(-24),
        31 if mantissa == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + mantissa) * 2f32.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// Returns the elements of a floating-point constant of at most 64 bits, in order; empty for other types.
pub fn floats(constant: &Constant) -> Vec<f64> {
    let bytes = constant.bytes();
    match constant.dtype() {
        DType::F16 => bytes.chunks_exact(2).map(|b| f64::from(half([b[0], b[1]]))).collect(),
        DType::F32 => constant.tensor().as_slice::<f32>().iter().map(|&x| f64::from(x)).collect(),
        DType::F64 => constant.tensor().as_slice::<f64>().to_vec(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::half;

    #[test]
    fn halves_have_their_values() {
        for (bits, value) in [
            (0u16, 0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (1, 2f32.powi(-24)),
            (0x03ff, 1023.0 * 2f32.powi(-24)),
            (0x7bff, 65504.0),
            (0xfc00, f32::NEG_INFINITY),
        ] {
            assert_eq!(half(bits.to_le_bytes()), value, "{bits:#x}");
        }
        assert!(half(0x7e00u16.to_le_bytes()).is_nan() && half(0x8000u16.to_le_bytes()).is_sign_negative());
    }
}
