//! Tensors over memory of external libraries.

use crate::error;
use byoc::{DType, Diagnostic, Tensor};
use byoc_ir::tensor::{OutOfMemory, Shape, byte_count};
use pyo3::prelude::*;
use smallvec::SmallVec;
use std::sync::Arc;

/// Order of the elements in memory.
pub enum Layout {
    /// Row-major without gaps.
    Dense,
    /// Distance in bytes between adjacent elements, per dimension.
    Strided(SmallVec<[isize; 6]>),
}

impl Layout {
    /// Returns true if elements of this layout are row-major without gaps.
    fn is_dense(&self, shape: &[usize], size: usize) -> bool {
        let Layout::Strided(strides) = self else { return true };
        let mut expected = size as isize;
        for (&dim, &stride) in shape.iter().zip(strides).rev() {
            if dim != 1 && stride != expected {
                return shape.contains(&0);
            }
            expected = expected.wrapping_mul(dim as isize);
        }
        true
    }
}

/// Memory kept alive by a Python object.
pub struct Foreign {
    data: *const u8,
    bytes: usize,
    _owner: Py<PyAny>,
}

// SAFETY: `Foreign` only reads the memory, and `_owner` keeps it allocated at the same address. Python code that
// modifies the elements during a run violates this, as with every library that uses arrays without a copy; the
// documentation forbids it.
unsafe impl Send for Foreign {}
// SAFETY: shared access only reads the memory, under the same condition.
unsafe impl Sync for Foreign {}

impl AsRef<[u8]> for Foreign {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the caller of `Foreign::tensor` guarantees `bytes` readable bytes as long as `_owner` lives.
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }
}

impl Foreign {
    /// Returns a tensor over memory of `owner`, or over a copy if the elements are not dense.
    ///
    /// # Safety
    /// `data` must point to elements of the given shape and layout that are readable as long as `owner` lives.
    pub unsafe fn tensor(
        py: Python<'_>,
        dtype: DType,
        shape: &[usize],
        layout: &Layout,
        data: *const u8,
        owner: &Bound<'_, PyAny>,
    ) -> PyResult<Tensor> {
        let too_large = || error::of(py, Diagnostic::from(OutOfMemory::OVERFLOW));
        let bytes = byte_count(dtype, shape).ok_or_else(too_large)?;
        let tensor = match layout {
            Layout::Strided(strides) if !layout.is_dense(shape, dtype.size()) => {
                // SAFETY: the caller guarantees that `data` points to elements of this shape with these strides.
                let copy =
                    |destination: &mut [u8]| unsafe { copy_strided(data, shape, strides, dtype.size(), destination) };
                let copy_result = Tensor::build(dtype, shape, copy);
                Some(copy_result.map_err(|full| error::of(py, Diagnostic::from(full)))?)
            }
            _ => {
                let memory = Foreign { data, bytes, _owner: owner.clone().unbind() };
                // `from_storage` copies misaligned elements.
                Tensor::from_storage(dtype, shape, Arc::new(memory))
            }
        };
        tensor.ok_or_else(too_large)
    }
}

/// Copies strided elements to dense memory.
///
/// # Safety
/// `data` must point to readable elements of `size` bytes with the given shape, and with `strides` in bytes.
unsafe fn copy_strided(data: *const u8, shape: &[usize], strides: &[isize], size: usize, destination: &mut [u8]) {
    let mut index: Shape = shape.iter().map(|_| 0).collect();
    let mut offset = 0isize;
    for element in destination.chunks_exact_mut(size) {
        // SAFETY: the loop keeps `index` within `shape`, and `offset` is its distance from `data`. The caller
        // guarantees a readable element of `size` bytes there.
        unsafe { std::ptr::copy_nonoverlapping(data.wrapping_offset(offset), element.as_mut_ptr(), size) };
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            offset += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            offset -= strides[axis] * index[axis] as isize;
            index[axis] = 0;
        }
    }
}
