//! Ctrl-C while a model is built or run. The backends are told first, so that they give up in order (end a compiler that they
//! started, let go of a lock); a second one ends the process at once, as the first one does at any other time.

use crate::cancel::Cancel;
use byoc_plugin_api::host::entries;
use signal_hook::consts::SIGINT;
use signal_hook::{SigId, flag, low_level};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// As long as it lives, Ctrl-C calls the work off.
pub struct Interruptible {
    handlers: Vec<SigId>,
    /// Another one lives already and outlives it.
    inner: bool,
}

/// Returns true if Ctrl-C ends the process at once: the handler that looks at it stays for good.
fn at_once() -> &'static Arc<AtomicBool> {
    static AT_ONCE: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    AT_ONCE.get_or_init(|| {
        let at_once = Arc::new(AtomicBool::new(true));
        // Where the system has no such handler, Ctrl-C ends the process, as it always did.
        let _ = flag::register_conditional_default(SIGINT, at_once.clone());
        at_once
    })
}

/// Has Ctrl-C say which plugin is under way. To be called before any other handler is set, as these go on after it.
pub fn say_plugins() {
    if entries::say_interrupts() {
        at_once();
    }
}

/// Work begins that `cancel` calls off.
pub fn interruptible(cancel: &Cancel) -> Interruptible {
    let at_once = at_once();
    // In this order: what is set by the first is looked at by the second.
    let handlers = [cancel.flag(), at_once].map(|set| flag::register(SIGINT, set.clone()));
    let inner = !at_once.swap(false, Ordering::SeqCst);
    Interruptible { handlers: handlers.into_iter().flatten().collect(), inner }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        if !self.inner {
            at_once().store(true, Ordering::SeqCst);
        }
        for handler in self.handlers.drain(..) {
            low_level::unregister(handler);
        }
    }
}
