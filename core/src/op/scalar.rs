//! Exact arithmetic on one element, for the references: integers compute in 128 bits and wrap into their type,
//! floats compute in binary64 and round once.

use crate::tensor::{DType, Element, TensorViewMut};
use half::{bf16, f16};

/// An element whose integer value a reference can take and give without loss.
pub(super) trait Scalar: Element {
    /// True if it is one of the floating-point types.
    const IS_FLOAT: bool;
    /// The value as an integer; floats truncate toward zero and saturate.
    fn to_int(self) -> i128;
    /// The value modulo the type's range for integers, the nearest value for floats.
    fn from_int(value: i128) -> Self;

    /// Anything but zero is true; NaN is.
    fn truth(self) -> bool {
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

/// Bits of an integer type; shifts by as many or more leave nothing but the sign.
pub(super) fn bits(dtype: DType) -> i128 {
    dtype.size() as i128 * 8
}

/// Applies `float` in binary64 to floats, `int` in 128 bits to integers.
pub(super) fn unary<T: Scalar>(x: T, float: impl Fn(f64) -> f64, int: impl Fn(i128) -> i128) -> T {
    if T::IS_FLOAT { T::from_f64(float(x.to_f64())) } else { T::from_int(int(x.to_int())) }
}

/// Converts a value as a C cast does; floats saturate, a truth value is "not zero".
pub(super) fn convert<S: Scalar, D: Scalar>(x: S) -> D {
    match (S::IS_FLOAT, D::IS_FLOAT) {
        (true, _) => D::from_f64(x.to_f64()),
        (false, _) => D::from_int(x.to_int()),
    }
}

/// Makes every true value of a boolean tensor 1.
pub(super) fn tidy_booleans(output: &mut TensorViewMut<'_>) {
    if output.dtype == DType::Bool {
        output.data.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
}
