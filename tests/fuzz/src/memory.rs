//! A limit on memory: what asks for more than a run of such small inputs can need is a finding.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, which refuses what goes beyond a limit. Code that asks whether it gets memory hears that it does not;
/// other code ends the process, as it would where memory is short.
pub struct Limited {
    used: AtomicUsize,
    most: AtomicUsize,
    limit: usize,
}

impl Limited {
    /// At most so many bytes at a time.
    pub const fn new(limit: usize) -> Limited {
        Limited { used: AtomicUsize::new(0), most: AtomicUsize::new(0), limit }
    }

    /// The most bytes that were in use at once.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

impl Limited {
    fn take(&self, size: usize) -> bool {
        let used = self.used.fetch_add(size, Ordering::Relaxed).saturating_add(size);
        if used > self.limit {
            self.used.fetch_sub(size, Ordering::Relaxed);
            return false;
        }
        self.most.fetch_max(used, Ordering::Relaxed);
        true
    }
}

// SAFETY: everything is the system allocator's, but for what is refused by null, which every caller of `alloc` expects.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !self.take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's word on the layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !self.take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's word on the layout.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.used.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: it came from `alloc`, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}
