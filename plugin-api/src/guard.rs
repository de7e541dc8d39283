//! Conversion of panics into errors before they reach the boundary: a panic that crosses it aborts the process.
//!
//! Every library has its own copy of the standard library, so the panic hook that is set here affects only this
//! library. Inside a guarded entry, the hook records the location and prints nothing; everywhere else, it calls the
//! previous hook.

use crate::error::{Error, Result};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static LOCATION: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `body`, and returns a panic as an error with the panic's message and location.
pub(crate) fn guard<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    install_hook();
    DEPTH.set(DEPTH.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(body));
    DEPTH.set(DEPTH.get() - 1);
    result.unwrap_or_else(|payload| {
        let message = if let Some(text) = payload.downcast_ref::<&str>() {
            (*text).to_owned()
        } else if let Some(text) = payload.downcast_ref::<String>() {
            text.clone()
        } else {
            "panic without a message".to_owned()
        };
        // The payload is leaked, because a panic in its destructor would not be caught.
        std::mem::forget(payload);
        Err(Error::panic(message, LOCATION.try_with(RefCell::take).unwrap_or_default()))
    })
}

fn install_hook() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if DEPTH.get() == 0 || info.payload_as_str().is_some_and(is_fatal) {
                return previous(info);
            }
            let location = info
                .location()
                .map(|location| format!("{}:{}:{}", location.file(), location.line(), location.column()));
            // A thread that is exiting may have destroyed its thread-local variables.
            let _ = LOCATION.try_with(|cell| cell.replace(location.unwrap_or_default()));
        }));
    });
}

/// Returns true for panics that abort the process even inside `catch_unwind`; their messages must not be suppressed.
/// The standard library does not expose this property.
fn is_fatal(message: &str) -> bool {
    const FATAL_PREFIXES: [&str; 5] = [
        "panic in a ",
        "unsafe precondition(s) violated",
        "misaligned pointer dereference",
        "null pointer dereference",
        "trying to construct an enum from an invalid value",
    ];
    FATAL_PREFIXES.iter().any(|prefix| message.starts_with(prefix))
}
