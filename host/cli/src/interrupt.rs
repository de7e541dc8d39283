//! Ctrl-C while a model is built or run. The first one cancels the work, so that backends stop cleanly (end a compiler
//! that they started, release a lock); a second one ends the process at once, as the first one does at any other time.

use byoc::cancel::Cancel;
use byoc_plugin_api::host::entries;
use signal_hook::consts::SIGINT;
use signal_hook::{SigId, flag, low_level};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Guard during whose lifetime Ctrl-C cancels the work.
pub struct Interruptible {
    handlers: Vec<SigId>,
    /// Set for a nested guard: an outer one outlives it.
    inner: bool,
}

/// Returns the flag that makes Ctrl-C end the process at once. The handler that reads it is never unregistered.
fn exit_flag() -> &'static Arc<AtomicBool> {
    static EXIT_FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    EXIT_FLAG.get_or_init(|| {
        let exit_flag = Arc::new(AtomicBool::new(true));
        // Where such a handler cannot be registered, Ctrl-C keeps its default and ends the process.
        let _ = flag::register_conditional_default(SIGINT, exit_flag.clone());
        exit_flag
    })
}

/// Reports on Ctrl-C which plugin is running. Must be called before any other handler is registered, as later ones
/// chain to it.
pub fn report_plugin_on_interrupt() {
    if entries::report_interrupts() {
        exit_flag();
    }
}

/// Makes Ctrl-C cancel `cancel` during the lifetime of the result.
pub fn interruptible(cancel: &Cancel) -> Interruptible {
    let exit_flag = exit_flag();
    // The handlers run in this order: the second reads the flag that the first sets.
    let handlers = [cancel.flag(), exit_flag].map(|set| flag::register(SIGINT, set.clone()));
    let inner = !exit_flag.swap(false, Ordering::SeqCst);
    Interruptible { handlers: handlers.into_iter().flatten().collect(), inner }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        if !self.inner {
            exit_flag().store(true, Ordering::SeqCst);
        }
        for handler in self.handlers.drain(..) {
            low_level::unregister(handler);
        }
    }
}
