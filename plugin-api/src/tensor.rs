//! Tensor descriptors over borrowed memory, laid out as DLPack's `DLTensor`.
//!
//! The host passes tensors in its own memory, dense and row-major, aligned to 64 bytes. A descriptor may also describe
//! strided memory or memory of a different device; the safe views panic rather than return slices of such tensors.

use crate::dtype::{DType, Device, Element};
use abi_stable::StableAbi;
use std::fmt;
use std::marker::PhantomData;

// A dimension crosses the boundary as DLPack's 64-bit integer, and is a `usize` on both sides.
const _: () = assert!(size_of::<usize>() == 8, "byoc plugins require a 64-bit target");

/// Mirror of DLPack's `DLTensor`, field by field, with raw pointers. Prefer [`TensorRef`] and [`TensorMut`].
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Tensor {
    /// Base address, to which `byte_offset` is added.
    pub data: *mut u8,
    /// Device that owns the memory.
    pub device: Device,
    /// Number of dimensions.
    pub ndim: i32,
    /// Element type.
    pub dtype: DType,
    /// Pointer to `ndim` dimensions.
    pub shape: *mut i64,
    /// Pointer to `ndim` strides in elements; null means dense and row-major.
    pub strides: *mut i64,
    /// Offset in bytes from `data` to the first element.
    pub byte_offset: u64,
}

impl Tensor {
    #[inline]
    fn shape(&self) -> &[usize] {
        if self.ndim <= 0 {
            return &[];
        }
        // SAFETY: the creator of a descriptor guarantees `ndim` non-negative dimensions for the descriptor's lifetime;
        // i64 and usize have the same size and alignment.
        unsafe { std::slice::from_raw_parts(self.shape.cast::<usize>(), self.ndim as usize) }
    }

    #[inline]
    fn strides(&self) -> Option<&[i64]> {
        if self.strides.is_null() {
            return None;
        }
        // SAFETY: the creator of a descriptor guarantees that non-null strides have `ndim` entries for the descriptor's
        // lifetime.
        Some(unsafe { std::slice::from_raw_parts(self.strides, self.ndim.max(0) as usize) })
    }

    #[inline]
    fn is_dense(&self) -> bool {
        let Some(strides) = self.strides() else { return true };
        let mut expected = 1i64;
        for (&dim, &stride) in self.shape().iter().zip(strides).rev() {
            if dim != 1 && stride != expected {
                return false;
            }
            expected *= dim as i64;
        }
        true
    }

    /// Size in bytes of a dense tensor in host memory.
    #[inline]
    pub(crate) fn byte_len(&self) -> usize {
        assert!(
            self.device.kind == Device::CPU.kind,
            "expected a tensor in host memory, found device {:?}",
            self.device
        );
        assert!(self.is_dense(), "expected a dense tensor, found strides {:?}", self.strides());
        self.shape().iter().product::<usize>() * self.dtype.size()
    }

    #[inline]
    fn start(&self) -> *mut u8 {
        self.data.wrapping_add(self.byte_offset as usize)
    }
}

/// Read-only view of a tensor.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    raw: Tensor,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a `TensorRef` is a shared borrow of plain bytes.
unsafe impl Send for TensorRef<'_> {}
// SAFETY: a `TensorRef` is a shared borrow of plain bytes.
unsafe impl Sync for TensorRef<'_> {}

/// Mutable view of a tensor.
#[repr(transparent)]
pub struct TensorMut<'a> {
    raw: Tensor,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: a `TensorMut` is an exclusive borrow of plain bytes.
unsafe impl Send for TensorMut<'_> {}
// SAFETY: a `TensorMut` is an exclusive borrow of plain bytes, and writing requires `&mut`.
unsafe impl Sync for TensorMut<'_> {}

