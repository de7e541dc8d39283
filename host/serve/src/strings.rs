//! Strings in the layout of the protocol: each with its length before it. The protocol has no other values than tensors,
//! so that sequences and maps are served as the tensors of their ports.

use crate::error::{Result, ServeError};
use byoc::runtime::value;
use byoc::{Port, Tensor};
use byoc_ir::interface::PortKind;
use byoc_ir::tensor::memory;
use byoc_ir::tensor::strings::{self, EncodeError, Strings};
use bytes::Bytes;

/// Returns the ports that the protocol shows as one tensor, by their position: each port, and the port of the bytes if its
/// elements are strings.
pub fn tensors(ports: &[Port]) -> Vec<(usize, Option<usize>)> {
    let mut tensors = Vec::new();
    let mut start = 0;
    for ports in value::by_value(ports) {
        let last = start + ports.len() - 1;
        let strings = match ports[0].kind {
            PortKind::Strings | PortKind::StringSequence => Some(start),
            PortKind::StringMaps => Some(start + 1),
            _ => None,
        };
        let end = if strings.is_some() { last } else { last + 1 };
        tensors.extend((start..end).map(|port| (port, (strings == Some(port)).then_some(last))));
        start = last + 1;
    }
    tensors
}

/// Reads the strings of an input: the spans and the bytes.
///
/// # Errors
/// If there are not as many strings as the shape has elements, a string is not UTF-8, or the memory limit is exhausted.
pub fn read(input: &str, shape: &[usize], mut data: &[u8]) -> Result<[Tensor; 2]> {
    let count = byoc_ir::tensor::element_count(shape);
    let wrong_count = |found: usize| {
        ServeError::bad_tensor(format!(
            "input '{input}': expected a string for each element of {shape:?}, found {found}"
        ))
    };
    // Each string has at least its length.
    let _charge = memory::reserve(data.len() / 4 * size_of::<&str>()).map_err(|error| out_of_memory(input, &error))?;
    let mut all = Vec::new();
    while let Some((length, rest)) = data.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((text, rest)) = rest.split_at_checked(length) else {
            let found = rest.len();
            return Err(ServeError::bad_tensor(format!(
                "input '{input}': expected {length} bytes of a string, found {found}"
            )));
        };
        let text = std::str::from_utf8(text).map_err(|_| {
            ServeError::bad_tensor(format!(
                "input '{input}': element {}: expected UTF-8, found invalid bytes",
                all.len()
            ))
        })?;
        all.push(text);
        data = rest;
    }
    if !data.is_empty() || count != Some(all.len()) {
        return Err(wrong_count(all.len()));
    }
    strings::encode(shape, &all).map_err(|error| match error {
        EncodeError::Memory(error) => out_of_memory(input, &error),
        EncodeError::Invalid(reason) => ServeError::bad_tensor(format!("input '{input}': {reason}")),
    })
}

fn out_of_memory(input: &str, error: &byoc_ir::tensor::OutOfMemory) -> ServeError {
    ServeError::overloaded(format!("not enough memory for input '{input}': {error}"))
}

/// Returns the strings of an output in the layout of the protocol.
///
/// # Errors
/// If a span lies outside of the bytes, or the memory limit is exhausted.
pub fn write(output: &str, spans: &Tensor, bytes: &Tensor) -> Result<Bytes> {
    let invalid = |reason: &dyn std::fmt::Display| ServeError::bad_tensor(format!("output '{output}': {reason}"));
    let view = Strings::new(&bytes.view(), &spans.view()).map_err(|reason| invalid(&reason))?;
    let size = view.byte_count().map_err(|reason| invalid(&reason))?.saturating_add(view.len().saturating_mul(4));
    let error = |error| ServeError::overloaded(format!("not enough memory for output '{output}': {error}"));
    let _charge = memory::reserve(size).map_err(error)?;
    let mut data = Vec::with_capacity(size);
    for i in 0..view.len() {
        let text = view.bytes(i).map_err(|reason| invalid(&reason))?;
        data.extend_from_slice(&(text.len() as u32).to_le_bytes());
        data.extend_from_slice(text);
    }
    Ok(data.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_return_unchanged() {
        let data = b"\x02\0\0\0ab\0\0\0\0\x02\0\0\0\xc3\xa4";
        let [spans, bytes] = read("x", &[3, 1], data).unwrap();
        assert_eq!(&write("y", &spans, &bytes).unwrap()[..], data);
    }

    #[test]
    fn malformed_strings_are_errors() {
        let cases: [(&[usize], &[u8], &str); 4] = [
            (&[2], b"\x01\0\0\0a", "for each element of [2], found 1"),
            (&[1], b"\x05\0\0\0a", "expected 5 bytes"),
            (&[1], b"\x01\0\0\0\xff", "UTF-8"),
            (&[1], b"\x01\0\0\0a\0", "for each element"),
        ];
        for (shape, data, expected) in cases {
            let error = read("x", shape, data).unwrap_err();
            assert!(error.message.contains(expected), "{error}");
        }
    }
}
