//! Logger of the library: an interface that is implemented on this side.
//!
//! The library keeps the first logger that it gets for all of its objects, so there is one, which lives as long as the
//! process. Errors and warnings are kept for the thread on which they appear, as reasons of what fails there.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};

/// Severities of the library.
const INTERNAL_ERROR: i32 = 0;
const ERROR: i32 = 1;
const WARNING: i32 = 2;
const INFO: i32 = 3;

/// Maximum number of messages that are kept for a thread.
const MAX_KEPT: usize = 50;

thread_local! {
    static MESSAGES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Virtual table of the interface: language, information, two destructors, log.
#[repr(C)]
struct Table {
    language: extern "C" fn(*const c_void) -> i32,
    info: extern "C" fn(*const c_void) -> Info,
    destroy: [extern "C" fn(*const c_void); 2],
    log: unsafe extern "C" fn(*const c_void, i32, *const c_char),
}

/// Kind and version of the interface.
#[repr(C)]
struct Info {
    kind: *const c_char,
    major: i32,
    minor: i32,
}

#[repr(C)]
struct Logger {
    table: &'static Table,
}

extern "C" fn language(_: *const c_void) -> i32 {
    // C++, as the table is one.
    0
}

extern "C" fn info(_: *const c_void) -> Info {
    Info { kind: c"ILogger".as_ptr(), major: 1, minor: 0 }
}

extern "C" fn destroy(_: *const c_void) {}

unsafe extern "C" fn log(_: *const c_void, severity: i32, message: *const c_char) {
    if message.is_null() {
        return;
    }
    // SAFETY: the library passes a NUL-terminated text that is valid during the call.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    let text = text.trim();
    match severity {
        INTERNAL_ERROR | ERROR => tracing::debug!("{text}"),
        WARNING => tracing::debug!("{text}"),
        INFO => tracing::trace!("{text}"),
        _ => return,
    }
    if severity <= ERROR {
        // The thread may be one of the library's, which ends with its values destroyed.
        let _ = MESSAGES.try_with(|messages| {
            let mut messages = messages.borrow_mut();
            if messages.len() < MAX_KEPT {
                messages.push(text.to_owned());
            }
        });
    }
}

static TABLE: Table = Table { language, info, destroy: [destroy; 2], log };
static LOGGER: Logger = Logger { table: &TABLE };

/// Returns the logger.
pub fn object() -> *mut c_void {
    (&raw const LOGGER).cast_mut().cast()
}

/// Removes and returns the errors of this thread, oldest first.
pub fn take() -> Vec<String> {
    MESSAGES.with(RefCell::take)
}

/// Returns the first error of a call that failed, in one line and without the places in the library's source. Those that
/// only tell that there is no GPU are left out where another one tells more.
pub fn reason(messages: &[String]) -> Option<String> {
    let is_about_device =
        |message: &&String| message.contains("CUDA driver version") || message.contains("Cuda Runtime");
    let first = messages.iter().find(|message| !is_about_device(message)).or(messages.first())?;
    let line = first.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    // "[file::function::line] Error Code 2: Internal Error (REASON In function at /source:line)"
    let inner =
        line.split_once("Error Code ").and_then(|(_, rest)| rest.split_once(" (")).map_or(&*line, |(_, inner)| inner);
    Some(without_places(inner).to_owned())
}

/// Returns the part of a message before the first place in the library's source: "REASON In function at /source:line".
pub fn without_places(message: &str) -> &str {
    let reason = message.split_once(" at /_src/").and_then(|(before, _)| before.rsplit_once(" In "));
    reason.map_or(message, |(reason, _)| reason).trim_end_matches([' ', '.', ')'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_without_places_in_the_source() {
        let device = "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (In catchCudaError at \
                      /_src/common/dispatch/checkMacros.cpp:250 (cudaError 35: CUDA driver version is insufficient))";
        let build = "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([pass.cpp:337: check_turing_op_compatibility] \
                     Cannot compile operation '/fc/Gemm' for Turing (SM75): FP32 GEMM is not supported. In compileGraph at \
                     /_src/optimizer/myelin/codeGenerator.cpp:2012)";
        let messages = [device.to_owned(), build.to_owned()];
        let expected = "[pass.cpp:337: check_turing_op_compatibility] Cannot compile operation '/fc/Gemm' for Turing (SM75): FP32 \
                        GEMM is not supported";
        assert_eq!(reason(&messages).unwrap(), expected);
        assert!(reason(&messages[..1]).unwrap().contains("CUDA driver version is insufficient"));
        assert_eq!(reason(&["plain".to_owned()]).unwrap(), "plain");
        assert_eq!(reason(&[]), None);
    }
}
