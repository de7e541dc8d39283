//! Memory budget of the process: a limit in bytes on the total memory of tensors and workspaces in use at once.
//!
//! A file of a few bytes can demand an arbitrary amount of memory (a broadcast, a repeat, pooling with large padding),
//! and the system overcommits until it kills the process. So allocations whose size comes from a model go through this
//! module: the size is checked against the limit first, then against what the system provides, and either failure is an
//! error value, never an abort. The count is global, because memory belongs to the process; views of mapped files and
//! of foreign memory do not count.

use crate::diag::{Diagnostic, codes};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
static USED: AtomicUsize = AtomicUsize::new(0);

/// Sets the limit in bytes on the memory in use. Memory already in use is not affected.
pub fn set_limit(bytes: usize) {
    LIMIT.store(bytes, Relaxed);
}

/// Sets the limit unless one was set before; returns the limit in force.
pub fn set_default_limit(bytes: usize) -> usize {
    match LIMIT.compare_exchange(usize::MAX, bytes, Relaxed, Relaxed) {
        Ok(_) => bytes,
        Err(set) => set,
    }
}

/// Returns the limit in bytes on the memory in use; `usize::MAX` if none was set.
pub fn limit() -> usize {
    LIMIT.load(Relaxed)
}

/// Returns the number of bytes in use.
pub fn used() -> usize {
    USED.load(Relaxed)
}

/// Returns the number of bytes available below the limit.
pub fn available() -> usize {
    limit().saturating_sub(used())
}

/// Fails if the bytes in use exceed the limit. Work that counts its structures only after it has created them
/// ([`Charge::beyond_limit`]) calls this periodically.
///
/// # Errors
/// If more bytes are in use than the limit permits.
pub fn check() -> Result<(), OutOfMemory> {
    let (limit, used) = (limit(), used());
    match used.checked_sub(limit) {
        None | Some(0) => Ok(()),
        Some(excess) => Err(OutOfMemory { bytes: Some(excess), limit: Some((limit, limit)) }),
    }
}

/// Allocation failure: the limit is exceeded, or the system is out of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Requested size in bytes; `None` if it exceeds the address space.
    pub bytes: Option<usize>,
    /// Limit and bytes in use, if the limit is exceeded.
    pub limit: Option<(usize, usize)>,
}

impl OutOfMemory {
    /// Error for a size that exceeds the address space.
    pub const OVERFLOW: OutOfMemory = OutOfMemory { bytes: None, limit: None };
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bytes, self.limit) {
            (None, _) => f.write_str("cannot allocate more bytes than the address space has"),
            (Some(bytes), None) => write!(f, "cannot allocate {bytes} bytes: the system is out of memory"),
            (Some(bytes), Some((limit, used))) => write!(
                f,
                "cannot allocate {bytes} bytes: the limit is {}, of which {} are in use",
                Bytes(limit),
                Bytes(used)
            ),
        }
    }
}

impl std::error::Error for OutOfMemory {}

impl From<OutOfMemory> for Diagnostic {
    fn from(error: OutOfMemory) -> Diagnostic {
        let diagnostic = Diagnostic::error(codes::runtime::OUT_OF_MEMORY, error.to_string());
        match error.limit {
            Some(_) => diagnostic.help("raise the limit with --max-memory SIZE if the size is intended"),
            None => diagnostic,
        }
    }
}

impl From<OutOfMemory> for Box<Diagnostic> {
    fn from(error: OutOfMemory) -> Box<Diagnostic> {
        Box::new(error.into())
    }
}

/// Number of bytes, displayed with a unit: `1.5 GiB`.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let unit = (self.0.max(1).ilog2() / 10) as usize;
        match unit {
            0 => write!(f, "{} bytes", self.0),
            _ => write!(f, "{:.1} {}", self.0 as f64 / (1u64 << (10 * unit)) as f64, units[unit]),
        }
    }
}

/// Guard that counts bytes as in use until it is dropped; the default counts none.
#[derive(Debug, Default)]
pub struct Charge(usize);

