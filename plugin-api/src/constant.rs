//! Constants: reference-counted handles into the host's pool.
//!
//! Cloning a [`Constant`] takes another reference; dropping it gives the reference back. A backend that packs a weight
//! keeps its packed copy and drops the handle, so that a weight has one resident copy per consumer.

use crate::dtype::DType;
use crate::graph::TensorType;
use crate::guard::guard;
use crate::tensor::TensorRef;
use crate::wire::{ConstantAbi, ConstantAbi_TO, ConstantObject};
use abi_stable::StableAbi;
use abi_stable::sabi_trait::TD_Opaque;
use abi_stable::std_types::{RArc, RSlice, RStr, RString, RVec};

use std::fmt;

/// Source of the bytes of a constant, implemented by the host. Nothing here may panic.
pub trait ConstantSource: Send + Sync + 'static {
    /// The bytes: dense, row-major, aligned to 64 bytes, always the same.
    fn bytes(&self) -> &[u8];
    /// The digest of dtype, shape and bytes, as lower-case hexadecimal. Computed when first asked for.
    fn digest(&self) -> String;
}

/// A dense tensor that never changes, in the host's memory.
#[repr(C)]
#[derive(StableAbi, Clone)]
pub struct Constant {
    inner: RArc<Inner>,
}

#[repr(C)]
#[derive(StableAbi)]
struct Inner {
    name: RString,
    dtype: DType,
    shape: RVec<usize>,
    source: ConstantObject,
}

struct Export<S>(S);

impl<S: ConstantSource> ConstantAbi for Export<S> {
    fn bytes(&self) -> RSlice<'_, u8> {
        guard(|| Ok(RSlice::from_slice(self.0.bytes()))).unwrap_or_default()
    }

    fn digest(&self) -> RString {
        guard(|| Ok(RString::from(self.0.digest()))).unwrap_or_default()
    }
}

impl Constant {
    /// A handle to `source`.
    pub fn new(name: &str, dtype: DType, shape: &[usize], source: impl ConstantSource) -> Constant {
        let source = ConstantAbi_TO::from_value(Export(source), TD_Opaque);
        Constant { inner: RArc::new(Inner { name: name.into(), dtype, shape: shape.to_vec().into(), source }) }
    }

    /// Its name in the model; may be empty.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.inner.dtype
    }

    /// The dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.inner.shape
    }

    /// Its type, as a graph has it.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.dtype(), self.shape())
    }

    /// The bytes: dense, row-major, aligned to 64 bytes. The first look may read them from a file.
    pub fn bytes(&self) -> &[u8] {
        self.inner.source.bytes().as_slice()
    }

    /// The whole as a tensor to read.
    pub fn tensor(&self) -> TensorRef<'_> {
        TensorRef::new(self.dtype(), self.shape(), self.bytes())
    }

    /// The digest of dtype, shape and bytes: equal digests are equal constants. Key packed copies by it.
    pub fn digest(&self) -> String {
        self.inner.source.digest().into()
    }
}

impl fmt::Debug for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Constant({:?}, {:?}, {})", RStr::from_str(self.name()), self.shape(), self.dtype())
    }
}
