//! Tensor files: `.npy`, `.npz`, `.pb`, safetensors and images.
//!
//! No reader allocates more than the file contains: a header that declares more data than the file contains is an
//! error.

#[cfg(feature = "images")]
pub mod image;
pub mod weights;

pub use byoc_files::{
    MAX_TEXT, bad_file, beneath, cannot_write, check_writable, choice_layout, footprint, input, layout, map, map_file,
    mapped, npy, npz, open_regular, output, read_text, text_of, write_atomically, write_through, write_together,
};
pub use byoc_ir::tensor::random::{self, filled};
#[cfg(feature = "onnx")]
pub use byoc_onnx::pb;

use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::{Tensor, memory, strings};
use std::path::Path;

/// Reads one tensor from a `.npy`, `.npz` or `.pb` file. For an `.npz` file, reads the entry `entry`, or the only entry
/// by default.
///
/// # Errors
/// If the file is missing, corrupt or in an unsupported format, or has no such entry.
pub fn read_tensor(path: &Path, entry: Option<&str>) -> Result<Tensor, Diagnostic> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("npy") => npy::read(path),
        Some("npz") => npz::read_entry(path, entry),
        #[cfg(feature = "onnx")]
        Some("pb") => pb::read(path),
        _ => {
            let extension = path.extension().map_or_else(|| "none".to_owned(), |e| format!(".{}", e.to_string_lossy()));
            Err(bad_file(path, format!("expected the extension .npy, .npz, .pb or .txt, found {extension}")))
        }
    }
}

/// Reads the lines of a text file as a vector of strings: the spans and the bytes.
fn text_lines(path: &Path) -> Result<[Tensor; 2], Diagnostic> {
    let text = read_text(path).map_err(|error| bad_file(path, error))?;
    let count = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let _charge = memory::reserve(count.saturating_mul(size_of::<&str>()))?;
    let lines: Vec<&str> = text.lines().collect();
    strings::encode(&[lines.len()], &lines).map_err(|error| match error {
        strings::EncodeError::Memory(error) => Diagnostic::from(error),
        strings::EncodeError::Invalid(reason) => bad_file(path, reason),
    })
}

/// Information that [`peek`] returns about a tensor file.
#[derive(Clone, Debug)]
pub enum Peeked {
    /// Element type and dimensions; [`read_tensor`] reads the elements.
    Header(npy::Header),
    /// Complete tensor, from a format whose type is known only after the elements are read.
    Tensor(Tensor),
    /// Spans and bytes of strings.
    Strings([Tensor; 2]),
}

/// Reads only as much of a tensor file as needed to determine its type.
///
/// # Errors
/// Same as [`read_tensor`].
pub fn peek(path: &Path, entry: Option<&str>) -> Result<Peeked, Diagnostic> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("npy") => match npy::header_of(path)? {
            header if header.strings.is_some() => npy::read_strings(path).map(Peeked::Strings),
            header => Ok(Peeked::Header(header)),
        },
        Some("npz") => match npz::header_of(path, entry)? {
            header if header.strings.is_some() => npz::read_strings(path, entry).map(Peeked::Strings),
            header => Ok(Peeked::Header(header)),
        },
        Some("txt") => text_lines(path).map(Peeked::Strings),
        #[cfg(feature = "onnx")]
        Some("pb") => Ok(match pb::read_any(path)?.1 {
            pb::Content::Tensor(tensor) => Peeked::Tensor(tensor),
            pb::Content::Strings(strings) => Peeked::Strings(strings),
        }),
        _ => read_tensor(path, entry).map(Peeked::Tensor),
    }
}
