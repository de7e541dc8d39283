//! C interface of byoc: the functions of `include/byoc.h`, implemented on top of the crate `byoc`.
//!
//! No panic unwinds into C: it becomes an error of the kind `BYOC_ERROR_INTERNAL`. Pointers are checked for NULL; the
//! header states all other requirements on pointers.

mod dlpack;
mod error;
mod model;
mod onnx;
mod options;
mod run;
mod session;
mod strings;
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

/// Converts text to a C string, truncated at the first NUL.
fn c_text(text: impl Into<String>) -> CString {
    let mut bytes = text.into().into_bytes();
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    CString::new(bytes).unwrap_or_default()
}
