//! Arithmetic of the naive references: binary64 for floating-point tensors, 64-bit integers (which wrap, like Relay's
//! machine integers) for integer tensors, so that an int8 convolution into int32 is exact.

use super::scalar::Writer;
use crate::tensor::{DType, TensorView, TensorViewMut};

/// Accumulator for sums of products.
pub(super) trait Sum: Copy + PartialOrd {
    /// The empty sum.
    const ZERO: Self;
    /// Loads all elements of a tensor.
    fn load(view: &TensorView<'_>) -> Vec<Self>;
    /// Returns `self + a * b`.
    fn plus_product(self, a: Self, b: Self) -> Self;
    /// Returns `self + a`.
    fn plus(self, a: Self) -> Self;
    /// Stores all elements, rounded (or wrapped) once.
    fn store(values: &[Self], out: &mut TensorViewMut<'_>);
}

impl Sum for f64 {
    const ZERO: f64 = 0.0;

    fn load(view: &TensorView<'_>) -> Vec<f64> {
        view.to_f64s()
    }

    #[inline(always)]
    fn plus_product(self, a: f64, b: f64) -> f64 {
        self + a * b
    }

    #[inline(always)]
    fn plus(self, a: f64) -> f64 {
        self + a
    }

    fn store(values: &[f64], out: &mut TensorViewMut<'_>) {
        Writer::new(out).store(values.iter().copied());
    }
}

impl Sum for i64 {
    const ZERO: i64 = 0;

    fn load(view: &TensorView<'_>) -> Vec<i64> {
        match view.dtype {
            DType::U64 => view.as_slice::<u64>().iter().map(|&v| v as i64).collect(),
            _ => view.to_i64s().unwrap_or_else(|| view.to_f64s().iter().map(|&v| v as i64).collect()),
        }
    }

    #[inline(always)]
    fn plus_product(self, a: i64, b: i64) -> i64 {
        self.wrapping_add(a.wrapping_mul(b))
    }

    #[inline(always)]
    fn plus(self, a: i64) -> i64 {
        self.wrapping_add(a)
    }

    fn store(values: &[i64], out: &mut TensorViewMut<'_>) {
        let mut out = Writer::new(out);
        for (i, &value) in values.iter().enumerate() {
            out.set_int(i, i128::from(value));
        }
    }
}

/// Evaluates `$body` with `$A` as the accumulator type of tensors of `$dtype`.
macro_rules! with_sum {
    ($dtype:expr, $A:ident => $body:expr) => {
        if $dtype.is_float() {
            type $A = f64;
            $body
        } else {
            type $A = i64;
            $body
        }
    };
}
pub(super) use with_sum;
