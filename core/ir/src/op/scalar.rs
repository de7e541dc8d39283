//! Exact arithmetic on one element, for the references: integers are computed in 128 bits and wrapped to their type,
//! floats are computed in binary64 and rounded once.

use crate::tensor::{
    DType, Element, F4E2M1Fn, F8E4M3Fn, F8E4M3FnUz, F8E5M2, F8E5M2FnUz, F8E8M0Fnu, I2, I4, TensorView, TensorViewMut,
    U2, U4,
};
use crate::with_dtype;
use half::{bf16, f16};
use std::cmp::Ordering;

/// Number of elements that a reference converts at a time.
pub(super) const BLOCK: usize = 256;

/// Element type with conversions from and to `i128`.
trait Scalar: Element {
    /// Converts to an integer; floats truncate toward zero and saturate.
    fn to_int(self) -> i128;
    /// Converts from an integer: wraps to an integer type, rounds to the nearest value of a floating-point type.
    fn from_int(value: i128) -> Self;
}

macro_rules! scalars {
    ($($ty:ty)*) => {$(
        impl Scalar for $ty {
            fn to_int(self) -> i128 { self as i128 }
            fn from_int(value: i128) -> Self { value as $ty }
        }
    )*};
}

scalars! { f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 }

macro_rules! half_scalars {
    ($($ty:ty)*) => {$(
        impl Scalar for $ty {
            fn to_int(self) -> i128 { self.to_f64() as i128 }
            fn from_int(value: i128) -> Self { <$ty>::from_f64(value as f64) }
        }
    )*};
}

half_scalars! { f16 bf16 F8E4M3Fn F8E4M3FnUz F8E5M2 F8E5M2FnUz F8E8M0Fnu F4E2M1Fn }

macro_rules! small_scalars {
    ($($ty:ty)*) => {$(
        impl Scalar for $ty {
            fn to_int(self) -> i128 { i128::from(self.0) }
            fn from_int(value: i128) -> Self { <$ty>::wrapping(value) }
        }
    )*};
}

small_scalars! { I4 U4 I2 U2 }

/// Returns the width of an integer type in bits; a longer shift has the same result as a shift by the width.
pub(super) fn bits(dtype: DType) -> i128 {
    dtype.bits() as i128
}

/// Reader of tensor elements of any type, without rounding. Only the conversions are monomorphized per element type;
/// the references that use a reader are compiled once.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    data: &'a [u8],
    is_float: bool,
    float: fn(&[u8], usize) -> f64,
    floats: fn(&[u8], usize, usize, &mut [f64]),
    int: fn(&[u8], usize) -> i128,
}

impl<'a> Reader<'a> {
    /// Creates a reader of a view.
    pub fn new(view: &TensorView<'a>) -> Reader<'a> {
        let (data, is_float) = (view.data, view.dtype.is_float() || view.dtype.is_small_float());
        with_dtype!(view.dtype, T => Reader {
            data, is_float, float: float_at::<T>, floats: floats_at::<T>, int: int_at::<T>,
        })
    }

    /// Returns true if the elements are floats.
    pub fn is_float(&self) -> bool {
        self.is_float
    }

    /// Returns element `i` in binary64.
    pub fn float(&self, i: usize) -> f64 {
        (self.float)(self.data, i)
    }

    /// Reads elements from `i` on, `step` apart, in binary64.
    pub fn floats(&self, i: usize, step: usize, values: &mut [f64]) {
        (self.floats)(self.data, i, step, values);
    }

    /// Returns element `i` as an integer; floats truncate toward zero and saturate.
    pub fn int(&self, i: usize) -> i128 {
        (self.int)(self.data, i)
    }

    /// Returns true if element `i` is nonzero or NaN.
    pub fn is_nonzero(&self, i: usize) -> bool {
        self.float(i) != 0.0
    }

    /// Compares element `i` with element `j` of `other`, which has the same element type; `None` if either is NaN.
    pub fn compare(&self, i: usize, other: &Reader<'_>, j: usize) -> Option<Ordering> {
        if self.is_float { self.float(i).partial_cmp(&other.float(j)) } else { Some(self.int(i).cmp(&other.int(j))) }
    }
}

/// Writer of tensor elements of any type: each value is rounded once, Booleans are normalized to 0 or 1.
pub(super) struct Writer<'a> {
    data: &'a mut [u8],
    len: usize,
    is_float: bool,
    is_bool: bool,
    /// True for integers of fewer than 8 bits, for which the conversion from a float wraps instead of saturating.
    wraps: bool,
    set_float: fn(&mut [u8], usize, f64),
    set_floats: fn(&mut [u8], usize, &[f64]),
    set_int: fn(&mut [u8], usize, i128),
}

