//! Huge-page advice for weight memory.

/// Requests huge pages for a block of memory, which should be aligned to huge pages and not yet accessed.
pub fn advise_huge_pages(address: *mut u8, bytes: usize) {
    let page = 4096;
    let start = address.addr().next_multiple_of(page);
    let end = address.addr().saturating_add(bytes) / page * page;
    if start < end {
        // SAFETY: `MADV_HUGEPAGE` does not change memory contents; if the system rejects it, pages stay small.
        unsafe { libc::madvise(address.wrapping_add(start - address.addr()).cast(), end - start, libc::MADV_HUGEPAGE) };
    }
}
