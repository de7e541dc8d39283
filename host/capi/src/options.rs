//! Arguments from C: structures that may be shorter than here, texts, arrays.

use crate::error::Error;
use std::ffi::{CStr, c_char};
use std::fmt::Display;
use std::mem::MaybeUninit;

/// Structure whose first field is its size, and for which zero bytes are valid.
///
/// # Safety
/// Implemented by `repr(C)` structures that begin with a `usize`, and whose fields may all be zero.
pub unsafe trait Growing {}

/// Reads a structure that may be NULL or shorter than `T`: what is missing is zero.
///
/// # Errors
/// A size that does not hold the size itself.
///
/// # Safety
/// `pointer` is NULL, or points to as many bytes as its first field says.
pub unsafe fn read<T: Growing>(pointer: *const T, name: &str) -> Result<T, Error> {
    let mut value = MaybeUninit::<T>::zeroed();
    if !pointer.is_null() {
        // SAFETY: the structure begins with its size, which is at most the bytes that are there.
        unsafe {
            let size = *pointer.cast::<usize>();
            if size < size_of::<usize>() {
                return Err(Error::argument(format!("{name}: expected struct_size to be set, found {size}")));
            }
            let known = size.min(size_of::<T>());
            std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known);
        }
    }
    // SAFETY: zero bytes are valid for every field.
    Ok(unsafe { value.assume_init() })
}

/// Returns the elements of an array.
///
/// # Errors
/// NULL with a count other than 0.
///
/// # Safety
/// `first` points to `count` elements that live as long as the result, unless `count` is 0.
pub unsafe fn array<'a, T>(first: *const T, count: usize, name: impl Display) -> Result<&'a [T], Error> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Error::argument(format!("{name}: expected an array of {count} elements, found NULL"))),
        // SAFETY: guaranteed by the caller.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
    }
}

/// Returns a text.
///
/// # Errors
/// NULL, or a text that is not UTF-8.
///
/// # Safety
/// `text` is NULL, or ends with a NUL and lives as long as the result.
pub unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(Error::argument(format!("{name}: expected a text, found NULL")));
    }
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::argument(format!("{name}: expected UTF-8, found {text:?}")))
}

/// Returns the object behind a pointer.
///
/// # Errors
/// NULL.
///
/// # Safety
/// `object` is NULL, or points to an object that lives as long as the result.
pub unsafe fn object<'a, T>(object: *const T, name: &str) -> Result<&'a T, Error> {
    // SAFETY: guaranteed by the caller.
    unsafe { object.as_ref() }.ok_or_else(|| Error::argument(format!("expected a {name}, found NULL")))
}

/// Writes a result to a pointer of the caller.
///
/// # Errors
/// NULL.
///
/// # Safety
/// `to` is NULL or may be written to.
pub unsafe fn give<T>(to: *mut *mut T, make: impl FnOnce() -> Result<T, Error>) -> Result<(), Error> {
    if to.is_null() {
        return Err(Error::argument("expected a place for the result, found NULL"));
    }
    let object = Box::into_raw(Box::new(make()?));
    // SAFETY: guaranteed by the caller.
    unsafe { to.write(object) };
    Ok(())
}
