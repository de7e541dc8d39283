//! Tensors of strings as two tensors of numbers: the *bytes* of all elements in UTF-8, a vector, and the *spans*, which
//! have the dimensions of the tensor.
//!
//! A span is an int64: the first byte in the upper half, the number of bytes in the lower half. Operators that move
//! elements move spans, and leave the bytes alone. The span 0 is the empty string, so that zeros are empty strings. Spans
//! may overlap, and there may be bytes that belong to no span.

use super::memory::{self, Charge};
use super::{DType, OutOfMemory, Tensor, TensorView, element_count};
use std::fmt;

/// Maximum number of bytes of a tensor of strings.
pub const MAX_BYTES: usize = i32::MAX as usize;

/// Number of bits by which the first byte is shifted in a span.
pub const BEGIN_SHIFT: u32 = 32;

/// Returns the span of the `len` bytes from `begin` on, both of which are at most [`MAX_BYTES`].
pub fn span(begin: usize, len: usize) -> i64 {
    (begin as i64) << BEGIN_SHIFT | len as i64
}

/// Returns the first byte of a span, and the number of its bytes.
fn begin_and_len(span: i64) -> Option<(usize, usize)> {
    Some((usize::try_from(span >> BEGIN_SHIFT).ok()?, (span & i64::from(u32::MAX)) as usize))
}

/// Strings of a tensor. Elements are checked when they are read.
#[derive(Clone, Copy, Debug)]
pub struct Strings<'a> {
    bytes: &'a [u8],
    spans: &'a [i64],
}

/// Reason why an element is no string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The span of the element lies outside of the bytes.
    Span(usize),
    /// The bytes of the element are not UTF-8.
    Utf8(usize),
    /// The tensors have other element types, or the bytes are no vector.
    Tensors,
    /// The bytes exceed [`MAX_BYTES`].
    TooLong,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Invalid::Span(element) => write!(f, "element {element}: expected a span within the bytes of the strings"),
            Invalid::Utf8(element) => write!(f, "element {element}: expected UTF-8, found invalid bytes"),
            Invalid::Tensors => f.write_str("expected a vector of bytes and spans of type int64"),
            Invalid::TooLong => write!(f, "expected strings of at most {MAX_BYTES} bytes in total"),
        }
    }
}

impl<'a> Strings<'a> {
    /// Creates a view of strings.
    ///
    /// # Errors
    /// If the element types are not uint8 and int64, or the bytes are no vector.
    pub fn new(bytes: &TensorView<'a>, spans: &TensorView<'a>) -> Result<Strings<'a>, Invalid> {
        match (bytes.dtype, bytes.shape, spans.dtype) {
            (DType::U8, [_], DType::I64) => Ok(Strings { bytes: bytes.data, spans: spans.as_slice() }),
            _ => Err(Invalid::Tensors),
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the bytes of element `i`.
    ///
    /// # Errors
    /// If the span lies outside of the bytes.
    pub fn bytes(&self, i: usize) -> Result<&'a [u8], Invalid> {
        let range = begin_and_len(self.spans[i]).map(|(begin, len)| begin..begin.saturating_add(len));
        range.and_then(|range| self.bytes.get(range)).ok_or(Invalid::Span(i))
    }

    /// Returns element `i`.
    ///
    /// # Errors
    /// If the span lies outside of the bytes, or its bytes are not UTF-8.
    pub fn get(&self, i: usize) -> Result<&'a str, Invalid> {
        std::str::from_utf8(self.bytes(i)?).map_err(|_| Invalid::Utf8(i))
    }

    /// Returns the position of the first byte of element `i` among all bytes.
    pub fn begin(&self, i: usize) -> usize {
        begin_and_len(self.spans[i]).map_or(0, |(begin, _)| begin)
    }

    /// Iterates over the elements.
    pub fn iter(self) -> impl Iterator<Item = Result<&'a str, Invalid>> {
        (0..self.len()).map(move |i| self.get(i))
    }

    /// Returns the number of bytes of all elements.
    ///
    /// # Errors
    /// If a span lies outside of the bytes.
    pub fn byte_count(&self) -> Result<usize, Invalid> {
        (0..self.len()).try_fold(0usize, |sum, i| Ok(sum.saturating_add(self.bytes(i)?.len())))
    }
}

