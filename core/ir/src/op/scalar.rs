//! Exact arithmetic on one element, for the references: integers are computed in 128 bits and wrapped to their type,
//! floats are computed in binary64 and rounded once.

use crate::tensor::{DType, Element, TensorViewMut};
use half::{bf16, f16};

/// Element with lossless conversion from and to integers.
pub(super) trait Scalar: Element {
    /// True if it is one of the floating-point types.
    const IS_FLOAT: bool;
    /// Converts to an integer; floats truncate toward zero and saturate.
    fn to_int(self) -> i128;
    /// Converts from an integer: modulo the range of an integer type, to the nearest value of a float type.
    fn from_int(value: i128) -> Self;

    /// Returns true for anything but zero, including NaN.
    fn is_nonzero(self) -> bool {
        self.to_f64() != 0.0
    }
}

macro_rules! scalars {
    ($float:literal: $($ty:ty)*) => {$(
        impl Scalar for $ty {
            const IS_FLOAT: bool = $float;
            fn to_int(self) -> i128 { self as i128 }
            fn from_int(value: i128) -> Self { value as $ty }
        }
    )*};
}

scalars! { true: f32 f64 }
scalars! { false: i8 i16 i32 i64 u8 u16 u32 u64 }

macro_rules! half_scalars {
    ($($ty:ty)*) => {$(
        impl Scalar for $ty {
            const IS_FLOAT: bool = true;
            fn to_int(self) -> i128 { self.to_f64() as i128 }
            fn from_int(value: i128) -> Self { <$ty>::from_f64(value as f64) }
        }
    )*};
}

half_scalars! { f16 bf16 }

/// Returns the number of bits of an integer type; shifts by that many or more leave only the sign.
pub(super) fn bits(dtype: DType) -> i128 {
    dtype.size() as i128 * 8
}

/// Applies `float` in binary64 to floats, `int` in 128 bits to integers.
pub(super) fn unary<T: Scalar>(x: T, float: impl Fn(f64) -> f64, int: impl Fn(i128) -> i128) -> T {
    if T::IS_FLOAT { T::from_f64(float(x.to_f64())) } else { T::from_int(int(x.to_int())) }
}

/// Converts a value like a C cast; floats saturate, a Boolean is "not zero".
pub(super) fn convert<S: Scalar, D: Scalar>(x: S) -> D {
    match (S::IS_FLOAT, D::IS_FLOAT) {
        (true, _) => D::from_f64(x.to_f64()),
        (false, _) => D::from_int(x.to_int()),
    }
}

/// Normalizes every true value of a Boolean tensor to 1.
pub(super) fn normalize_booleans(output: &mut TensorViewMut<'_>) {
    if output.dtype == DType::Bool {
        output.data.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
}
