//! Reuse of memory for tensors whose dimensions are known only at run time. Fresh memory from the system costs a page
//! fault for every 4 KiB, which takes longer than most operators need to fill a page.

use super::lock::lock;
use byoc_ir::tensor::{AlignedBytes, OutOfMemory, memory};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

/// Minimum size in bytes of a block worth retaining; the allocator serves smaller blocks from memory that it already
/// holds.
const MIN_BYTES: usize = 128 << 10;

/// Maximum number of free blocks.
const MAX_BLOCKS: usize = 32;
/// Maximum total size of the free blocks in bytes.
const MAX_FREE_BYTES: usize = 256 << 20;

/// Free blocks, reused by consecutive runs. Blocks that a run has not used are released when the next run begins.
#[derive(Default)]
pub(super) struct Recycler(Mutex<FreeBlocks>);

#[derive(Default)]
struct FreeBlocks {
    /// Free blocks, least recently used first, each with the run that used it last.
    blocks: VecDeque<(AlignedBytes, u64)>,
    /// Total size of the blocks.
    bytes: usize,
    /// Number of runs so far.
    run: u64,
}

impl FreeBlocks {
    fn remove(&mut self, index: usize) -> Option<AlignedBytes> {
        let (block, _) = self.blocks.remove(index)?;
        self.bytes -= size(&block);
        Some(block)
    }
}

fn size(block: &AlignedBytes) -> usize {
    AsRef::<[u8]>::as_ref(block).len()
}

impl memory::Cache for Recycler {
    fn release(&self) {
        let mut free = lock(&self.0);
        let blocks = std::mem::take(&mut free.blocks);
        free.bytes = 0;
        drop(free);
        drop(blocks);
    }
}

impl Recycler {
    /// Creates a recycler whose free blocks are released before an allocation in the process fails.
    pub fn new() -> Arc<Recycler> {
        let recycler = Arc::new(Recycler::default());
        let cache: Weak<Recycler> = Arc::downgrade(&recycler);
        memory::register(cache);
        recycler
    }

    /// Begins a run: releases the blocks that the previous run has not used.
    pub fn begin_run(&self) {
        let mut free = lock(&self.0);
        let last_run = free.run;
        let unused = free.blocks.iter().filter(|(_, run)| *run < last_run).count();
        let released: Vec<_> = (0..unused).filter_map(|_| free.remove(0)).collect();
        free.run += 1;
        drop(free);
        drop(released);
    }

    /// Returns memory with arbitrary contents.
    ///
    /// # Errors
    /// If the memory limit of the process is exceeded or the system is out of memory.
    pub fn allocate(self: &Arc<Recycler>, bytes: usize) -> Result<RecycledBytes, OutOfMemory> {
        let home = Arc::downgrade(self);
        if bytes < MIN_BYTES {
            return Ok(RecycledBytes { block: AlignedBytes::zeroed(bytes)?, len: bytes, home: Weak::new() });
        }
        let recycled_block = {
            let mut free = lock(&self.0);
            let fits = |block: &AlignedBytes| (bytes..=bytes.saturating_mul(2)).contains(&size(block));
            let fitting = free.blocks.iter().enumerate().filter(|(_, (block, _))| fits(block));
            let smallest = fitting.min_by_key(|(_, (block, _))| size(block)).map(|(index, _)| index);
            smallest.and_then(|index| free.remove(index))
        };
        let block = match recycled_block {
            Some(block) => block,
            None => AlignedBytes::zeroed(bytes)?,
        };
        Ok(RecycledBytes { block, len: bytes, home })
    }

    fn retain(&self, block: AlignedBytes) {
        if size(&block) > MAX_FREE_BYTES {
            return;
        }
        let mut free = lock(&self.0);
        let run = free.run;
        free.bytes += size(&block);
        free.blocks.push_back((block, run));
        let mut released = Vec::new();
        while free.blocks.len() > MAX_BLOCKS || free.bytes > MAX_FREE_BYTES {
            released.extend(free.remove(0));
        }
        drop(free);
        drop(released);
    }
}

