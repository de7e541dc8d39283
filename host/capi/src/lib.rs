//! C interface of byoc: the functions of `include/byoc.h`, over the crate `byoc`.
//!
//! No panic leaves a function: it becomes an error of the kind `BYOC_ERROR_INTERNAL`. Pointers are checked for NULL;
//! everything else that a pointer has to be is stated in the header.

mod dlpack;
mod error;
mod model;
mod options;
mod run;
mod session;
mod tensor;

use std::ffi::{CStr, CString, c_char};

/// Returns the version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn byoc_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

/// Converts a text for C; a NUL inside ends it.
fn c_text(text: impl Into<String>) -> CString {
    let mut bytes = text.into().into_bytes();
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    CString::new(bytes).unwrap_or_default()
}
