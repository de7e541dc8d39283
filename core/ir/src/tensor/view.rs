//! Views of tensors: the operands and results of kernels. The caller owns the bytes.

use super::{DType, Element, element_count};

/// Read-only view of a dense row-major tensor.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Element type of the tensor.
    pub dtype: DType,
    /// Dimensions of the tensor.
    pub shape: &'a [usize],
    /// Bytes, aligned for `dtype`.
    pub data: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// Creates a view over `elements`.
    ///
    /// # Panics
    /// If the number of elements does not match the shape, which is a bug in the caller.
    pub fn of<T: Element>(shape: &'a [usize], elements: &'a [T]) -> TensorView<'a> {
        assert_eq!(element_count(shape), Some(elements.len()), "the number of elements matches the shape");
        TensorView { dtype: T::DTYPE, shape, data: bytemuck::cast_slice(elements) }
    }

    /// Returns the elements; Booleans as `u8`.
    ///
    /// # Panics
    /// If `T` is not the element type.
    pub fn as_slice<T: Element>(&self) -> &'a [T] {
        check::<T>(self.dtype);
        bytemuck::cast_slice(self.data)
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.data.len() / self.dtype.size()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Returns the elements of an integer or Boolean tensor. `None` for floats and for values that do not fit an `i64`.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        if self.dtype.is_float() {
            return None;
        }
        if self.dtype == DType::U64 {
            return self.as_slice::<u64>().iter().map(|&v| i64::try_from(v).ok()).collect();
        }
        if self.dtype == DType::I64 {
            return Some(self.as_slice::<i64>().to_vec());
        }
        Some(crate::with_dtype!(self.dtype, T => self.as_slice::<T>().iter().map(|v| v.to_f64() as i64).collect()))
    }

    /// Iterates over the elements as binary64.
    pub fn f64s(&self) -> Box<dyn Iterator<Item = f64> + 'a> {
        crate::with_dtype!(self.dtype, T => Box::new(self.as_slice::<T>().iter().map(|v| v.to_f64())))
    }

    /// Returns the elements as binary64.
    pub fn to_f64s(&self) -> Vec<f64> {
        crate::with_dtype!(self.dtype, T => self.as_slice::<T>().iter().map(|v| v.to_f64()).collect())
    }
}

/// Mutable view of a dense row-major tensor.
#[derive(Debug)]
pub struct TensorViewMut<'a> {
    /// Element type of the tensor.
    pub dtype: DType,
    /// Dimensions of the tensor.
    pub shape: &'a [usize],
    /// Bytes, aligned for `dtype`.
    pub data: &'a mut [u8],
}

impl<'a> TensorViewMut<'a> {
    /// Creates a view over `elements`.
    ///
    /// # Panics
    /// If the number of elements does not match the shape, which is a bug in the caller.
    pub fn of<T: Element>(shape: &'a [usize], elements: &'a mut [T]) -> TensorViewMut<'a> {
        assert_eq!(element_count(shape), Some(elements.len()), "the number of elements matches the shape");
        TensorViewMut { dtype: T::DTYPE, shape, data: bytemuck::cast_slice_mut(elements) }
    }

    /// Returns the elements; Booleans as `u8`.
    ///
    /// # Panics
    /// If `T` is not the element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        check::<T>(self.dtype);
        bytemuck::cast_slice_mut(self.data)
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.data.len() / self.dtype.size()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Returns a read-only view of the same tensor.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { dtype: self.dtype, shape: self.shape, data: self.data }
    }
}

fn check<T: Element>(dtype: DType) {
    let stored = if dtype == DType::Bool { DType::U8 } else { dtype };
    assert!(T::DTYPE == stored, "tensor view: expected elements of {dtype}, found {}", T::DTYPE);
}
