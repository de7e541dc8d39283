//! Huge-page advice for weight memory.

/// Requests huge pages for a block of memory, which should be aligned to huge pages and not yet accessed.
pub fn advise_huge_pages(at: *mut u8, bytes: usize) {
    let page = 4096;
    let from = at.addr().next_multiple_of(page);
    let to = at.addr().saturating_add(bytes) / page * page;
    if from < to {
        // SAFETY: `MADV_HUGEPAGE` does not change memory contents; if the system rejects it, pages stay small.
        unsafe { libc::madvise(at.wrapping_add(from - at.addr()).cast(), to - from, libc::MADV_HUGEPAGE) };
    }
}
