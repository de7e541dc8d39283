//! Function tables of `byoc.memory.1` and `byoc.stream.1`. Each table begins with its size, as known to its creator;
//! later versions append fields.

use crate::dtype::Device;
use crate::error::{Error, Result};
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, PoisonError};

/// Status of a successful call.
pub const OK: i32 = 0;
/// Status of a failed call; the callee has reported the reason through [`Report::fail`].
pub const FAILED: i32 = 1;
/// Status of [`EventTable::wait`] for unfinished work.
pub const PENDING: i32 = 3;

/// Receiver of a failure's reason.
#[repr(C)]
pub struct Report {
    /// Argument of `fail`.
    pub context: *mut c_void,
    /// Records code, message and remedy; code and remedy may be null.
    pub fail: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, *const c_char),
}

/// Function table for the memory of one device. Optional functions beyond the end of a shorter table are absent.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryTable {
    /// Size of the table in bytes.
    pub struct_size: usize,
    /// First argument of the functions.
    pub this: *mut c_void,
    /// Device of the tensors in this memory, as defined by DLPack.
    pub device: Device,
    /// Alignment in bytes of offsets within a buffer: a power of two, at most 4096.
    pub alignment: usize,
    /// [`ONE_RUN`], or 0.
    pub flags: u64,
    /// Allocates a buffer.
    pub allocate: unsafe extern "C" fn(*mut c_void, *const Report, usize, *mut *mut c_void) -> i32,
    /// Releases a buffer that no unfinished work uses.
    pub release: unsafe extern "C" fn(*mut c_void, *mut c_void),
    /// Copies from host memory to an offset in a buffer, and returns once the source may be modified.
    pub copy_in: unsafe extern "C" fn(*mut c_void, *const Report, *mut c_void, usize, *const c_void, usize) -> i32,
    /// Copies from an offset in a buffer to host memory, and returns once the copy is complete.
    pub copy_out: unsafe extern "C" fn(*mut c_void, *const Report, *mut c_void, usize, *mut c_void, usize) -> i32,
    /// Allocates page-locked host memory, aligned to 64 bytes, for copies without an intermediate buffer. Sets the
    /// pointer to null if the device offers none.
    pub allocate_host: Option<unsafe extern "C" fn(*mut c_void, *const Report, usize, *mut *mut c_void) -> i32>,
    /// Releases memory from `allocate_host`.
    pub release_host: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    /// Creates a buffer from host memory, which the host neither writes nor frees before it releases the buffer. Runs
    /// only read the buffer. Sets the pointer to null if the host has to copy this memory instead.
    pub import_host:
        Option<unsafe extern "C" fn(*mut c_void, *const Report, *const c_void, usize, *mut *mut c_void) -> i32>,
}

/// Flag of a device that serves one run at a time: the host waits for the end of a run before it starts the next run.
pub const ONE_RUN: u64 = 1;

// SAFETY: by the contract of the table, the plugin supports concurrent calls to its functions from several threads.
unsafe impl Send for MemoryTable {}
// SAFETY: by the contract of the table, the plugin supports concurrent calls to its functions from several threads.
unsafe impl Sync for MemoryTable {}

/// Function table for the unfinished work of a run.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EventTable {
    /// Size of the table in bytes.
    pub struct_size: usize,
    /// First argument of the functions.
    pub this: *mut c_void,
    /// Waits until the work is complete or the given number of milliseconds has passed. Returns [`OK`], [`PENDING`] or
    /// [`FAILED`].
    pub wait: unsafe extern "C" fn(*mut c_void, *const Report, u32) -> i32,
    /// Releases the event. If its work is unfinished, the host counts the device as lost, and keeps the memory that the
    /// work uses.
    pub release: unsafe extern "C" fn(*mut c_void),
}

/// Function table of the host service that accepts unfinished work.
#[repr(C)]
pub struct StreamTable {
    /// Size of the table in bytes.
    pub struct_size: usize,
    /// Returns the number of unfinished runs that the current run has to wait for, and sets the pointer to their
    /// events. Must be called from `run`, on its thread. An in-order device need not call it.
    pub dependencies: unsafe extern "C" fn(*mut *const EventTable) -> usize,
    /// Accepts the event of the work that the current run has started, and returns [`OK`]. Returns [`FAILED`] if the
    /// work must be complete when `run` returns; the caller then retains ownership of the event. Must be called from
    /// `run`, on its thread.
    pub submit: unsafe extern "C" fn(*const EventTable) -> i32,
    /// Returns the size of the current run's workspace in device memory, and sets the pointers to its buffer and
    /// offset; returns 0 if the run has none. Must be called from `run`, on its thread.
    pub workspace: unsafe extern "C" fn(*mut *mut c_void, *mut usize) -> usize,
}

/// First failure that a call reported.
#[derive(Default)]
pub struct Failure(Mutex<Option<Error>>);

impl Failure {
    /// Calls `f` with a report that records the first failure, and converts the status of `f` into a result.
    ///
    /// # Errors
    /// If the status is neither [`OK`] nor [`PENDING`]; the error holds the reported reason.
    pub fn of(f: impl FnOnce(*const Report) -> i32) -> Result<i32> {
        let failure = Failure::default();
        let report = Report { context: (&raw const failure).cast_mut().cast(), fail: record };
        match f(&raw const report) {
            status @ (OK | PENDING) => Ok(status),
            status => {
                let reported_error = failure.0.into_inner().unwrap_or_else(PoisonError::into_inner);
                Err(reported_error.unwrap_or_else(|| {
                    Error::new(format!("expected an error message for status {status}, found none"))
                }))
            }
        }
    }
}

unsafe extern "C" fn record(context: *mut c_void, code: *const c_char, message: *const c_char, hint: *const c_char) {
    // SAFETY: `Failure::of` sets `context` to the `Failure` of the call in progress.
    let failure = unsafe { &*context.cast::<Failure>() };
    let text = |text: *const c_char| match text.is_null() {
        true => String::new(),
        // SAFETY: texts end with a NUL, by the contract of `Report`.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    };
    let error = Error::new(text(message)).code(&text(code)).hint(text(hint));
    failure.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
}

/// Reports an error, and returns [`FAILED`].
///
/// # Safety
/// `report` must be null or the report of the call in progress.
pub unsafe fn fail(report: *const Report, error: &Error) -> i32 {
    let text = |text: &str| std::ffi::CString::new(text.replace('\0', " ")).unwrap_or_default();
    let (code, message, hint) = (text(&error.code), text(&error.to_string()), text(&error.hint));
    // SAFETY: the caller guarantees that `report` is null or valid.
    if let Some(report) = unsafe { report.as_ref() } {
        // SAFETY: the texts end with a NUL and live until the call returns.
        unsafe { (report.fail)(report.context, code.as_ptr(), message.as_ptr(), hint.as_ptr()) };
    }
    FAILED
}
