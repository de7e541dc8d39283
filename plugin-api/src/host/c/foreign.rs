//! Copies of memory that a C plugin points at, of a length that the plugin says.

use std::ffi::c_void;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes that are copied at once: a length that is wrong is found before memory is taken for it.
const CHUNK: usize = 1 << 20;

/// Copies `size` bytes. The system reads them in the place of this process, so that a length beyond what is mapped is an
/// error where a plain copy would end the process.
///
/// # Errors
/// Bytes that are not there; `what` is what they are called.
pub fn copy(data: *const c_void, size: usize, what: &str) -> Result<Vec<u8>, String> {
    if size == 0 {
        return Ok(Vec::new());
    }
    if data.is_null() {
        return Err(format!("{what}: {size} bytes at NULL"));
    }
    let Ok(memory) = File::open("/proc/self/mem") else {
        // SAFETY: the plugin's bytes are as many as it says, which cannot be checked here.
        return Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) }.to_vec());
    };
    let mut copied: Vec<u8> = Vec::new();
    while copied.len() < size {
        let at = copied.len();
        let chunk = CHUNK.min(size - at);
        copied.try_reserve(chunk).map_err(|_| format!("{what}: there is no memory for {size} bytes"))?;
        copied.resize(at + chunk, 0);
        memory.read_exact_at(&mut copied[at..], (data as u64).wrapping_add(at as u64)).map_err(|_| {
            format!("{what}: expected {size} bytes as its size says, found less than {} MiB", (at + chunk) >> 20)
        })?;
    }
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_what_is_there_and_refuses_the_rest() {
        let bytes: Vec<u8> = (0..3_000_000).map(|i| (i % 251) as u8).collect();
        assert_eq!(copy(bytes.as_ptr().cast(), bytes.len(), "it").unwrap(), bytes);
        assert!(copy(std::ptr::null(), 0, "it").unwrap().is_empty());
        copy(std::ptr::null(), 1, "it").unwrap_err();
        let error = copy(bytes.as_ptr().cast(), 1 << 46, "the blob").unwrap_err();
        assert!(error.starts_with("the blob: expected"), "{error}");
    }
}