/// Failure to create a tensor of strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// The strings are invalid, or too long.
    Invalid(Invalid),
    /// The memory limit is exceeded.
    Memory(OutOfMemory),
}

impl From<OutOfMemory> for EncodeError {
    fn from(error: OutOfMemory) -> EncodeError {
        EncodeError::Memory(error)
    }
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncodeError::Invalid(reason) => reason.fmt(f),
            EncodeError::Memory(error) => error.fmt(f),
        }
    }
}

/// Returns the spans and the bytes of a tensor of strings.
///
/// # Errors
/// If the strings are too long, or exceed the memory limit.
///
/// # Panics
/// If the number of strings does not match the shape, which is a bug in the caller.
pub fn encode<S: AsRef<[u8]>>(shape: &[usize], strings: &[S]) -> Result<[Tensor; 2], EncodeError> {
    assert_eq!(element_count(shape), Some(strings.len()), "the number of strings matches the shape");
    let count = strings.iter().fold(0usize, |sum, string| sum.saturating_add(string.as_ref().len()));
    if count > MAX_BYTES {
        return Err(EncodeError::Invalid(Invalid::TooLong));
    }
    let mut begin = 0;
    let spans = Tensor::build(DType::I64, shape, |data| {
        let spans: &mut [i64] = bytemuck::cast_slice_mut(data);
        for (slot, string) in spans.iter_mut().zip(strings) {
            let len = string.as_ref().len();
            *slot = if len == 0 { 0 } else { span(begin, len) };
            begin += len;
        }
    })?;
    let bytes = Tensor::build(DType::U8, &[count], |data| {
        let mut rest = data;
        for string in strings {
            let (own, other) = rest.split_at_mut(string.as_ref().len());
            own.copy_from_slice(string.as_ref());
            rest = other;
        }
    })?;
    Ok([spans, bytes])
}

/// Strings that own their characters, and the charge for their memory.
#[derive(Debug)]
pub struct OwnedStrings {
    /// Strings in row-major order.
    pub strings: Vec<String>,
    _charge: Charge,
}

/// Returns the strings of a tensor.
///
/// # Errors
/// If the strings are invalid, or exceed the memory limit.
pub fn decode(spans: &Tensor, bytes: &Tensor) -> Result<OwnedStrings, EncodeError> {
    let view = Strings::new(&bytes.view(), &spans.view()).map_err(EncodeError::Invalid)?;
    let count = view.byte_count().map_err(EncodeError::Invalid)?;
    let charge = memory::reserve(count.saturating_add(view.len().saturating_mul(size_of::<String>())))?;
    let strings = view.iter().map(|string| string.map(str::to_owned));
    let strings = strings.collect::<Result<_, _>>().map_err(EncodeError::Invalid)?;
    Ok(OwnedStrings { strings, _charge: charge })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_strings() {
        let words = ["", "héllo", "", "ß"];
        let [spans, bytes] = encode(&[2, 2], &words).unwrap();
        assert_eq!((spans.shape(), bytes.shape()), (&[2, 2][..], &[8][..]));
        assert_eq!(decode(&spans, &bytes).unwrap().strings, words);
        assert_eq!(spans.as_slice::<i64>()[0], 0);
    }

    #[test]
    fn rejects_spans_and_bytes_that_are_no_strings() {
        let bytes = Tensor::from_slice(&[2], &[b'a', 0xff]);
        let error = |spans: &[i64]| {
            let spans = Tensor::from_slice(&[spans.len()], spans);
            decode(&spans, &bytes).unwrap_err()
        };
        assert_eq!(error(&[span(0, 1), span(1, 1)]), EncodeError::Invalid(Invalid::Utf8(1)));
        for outside in [span(1, 2), span(3, 0), -1, i64::MIN, i64::MAX] {
            assert_eq!(error(&[0, outside]), EncodeError::Invalid(Invalid::Span(1)));
        }
        assert_eq!(decode(&bytes, &bytes).unwrap_err(), EncodeError::Invalid(Invalid::Tensors));
    }
}
