//! Shared library that is not a plugin.

/// Exported function that gives the library a symbol.
#[unsafe(no_mangle)]
pub extern "C" fn answer() -> i32 {
    42
}
