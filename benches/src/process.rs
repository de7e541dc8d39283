//! Resource usage of the current process and thread, as reported by Linux.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Returns the peak resident memory of this process in bytes; 0 if the system does not report it.
pub fn peak_resident_bytes() -> u64 {
    status("VmHWM:")
}

/// Returns the current resident memory of this process in bytes; 0 if the system does not report it.
pub fn resident_bytes() -> u64 {
    status("VmRSS:")
}

fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Returns the CPU time of the current thread. Unlike wall-clock time, it does not advance while the thread is
/// preempted. Falls back to wall-clock time if the system does not report CPU time.
pub fn thread_time() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    match text.split_whitespace().next().and_then(|number| number.parse().ok()) {
        Some(nanoseconds) => Duration::from_nanos(nanoseconds),
        None => start.elapsed(),
    }
}
