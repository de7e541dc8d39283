//! Allocation of tensors within one arena: best fit, with adjacent free blocks merged.

use std::collections::{BTreeMap, BTreeSet};

/// Alignment of offsets in the host's arena, in bytes: the size of a cache line and of the widest vector.
const ALIGN: usize = 64;

/// State of an arena during planning.
pub(super) struct Arena {
    alignment: usize,
    size: usize,
    /// Sizes of free blocks, by offset.
    free_blocks: BTreeMap<usize, usize>,
    /// Free blocks as (size, offset).
    by_size: BTreeSet<(usize, usize)>,
}

impl Default for Arena {
    fn default() -> Arena {
        Arena::aligned(ALIGN)
    }
}

impl Arena {
    /// Creates an arena whose offsets are multiples of `alignment`.
    pub(super) fn aligned(alignment: usize) -> Arena {
        Arena { alignment, size: 0, free_blocks: BTreeMap::new(), by_size: BTreeSet::new() }
    }

    /// Returns the total size in bytes.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Allocates `bytes`, which must be non-zero, and returns the offset; `None` if the size of the arena would
    /// overflow.
    pub(super) fn allocate(&mut self, bytes: usize) -> Option<usize> {
        let bytes = bytes.checked_next_multiple_of(self.alignment)?;
        if let Some(&(size, offset)) = self.by_size.range((bytes, 0)..).next() {
            self.remove(offset, size);
            if size > bytes {
                self.insert(offset + bytes, size - bytes);
            }
            return Some(offset);
        }
        // The arena grows; a free block at its end is extended.
        let offset = match self.free_blocks.last_key_value() {
            Some((&offset, &size)) if offset + size == self.size => {
                self.remove(offset, size);
                offset
            }
            _ => self.size,
        };
        self.size = offset.checked_add(bytes)?;
        Some(offset)
    }

    /// Frees the block that [`Arena::allocate`] returned for `bytes`.
    pub(super) fn free(&mut self, mut offset: usize, bytes: usize) {
        let mut size = bytes.next_multiple_of(self.alignment);
        if let Some((&previous_offset, &length)) = self.free_blocks.range(..offset).next_back()
            && previous_offset + length == offset
        {
            self.remove(previous_offset, length);
            (offset, size) = (previous_offset, size + length);
        }
        if let Some(&length) = self.free_blocks.get(&(offset + size)) {
            self.remove(offset + size, length);
            size += length;
        }
        self.insert(offset, size);
    }

    fn insert(&mut self, offset: usize, size: usize) {
        self.free_blocks.insert(offset, size);
        self.by_size.insert((size, offset));
    }

    fn remove(&mut self, offset: usize, size: usize) {
        self.free_blocks.remove(&offset);
        self.by_size.remove(&(size, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuses_and_merges_blocks() {
        let mut arena = Arena::default();
        let a = arena.allocate(100).unwrap();
        let b = arena.allocate(64).unwrap();
        let c = arena.allocate(1).unwrap();
        assert_eq!((a, b, c, arena.size()), (0, 128, 192, 256));
        arena.free(a, 100);
        assert_eq!(arena.allocate(64), Some(0));
        arena.free(b, 64);
        assert_eq!(arena.allocate(128), Some(64), "adjacent blocks are merged");
        arena.free(c, 1);
        assert_eq!(arena.allocate(1000), Some(192), "the last block grows");
        assert_eq!(arena.size(), 192 + 1024);
    }

    #[test]
    fn allocates_the_best_fit() {
        let mut arena = Arena::default();
        let blocks = [640, 64, 128, 64, 320, 64].map(|size| (arena.allocate(size).unwrap(), size));
        for (offset, size) in [blocks[0], blocks[2], blocks[4]] {
            arena.free(offset, size);
        }
        assert_eq!(arena.allocate(128), Some(blocks[2].0));
        assert_eq!(arena.allocate(300), Some(blocks[4].0));
        assert_eq!(arena.allocate(usize::MAX), None);
    }
}
