//! Files mapped into memory, whose pages can be let go.
//!
//! A mapped weight takes memory as soon as it is looked at and until its file is unmapped. Whoever has packed or replaced it
//! lets its pages go before that: they come back from the file if anybody looks again, so nothing can go wrong but time. A
//! stretch of bytes does not say whether it belongs to a mapped file, so the mappings are written down here.

use byoc_core::tensor::{AlignedBytes, OutOfMemory};
use memmap2::{Mmap, MmapMut, UncheckedAdvice};
use prost::bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The mappings that there are, by the address at which they begin.
static MAPPINGS: Mutex<BTreeMap<usize, Weak<Mmap>>> = Mutex::new(BTreeMap::new());

/// The system maps pages around the one that is looked at, as many as these bytes.
const AROUND: usize = 64 << 10;

/// How much of a file is in memory at once while all of it is looked at.
const WINDOW: usize = 4 << 20;

/// A mapped file.
pub struct MappedFile(Arc<Mmap>);

impl MappedFile {
    /// Maps an open file.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn of(file: &File) -> std::io::Result<MappedFile> {
        // SAFETY: the mapping is read-only and private to this process. Like every program that maps its inputs, we rely
        // on nobody shrinking the file while it is in use; what writes such files here renames a new one over the old.
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

/// Bytes that let their pages go when they are dropped, if they are of a mapped file.
pub struct Stretch(pub Bytes);

impl AsRef<[u8]> for Stretch {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        let_go(&self.0);
    }
}

/// Lets the pages of a stretch go if it is of a mapped file; does nothing otherwise.
pub fn let_go(bytes: &[u8]) {
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
        // A system that does not take the advice keeps the pages, which costs memory and nothing else.
        let end = (offset + bytes.len() + AROUND).min(map.len());
        let offset = offset.saturating_sub(AROUND);
        // SAFETY: the mapping is of a file and never written to, so that a page which is let go holds the same bytes when
        // it is looked at again.
        let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, end - offset) };
    }
}

/// A copy of bytes that are not aligned as a tensor's have to be. Large ones get pages of their own, which go back to the
/// system as soon as the copy is dropped, whatever else the allocator holds.
///
/// # Errors
/// When the system has no memory.
pub fn aligned(bytes: &[u8]) -> Result<Arc<dyn AsRef<[u8]> + Send + Sync>, OutOfMemory> {
    const LARGE: usize = 128 << 10;
    if bytes.len() >= LARGE
        && let Ok(mut pages) = MmapMut::map_anon(bytes.len())
    {
        pages.copy_from_slice(bytes);
        return Ok(Arc::new(pages));
    }
    Ok(Arc::new(AlignedBytes::copy_of(bytes)?))
}

/// The BLAKE3 digest of bytes, of which those of a mapped file are in memory a few at a time.
pub fn digest(bytes: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for window in bytes.chunks(WINDOW) {
        hasher.update(window);
        let_go(window);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// How many bytes of a mapping are in memory.
    fn resident(bytes: &[u8]) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", bytes.as_ptr() as usize);
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let line = lines.find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    #[test]
    fn pages_come_and_go_and_hold_the_same() {
        let content: Vec<u8> = (0..3 << 20).map(|i: u32| (i % 251) as u8).collect();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&content).unwrap();
        let map = Bytes::from_owner(MappedFile::of(file.as_file()).unwrap());
        assert_eq!(digest(&map), blake3::hash(&content));
        assert!(resident(&map) < 1 << 20, "a digest leaves nothing in memory");
        let stretch = Stretch(map.slice(4096..(2 << 20) + 5));
        assert_eq!(stretch.as_ref(), &content[4096..(2 << 20) + 5]);
        assert!(resident(&map) >= 2 << 20);
        drop(stretch);
        assert!(resident(&map) < 1 << 20);
        assert_eq!(map, content);
    }

    #[test]
    fn copies_are_aligned_and_the_same() {
        let content: Vec<u8> = (0..300_000u32).map(|i| (i % 253) as u8).collect();
        for bytes in [&content[1..], &content[3..100], &[]] {
            let copy = aligned(bytes).unwrap();
            assert_eq!((*copy).as_ref(), bytes);
            assert!((*copy).as_ref().as_ptr().addr().is_multiple_of(64));
        }
    }

    #[test]
    fn memory_of_no_file_is_left_alone() {
        let content = vec![7u8; 1 << 20];
        drop(Stretch(Bytes::from(content.clone())));
        let_go(&content);
        assert!(content.iter().all(|&byte| byte == 7));
    }
}
