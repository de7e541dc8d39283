//! Conversions between tensors and `ndarray` arrays, and array views of tensors.

use super::{DType, Element, Tensor, TensorView};
use ndarray::{Array, ArrayBase, ArrayD, ArrayViewD, Data, Dimension, IxDyn};

impl<T: Element, S: Data<Elem = T>, D: Dimension> From<&ArrayBase<S, D>> for Tensor {
    /// Copies an array of any layout.
    fn from(array: &ArrayBase<S, D>) -> Tensor {
        match array.as_slice() {
            Some(elements) => Tensor::from_slice(array.shape(), elements),
            None => Tensor::from_slice(array.shape(), &array.iter().copied().collect::<Vec<T>>()),
        }
    }
}

impl<T: Element, D: Dimension> From<Array<T, D>> for Tensor {
    /// Takes ownership of the memory of a row-major array; copies an array of another layout.
    fn from(array: Array<T, D>) -> Tensor {
        if !array.is_standard_layout() {
            return Tensor::from(&array);
        }
        let shape = array.shape().to_vec();
        let (elements, offset) = array.into_raw_vec_and_offset();
        let count = shape.iter().product::<usize>();
        match offset.unwrap_or(0) {
            0 if elements.len() == count => Tensor::from_vec(&shape, elements),
            first => Tensor::from_slice(&shape, &elements[first..first + count]),
        }
    }
}

impl<'a> TensorView<'a> {
    /// Returns the tensor as an array view; `None` if `T` is not the element type.
    pub fn as_array_view<T: Element>(&self) -> Option<ArrayViewD<'a, T>> {
        let stored = if self.dtype == DType::Bool { DType::U8 } else { self.dtype };
        let elements = (T::DTYPE == stored).then(|| self.as_slice::<T>())?;
        ArrayViewD::from_shape(IxDyn(self.shape), elements).ok()
    }
}

impl Tensor {
    /// Returns the tensor as an array view; `None` if `T` is not the element type.
    pub fn array_view<T: Element>(&self) -> Option<ArrayViewD<'_, T>> {
        self.view().as_array_view()
    }

    /// Copies the tensor to an array; `None` if `T` is not the element type.
    pub fn to_array<T: Element>(&self) -> Option<ArrayD<T>> {
        Some(self.array_view()?.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array2, arr2};

    #[test]
    fn arrays_of_any_layout_become_tensors_and_back() {
        let array = arr2(&[[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]]);
        let expected = Tensor::from_slice(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let transposed = Tensor::from_slice(&[3, 2], &[1.0f32, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(Tensor::from(&array), expected);
        assert_eq!(Tensor::from(&array.t()), transposed);
        assert_eq!(Tensor::from(array.clone().reversed_axes()), transposed);
        assert_eq!(Tensor::from(array.clone()), expected);
        assert_eq!(expected.to_array::<f32>().unwrap(), array.clone().into_dyn());
        assert!(expected.array_view::<i32>().is_none());
        let mut rows = array.clone();
        rows.slice_collapse(ndarray::s![1.., ..]);
        assert_eq!(Tensor::from(rows), Tensor::from_slice(&[1, 3], &[4.0f32, 5.0, 6.0]));
        let empty: Array2<i64> = Array2::zeros((0, 4));
        assert_eq!(Tensor::from(empty).shape(), [0, 4]);
    }

    #[test]
    fn the_memory_of_an_array_is_taken_over() {
        let array = Array2::<f32>::zeros((4, 4));
        let memory = array.as_ptr();
        assert_eq!(Tensor::from(array).bytes().as_ptr(), memory.cast());
    }
}
