//! Error objects for C.

use crate::c_text;
use byoc::Interface;
use byoc::runtime::fork::Generation;
use byoc_ir::escape;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Error with its fields as C strings.
pub struct Error {
    kind: c_int,
    code: CString,
    message: CString,
    context: CString,
    help: CString,
    text: CString,
}

const ARGUMENT: c_int = 9;
const INTERNAL: c_int = 10;

impl Error {
    /// Creates an error for an invalid argument.
    pub fn argument(message: impl Into<String>) -> Error {
        Error::without_help(ARGUMENT, message.into())
    }

    fn without_help(kind: c_int, message: String) -> Error {
        let message = escape::line(&message).into_owned();
        let text = c_text(message.clone());
        let (code, context, help) = (CString::default(), CString::default(), CString::default());
        Error { kind, code, message: c_text(message), context, help, text }
    }
}

impl From<byoc::Error> for Error {
    fn from(error: byoc::Error) -> Error {
        let error = error.in_interface(Interface::C);
        let kind = match &error {
            byoc::Error::Model(_) => 1,
            byoc::Error::Backend(_) => 2,
            byoc::Error::Artifact(_) => 3,
            byoc::Error::Input(_) => 4,
            byoc::Error::OutOfMemory(_) => 6,
            byoc::Error::Cancelled(_) => 7,
            byoc::Error::TimedOut(_) => 8,
            // Covers `Run` and all kinds that this interface does not distinguish.
            _ => 5,
        };
        let info = error.info();
        let details = info.others.iter().map(|other| other.to_string());
        Error {
            kind,
            code: c_text(info.code.to_string()),
            message: c_text(info.message.as_str()),
            context: c_text(info.context.iter().cloned().chain(details).collect::<Vec<_>>().join("\n")),
            help: c_text(error.help().unwrap_or_default()),
            text: c_text(error.to_string()),
        }
    }
}

/// Runs the body of a C function; returns NULL, or an error owned by the caller.
pub fn report(body: impl FnOnce() -> Result<(), Error>) -> *mut Error {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Error::without_help(
            INTERNAL,
            format!("the library panicked: {text}; this is a bug in byoc: please report it"),
        ))
    });
    match outcome {
        Ok(()) => std::ptr::null_mut(),
        Err(error) => Box::into_raw(Box::new(error)),
    }
}

/// Returns a string field of an error; "" for NULL.
fn part(error: *const Error, part: impl Fn(&Error) -> &CStr) -> *const c_char {
    // SAFETY: the caller passes NULL or an error of this library that it has not freed.
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| part(error).as_ptr())
}

/// Returns the kind of an error; 0 for NULL.
///
/// # Safety
/// `error` is NULL, or an error that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_error_kind(error: *const Error) -> c_int {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    unsafe { error.as_ref() }.map_or(0, |error| error.kind)
}

macro_rules! parts {
    ($(#[doc = $doc:literal] $function:ident $field:ident;)*) => {
        $(
            #[doc = $doc]
            ///
            /// # Safety
            /// `error` is NULL, or an error that has not been freed.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(error: *const Error) -> *const c_char {
                part(error, |error| &error.$field)
            }
        )*
    };
}

parts! {
    #[doc = "Returns the stable code."] byoc_error_code code;
    #[doc = "Returns the message."] byoc_error_message message;
    #[doc = "Returns additional context, one item per line."] byoc_error_context context;
    #[doc = "Returns the remedy."] byoc_error_help help;
    #[doc = "Returns the complete error as text."] byoc_error_text text;
}

/// Frees an error.
///
/// # Safety
/// `error` is NULL, or an error that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_error_free(error: *mut Error) {
    free(error);
}

/// Frees an object from `Box::into_raw`; accepts NULL.
pub fn free<T>(object: *mut T) {
    drop(owned(object));
}

/// Frees an object that may have threads. In a child process it leaks: its destructor could wait for threads that do
/// not exist there.
pub fn free_in_process<T>(object: *mut T, generation: impl FnOnce(&T) -> Generation) {
    match owned(object) {
        Some(object) if !generation(&object).is_current() => std::mem::forget(object),
        object => drop(object),
    }
}

fn owned<T>(object: *mut T) -> Option<Box<T>> {
    // SAFETY: this library creates its objects with `Box::into_raw`, and the header requires callers to free each only
    // once.
    (!object.is_null()).then(|| unsafe { Box::from_raw(object) })
}