/// Memory that returns to its recycler when it is dropped, if the recycler still exists.
pub(super) struct RecycledBytes {
    /// Memory of at least `len` bytes.
    block: AlignedBytes,
    len: usize,
    home: Weak<Recycler>,
}

impl RecycledBytes {
    /// Increases the length to `len`. A block that has to be replaced gets spare room of half the length, if memory
    /// permits. The contents of the added bytes are arbitrary.
    ///
    /// # Errors
    /// See [`Recycler::allocate`].
    pub fn grow(&mut self, len: usize, recycler: &Arc<Recycler>) -> Result<(), OutOfMemory> {
        if size(&self.block) < len {
            let roomy_block = recycler.allocate(len.saturating_add(len / 2));
            let mut block = roomy_block.or_else(|_| recycler.allocate(len))?;
            block.as_mut()[..self.len].copy_from_slice(self.as_ref());
            *self = block;
        }
        self.len = len;
        Ok(())
    }
}

impl AsRef<[u8]> for RecycledBytes {
    fn as_ref(&self) -> &[u8] {
        &self.block.as_ref()[..self.len]
    }
}

impl AsMut<[u8]> for RecycledBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.block.as_mut()[..self.len]
    }
}

impl Drop for RecycledBytes {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.retain(std::mem::replace(&mut self.block, AlignedBytes::empty()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(bytes: &RecycledBytes) -> *const u8 {
        bytes.as_ref().as_ptr()
    }

    #[test]
    fn reuses_the_smallest_block_that_fits() {
        let recycler = Recycler::new();
        let [small, large] = [MIN_BYTES, 2 * MIN_BYTES].map(|bytes| recycler.allocate(bytes).unwrap());
        let addresses = [address(&small), address(&large)];
        drop((large, small));
        let again = [MIN_BYTES, MIN_BYTES + 1].map(|bytes| recycler.allocate(bytes).unwrap());
        assert_eq!(again.each_ref().map(address), addresses);
        assert_eq!(again.each_ref().map(|bytes| bytes.as_ref().len()), [MIN_BYTES, MIN_BYTES + 1]);
        let third = recycler.allocate(MIN_BYTES).unwrap();
        assert!(!addresses.contains(&address(&third)), "expected memory of its own for a block in use");
    }

    #[test]
    fn keeps_large_blocks_for_large_tensors() {
        let recycler = Recycler::new();
        let large = recycler.allocate(3 * MIN_BYTES).unwrap();
        let large_address = address(&large);
        drop(large);
        let small = recycler.allocate(MIN_BYTES).unwrap();
        assert_ne!(address(&small), large_address);
        assert_eq!(address(&recycler.allocate(3 * MIN_BYTES).unwrap()), large_address);
    }

    #[test]
    fn releases_what_a_run_does_not_use() {
        let recycler = Recycler::new();
        let free_bytes = || lock(&recycler.0).bytes;
        recycler.begin_run();
        drop([1, 3].map(|blocks| recycler.allocate(blocks * MIN_BYTES).unwrap()));
        recycler.begin_run();
        assert_eq!(free_bytes(), 4 * MIN_BYTES);
        drop(recycler.allocate(MIN_BYTES).unwrap());
        recycler.begin_run();
        assert_eq!(free_bytes(), MIN_BYTES);
        drop(recycler.allocate(MAX_FREE_BYTES + 1).unwrap());
        assert_eq!(free_bytes(), MIN_BYTES, "expected no block above the maximum");
        drop([1, 2].map(|_| recycler.allocate(MAX_FREE_BYTES / 2 + 1).unwrap()));
        assert_eq!(free_bytes(), MAX_FREE_BYTES / 2 + 1, "expected the maximum for all blocks together");
        memory::Cache::release(&*recycler);
        assert_eq!(free_bytes(), 0);
        let outliving = recycler.allocate(MIN_BYTES).unwrap();
        drop(recycler);
        drop(outliving);
    }
}
