//! Shared memory of a client, mapped into the server, so that a tensor needs no copy.
//!
//! A client can shrink an object while the server uses it. An access past the new end raises SIGBUS. The handler of
//! this module then replaces the mapping with zeros and marks it as lost: the run continues on zeros, and the request
//! fails afterwards. A client can also change an input during a run. Only tensors of floating-point elements are
//! mapped, because no kernel uses such values as addresses.
//!
//! Within the server, a range is borrowed as in Rust: by several readers or one writer.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Maximum number of mappings in the process.
const MAX_MAPPINGS: usize = 1024;
/// Alignment of tensors in bytes.
const ALIGNMENT: usize = 64;

/// Mapping known to the SIGBUS handler.
struct Entry {
    /// Address of the first byte; 0 for a free entry.
    start: AtomicUsize,
    /// Address past the last byte.
    end: AtomicUsize,
    is_lost: AtomicBool,
}

static ENTRIES: [Entry; MAX_MAPPINGS] =
    [const { Entry { start: AtomicUsize::new(0), end: AtomicUsize::new(0), is_lost: AtomicBool::new(false) } };
        MAX_MAPPINGS];

/// Previous action for SIGBUS; `None` if the handler of this module could not be installed.
static PREVIOUS_ACTION: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Mapped part of a shared-memory object.
#[derive(Debug)]
pub struct Mapping {
    /// Address of the first byte, at a page boundary.
    start: usize,
    /// Size in bytes.
    size: usize,
    /// Offset of the requested part from `start`.
    page_offset: usize,
    /// Index into [`ENTRIES`].
    entry: usize,
    borrows: Mutex<Vec<Borrow>>,
}

/// Range of a mapping that is in use.
#[derive(Debug, PartialEq)]
struct Borrow {
    range: Range<usize>,
    writes: bool,
}

