//! Element types, tensors that own their bytes, and views of borrowed bytes.
//!
//! A tensor is always dense and row-major. Its bytes are aligned for its element type, so that kernels can view them as
//! a slice of elements; the constructors ensure this by copying unaligned bytes.
//!
//! Owned bytes count toward the [budget](memory) of the process. Constructors that take a size from a model fail if it
//! exceeds the limit; copies of existing values ([`Tensor::from_slice`]) are counted, but not limited.

#[cfg(feature = "ndarray")]
mod array;
mod dtype;
pub mod memory;
pub mod random;
pub mod small;
mod storage;
pub mod strings;
mod view;

pub use dtype::{DType, Element};
pub use half::{bf16, f16};
pub use memory::OutOfMemory;
pub use small::{F4E2M1Fn, F8E4M3Fn, F8E4M3FnUz, F8E5M2, F8E5M2FnUz, F8E8M0Fnu, I2, I4, U2, U4};
pub use storage::{AlignedBytes, Storage};
pub use view::{TensorView, TensorViewMut};

use std::sync::Arc;

/// Dimensions of a tensor whose shape is known.
pub type Shape = smallvec::SmallVec<[usize; 6]>;

/// Returns the number of elements in a tensor of this shape; `None` on overflow. Each 0 counts as 1 in the overflow
/// check, so that no product of dimensions of an accepted shape overflows.
pub fn element_count(shape: &[usize]) -> Option<usize> {
    let bound = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)))?;
    Some(if shape.contains(&0) { 0 } else { bound })
}

/// Returns the size of a tensor in bytes; `None` on overflow.
pub fn byte_count(dtype: DType, shape: &[usize]) -> Option<usize> {
    element_count(shape)?.checked_mul(dtype.size())
}

/// Dense row-major tensor. Cloning shares the bytes.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    bytes: Arc<dyn Storage>,
}

impl Tensor {
    /// Creates a tensor over `bytes`, which may be a mapped file. Bytes that are not aligned for `dtype` are copied.
    /// `None` if the length does not match the shape, or if the system is out of memory for the copy.
    pub fn from_storage(dtype: DType, shape: &[usize], bytes: Arc<dyn Storage>) -> Option<Tensor> {
        let slice: &[u8] = (*bytes).as_ref();
        if element_count(shape)?.checked_mul(dtype.size())? != slice.len() {
            return None;
        }
        let bytes = if (slice.as_ptr() as usize).is_multiple_of(dtype.align()) {
            bytes
        } else {
            Arc::new(AlignedBytes::copy_of(slice).ok()?)
        };
        Some(Tensor { dtype, shape: shape.into(), bytes })
    }

    /// Creates a tensor with a copy of `bytes`. `None` if the length does not match the shape, or the system is out of
    /// memory.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Option<Tensor> {
        Tensor::from_storage(dtype, shape, Arc::new(AlignedBytes::copy_of(bytes).ok()?))
    }

    /// Creates a tensor with a copy of `values`.
    ///
    /// # Panics
    /// If the number of values does not match the shape, which is a bug in the caller.
    pub fn from_slice<T: Element>(shape: &[usize], values: &[T]) -> Tensor {
        Tensor::from_bytes(T::DTYPE, shape, bytemuck::cast_slice(values))
            .expect("the number of values matches the shape")
    }

    /// Creates a tensor that takes ownership of `values`, without a copy.
    ///
    /// # Panics
    /// If the number of values does not match the shape, which is a bug in the caller.
    pub fn from_vec<T: Element>(shape: &[usize], values: Vec<T>) -> Tensor {
        struct Elements<T>(Vec<T>);
        impl<T: Element> AsRef<[u8]> for Elements<T> {
            fn as_ref(&self) -> &[u8] {
                bytemuck::cast_slice(&self.0)
            }
        }
        Tensor::from_storage(T::DTYPE, shape, Arc::new(Elements(values)))
            .expect("the number of values matches the shape")
    }

    /// Creates a Boolean tensor.
    ///
    /// # Panics
    /// If the number of values does not match the shape.
    pub fn from_bools(shape: &[usize], values: &[bool]) -> Tensor {
        let bytes: Vec<u8> = values.iter().map(|&b| u8::from(b)).collect();
        Tensor::from_bytes(DType::Bool, shape, &bytes).expect("the number of values matches the shape")
    }

    /// Creates a tensor of rank 0.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_slice(&[], &[value])
    }

    /// Creates a tensor filled by `fill`, which receives zeroed bytes.
    ///
    /// # Errors
    /// If the size exceeds the address space or the [budget](memory), or if the system is out of memory.
    pub fn build(dtype: DType, shape: &[usize], fill: impl FnOnce(&mut [u8])) -> Result<Tensor, OutOfMemory> {
        let mut bytes = AlignedBytes::zeroed(byte_count(dtype, shape).ok_or(OutOfMemory::OVERFLOW)?)?;
        fill(bytes.as_mut());
        Ok(Tensor { dtype, shape: shape.into(), bytes: Arc::new(bytes) })
    }

    /// Creates a tensor of zeros.
    ///
    /// # Errors
    /// See [`Tensor::build`].
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor, OutOfMemory> {
        Tensor::build(dtype, shape, |_| {})
    }

    /// Creates a tensor without elements, which needs no memory.
    pub fn empty() -> Tensor {
        Tensor { dtype: DType::U8, shape: smallvec::smallvec![0], bytes: Arc::new(AlignedBytes::empty()) }
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.bytes().len() / self.dtype.size()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// Returns the bytes, row-major, little-endian.
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// Returns true if this tensor is the only owner of its bytes.
    pub fn is_exclusive(&self) -> bool {
        Arc::strong_count(&self.bytes) == 1
    }

    /// Takes the storage out of the tensor.
    ///
    /// # Errors
    /// If the storage is not a `T`, or another tensor shares it. The error is the unchanged tensor.
    pub fn into_storage<T: Storage>(self) -> Result<T, Tensor> {
        if !self.is_exclusive() {
            return Err(self);
        }
        let Tensor { dtype, shape, bytes } = self;
        match bytes.clone().into_any().downcast::<T>() {
            Ok(storage) => {
                drop(bytes);
                Arc::try_unwrap(storage).map_err(|storage| Tensor { dtype, shape, bytes: storage })
            }
            Err(_) => Err(Tensor { dtype, shape, bytes }),
        }
    }

    /// Returns the elements.
    ///
    /// # Panics
    /// If `T` is not the element type.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        self.view().as_slice()
    }

    /// Returns a view of the whole tensor.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { dtype: self.dtype, shape: &self.shape, data: self.bytes() }
    }

    /// Returns a tensor with the shape `shape` that shares the bytes. `None` if the number of elements differs.
    pub fn reshaped(&self, shape: &[usize]) -> Option<Tensor> {
        (element_count(shape)? == self.len()).then(|| Tensor { shape: shape.into(), ..self.clone() })
    }
}

impl PartialEq for Tensor {
    /// Compares bitwise: NaN equals itself, `0.0` differs from `-0.0`.
    fn eq(&self, other: &Tensor) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.bytes() == other.bytes()
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({:?}, {})", self.shape, self.dtype)
    }
}
