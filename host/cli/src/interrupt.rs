//! Handling of Ctrl-C while a model is built or run. The first Ctrl-C cancels the work, so that backends stop cleanly
//! (terminate a compiler that they started, release a lock). The second terminates the process immediately; so does the
//! first if no model is being built or run.

use byoc::runtime::cancel::Cancel;
use byoc_plugin_api::host::entries;
use signal_hook::consts::SIGINT;
use signal_hook::{SigId, flag, low_level};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Guard that, while alive, makes Ctrl-C cancel the work.
pub struct Interruptible {
    handlers: Vec<SigId>,
    /// True if this guard is nested in another guard, which outlives it.
    inner: bool,
}

/// Returns the flag that makes Ctrl-C terminate the process immediately. The handler that reads the flag is never
/// unregistered.
fn exit_flag() -> &'static Arc<AtomicBool> {
    static EXIT_FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    EXIT_FLAG.get_or_init(|| {
        let exit_flag = Arc::new(AtomicBool::new(true));
        // If the handler cannot be registered, Ctrl-C keeps its default action and terminates the process.
        let _ = flag::register_conditional_default(SIGINT, exit_flag.clone());
        exit_flag
    })
}

/// Makes Ctrl-C report which plugin is running. Must be called before any other handler is registered, as later
/// handlers chain to this one.
pub fn report_plugin_on_interrupt() {
    if entries::report_interrupts() {
        exit_flag();
    }
}

/// Makes Ctrl-C trigger `cancel` for the lifetime of the returned guard.
pub fn cancel_on_interrupt(cancel: &Cancel) -> Interruptible {
    let exit_flag = exit_flag();
    // Handlers run in registration order. The handler that reads `exit_flag` is registered first, so only a second
    // Ctrl-C finds the flag set.
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
