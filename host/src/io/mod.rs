//! Tensors in files: `.npy`, `.npz`, `.pb`, safetensors and images.
//!
//! Every reader is bounded by the contents of the file: a header that claims more data than there is gets a diagnostic.

pub mod image;
pub mod npy;
pub mod npz;
pub mod weights;

pub use byoc_files::{
    MAX_TEXT, bad_file, cannot_write, check_writable, input, map_file, mapped, open_regular, output, read_text,
    write_atomically, write_through, write_together,
};
pub use byoc_ir::tensor::random;
pub use byoc_onnx::pb;

use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::{DType, OutOfMemory, Tensor};
use std::path::Path;

/// Reads one tensor from a `.npy`, `.npz` or `.pb` file. From an `.npz` the entry called `entry` is read, or the only
/// one.
///
/// # Errors
/// When the file is missing, of another kind, damaged, or has no such entry.
pub fn read_tensor(path: &Path, entry: Option<&str>) -> Result<Tensor, Diagnostic> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("npy") => npy::read(path),
        Some("npz") => npz::read_entry(path, entry),
        Some("pb") => pb::read(path),
        _ => Err(bad_file(path, "expected a .npy, .npz or .pb file")),
    }
}

/// Contents of a tensor file as far as known before its elements are read.
#[derive(Clone, Debug)]
pub enum Peeked {
    /// Element type and dimensions; [`read_tensor`] reads the elements.
    Header(npy::Header),
    /// Whole tensor, from a file whose type is unknown until it is read.
    Tensor(Tensor),
}

/// Reads only as much of a tensor file as needed to determine its type.
///
/// # Errors
/// As [`read_tensor`].
pub fn peek(path: &Path, entry: Option<&str>) -> Result<Peeked, Diagnostic> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("npy") => npy::header_of(path).map(Peeked::Header),
        Some("npz") => npz::header_of(path, entry).map(Peeked::Header),
        _ => read_tensor(path, entry).map(Peeked::Tensor),
    }
}

/// Returns a tensor whose elements are all `value`.
///
/// # Errors
/// When there is no memory for it.
pub fn filled(dtype: DType, shape: &[usize], value: f64) -> Result<Tensor, OutOfMemory> {
    use byoc_ir::tensor::Element;
    let one = byoc_ir::with_dtype!(dtype, T => bytemuck::bytes_of(&T::from_f64(value)).to_vec());
    Tensor::build(dtype, shape, |bytes| bytes.chunks_exact_mut(one.len()).for_each(|c| c.copy_from_slice(&one)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_tensors_hold_the_value() {
        assert_eq!(filled(DType::I16, &[2], 3.0).unwrap(), Tensor::from_slice(&[2], &[3i16, 3]));
        assert_eq!(filled(DType::Bool, &[2], 1.0).unwrap(), Tensor::from_bools(&[2], &[true, true]));
    }
}
