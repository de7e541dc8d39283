//! Tables of functions of `byoc.memory.1` and `byoc.stream.1`. Each begins with its size, as known to its creator; fields
//! are added at the end.

use crate::dtype::Device;
use crate::error::{Error, Result};
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, PoisonError};

/// Status of a function: success.
pub const OK: i32 = 0;
/// Status of a function that failed, and has called [`Report::fail`].
pub const FAILED: i32 = 1;
/// Status of [`EventTable::wait`]: the work goes on.
pub const PENDING: i32 = 3;

/// Receiver of a failure's reason.
#[repr(C)]
pub struct Report {
    /// Argument of `fail`.
    pub context: *mut c_void,
    /// Records code, message and remedy; code and remedy may be null.
    pub fail: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, *const c_char),
}

/// Memory of one device.
#[repr(C)]
pub struct MemoryTable {
    /// Size of the table in bytes.
    pub struct_size: usize,
    /// First argument of the functions.
    pub this: *mut c_void,
    /// Device of the tensors in this memory, in DLPack's terms.
    pub device: Device,
    /// Alignment of offsets within a buffer in bytes: a power of two, at most 256.
    pub alignment: usize,
    /// [`ONE_RUN`], or 0.
    pub flags: u64,
    /// Allocates a buffer.
    pub allocate: unsafe extern "C" fn(*mut c_void, *const Report, usize, *mut *mut c_void) -> i32,
    /// Releases a buffer that no unfinished work uses.
    pub release: unsafe extern "C" fn(*mut c_void, *mut c_void),
    /// Copies from the host to an offset of a buffer, and returns when the source may be written.
    pub copy_in: unsafe extern "C" fn(*mut c_void, *const Report, *mut c_void, usize, *const c_void, usize) -> i32,
    /// Copies from an offset of a buffer to the host, and returns when the bytes are there.
    pub copy_out: unsafe extern "C" fn(*mut c_void, *const Report, *mut c_void, usize, *mut c_void, usize) -> i32,
}

/// Flag of a device that serves one run at a time: the host waits for a run before it calls the next one.
pub const ONE_RUN: u64 = 1;

// SAFETY: the functions may be called from several threads at once, by the contract of the table.
unsafe impl Send for MemoryTable {}
// SAFETY: as above.
unsafe impl Sync for MemoryTable {}

/// Unfinished work of a run.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EventTable {
    /// Size of the table in bytes.
    pub struct_size: usize,
    /// First argument of the functions.
    pub this: *mut c_void,
    /// Waits until the work is done or so many milliseconds have passed. Returns [`OK`], [`PENDING`] or [`FAILED`].
    pub wait: unsafe extern "C" fn(*mut c_void, *const Report, u32) -> i32,
    /// Releases the event. If its work is not done, the host counts the device as lost, and keeps the memory that the work
    /// uses.
    pub release: unsafe extern "C" fn(*mut c_void),
}

/// Service of the host that takes unfinished work.
#[repr(C)]
pub struct StreamTable {
    /// Size of the table in bytes.
    pub struct_size: usize,
    /// From `run`, on its thread: returns the number of unfinished runs that this one has to wait for, and sets the
    /// pointer to their events. An ordered device need not look.
    pub dependencies: unsafe extern "C" fn(*mut *const EventTable) -> usize,
    /// From `run`, on its thread: takes the event of the work that this run has started, and returns [`OK`]. Returns
    /// [`FAILED`] if the work has to be done when `run` returns; the event then stays with the caller.
    pub submit: unsafe extern "C" fn(*const EventTable) -> i32,
}

/// First failure that a call reported.
#[derive(Default)]
pub struct Failure(Mutex<Option<Error>>);

impl Failure {
    /// Calls `f` with a report that records here, and turns its status into a result.
    ///
    /// # Errors
    /// If the status is not [`OK`] or [`PENDING`]: the reported reason.
    pub fn of(f: impl FnOnce(*const Report) -> i32) -> Result<i32> {
        let failure = Failure::default();
        let report = Report { context: (&raw const failure).cast_mut().cast(), fail: record };
        match f(&raw const report) {
            status @ (OK | PENDING) => Ok(status),
            status => {
                let reported = failure.0.into_inner().unwrap_or_else(PoisonError::into_inner);
                Err(reported.unwrap_or_else(|| Error::new(format!("status {status} without a reason"))))
            }
        }
    }
}

unsafe extern "C" fn record(context: *mut c_void, code: *const c_char, message: *const c_char, hint: *const c_char) {
    // SAFETY: `context` is the `Failure` of the call that is in progress.
    let failure = unsafe { &*context.cast::<Failure>() };
    let text = |text: *const c_char| match text.is_null() {
        true => String::new(),
        // SAFETY: texts end with a NUL, by the contract of `Report`.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    };
    let error = Error::new(text(message)).code(&text(code)).hint(text(hint));
    failure.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
}

/// Reports an error, and returns the status of a failed function.
///
/// # Safety
/// `report` is null or the report of the call that is in progress.
pub unsafe fn fail(report: *const Report, error: &Error) -> i32 {
    let text = |text: &str| std::ffi::CString::new(text.replace('\0', " ")).unwrap_or_default();
    let (code, message, hint) = (text(&error.code), text(&error.to_string()), text(&error.hint));
    // SAFETY: by the contract of this function.
    if let Some(report) = unsafe { report.as_ref() } {
        // SAFETY: the texts end with a NUL and live until the call returns.
        unsafe { (report.fail)(report.context, code.as_ptr(), message.as_ptr(), hint.as_ptr()) };
    }
    FAILED
}
