//! Advice to the operating system on the pages of weights.

use std::ffi::{c_int, c_void};

/// `MADV_HUGEPAGE`.
const HUGE_PAGE: c_int = 14;

unsafe extern "C" {
    fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int;
}

/// Requests huge pages. The memory should be aligned to huge pages and not touched yet.
pub fn in_large_pages(at: *mut u8, bytes: usize) {
    let small = 4096;
    let from = at.addr().next_multiple_of(small);
    let to = at.addr().saturating_add(bytes) / small * small;
    if from < to {
        // SAFETY: the advice only changes the size of pages; if it is rejected, they stay small.
        unsafe { madvise(at.wrapping_add(from - at.addr()).cast(), to - from, HUGE_PAGE) };
    }
}
