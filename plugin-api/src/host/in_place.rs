//! Operands of a region that computes in place.

use crate::dtype::{DType, Device};
use crate::tensor::{Tensor, TensorMut, TensorRef};

/// Type of a dense tensor.
#[derive(Debug)]
pub struct InPlaceType<'a> {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: &'a mut [usize],
}

/// Returns an input and an output that share host memory, for a region that declared the output as in-place. The region
/// does not use both as slices simultaneously.
///
/// # Panics
/// If the size of a tensor differs from the size of `bytes`.
pub fn in_place<'a>(
    input: InPlaceType<'a>,
    output: InPlaceType<'a>,
    bytes: &'a mut [u8],
) -> (TensorRef<'a>, TensorMut<'a>) {
    let [input, output] = [input, output].map(|ty| {
        let tensor = Tensor {
            data: bytes.as_mut_ptr().cast(),
            device: Device::CPU,
            ndim: ty.shape.len() as i32,
            dtype: ty.dtype,
            shape: ty.shape.as_mut_ptr().cast(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        assert_eq!(
            tensor.byte_len(),
            bytes.len(),
            "expected a buffer of exactly the size of the {} tensor, found {} bytes",
            ty.dtype,
            bytes.len()
        );
        tensor
    });
    // SAFETY: memory and shapes are borrowed for `'a`, and are accessed only by the region, which declared that both
    // tensors may share memory.
    unsafe { (TensorRef::from_raw(input), TensorMut::from_raw(output)) }
}
