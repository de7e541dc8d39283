//! Strings, which inputs and results hold as two tensors: spans and bytes.

use crate::error::{Error, report};
use crate::options::{array, object, store_result};
use crate::tensor::Results;
use byoc::Diagnostic;
use byoc_ir::diag::codes::runtime::BAD_STRING;
use byoc_ir::tensor::strings::{self, EncodeError, Strings};
use std::ffi::c_char;

fn bad_string(reason: impl std::fmt::Display) -> Error {
    Error::from(byoc::Error::from(Diagnostic::error(BAD_STRING, reason.to_string())))
}

/// Creates the two tensors of an input of strings: result 0 has the spans, result 1 the bytes.
///
/// # Safety
/// The pointers meet the requirements of `byoc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_strings_create(
    texts: *const *const c_char,
    sizes: *const usize,
    shape: *const i64,
    ndim: i32,
    results: *mut *mut Results,
) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    report(|| unsafe {
        let rank = usize::try_from(ndim).map_err(|_| Error::argument(format!("expected a rank >= 0, found {ndim}")))?;
        let dims = array(shape, rank, "shape")?.iter().map(|&size| usize::try_from(size).ok());
        let dims = dims.collect::<Option<Vec<usize>>>();
        let dims = dims.ok_or_else(|| Error::argument("shape: expected dimensions >= 0"))?;
        let count = byoc_ir::tensor::element_count(&dims)
            .ok_or_else(|| Error::argument("shape: expected an addressable number of elements"))?;
        let (texts, sizes) = (array(texts, count, "texts")?, array(sizes, count, "sizes")?);
        let elements = texts.iter().zip(sizes).map(|(&text, &size)| array(text.cast::<u8>(), size, "texts"));
        let elements = elements.collect::<Result<Vec<&[u8]>, Error>>()?;
        if let Some(element) = elements.iter().position(|text| std::str::from_utf8(text).is_err()) {
            return Err(bad_string(format!("element {element}: expected UTF-8, found invalid bytes")));
        }
        let tensors = strings::encode(&dims, &elements).map_err(|error| match error {
            EncodeError::Invalid(reason) => bad_string(reason),
            EncodeError::Memory(error) => Error::from(byoc::Error::from(Diagnostic::from(error))),
        })?;
        store_result(results, || Results::new(tensors.into()))
    })
}

/// Returns a string of results whose spans are result `index`, and whose bytes are result `bytes_index`.
///
/// # Safety
/// The pointers meet the requirements of `byoc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_results_string(
    results: *const Results,
    index: usize,
    bytes_index: usize,
    element: usize,
    text: *mut *const c_char,
    size: *mut usize,
) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    report(|| unsafe {
        let results = object(results, "byoc_results")?;
        let (Some((spans, _)), Some((bytes, _))) = (results.tensor(index), results.tensor(bytes_index)) else {
            let message = format!("expected results below {}, found {index} and {bytes_index}", results.len());
            return Err(Error::argument(message));
        };
        let strings = Strings::new(&bytes.view(), &spans.view()).map_err(bad_string)?;
        if element >= strings.len() {
            return Err(Error::argument(format!("expected an element below {}, found {element}", strings.len())));
        }
        let found = strings.get(element).map_err(bad_string)?;
        if text.is_null() || size.is_null() {
            return Err(Error::argument("expected output pointers for the text and its size, found NULL"));
        }
        text.write(found.as_ptr().cast());
        size.write(found.len());
        Ok(())
    })
}
