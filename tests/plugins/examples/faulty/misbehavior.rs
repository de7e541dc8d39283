//! Misbehavior other than wrong results: panics, infinite loops, a wild pointer, calls after unloading.

use byoc_plugin_api::{Error, Result, Services};
use std::time::Duration;

/// Panics if the mistake is `panic_<entry>`, crashes if it is `crash_<entry>`.
pub fn panic_in(mistake: &str, entry: &str) {
    if mistake.strip_prefix("panic_") == Some(entry) {
        panic!("deliberate panic in {entry}");
    }
    if mistake.strip_prefix("crash_") == Some(entry) {
        // SAFETY: deliberately unsound; the write crashes the process.
        unsafe { std::ptr::dangling_mut::<u64>().wrapping_byte_sub(8).write_volatile(1) };
    }
}

/// Loops forever if the mistake is `endless_<entry>`.
pub fn loop_forever(mistake: &str, entry: &str) {
    while mistake.strip_prefix("endless_") == Some(entry) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Compiles until cancelled if the mistake is `until_cancelled`.
pub fn compile_until_cancelled(mistake: &str, services: &Services) -> Result<()> {
    if mistake != "until_cancelled" {
        return Ok(());
    }
    while !services.cancelled() {
        services.log(tracing::Level::WARN, "faulty", "compiling until cancelled");
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(Error::cancelled())
}

/// Panics, crashes or returns an error in `init` if the mistake is `panic_init`, `crash_init` or `error_init`.
pub fn init(mistake: &str) -> Result<()> {
    panic_in(mistake, "init");
    if mistake == "error_init" {
        Err(Error::new("expected a connected device, found none").hint("connect the device"))
    } else {
        Ok(())
    }
}

/// Keeps calling host services after the region and the plugin are released.
pub fn log_after_unload(mistake: &str, services: &Services) {
    if mistake == "noise_after_unload" {
        let services = services.clone();
        std::thread::spawn(move || {
            for _ in 0..200 {
                services.counter("steps", 1);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    }
}
