//! Memory-mapped files whose pages can be released.
//!
//! A mapped weight occupies memory from its first access until its file is unmapped. Code that has packed or replaced a
//! weight releases the pages earlier; the next access reads them from the file again, which only costs time. A byte
//! slice does not reveal whether it belongs to a mapped file, so this module records the mappings.

use byoc_ir::tensor::{AlignedBytes, OutOfMemory, Storage};
use bytes::Bytes;
use memmap2::{Mmap, MmapMut, UncheckedAdvice};
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Live mappings by start address.
static MAPPINGS: Mutex<BTreeMap<usize, Weak<Mmap>>> = Mutex::new(BTreeMap::new());

/// Size in bytes of the kernel's fault-around window: the pages that are mapped together with an accessed page.
const FAULT_AROUND: usize = 64 << 10;

/// Maximum number of bytes that [`digest`] keeps resident at a time.
const WINDOW: usize = 4 << 20;

/// File mapped into memory.
pub struct MappedFile(Arc<Mmap>);

impl MappedFile {
    /// Maps an open file.
    ///
    /// # Errors
    /// If the file cannot be mapped.
    pub fn of(file: &File) -> std::io::Result<MappedFile> {
        // SAFETY: the mapping is read-only. The file must not be modified or truncated while it is mapped; like every
        // program that maps its inputs, byoc relies on its users for that. Its own writers never truncate such a file,
        // but rename a new file over the old one.
        let map = Arc::new(unsafe { Mmap::map(file)? });
        let mut mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
        mappings.retain(|_, map| map.strong_count() > 0);
        mappings.insert(map.as_ptr() as usize, Arc::downgrade(&map));
        Ok(MappedFile(map))
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Bytes whose pages are released on drop, if they belong to a mapped file.
pub struct MappedRange(pub Bytes);

impl AsRef<[u8]> for MappedRange {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for MappedRange {
    fn drop(&mut self) {
        release_pages(&self.0);
    }
}

/// Releases the pages of a range of bytes if it belongs to a mapped file; does nothing otherwise.
pub fn release_pages(bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let start = bytes.as_ptr() as usize;
    let map = {
        let mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
        mappings.range(..=start).next_back().and_then(|(_, map)| map.upgrade())
    };
    if let Some(map) = map
        && let Some(offset) = start.checked_sub(map.as_ptr() as usize)
        && offset + bytes.len() <= map.len()
    {
        // If the system ignores the advice, the pages stay resident, which only costs memory.
        let end = (offset + bytes.len() + FAULT_AROUND).min(map.len());
        let offset = offset.saturating_sub(FAULT_AROUND);
        // SAFETY: `MappedFile::of` adds only read-only file mappings to `MAPPINGS`, so the next access to a released
        // page reads the same bytes from the file.
        let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, end - offset) };
    }
}

/// Copies bytes to memory with tensor alignment. A large copy is allocated in separate pages, which are returned to the
/// system as soon as the copy is dropped.
///
/// # Errors
/// If the memory cannot be allocated.
pub fn aligned(bytes: &[u8]) -> Result<Arc<dyn Storage>, OutOfMemory> {
    const MIN_MAPPED_BYTES: usize = 128 << 10;
    if bytes.len() >= MIN_MAPPED_BYTES
        && let Ok(mut pages) = MmapMut::map_anon(bytes.len())
    {
        pages.copy_from_slice(bytes);
        return Ok(Arc::new(pages));
    }
    Ok(Arc::new(AlignedBytes::copy_of(bytes)?))
}

/// Returns the BLAKE3 digest of bytes. Pages of a mapped file are released once they have been hashed, which bounds the
/// resident memory.
pub fn digest(bytes: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for window in bytes.chunks(WINDOW) {
        hasher.update(window);
        release_pages(window);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn resident_bytes(bytes: &[u8]) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", bytes.as_ptr() as usize);
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let line = lines.find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    #[test]
    fn released_pages_read_back_the_same() {
        let content: Vec<u8> = (0..3 << 20).map(|i: u32| (i % 251) as u8).collect();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&content).unwrap();
        let map = Bytes::from_owner(MappedFile::of(file.as_file()).unwrap());
        assert_eq!(digest(&map), blake3::hash(&content));
        assert!(resident_bytes(&map) < 1 << 20, "expected the digest to release its pages");
        let range = MappedRange(map.slice(4096..(2 << 20) + 5));
        assert_eq!(range.as_ref(), &content[4096..(2 << 20) + 5]);
        assert!(resident_bytes(&map) >= 2 << 20);
        drop(range);
        assert!(resident_bytes(&map) < 1 << 20);
        assert_eq!(map, content);
    }

    #[test]
    fn aligned_copies_are_equal() {
        let content: Vec<u8> = (0..300_000u32).map(|i| (i % 253) as u8).collect();
        for bytes in [&content[1..], &content[3..100], &[]] {
            let copy = aligned(bytes).unwrap();
            assert_eq!((*copy).as_ref(), bytes);
            assert!((*copy).as_ref().as_ptr().addr().is_multiple_of(64));
        }
    }

    #[test]
    fn release_ignores_unmapped_memory() {
        let content = vec![7u8; 1 << 20];
        drop(MappedRange(Bytes::from(content.clone())));
        release_pages(&content);
        assert!(content.iter().all(|&byte| byte == 7));
    }
}
