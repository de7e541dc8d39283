//! Arithmetic of the naive references: binary64 for floating-point tensors, 64-bit integers (which wrap, like Relay's
//! machine integers) for the others, so that an int8 convolution into int32 is exact.

use crate::tensor::{DType, Element, TensorView, TensorViewMut};
use crate::with_dtype;

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
        with_dtype!(out.dtype, T => {
            for (o, &v) in out.as_mut_slice::<T>().iter_mut().zip(values) {
                *o = T::from_f64(v);
            }
        });
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
        macro_rules! wrap {
            ($ty:ty) => {
                for (o, &v) in out.as_mut_slice::<$ty>().iter_mut().zip(values) {
                    *o = v as $ty;
                }
            };
        }
        match out.dtype {
            DType::I8 => wrap!(i8),
            DType::I16 => wrap!(i16),
            DType::I32 => wrap!(i32),
            DType::I64 => wrap!(i64),
            DType::U8 | DType::Bool => wrap!(u8),
            DType::U16 => wrap!(u16),
            DType::U32 => wrap!(u32),
            DType::U64 => wrap!(u64),
            DType::F64 | DType::F32 | DType::F16 | DType::BF16 => {
                let floats: Vec<f64> = values.iter().map(|&v| v as f64).collect();
                f64::store(&floats, out);
            }
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
