//! Advice to the operating system on the pages of weights.

/// Requests huge pages. The memory should be aligned to huge pages and not touched yet.
pub fn in_large_pages(at: *mut u8, bytes: usize) {
    let small = 4096;
    let from = at.addr().next_multiple_of(small);
    let to = at.addr().saturating_add(bytes) / small * small;
    if from < to {
        // SAFETY: the advice only changes the size of pages; if it is rejected, they stay small.
        unsafe { libc::madvise(at.wrapping_add(from - at.addr()).cast(), to - from, libc::MADV_HUGEPAGE) };
    }
}
