//! A shared library that is no plugin.

/// Something for others to call.
#[unsafe(no_mangle)]
pub extern "C" fn answer() -> i32 {
    42
}