impl Mapping {
    /// Maps `size` bytes of an object, starting at `offset`.
    ///
    /// # Errors
    /// If the system cannot map the object or install the signal handler, or too many objects are mapped.
    pub fn new(file: &File, offset: u64, size: usize) -> io::Result<Mapping> {
        if PREVIOUS_ACTION.get_or_init(install).is_none() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let page = rustix::param::page_size() as u64;
        let page_offset = (offset % page) as usize;
        let size = size.checked_add(page_offset).ok_or(io::ErrorKind::OutOfMemory)?;
        let file_offset =
            libc::off_t::try_from(offset - page_offset as u64).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: the system chooses the address, so the mapping replaces no other mapping; `file` keeps the descriptor
        // open.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, file.as_raw_fd(), file_offset) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = address as usize;
        let claim = |entry: &Entry| entry.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let Some(entry) = ENTRIES.iter().position(claim) else {
            unmap(start, size);
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        ENTRIES[entry].is_lost.store(false, Ordering::Release);
        ENTRIES[entry].end.store(start + size, Ordering::Release);
        Ok(Mapping { start, size, page_offset, entry, borrows: Mutex::default() })
    }

    /// Returns true if the object was shrunk while it was in use, and the mapping no longer refers to it.
    pub fn is_lost(&self) -> bool {
        ENTRIES[self.entry].is_lost.load(Ordering::Acquire)
    }

    /// Borrows `size` bytes at `offset` for reading. `None` if the range is misaligned for a tensor, exceeds the
    /// mapping, or is borrowed for writing.
    pub fn read(self: &Arc<Mapping>, offset: usize, size: usize) -> Option<Span> {
        self.borrow(offset, size, false)
    }

    /// Borrows `size` bytes at `offset` for writing. `None` if the range is misaligned for a tensor, exceeds the
    /// mapping, or is borrowed.
    pub fn write(self: &Arc<Mapping>, offset: usize, size: usize) -> Option<WritableSpan> {
        self.borrow(offset, size, true).map(WritableSpan)
    }

    fn borrow(self: &Arc<Mapping>, offset: usize, size: usize, writes: bool) -> Option<Span> {
        let start = self.page_offset.checked_add(offset)?;
        let range = start..start.checked_add(size)?;
        if range.end > self.size || size == 0 || !(self.start + start).is_multiple_of(ALIGNMENT) || self.is_lost() {
            return None;
        }
        let mut borrows = self.lock();
        let conflicts =
            |other: &Borrow| (writes || other.writes) && other.range.start < range.end && range.start < other.range.end;
        if borrows.iter().any(conflicts) {
            return None;
        }
        borrows.push(Borrow { range: range.clone(), writes });
        Some(Span { mapping: self.clone(), range, writes })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Borrow>> {
        self.borrows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let entry = &ENTRIES[self.entry];
        entry.end.store(0, Ordering::Release);
        entry.start.store(0, Ordering::Release);
        unmap(self.start, self.size);
    }
}

/// Borrowed range of a mapping.
#[derive(Debug)]
pub struct Span {
    mapping: Arc<Mapping>,
    range: Range<usize>,
    writes: bool,
}

impl AsRef<[u8]> for Span {
    fn as_ref(&self) -> &[u8] {
        let start = self.mapping.start + self.range.start;
        // SAFETY: `self.mapping` keeps the range mapped, and `Mapping::borrow` excludes other writers in this process.
        // The client may write at any time, but every bit pattern is a valid byte.
        unsafe { std::slice::from_raw_parts(start as *const u8, self.range.len()) }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let mut borrows = self.mapping.lock();
        let is_own = |other: &Borrow| other.writes == self.writes && other.range == self.range;
        if let Some(position) = borrows.iter().position(is_own) {
            borrows.swap_remove(position);
        }
    }
}

/// Range of a mapping that is borrowed for writing.
#[derive(Debug)]
pub struct WritableSpan(Span);

impl AsRef<[u8]> for WritableSpan {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl AsMut<[u8]> for WritableSpan {
    fn as_mut(&mut self) -> &mut [u8] {
        let start = self.0.mapping.start + self.0.range.start;
        // SAFETY: same as in `Span::as_ref`; `Mapping::borrow` also excludes readers in this process.
        unsafe { std::slice::from_raw_parts_mut(start as *mut u8, self.0.range.len()) }
    }
}

fn unmap(start: usize, size: usize) {
    // SAFETY: the callers pass the address and size of a mapping that `Mapping::new` created. No span refers to it,
    // because every span owns a reference to its `Mapping`.
    unsafe { libc::munmap(start as *mut libc::c_void, size) };
}

/// Installs the handler, and returns the previous action for SIGBUS.
fn install() -> Option<libc::sigaction> {
    // SAFETY: a zeroed `sigaction` structure is valid. `on_sigbus` has the signature that `SA_SIGINFO` requires, and
    // makes only system calls that are safe in a signal handler.
    unsafe {
        let mut previous_action: libc::sigaction = std::mem::zeroed();
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        (libc::sigaction(libc::SIGBUS, &action, &mut previous_action) == 0).then_some(previous_action)
    }
}

extern "C" fn on_sigbus(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: with `SA_SIGINFO`, the system passes a valid `siginfo_t`, which contains an address for SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    for entry in &ENTRIES {
        let (start, end) = (entry.start.load(Ordering::Acquire), entry.end.load(Ordering::Acquire));
        if !(start..end).contains(&address) {
            continue;
        }
        entry.is_lost.store(true, Ordering::Release);
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: the range is that of a live mapping: the faulting thread accesses it, and the owner of the mapping
        // removes the entry before it unmaps the range.
        let mapped_address = unsafe { libc::mmap(start as *mut libc::c_void, end - start, protection, flags, -1, 0) };
        if mapped_address != libc::MAP_FAILED {
            return;
        }
    }
    // The signal has a different cause. The previous action is restored, and handles the signal when the access is
    // repeated.
    if let Some(Some(previous_action)) = PREVIOUS_ACTION.get() {
        // SAFETY: `install` obtained this action from the system.
        unsafe { libc::sigaction(libc::SIGBUS, previous_action, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn object(size: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        file
    }

    #[test]
    fn ranges_are_borrowed_by_readers_or_one_writer() {
        let file = object(8192);
        file.write_all_at(&[7; 64], 4096 + 64).unwrap();
        let mapping = Arc::new(Mapping::new(&file, 4096, 4096).unwrap());
        let first_span = mapping.read(64, 64).unwrap();
        assert_eq!(first_span.as_ref(), [7; 64]);
        let second_span = mapping.read(0, 128).unwrap();
        assert!(mapping.write(64, 64).is_none() && mapping.write(0, 1).is_none());
        drop((first_span, second_span));
        let mut writable_span = mapping.write(64, 64).unwrap();
        writable_span.as_mut().fill(9);
        assert!(mapping.read(0, 65).is_none() && mapping.read(0, 64).is_some() && mapping.write(127, 1).is_none());
        drop(writable_span);
        let mut contents = [0; 64];
        file.read_exact_at(&mut contents, 4096 + 64).unwrap();
        assert_eq!(contents, [9; 64]);
        // Misaligned, empty and out-of-range borrows fail.
        assert!(mapping.read(4, 64).is_none() && mapping.read(0, 0).is_none() && mapping.read(4032, 65).is_none());
        assert!(mapping.read(usize::MAX, 64).is_none());
    }

    #[test]
    fn a_shrunk_object_reads_as_zeros_and_is_lost() {
        let file = object(1 << 16);
        file.write_all_at(&[1; 1 << 16], 0).unwrap();
        let mapping = Arc::new(Mapping::new(&file, 0, 1 << 16).unwrap());
        let other_mapping = Arc::new(Mapping::new(&file, 0, 4096).unwrap());
        let span = mapping.read(0, 1 << 16).unwrap();
        file.set_len(4096).unwrap();
        assert!(!mapping.is_lost());
        assert_eq!(span.as_ref()[1 << 15], 0);
        assert!(mapping.is_lost() && mapping.read(0, 64).is_none());
        assert!(!other_mapping.is_lost());
        assert_eq!(other_mapping.read(0, 4096).unwrap().as_ref(), [1; 4096]);
        drop((span, mapping));
        // The new mapping reuses the entry of the dropped mapping.
        let mapping = Arc::new(Mapping::new(&file, 0, 4096).unwrap());
        assert!(!mapping.is_lost());
    }
}
