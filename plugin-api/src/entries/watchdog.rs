//! Watchdog that ends the process if a plugin does not return, or uses too much memory.
//!
//! Cancellation is cooperative, and a plugin that never polls `cancelled` ignores it. A thread cannot be terminated
//! externally, so the process exits, with a message that names the plugin, the region and the entry.

use super::call_site::CallSite;
use super::{exit, slots};
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Error code of messages about a plugin that did not return or used too much memory.
const LIMIT_EXCEEDED: &str = "E0451";

/// Grace period for the host's own work after the deadline, as a multiple of an entry's grace period.
const HOST_GRACE: u32 = 5;

/// Limits on plugins.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Deadline for all work.
    pub deadline: Option<Instant>,
    /// Grace period for an entry that is running at the deadline.
    pub grace: Duration,
    /// Maximum resident memory of the process in bytes while an entry runs, excluding pages of mapped files.
    pub resident: Option<u64>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { deadline: None, grace: Duration::from_secs(1), resident: None }
    }
}

/// Thread that enforces limits on plugins until the value is dropped.
#[derive(Debug)]
pub struct Watchdog {
    stop_signal: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the watchdog. If a limit is exceeded inside a plugin entry, the process exits with code 1.
    ///
    /// # Errors
    /// If the watchdog thread cannot be created.
    pub fn start(limits: Limits) -> io::Result<Watchdog> {
        let stop_signal = Arc::new((Mutex::new(false), Condvar::new()));
        let mut thread = None;
        if limits.deadline.is_some() || limits.resident.is_some() {
            let (stop_signal, builder) =
                (stop_signal.clone(), std::thread::Builder::new().name("byoc-watchdog".into()));
            thread = Some(builder.spawn(move || watch(limits, &stop_signal))?);
        }
        Ok(Watchdog { stop_signal, thread })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.stop_signal.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop_signal.1.notify_all();
        // The watchdog thread either returns immediately or ends the process.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn watch(limits: Limits, (stop_signal, changed): &(Mutex<bool>, Condvar)) {
    let mut stop_signal = stop_signal.lock().unwrap_or_else(PoisonError::into_inner);
    while !*stop_signal {
        let mut timeout = Duration::from_millis(200);
        if let Some(deadline) = limits.deadline {
            let remaining = (deadline + limits.grace).saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                if let Some((site, _)) = slots::running_entry() {
                    exit_after_deadline(site, limits.grace);
                }
                // The host's own work is cancelled by other means and ends soon, unless a plugin has corrupted the
                // host's data.
                if Instant::now() > deadline + limits.grace * HOST_GRACE
                    && let Some(site) = slots::last_site()
                {
                    exit_host_stuck(site);
                }
                // Every entry that starts from now on exceeds the deadline, so polling is frequent.
                timeout = Duration::from_millis(10);
            }
            timeout = timeout.min(remaining.max(Duration::from_millis(10)));
        }
        if let Some(limit) = limits.resident {
            let used_bytes = resident_bytes();
            if let (true, Some((site, _))) = (used_bytes > limit, slots::running_entry()) {
                exit_memory_exceeded(site, used_bytes, limit);
            }
            timeout = timeout.min(min_fill_time(limit.saturating_sub(used_bytes)));
        }
        stop_signal = changed.wait_timeout(stop_signal, timeout).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Returns a lower bound on the time needed to touch `available` bytes of memory.
fn min_fill_time(available: u64) -> Duration {
    const BYTES_PER_MILLISECOND: u64 = 10 << 20;
    Duration::from_millis((available / BYTES_PER_MILLISECOND).clamp(2, 50))
}

#[cold]
fn exit_after_deadline(site: &CallSite, grace: Duration) -> ! {
    exit::exit_with_error(LIMIT_EXCEEDED, site, |line| {
        line.text("did not return within ").number(grace.as_millis() as u64);
        line.text(" ms after the time limit; byoc exits");
    })
}

#[cold]
fn exit_host_stuck(site: &CallSite) -> ! {
    exit::exit_with_error(LIMIT_EXCEEDED, site, |line| {
        line.text("byoc did not finish after the time limit; this entry was the last to run; byoc exits");
    })
}

#[cold]
fn exit_memory_exceeded(site: &CallSite, used_bytes: u64, limit: u64) -> ! {
    exit::exit_with_error(LIMIT_EXCEEDED, site, |line| {
        line.text("expected at most ").number(limit >> 20).text(" MiB of resident memory, found ");
        line.number(used_bytes >> 20).text(" MiB; byoc exits");
    })
}

/// Returns the current resident memory in bytes, excluding pages of mapped files; the peak if the system does not
/// report the current value. Does not allocate.
fn resident_bytes() -> u64 {
    let mut text = [0u8; 128];
    // SAFETY: the path is a C string, and the read is bounded by the size of the buffer.
    let length = unsafe {
        let file: c_int = libc::open(c"/proc/self/statm".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return peak_resident_bytes();
        }
        let length = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        length
    };
    let text = std::str::from_utf8(&text[..usize::try_from(length).unwrap_or(0)]).unwrap_or_default();
    // File-backed pages (a mapped model, an artifact) do not count, because the kernel can reclaim them.
    let mut fields = text.split_ascii_whitespace().skip(1).map(|pages| pages.parse::<u64>().ok());
    let page_count = fields
        .next()
        .flatten()
        .zip(fields.next().flatten())
        .map(|(resident, file_backed)| resident.saturating_sub(file_backed));
    // SAFETY: `sysconf` has no preconditions.
    let page_size = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    page_count.map_or_else(peak_resident_bytes, |page_count| page_count * page_size)
}

fn peak_resident_bytes() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a valid output pointer; if the call fails, it stays zero.
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
    fn reports_resident_memory() {
        let initial_bytes = resident_bytes();
        let allocation = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(resident_bytes() > initial_bytes + (32 << 20));
        drop(allocation);
        assert!(peak_resident_bytes() >= initial_bytes);
        assert!(min_fill_time(0) < min_fill_time(u64::MAX));
    }

    #[test]
    fn watchdog_stops_when_dropped() {
        // A deadline that had passed would end the process if another test had entered a plugin.
        let deadline = Some(Instant::now() + Duration::from_secs(3600));
        let limits = Limits { deadline, grace: Duration::ZERO, resident: Some(u64::MAX) };
        drop(Watchdog::start(limits).unwrap());
    }
}
