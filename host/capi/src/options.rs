//! Conversion of arguments from C: strings, arrays, and structures that may be shorter than the current version.

use crate::error::Error;
use std::ffi::{CStr, c_char};
use std::fmt::Display;
use std::mem::MaybeUninit;

/// Structure whose first field is its size, and for which all-zero bytes are a valid value.
///
/// # Safety
/// Only `repr(C)` structures that begin with a `usize`, and whose fields may all be zero, may implement this trait.
pub unsafe trait ExtensibleStruct {}

/// Reads a structure that may be shorter than `T`, from a pointer that may be NULL; missing fields are zero.
///
/// # Errors
/// If the size in the first field is smaller than that field.
///
/// # Safety
/// `pointer` is NULL, or points to at least as many bytes as its first field states.
pub unsafe fn read<T: ExtensibleStruct>(pointer: *const T, name: &str) -> Result<T, Error> {
    let mut value = MaybeUninit::<T>::zeroed();
    if !pointer.is_null() {
        // SAFETY: the caller guarantees that `pointer` is readable for the number of bytes in its first field, and
        // `len` exceeds neither that number nor the size of `value`.
        unsafe {
            let size = *pointer.cast::<usize>();
            if size < size_of::<usize>() {
                return Err(Error::argument(format!(
                    "{name}: expected struct_size to be the size of the structure, found {size}"
                )));
            }
            let len = size.min(size_of::<T>());
            std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), len);
        }
    }
    // SAFETY: implementors of `ExtensibleStruct` guarantee that zero bytes are valid for every field.
    Ok(unsafe { value.assume_init() })
}

/// Returns the elements of an array.
///
/// # Errors
/// If `pointer` is NULL and `count` is nonzero.
///
/// # Safety
/// If `count` is nonzero, `pointer` is NULL or points to `count` elements that outlive the result.
pub unsafe fn array<'a, T>(pointer: *const T, count: usize, name: impl Display) -> Result<&'a [T], Error> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Error::argument(format!("{name}: expected an array of {count} elements, found NULL"))),
        // SAFETY: the caller guarantees that `pointer` points to `count` elements that outlive the result.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}

/// Converts a C string to a `str`.
///
/// # Errors
/// If `text` is NULL or not UTF-8.
///
/// # Safety
/// `text` is NULL, or points to NUL-terminated text that outlives the result.
pub unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(Error::argument(format!("{name}: expected a string, found NULL")));
    }
    // SAFETY: the caller guarantees that `text` is NUL-terminated and outlives the result.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::argument(format!("{name}: expected UTF-8, found {text:?}")))
}

/// Converts a pointer to a reference.
///
/// # Errors
/// If `object` is NULL.
///
/// # Safety
/// `object` is NULL, or points to an object that outlives the result.
pub unsafe fn object<'a, T>(object: *const T, name: &str) -> Result<&'a T, Error> {
    // SAFETY: the caller guarantees that `object` is NULL or points to an object that outlives the result.
    unsafe { object.as_ref() }.ok_or_else(|| Error::argument(format!("expected a {name}, found NULL")))
}

/// Allocates a result, and writes its address to the caller's output pointer.
///
/// # Errors
/// If `destination` is NULL or `make` fails.
///
/// # Safety
/// `destination` is NULL or writable.
pub unsafe fn store_result<T>(destination: *mut *mut T, make: impl FnOnce() -> Result<T, Error>) -> Result<(), Error> {
    if destination.is_null() {
        return Err(Error::argument("expected an output pointer for the result, found NULL"));
    }
    let object = Box::into_raw(Box::new(make()?));
    // SAFETY: the caller guarantees that `destination`, which is not NULL here, is writable.
    unsafe { destination.write(object) };
    Ok(())
}
