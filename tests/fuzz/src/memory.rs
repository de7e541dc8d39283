//! Memory limit: an input that requires memory out of proportion to its size is a finding.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// System allocator with a limit. Above the limit, allocations fail: code that handles the failure continues, and all
/// other code aborts, as if memory were exhausted.
pub struct LimitedAllocator {
    used_bytes: AtomicUsize,
    peak: AtomicUsize,
    limit: usize,
}

impl LimitedAllocator {
    /// Creates an allocator with at most `limit` bytes in use at any time.
    pub const fn new(limit: usize) -> LimitedAllocator {
        LimitedAllocator { used_bytes: AtomicUsize::new(0), peak: AtomicUsize::new(0), limit }
    }

    /// Returns the peak number of bytes in use.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }
}

impl LimitedAllocator {
    fn reserve(&self, size: usize) -> bool {
        let used_bytes = self.used_bytes.fetch_add(size, Ordering::Relaxed).saturating_add(size);
        if used_bytes > self.limit {
            self.used_bytes.fetch_sub(size, Ordering::Relaxed);
            return false;
        }
        self.peak.fetch_max(used_bytes, Ordering::Relaxed);
        true
    }
}

// SAFETY: every call is delegated to the system allocator; above the limit, the result is null, as the contract
// permits.
unsafe impl GlobalAlloc for LimitedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !self.reserve(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller guarantees that the size of the layout is not zero.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !self.reserve(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller guarantees that the size of the layout is not zero.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.used_bytes.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees that this allocator, and thus the system allocator, allocated the memory with
        // this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}
