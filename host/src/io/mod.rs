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
use byoc_ir::tensor::Tensor;
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
            Err(bad_file(path, format!("expected the extension .npy, .npz or .pb, found {extension}")))
        }
    }
}

/// Information that [`peek`] returns about a tensor file.
#[derive(Clone, Debug)]
pub enum Peeked {
    /// Element type and dimensions; [`read_tensor`] reads the elements.
    Header(npy::Header),
    /// Complete tensor, from a format whose type is known only after the elements are read.
    Tensor(Tensor),
}

/// Reads only as much of a tensor file as needed to determine its type.
///
/// # Errors
/// Same as [`read_tensor`].
pub fn peek(path: &Path, entry: Option<&str>) -> Result<Peeked, Diagnostic> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("npy") => npy::header_of(path).map(Peeked::Header),
        Some("npz") => npz::header_of(path, entry).map(Peeked::Header),
        _ => read_tensor(path, entry).map(Peeked::Tensor),
    }
}