impl<'a> Writer<'a> {
    /// Creates a writer of a view.
    pub fn new(view: &'a mut TensorViewMut<'_>) -> Writer<'a> {
        let (len, is_bool, wraps) = (view.len(), view.dtype == DType::Bool, view.dtype.is_small_int());
        let is_float = view.dtype.is_float() || view.dtype.is_small_float();
        let data = &mut *view.data;
        with_dtype!(view.dtype, T => Writer {
            data, len, is_float, is_bool, wraps,
            set_float: set_float_at::<T>, set_floats: set_floats_at::<T>, set_int: set_int_at::<T>,
        })
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the elements are floats.
    pub fn is_float(&self) -> bool {
        self.is_float
    }

    /// Stores `value` as element `i`: rounded to the nearest value of a floating-point type; truncated toward zero and
    /// saturated for an integer type.
    pub fn set_float(&mut self, i: usize, value: f64) {
        (self.set_float)(self.data, i, value);
        self.normalize(i);
    }

    /// Stores values as the elements from `i` on, each as [`set_float`](Writer::set_float) does.
    pub fn set_floats(&mut self, i: usize, values: &[f64]) {
        (self.set_floats)(self.data, i, values);
        if self.is_bool {
            (i..i + values.len()).for_each(|i| self.normalize(i));
        }
    }

    /// Stores `value` as element `i`: wrapped to an integer type, rounded to nearest for a floating-point type.
    pub fn set_int(&mut self, i: usize, value: i128) {
        (self.set_int)(self.data, i, value);
        self.normalize(i);
    }

    /// Converts element `j` of `source` to element `i`, as a C cast does. A float saturates in an integer type of at
    /// least 8 bits and wraps in a smaller type; a conversion to Boolean yields true for every nonzero value.
    pub fn convert(&mut self, i: usize, source: &Reader<'_>, j: usize) {
        if self.is_bool {
            self.data[i] = u8::from(source.is_nonzero(j));
        } else if source.is_float && !self.wraps {
            self.set_float(i, source.float(j));
        } else {
            self.set_int(i, source.int(j));
        }
    }

    /// Stores values in order, each rounded once.
    pub fn store(&mut self, values: impl IntoIterator<Item = f64>) {
        for (i, value) in (0..self.len).zip(values) {
            self.set_float(i, value);
        }
    }

    fn normalize(&mut self, i: usize) {
        if self.is_bool {
            self.data[i] = u8::from(self.data[i] != 0);
        }
    }
}

fn load<T: Scalar>(data: &[u8], i: usize) -> T {
    bytemuck::pod_read_unaligned(&data[i * size_of::<T>()..][..size_of::<T>()])
}

fn float_at<T: Scalar>(data: &[u8], i: usize) -> f64 {
    load::<T>(data, i).to_f64()
}

fn floats_at<T: Scalar>(data: &[u8], i: usize, step: usize, values: &mut [f64]) {
    for (k, value) in values.iter_mut().enumerate() {
        *value = float_at::<T>(data, i + k * step);
    }
}

fn int_at<T: Scalar>(data: &[u8], i: usize) -> i128 {
    load::<T>(data, i).to_int()
}

fn set_float_at<T: Scalar>(data: &mut [u8], i: usize, value: f64) {
    data[i * size_of::<T>()..][..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&T::from_f64(value)));
}

fn set_floats_at<T: Scalar>(data: &mut [u8], i: usize, values: &[f64]) {
    for (k, &value) in values.iter().enumerate() {
        set_float_at::<T>(data, i + k, value);
    }
}

fn set_int_at<T: Scalar>(data: &mut [u8], i: usize, value: i128) {
    data[i * size_of::<T>()..][..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&T::from_int(value)));
}

/// Returns the maximum of `a` and `b`, or NaN if either is NaN.
pub(super) fn max_or_nan(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// Returns the minimum of `a` and `b`, or NaN if either is NaN.
pub(super) fn min_or_nan(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}