impl<'a> TensorRef<'a> {
    /// Creates a view of `bytes` as a dense tensor.
    ///
    /// # Panics
    /// If the number of bytes does not match the shape.
    #[inline]
    pub fn new(dtype: DType, shape: &'a [usize], bytes: &'a [u8]) -> TensorRef<'a> {
        let descriptor = describe(dtype, shape.as_ptr(), shape.len(), bytes.as_ptr());
        assert_eq!(
            descriptor.byte_len(),
            bytes.len(),
            "expected a buffer of exactly the size of tensor {dtype}{shape:?}, found {} bytes",
            bytes.len()
        );
        TensorRef { raw: descriptor, memory: PhantomData }
    }

    /// Creates a view of the tensor that `raw` describes.
    ///
    /// # Safety
    /// The memory, the shape and the strides that the descriptor points to must stay valid and unwritten for `'a`.
    pub unsafe fn from_raw(raw: Tensor) -> TensorRef<'a> {
        TensorRef { raw, memory: PhantomData }
    }

    /// Returns the descriptor, for passing to a C library.
    pub fn raw(&self) -> &Tensor {
        &self.raw
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.raw.dtype
    }

    /// Returns the dimensions.
    pub fn shape(&self) -> &[usize] {
        self.raw.shape()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape().iter().product()
    }

    /// Returns true if the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes, row-major.
    ///
    /// # Panics
    /// If the tensor is not dense, or not in host memory.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        let len = self.raw.byte_len();
        if len == 0 {
            return &[];
        }
        // SAFETY: the constructor's contract guarantees that `byte_len` bytes starting at `start` are readable for
        // `'a`.
        unsafe { std::slice::from_raw_parts(self.raw.start(), len) }
    }

    /// Returns the elements. Booleans are `u8`, 16-bit floats are `u16`.
    ///
    /// # Panics
    /// If the tensor is not dense, is not in host memory, or has an element type that cannot be viewed as `T`.
    pub fn as_slice<T: Element>(&self) -> &'a [T] {
        let bytes = self.bytes();
        check::<T>(self.raw.dtype, bytes);
        if bytes.is_empty() {
            return &[];
        }
        // SAFETY: `check` verified the alignment, the length is at most that of `bytes`, and every bit pattern of an
        // `Element` is valid.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
    }
}

impl<'a> TensorMut<'a> {
    /// Creates a mutable view of `bytes` as a dense tensor.
    ///
    /// # Panics
    /// If the number of bytes does not match the shape.
    #[inline]
    pub fn new(dtype: DType, shape: &'a mut [usize], bytes: &'a mut [u8]) -> TensorMut<'a> {
        let descriptor = describe(dtype, shape.as_mut_ptr(), shape.len(), bytes.as_mut_ptr());
        assert_eq!(
            descriptor.byte_len(),
            bytes.len(),
            "expected a buffer of exactly the size of tensor {dtype}{shape:?}, found {} bytes",
            bytes.len()
        );
        TensorMut { raw: descriptor, memory: PhantomData }
    }

    /// Creates a view of the tensor that `raw` describes.
    ///
    /// # Safety
    /// The memory, the shape and the strides that the descriptor points to must stay valid for `'a`, and must not be
    /// accessed through other pointers.
    pub unsafe fn from_raw(raw: Tensor) -> TensorMut<'a> {
        TensorMut { raw, memory: PhantomData }
    }

    /// Returns the descriptor, for passing to a C library.
    pub fn raw(&self) -> &Tensor {
        &self.raw
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.raw.dtype
    }

    /// Returns the dimensions.
    pub fn shape(&self) -> &[usize] {
        self.raw.shape()
    }

    /// Sets the shape of an output for which [`prepare`](crate::Executable::prepare) returned only upper bounds. The
    /// elements are stored densely in the new shape, from the start of the memory.
    ///
    /// # Panics
    /// If the rank differs, or a dimension exceeds its bound.
    pub fn set_shape(&mut self, shape: &[usize]) {
        let is_within_bound =
            shape.len() == self.shape().len() && shape.iter().zip(self.shape()).all(|(new, bound)| new <= bound);
        assert!(is_within_bound, "expected a shape within the bound {:?}, found {shape:?}", self.shape());
        for (axis, &dim) in shape.iter().enumerate() {
            // SAFETY: `axis < ndim` because the ranks are equal, and `self` borrows the shape exclusively.
            unsafe { self.raw.shape.add(axis).write(dim as i64) };
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape().iter().product()
    }

    /// Returns true if the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a read-only view of the tensor.
    pub fn as_ref(&self) -> TensorRef<'_> {
        TensorRef { raw: self.raw, memory: PhantomData }
    }

    /// Returns the bytes, row-major.
    ///
    /// # Panics
    /// If the tensor is not dense, or not in host memory.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.raw.byte_len();
        if len == 0 {
            return &mut [];
        }
        // SAFETY: the constructor's contract guarantees that `byte_len` bytes starting at `start` are exclusively
        // borrowed for `'a`.
        unsafe { std::slice::from_raw_parts_mut(self.raw.start(), len) }
    }

    /// Returns the elements. Booleans are `u8`, 16-bit floats are `u16`.
    ///
    /// # Panics
    /// If the tensor is not dense, is not in host memory, or has an element type that cannot be viewed as `T`.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        let dtype = self.raw.dtype;
        let bytes = self.bytes_mut();
        check::<T>(dtype, bytes);
        if bytes.is_empty() {
            return &mut [];
        }
        // SAFETY: `check` verified the alignment, the length is at most that of `bytes`, and every bit pattern of an
        // `Element` is valid.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) }
    }
}

impl fmt::Debug for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor[{:?}, {}]", self.shape(), self.dtype())
    }
}

