//! Owners of the bytes of tensors, and buffers aligned to 64 bytes, the size of a cache line and of the widest vector
//! load.

use super::memory::{self, Charge, OutOfMemory};
use std::any::Any;
use std::sync::Arc;

/// Owner of the bytes of a tensor: memory of this process, a mapped file, or memory of another library.
pub trait Storage: AsRef<[u8]> + Send + Sync + 'static {
    /// Converts the storage to [`Any`], so that it can be downcast to its concrete type.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

impl<T: AsRef<[u8]> + Send + Sync + 'static> Storage for T {
    fn into_any(self: Arc<T>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Owned bytes, aligned to 64 bytes and counted toward the [budget](super::memory) of the process.
pub struct AlignedBytes {
    lines: Box<[Line]>,
    len: usize,
    _charge: Option<Charge>,
}

impl AlignedBytes {
    /// Creates an empty buffer, without an allocation.
    pub fn empty() -> AlignedBytes {
        AlignedBytes { lines: Box::default(), len: 0, _charge: None }
    }

    /// Allocates `len` zero bytes. The pages are the system's zero pages until they are written.
    ///
    /// # Errors
    /// If the memory limit of the process is exceeded or the system is out of memory.
    pub fn zeroed(len: usize) -> Result<AlignedBytes, OutOfMemory> {
        if len == 0 {
            return Ok(AlignedBytes::empty());
        }
        AlignedBytes::allocate(len, Charge::new(len)?)
    }

    /// Copies `bytes`. The copy counts toward the budget, but is not checked against the limit, as its data is already
    /// in memory.
    ///
    /// # Errors
    /// If the system is out of memory.
    pub fn copy_of(bytes: &[u8]) -> Result<AlignedBytes, OutOfMemory> {
        let mut copy = AlignedBytes::allocate(bytes.len(), Charge::beyond_limit(bytes.len()))?;
        copy.as_mut().copy_from_slice(bytes);
        Ok(copy)
    }

    fn allocate(len: usize, charge: Charge) -> Result<AlignedBytes, OutOfMemory> {
        let zeroed = || bytemuck::allocation::try_zeroed_slice_box(len.div_ceil(64));
        let lines = zeroed().or_else(|()| {
            memory::reclaim();
            zeroed()
        });
        let lines = lines.map_err(|()| OutOfMemory { bytes: Some(len), limit: None })?;
        Ok(AlignedBytes { lines, len, _charge: Some(charge) })
    }
}

impl AsMut<[u8]> for AlignedBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}
