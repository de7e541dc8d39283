//! Permanent memory outside the heap: a plugin that corrupts the heap does not corrupt the names in the resulting error
//! message.

use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

/// Size of a mapping in bytes.
const CHUNK: usize = 64 << 10;

/// Address and size in bytes of the free space.
static FREE_RANGE: Mutex<(usize, usize)> = Mutex::new((0, 0));

/// Allocates `size` bytes at a multiple of `align`, which is a power of two. Returns `None` if the system is out of
/// memory.
fn allocate(size: usize, align: usize) -> Option<NonNull<u8>> {
    let mut region = FREE_RANGE.lock().unwrap_or_else(PoisonError::into_inner);
    let skip = region.0.wrapping_neg() & (align - 1);
    if region.1 < size + skip {
        let length = CHUNK.max(size.next_multiple_of(4096));
        // SAFETY: an anonymous mapping at an address chosen by the kernel does not affect existing memory.
        let pages = unsafe {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(ptr::null_mut(), length, access, kind, -1, 0)
        };
        if pages == libc::MAP_FAILED {
            return None;
        }
        *region = (pages.expose_provenance(), length);
        return bump(&mut region, size, 0);
    }
    bump(&mut region, size, skip)
}

fn bump(region: &mut (usize, usize), size: usize, skip: usize) -> Option<NonNull<u8>> {
    let address = region.0 + skip;
    *region = (address + size, region.1 - skip - size);
    NonNull::new(ptr::with_exposed_provenance_mut(address))
}

/// Copies a value to memory that is never freed.
pub(super) fn store<T: Copy + Send + Sync + 'static>(value: T) -> &'static T {
    match allocate(size_of::<T>(), align_of::<T>()) {
        // SAFETY: `allocate` returned `size_of::<T>()` aligned, exclusively owned bytes, which are never freed.
        Some(pointer) => unsafe {
            let pointer = pointer.cast::<T>();
            pointer.write(value);
            pointer.as_ref()
        },
        None => Box::leak(Box::new(value)),
    }
}

/// Copies a string to memory that is never freed.
pub(super) fn store_str(text: &str) -> &'static str {
    match allocate(text.len(), 1) {
        // SAFETY: `allocate` returned `text.len()` exclusively owned bytes, which are never freed; a copy of a `str` is
        // UTF-8.
        Some(pointer) => unsafe {
            pointer.copy_from_nonoverlapping(NonNull::from(text.as_bytes()).cast(), text.len());
            str::from_utf8_unchecked(NonNull::slice_from_raw_parts(pointer, text.len()).as_ref())
        },
        None => text.to_owned().leak(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_values_stay_intact() {
        let texts: Vec<&'static str> = (0..4000).map(|i| store_str(&format!("name {i}"))).collect();
        let values: Vec<&'static [u64; 3]> = (0..4000).map(|i| store([i, i + 1, i + 2])).collect();
        for (i, (text, stored_value)) in texts.iter().zip(values).enumerate() {
            assert_eq!(*text, format!("name {i}"));
            assert_eq!(*stored_value, [i as u64, i as u64 + 1, i as u64 + 2]);
        }
        assert_eq!(store_str(""), "");
        assert_eq!(store_str(&"x".repeat(CHUNK + 1)).len(), CHUNK + 1);
    }
}
