//! Ends the process when a plugin does not come back, or takes too much memory.
//!
//! Work is called off by asking for it, and a plugin that never looks at `cancelled` is not asked. No thread can be stopped
//! from outside, so that the process ends, with a line that names plugin, region and entry.

use super::place::Place;
use super::{end, slots};
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The code of the line: a plugin did not come back, or took too much memory.
const LIMIT: &str = "E0451";

/// Factor on the grace of an entry that the host's own work gets after the deadline.
const HOST_GRACE: u32 = 5;

/// Limits on plugins.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// When all work is to be over.
    pub deadline: Option<Instant>,
    /// Extra time for an entry that is under way at the deadline.
    pub grace: Duration,
    /// The most bytes of memory that the process may have while an entry is under way. Pages of mapped files do not count.
    pub resident: Option<u64>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { deadline: None, grace: Duration::from_secs(1), resident: None }
    }
}

/// A thread that holds plugins to limits for as long as the value lives.
#[derive(Debug)]
pub struct Watchdog {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts it. Where a limit is passed inside an entry of a plugin, the process ends with code 1.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(limits: Limits) -> io::Result<Watchdog> {
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let mut thread = None;
        if limits.deadline.is_some() || limits.resident.is_some() {
            let (over, builder) = (over.clone(), std::thread::Builder::new().name("byoc-watchdog".into()));
            thread = Some(builder.spawn(move || watch(limits, &over))?);
        }
        Ok(Watchdog { over, thread })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.over.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.over.1.notify_all();
        // It comes back at once, or ends the process.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn watch(limits: Limits, (over, changed): &(Mutex<bool>, Condvar)) {
    let mut over = over.lock().unwrap_or_else(PoisonError::into_inner);
    while !*over {
        let mut wait = Duration::from_millis(200);
        if let Some(deadline) = limits.deadline {
            let left = (deadline + limits.grace).saturating_duration_since(Instant::now());
            if left.is_zero() {
                if let Some((place, _)) = slots::under_way() {
                    late(place, limits.grace);
                }
                // The host's own work is cancelled by other means, and it comes to its end soon; unless a plugin has damaged
                // what it works with.
                if Instant::now() > deadline + limits.grace * HOST_GRACE
                    && let Some(place) = slots::last()
                {
                    stuck(place);
                }
                // The next entry is one too many.
                wait = Duration::from_millis(10);
            }
            wait = wait.min(left.max(Duration::from_millis(10)));
        }
        if let Some(limit) = limits.resident {
            let resident = resident_bytes();
            if let (true, Some((place, _))) = (resident > limit, slots::under_way()) {
                large(place, resident, limit);
            }
            wait = wait.min(until_full(limit.saturating_sub(resident)));
        }
        over = changed.wait_timeout(over, wait).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Returns a lower bound on the time in which this much more memory can be touched.
fn until_full(room: u64) -> Duration {
    const BYTES_A_MILLISECOND: u64 = 10 << 20;
    Duration::from_millis((room / BYTES_A_MILLISECOND).clamp(2, 50))
}

#[cold]
fn late(place: &Place, grace: Duration) -> ! {
    end::end_with(LIMIT, place, |line| {
        line.text("it did not come back within ").number(grace.as_millis() as u64);
        line.text(" ms after the time limit; byoc ends here");
    })
}

#[cold]
fn stuck(place: &Place) -> ! {
    end::end_with(LIMIT, place, |line| {
        line.text("byoc did not come to its end after the time limit; this entry was the last one; byoc ends here");
    })
}

#[cold]
fn large(place: &Place, resident: u64, limit: u64) -> ! {
    end::end_with(LIMIT, place, |line| {
        line.text("byoc takes ").number(resident >> 20).text(" MiB of memory, more than the limit of ");
        line.number(limit >> 20).text(" MiB; it ends here");
    })
}

/// The memory that the process has now, pages of files left out; what it had at most where the system does not say. It takes no
/// memory to find out.
fn resident_bytes() -> u64 {
    let mut text = [0u8; 128];
    // SAFETY: opens a file, reads no more than there is room for, closes it.
    let length = unsafe {
        let file: c_int = libc::open(c"/proc/self/statm".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return most_resident_bytes();
        }
        let length = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        length
    };
    let text = std::str::from_utf8(&text[..usize::try_from(length).unwrap_or(0)]).unwrap_or_default();
    // Pages of files (a mapped model, an artifact) are the system's to take back.
    let mut fields = text.split_ascii_whitespace().skip(1).map(|pages| pages.parse::<u64>().ok());
    let pages = fields.next().flatten().zip(fields.next().flatten()).map(|(all, files)| all.saturating_sub(files));
    // SAFETY: asks for a number.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    pages.map_or_else(most_resident_bytes, |pages| pages * page)
}

fn most_resident_bytes() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is filled, or stays zeroes.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted() {
        let before = resident_bytes();
        let taken = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(resident_bytes() > before + (32 << 20));
        drop(taken);
        assert!(most_resident_bytes() >= before);
        assert!(until_full(0) < until_full(u64::MAX));
    }

    #[test]
    fn a_watchdog_ends_with_its_value() {
        let limits = Limits { deadline: Some(Instant::now()), grace: Duration::ZERO, resident: Some(u64::MAX) };
        drop(Watchdog::start(limits).unwrap());
    }
}