impl fmt::Debug for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor[{:?}, {}]", self.shape(), self.dtype())
    }
}

#[inline]
fn describe(dtype: DType, shape: *const usize, ndim: usize, data: *const u8) -> Tensor {
    Tensor {
        data: data.cast_mut(),
        device: Device::CPU,
        ndim: ndim as i32,
        dtype,
        shape: shape.cast_mut().cast(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    }
}

fn check<T: Element>(dtype: DType, bytes: &[u8]) {
    assert!(T::can_view(dtype), "expected a tensor of {}, found {dtype}", std::any::type_name::<T>());
    assert!(
        bytes.is_empty() || (bytes.as_ptr() as usize).is_multiple_of(align_of::<T>()),
        "expected a tensor aligned to {} bytes, found one at {:p}",
        align_of::<T>(),
        bytes.as_ptr()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn descriptor_matches_dlpack_layout() {
        let offsets = [
            offset_of!(Tensor, data),
            offset_of!(Tensor, device),
            offset_of!(Tensor, ndim),
            offset_of!(Tensor, dtype),
            offset_of!(Tensor, shape),
            offset_of!(Tensor, strides),
            offset_of!(Tensor, byte_offset),
        ];
        assert_eq!(offsets, [0, 8, 16, 20, 24, 32, 40]);
        assert_eq!((size_of::<Tensor>(), size_of::<DType>(), size_of::<Device>()), (48, 4, 8));
        assert_eq!(size_of::<TensorRef<'_>>(), size_of::<Tensor>());
        assert_eq!(size_of::<TensorMut<'_>>(), size_of::<Tensor>());
    }

    fn panic_message<T>(body: impl FnOnce() -> T) -> String {
        let payload = catch_unwind(AssertUnwindSafe(body)).err().expect("expected a panic, found none");
        payload.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    #[test]
    fn views_require_dense_host_memory() {
        let memory: Vec<i32> = (0..12).collect();
        let (shape, strides) = ([2usize, 3], [6i64, 2]);
        let bytes = memory.as_ptr().cast::<u8>();
        let raw = Tensor { byte_offset: 8, ..describe(DType::I32, shape.as_ptr(), 2, bytes) };
        // SAFETY: `memory` and `shape` outlive the view, which covers six of the twelve elements.
        let view = unsafe { TensorRef::from_raw(raw) };
        assert_eq!(view.as_slice::<i32>(), [2, 3, 4, 5, 6, 7]);
        assert!(panic_message(|| view.as_slice::<f32>()).contains("expected a tensor of f32, found int32"));

        // SAFETY: `memory`, `shape` and `strides` outlive the view, and `bytes` rejects the strides before any access.
        let strided_tensor = unsafe { TensorRef::from_raw(Tensor { strides: strides.as_ptr().cast_mut(), ..raw }) };
        assert!(panic_message(|| strided_tensor.bytes()).contains("found strides"));
        let dense = [3i64, 1];
        // SAFETY: `memory`, `shape` and the strides outlive the view, which covers six of the twelve elements.
        let dense = unsafe { TensorRef::from_raw(Tensor { strides: dense.as_ptr().cast_mut(), ..raw }) };
        assert_eq!(dense.len(), dense.as_slice::<i32>().len());
        // SAFETY: `bytes` rejects the device before any access to the memory.
        let foreign = unsafe { TensorRef::from_raw(Tensor { device: Device { kind: 2, id: 0 }, ..raw }) };
        assert!(panic_message(|| foreign.bytes()).contains("device"));
    }

    #[test]
    fn output_shrinks_within_its_bound() {
        let mut memory = [0u8; 6];
        let mut dims = [2usize, 3];
        let mut output = TensorMut::new(DType::U8, &mut dims, &mut memory);
        output.set_shape(&[1, 3]);
        assert_eq!(output.as_mut_slice::<u8>().len(), 3);
        assert!(panic_message(|| output.set_shape(&[1, 4])).contains("expected a shape within the bound"));
        assert!(panic_message(|| output.set_shape(&[3])).contains("expected a shape within the bound"));
        assert_eq!(dims, [1, 3], "the host observes the new shape");
    }

    #[test]
    fn empty_and_rank_0_tensors() {
        let empty_tensor = TensorRef::new(DType::F64, &[3, 0], &[]);
        assert!(empty_tensor.is_empty() && empty_tensor.as_slice::<f64>().is_empty());
        let scalar = TensorRef::new(DType::BOOL, &[], &[1]);
        assert_eq!(scalar.as_slice::<u8>(), [1]);
        assert!(
            panic_message(|| TensorRef::new(DType::I8, &[2], &[1]))
                .contains("expected a buffer of exactly the size of tensor int8[2], found")
        );
    }
}