impl Charge {
    /// Counts `bytes` as in use.
    ///
    /// # Errors
    /// If the bytes in use would exceed the limit; nothing is counted in that case.
    pub fn new(bytes: usize) -> Result<Charge, OutOfMemory> {
        Charge::within_limit(bytes).or_else(|_| {
            reclaim();
            Charge::within_limit(bytes)
        })
    }

    fn within_limit(bytes: usize) -> Result<Charge, OutOfMemory> {
        let used = USED.fetch_add(bytes, Relaxed);
        let limit = LIMIT.load(Relaxed);
        if used.checked_add(bytes).is_none_or(|sum| sum > limit) {
            USED.fetch_sub(bytes, Relaxed);
            return Err(OutOfMemory { bytes: Some(bytes), limit: Some((limit, used)) });
        }
        Ok(Charge(bytes))
    }

    /// Counts `bytes` more as in use.
    ///
    /// # Errors
    /// If the bytes in use would exceed the limit; nothing more is counted in that case.
    pub fn grow(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        self.merge(Charge::new(bytes)?);
        Ok(())
    }

    /// Takes over the bytes of `other`.
    pub fn merge(&mut self, mut other: Charge) {
        self.0 += std::mem::take(&mut other.0);
    }

    /// Counts `bytes` in total as in use.
    ///
    /// # Errors
    /// If the bytes in use would exceed the limit; the count does not change in that case.
    pub fn resize(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        if bytes > self.0 {
            return self.grow(bytes - self.0);
        }
        drop(Charge(self.0 - bytes));
        self.0 = bytes;
        Ok(())
    }

    /// Counts `bytes` as in use even beyond the limit, for copies of data that is already in memory.
    pub fn beyond_limit(bytes: usize) -> Charge {
        USED.fetch_add(bytes, Relaxed);
        Charge(bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        USED.fetch_sub(self.0, Relaxed);
    }
}

/// Count of many small allocations, which is charged in blocks.
#[derive(Debug, Default)]
pub struct Tally {
    charges: Vec<Charge>,
    /// Number of charged bytes that nothing uses yet.
    room: usize,
}

impl Tally {
    /// Size of a block in bytes.
    const BLOCK: usize = 1 << 20;

    /// Counts `bytes` as in use until the tally is dropped.
    ///
    /// # Errors
    /// See [`Charge::new`].
    pub fn add(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        if bytes > self.room {
            let block = bytes.max(Tally::BLOCK);
            self.charges.push(Charge::new(block)?);
            self.room = block;
        }
        self.room -= bytes;
        Ok(())
    }
}

/// Cache whose memory is kept only to save later allocations.
pub trait Cache: Send + Sync {
    /// Releases the memory.
    fn release(&self);
}

static CACHES: Mutex<Vec<Weak<dyn Cache>>> = Mutex::new(Vec::new());

/// Registers a cache, which is released before an allocation fails.
pub fn register(cache: Weak<dyn Cache>) {
    let mut caches = CACHES.lock().unwrap_or_else(PoisonError::into_inner);
    caches.retain(|cache| cache.strong_count() > 0);
    caches.push(cache);
}

/// Releases the memory of all caches.
pub(super) fn reclaim() {
    let caches: Vec<Arc<dyn Cache>> =
        CACHES.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
    caches.iter().for_each(|cache| cache.release());
}

/// Size in bytes from which a reservation is probed; smaller reservations are assumed to succeed.
const MIN_PROBED: usize = 64 << 20;

/// Reserves `bytes` for later allocations that would abort on failure, such as a `Vec` in a reference: counts the bytes
/// as in use and probes whether the system can provide them.
///
/// # Errors
/// If the limit is exceeded or the system is out of memory.
pub fn reserve(bytes: usize) -> Result<Charge, OutOfMemory> {
    let charge = Charge::new(bytes)?;
    if bytes >= MIN_PROBED {
        // The probe is never touched, so none of its pages is committed.
        let probe = Vec::<u8>::new().try_reserve_exact(bytes);
        probe.map_err(|_| OutOfMemory { bytes: Some(bytes), limit: None })?;
    }
    Ok(charge)
}

#[cfg(test)]
mod tests {
    use super::super::{DType, Tensor};
    use super::*;

