//! Constants: reference-counted handles into the host's pool.
//!
//! Cloning a [`Constant`] increments its reference count; dropping it decrements the count. A backend that packs a
//! weight keeps the packed copy and drops the handle, which leaves one resident copy of the weight per consumer.
#![expect(unused_qualifications, non_local_definitions, reason = "expansion of `sabi_trait`")]

use crate::dtype::DType;
use crate::graph::TensorType;
use crate::guard::guard;
use crate::tensor::TensorRef;
use abi_stable::sabi_trait::TD_Opaque;
use abi_stable::std_types::{RArc, RBox, RSlice, RStr, RString, RVec};
use abi_stable::{StableAbi, sabi_trait};
use std::fmt;

#[sabi_trait]
pub trait ConstantAbi: Send + Sync + 'static {
    fn bytes(&self) -> RSlice<'_, u8>;
    #[sabi(last_prefix_field)]
    fn digest(&self) -> RString;
}

type ConstantObject = ConstantAbi_TO<RBox<()>>;

/// Byte source of a constant, implemented by the host. No method may panic.
pub trait ConstantSource: Send + Sync + 'static {
    /// Returns the bytes: dense, row-major, aligned to 64 bytes, identical on every call.
    fn bytes(&self) -> &[u8];
    /// Returns the digest of dtype, shape and bytes, in lower-case hexadecimal. It is computed on first use.
    fn digest(&self) -> String;
}

/// Immutable dense tensor in host memory.
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

struct ExportedConstant<S>(S);

impl<S: ConstantSource> ConstantAbi for ExportedConstant<S> {
    fn bytes(&self) -> RSlice<'_, u8> {
        guard(|| Ok(RSlice::from_slice(self.0.bytes()))).unwrap_or_default()
    }

    fn digest(&self) -> RString {
        guard(|| Ok(RString::from(self.0.digest()))).unwrap_or_default()
    }
}

impl Constant {
    /// Maximum length of a [digest](Constant::digest), in characters.
    pub const DIGEST_LENGTH: usize = 64;

    /// Creates a handle to `source`.
    pub fn new(name: &str, dtype: DType, shape: &[usize], source: impl ConstantSource) -> Constant {
        let source = ConstantAbi_TO::from_value(ExportedConstant(source), TD_Opaque);
        Constant { inner: RArc::new(Inner { name: name.into(), dtype, shape: shape.to_vec().into(), source }) }
    }

    /// Returns the constant's name in the model, possibly empty.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.inner.dtype
    }

    /// Returns the dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.inner.shape
    }

    /// Returns the type as it appears in a graph.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.dtype(), self.shape())
    }

    /// Returns the bytes: dense, row-major, aligned to 64 bytes. The first access may read them from a file.
    pub fn bytes(&self) -> &[u8] {
        self.inner.source.bytes().as_slice()
    }

    /// Returns a view of the whole constant.
    pub fn tensor(&self) -> TensorRef<'_> {
        TensorRef::new(self.dtype(), self.shape(), self.bytes())
    }

    /// Returns the digest of dtype, shape and bytes, at most [`DIGEST_LENGTH`](Constant::DIGEST_LENGTH) hexadecimal
    /// digits: constants with equal digests are equal. Suitable as a cache key for packed copies.
    pub fn digest(&self) -> String {
        self.inner.source.digest().into()
    }
}

impl fmt::Debug for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Constant({:?}, {:?}, {})", RStr::from_str(self.name()), self.shape(), self.dtype())
    }
}
