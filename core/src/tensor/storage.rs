//! Bytes at a 64-byte boundary: a cache line, and what the widest vector loads like.

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Owned bytes that start at a 64-byte boundary.
pub struct AlignedBytes {
    lines: Box<[Line]>,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes.
    ///
    /// # Panics
    /// When there is no memory for them.
    pub fn zeroed(len: usize) -> AlignedBytes {
        AlignedBytes::try_zeroed(len).expect("memory for a tensor")
    }

    /// `len` zero bytes, if there is memory for them. The pages are the system's zero pages until they are written.
    pub fn try_zeroed(len: usize) -> Option<AlignedBytes> {
        let lines = bytemuck::allocation::try_zeroed_slice_box(len.div_ceil(64)).ok()?;
        Some(AlignedBytes { lines, len })
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> AlignedBytes {
        let mut copy = AlignedBytes::zeroed(bytes.len());
        copy.as_mut().copy_from_slice(bytes);
        copy
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
