//! Shared library that is not a plugin.

/// Exported function, so that the library has a symbol.
#[unsafe(no_mangle)]
pub extern "C" fn answer() -> i32 {
    42
}
