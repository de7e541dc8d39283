//! Calling off what is under way: whoever started it no longer waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that long work looks at: the host between regions, backends whenever they like. Clones are the same flag.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    flag: Arc<AtomicBool>,
}

impl Cancel {
    /// Calls off what is under way (true), or lets what comes next go on (false).
    pub fn set(&self, off: bool) {
        self.flag.store(off, Ordering::SeqCst);
    }

    /// Whether what is under way was called off.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }

    /// The flag itself, for a handler of signals.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.flag
    }
}
