//! Advice to the operating system on the pages of weights.

/// Requests huge pages for a block of memory, which should be aligned to huge pages and not yet accessed.
pub fn advise_huge_pages(at: *mut u8, bytes: usize) {
    let page = 4096;
    let from = at.addr().next_multiple_of(page);
    let to = at.addr().saturating_add(bytes) / page * page;
    if from < to {
        // SAFETY: the advice only changes the size of pages; if it is rejected, they stay small.
        unsafe { libc::madvise(at.wrapping_add(from - at.addr()).cast(), to - from, libc::MADV_HUGEPAGE) };
    }
}
