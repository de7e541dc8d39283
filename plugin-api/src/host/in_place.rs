//! Operands of a region that computes in place.

use crate::dtype::{DType, Device};
use crate::tensor::{Tensor, TensorMut, TensorRef};

/// Type of a dense tensor.
#[derive(Debug)]
pub struct InPlaceType<'a> {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: &'a mut [usize],
}

/// Returns an input and an output in the same memory of the host, for a region that declared that the output may have
/// the memory of the input. The region does not use both as slices at once.
///
/// # Panics
/// If a tensor does not have the size of the memory.
pub fn in_place<'a>(
    input: InPlaceType<'a>,
    output: InPlaceType<'a>,
    bytes: &'a mut [u8],
) -> (TensorRef<'a>, TensorMut<'a>) {
    let [input, output] = [input, output].map(|ty| {
        let raw = Tensor {
            data: bytes.as_mut_ptr().cast(),
            device: Device::CPU,
            ndim: ty.shape.len() as i32,
            dtype: ty.dtype,
            shape: ty.shape.as_mut_ptr().cast(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        assert_eq!(raw.byte_len(), bytes.len(), "size in bytes of a tensor of {}", ty.dtype);
        raw
    });
    // SAFETY: memory and shapes are borrowed for `'a`, and nobody but the region accesses them, which declared that it
    // expects both tensors in one place.
    unsafe { (TensorRef::from_raw(input), TensorMut::from_raw(output)) }
}
