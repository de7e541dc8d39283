//! Element types, tensors that own their bytes, and views over bytes that somebody else owns.
//!
//! A tensor is always dense and row-major. Its bytes start at an address aligned for its element type, so that a
//! kernel may look at them as a slice of elements; the constructors keep that promise (they copy where it does not hold).
//!
//! Owned bytes count in the [budget](memory) of the process. Constructors that take a size from a model give an error when
//! it is refused; those that copy values at hand ([`Tensor::from_slice`]) count, and are not refused.

mod dtype;
pub mod memory;
mod storage;
mod view;

pub use dtype::{DType, Element};
pub use memory::OutOfMemory;
pub use storage::AlignedBytes;
pub use view::{TensorView, TensorViewMut};

use std::sync::Arc;

/// Dimensions of a tensor whose shape is known.
pub type Shape = smallvec::SmallVec<[usize; 6]>;

/// The number of elements of a shape; `None` when it overflows, or would if no dimension were 0: any dimensions of a shape
/// that has a count can be multiplied.
pub fn element_count(shape: &[usize]) -> Option<usize> {
    let bound = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)))?;
    Some(if shape.contains(&0) { 0 } else { bound })
}

/// The number of bytes of a tensor; `None` when it overflows.
pub fn byte_count(dtype: DType, shape: &[usize]) -> Option<usize> {
    element_count(shape)?.checked_mul(dtype.size())
}

/// A dense row-major tensor. Cloning shares the bytes.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
}

impl Tensor {
    /// A tensor over `bytes`, which may be a mapped file. `None` when the length does not fit the shape.
    /// Bytes that are not aligned for `dtype` are copied; `None` also when the system has no memory for the copy.
    pub fn from_storage(dtype: DType, shape: &[usize], bytes: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Option<Tensor> {
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

    /// A tensor with a copy of `bytes`. `None` when the length does not fit the shape, or the system has no memory.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Option<Tensor> {
        Tensor::from_storage(dtype, shape, Arc::new(AlignedBytes::copy_of(bytes).ok()?))
    }

    /// A tensor with a copy of `values`.
    ///
    /// # Panics
    /// When the number of values does not fit the shape: that is a mistake in the calling code.
    pub fn from_slice<T: Element>(shape: &[usize], values: &[T]) -> Tensor {
        Tensor::from_bytes(T::DTYPE, shape, bytemuck::cast_slice(values)).expect("as many values as the shape says")
    }

    /// A boolean tensor.
    ///
    /// # Panics
    /// When the number of values does not fit the shape.
    pub fn from_bools(shape: &[usize], values: &[bool]) -> Tensor {
        let bytes: Vec<u8> = values.iter().map(|&b| u8::from(b)).collect();
        Tensor::from_bytes(DType::Bool, shape, &bytes).expect("as many values as the shape says")
    }

    /// A rank-0 tensor.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_slice(&[], &[value])
    }

    /// A tensor filled by `fill`, which gets zeroed bytes.
    ///
    /// # Errors
    /// When the size overflows the address space, or the [budget](memory) or the system refuses it.
    pub fn build(dtype: DType, shape: &[usize], fill: impl FnOnce(&mut [u8])) -> Result<Tensor, OutOfMemory> {
        let mut bytes = AlignedBytes::zeroed(byte_count(dtype, shape).ok_or(OutOfMemory::OVERFLOW)?)?;
        fill(bytes.as_mut());
        Ok(Tensor { dtype, shape: shape.into(), bytes: Arc::new(bytes) })
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// As [`Tensor::build`].
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor, OutOfMemory> {
        Tensor::build(dtype, shape, |_| {})
    }

    /// A tensor of no elements, which takes no memory.
    pub fn nothing() -> Tensor {
        Tensor { dtype: DType::U8, shape: smallvec::smallvec![0], bytes: Arc::new(AlignedBytes::empty()) }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.bytes().len() / self.dtype.size()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// The bytes, row-major, little-endian.
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// The elements.
    ///
    /// # Panics
    /// When `T` is not the element type.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        self.view().as_slice()
    }

    /// A view of the whole.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { dtype: self.dtype, shape: &self.shape, data: self.bytes() }
    }

    /// The same bytes under other dimensions. `None` when the number of elements differs.
    pub fn reshaped(&self, shape: &[usize]) -> Option<Tensor> {
        (element_count(shape)? == self.len()).then(|| Tensor { shape: shape.into(), ..self.clone() })
    }
}

impl PartialEq for Tensor {
    /// Bitwise: NaN equals itself, `0.0` differs from `-0.0`.
    fn eq(&self, other: &Tensor) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.bytes() == other.bytes()
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({:?}, {})", self.shape, self.dtype)
    }
}
