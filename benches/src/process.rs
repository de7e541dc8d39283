//! What this process and thread used, from the kernel.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The most memory that this process has ever held, in bytes; 0 where the kernel does not say.
pub fn peak() -> u64 {
    status("VmHWM:")
}

/// The memory that this process holds now, in bytes; 0 where the kernel does not say.
pub fn now() -> u64 {
    status("VmRSS:")
}

fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()).and_then(|word| word.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// The time that this thread has computed: unlike the clock on the wall it does not pass while others have the core. The
/// time on the wall where the kernel does not say.
pub fn thread_time() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    match text.split_whitespace().next().and_then(|word| word.parse().ok()) {
        Some(nanoseconds) => Duration::from_nanos(nanoseconds),
        None => start.elapsed(),
    }
}
