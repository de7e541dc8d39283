//! Generation of the process: how many forks lie between it and the process that started. Threads do not survive a fork,
//! so whatever needs the threads of one generation is of no use in the next.

use super::exit::{GUARDED_PID, HAS_FORKED, HOST_PID};
use super::slots;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Returns the generation of this process. Forks count from the first call on.
pub fn generation() -> u32 {
    count_forks();
    current_generation()
}

/// Returns the generation of this process, after an earlier call of [`generation`]. Costs one load.
pub fn current_generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Installs the handler that counts forks.
pub(super) fn count_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the function lives as long as the process. If registration fails, forks are not noticed.
    ONCE.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(on_fork)) });
}

extern "C" fn on_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // In a process that the host owns, only the host forks outside plugins, to start a process. In one that it shares, the
    // program may fork while its other threads are inside plugins.
    let is_in_plugin = match (HOST_PID.load(Ordering::Relaxed), GUARDED_PID.load(Ordering::Relaxed)) {
        (0, 0) => false,
        (0, _) => slots::current_site().is_some(),
        _ => slots::running_entry().is_some(),
    };
    if is_in_plugin {
        HAS_FORKED.store(true, Ordering::Relaxed);
    }
}