    /// Tests all counting in one function, as the limit is global to the process (and no other test of this crate sets
    /// it).
    #[test]
    fn bytes_are_counted_limited_and_released() {
        let before = used();
        let tensor = Tensor::zeros(DType::F32, &[1 << 18]).unwrap();
        assert!(used() >= before + (1 << 20));
        let copy = tensor.clone();
        drop(tensor);
        assert!(used() >= before + (1 << 20), "a clone shares the bytes and keeps them alive");
        drop(copy);

        // The memory use of other tests in this process varies, so the limit is far above the expected use.
        set_limit(1 << 40);
        let error = Tensor::zeros(DType::F32, &[1 << 40]).unwrap_err();
        assert!(matches!(error, OutOfMemory { bytes: Some(bytes), limit: Some((limit, _)) }
            if bytes == 1 << 42 && limit == 1 << 40));
        let diagnostic = Diagnostic::from(error);
        assert_eq!(diagnostic.code, codes::runtime::OUT_OF_MEMORY);
        assert!(diagnostic.message.contains("the limit is 1.0 TiB"), "{diagnostic}");
        assert!(diagnostic.help.unwrap().contains("--max-memory"));
        assert!(reserve(1 << 41).is_err());

        // A tally is charged for each block, not for each addition.
        let before = used();
        let mut tally = Tally::default();
        (0..1000).for_each(|_| tally.add(1).unwrap());
        assert!(used() >= before + Tally::BLOCK && used() < before + 3 * Tally::BLOCK);
        tally.add(Tally::BLOCK).unwrap();
        assert!(tally.add(1 << 41).is_err());
        drop(tally);

        // An allocation that would exceed the limit releases the registered caches.
        struct Kept(Mutex<Option<Charge>>);
        impl Cache for Kept {
            fn release(&self) {
                self.0.lock().unwrap().take();
            }
        }
        let kept = Arc::new(Kept(Mutex::new(Some(Charge::new(3 << 38).unwrap()))));
        assert!(reserve(1 << 39).is_err(), "nothing is released that is not registered");
        let cache: Arc<dyn Cache> = kept.clone();
        register(Arc::downgrade(&cache));
        let charge = Charge::new(1 << 39).unwrap();
        assert!(kept.0.lock().unwrap().is_none());
        drop((charge, cache, kept));
        reclaim();

        assert_eq!(check(), Ok(()));
        let excess = Charge::beyond_limit(1 << 41);
        assert!(matches!(check(), Err(OutOfMemory { limit: Some((limit, used)), .. }) if limit == used));
        drop(excess);
        assert_eq!(check(), Ok(()));

        let mut grown = Charge::new(1 << 37).unwrap();
        grown.grow(1 << 38).unwrap();
        assert!(used() >= 3 << 37 && grown.grow(1 << 40).is_err());
        grown.resize(1 << 36).unwrap();
        assert!((1 << 36..1 << 37).contains(&used()));
        drop(grown);
        assert!(used() < 1 << 36);
        set_limit(usize::MAX);

        assert_eq!(Tensor::zeros(DType::F64, &[1 << 40, 1 << 40]), Err(OutOfMemory::OVERFLOW));
        let size_error = Tensor::zeros(DType::U8, &[isize::MAX as usize]).unwrap_err();
        assert_eq!(size_error, OutOfMemory { bytes: Some(isize::MAX as usize), limit: None });
        assert!(reserve(isize::MAX as usize).is_err());
    }

    #[test]
    fn bytes_are_shown_in_units() {
        let texts = [0, 1023, 1024, 3 << 29, usize::MAX].map(|n| Bytes(n).to_string());
        assert_eq!(texts, ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 GiB", "16.0 EiB"]);
    }
}
