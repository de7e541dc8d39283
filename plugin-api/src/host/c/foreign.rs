//! Copies of memory whose address and length a C plugin supplies.

use std::ffi::c_void;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Size of a chunk in bytes. Memory is allocated in chunks, so that an unmapped range is detected before its full
/// length is allocated.
const CHUNK: usize = 1 << 20;

/// Copies `size` bytes from `data`. The kernel reads the memory on behalf of this process and reports a length beyond
/// the mapped pages as an error; a plain copy would crash the process.
///
/// # Errors
/// If `data` is null, some bytes are not mapped, or memory is exhausted. The message begins with `name`.
pub fn copy(data: *const c_void, size: usize, name: &str) -> Result<Vec<u8>, String> {
    if size == 0 {
        return Ok(Vec::new());
    }
    if data.is_null() {
        return Err(format!("{name}: expected {size} bytes, found NULL"));
    }
    let Ok(memory) = File::open("/proc/self/mem") else {
        // SAFETY: the plugin guarantees `size` readable bytes; without `/proc/self/mem`, the length cannot be checked.
        return Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) }.to_vec());
    };
    let mut bytes: Vec<u8> = Vec::new();
    while bytes.len() < size {
        let offset = bytes.len();
        let chunk = CHUNK.min(size - offset);
        bytes.try_reserve(chunk).map_err(|_| format!("{name}: failed to allocate {size} bytes"))?;
        bytes.resize(offset + chunk, 0);
        memory.read_exact_at(&mut bytes[offset..], (data as u64).wrapping_add(offset as u64)).map_err(|_| {
            format!("{name}: expected {size} bytes, found fewer than {} readable bytes", offset + chunk)
        })?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_mapped_memory_and_rejects_the_rest() {
        let bytes: Vec<u8> = (0..3_000_000).map(|i| (i % 251) as u8).collect();
        assert_eq!(copy(bytes.as_ptr().cast(), bytes.len(), "it").unwrap(), bytes);
        assert!(copy(std::ptr::null(), 0, "it").unwrap().is_empty());
        copy(std::ptr::null(), 1, "it").unwrap_err();
        let error = copy(bytes.as_ptr().cast(), 1 << 46, "blob").unwrap_err();
        assert!(error.starts_with("blob: expected"), "{error}");
    }
}
