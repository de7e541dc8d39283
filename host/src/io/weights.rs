//! Safetensors files, read as named tensors that are views of the mapped file.

use byoc_files::mapped::MappedRange;
use byoc_files::write_atomically;
use byoc_files::{bad_file, map_file};
use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::{DType, Tensor, memory};
use safetensors::tensor::Dtype;
use safetensors::{SafeTensors, View};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// Reads every tensor of a file, by name.
///
/// # Errors
/// If the file cannot be read, is corrupt, or has a tensor of an unsupported element type.
pub fn read(path: &Path) -> Result<BTreeMap<String, Tensor>, Diagnostic> {
    let bytes = map_file(path).map_err(|e| bad_file(path, e))?;
    // The first eight bytes are the length of the header, whose tree of JSON is larger than its text.
    const TREE_PER_BYTE: usize = 16;
    let header = bytes.first_chunk::<8>().map_or(0, |length| u64::from_le_bytes(*length));
    let header = usize::try_from(header).unwrap_or(usize::MAX).min(bytes.len());
    let _charge = memory::reserve(header.saturating_mul(TREE_PER_BYTE))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| bad_file(path, e))?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let dtype = element_type(view.dtype())
            .ok_or_else(|| bad_file(path, format!("tensor {name}: unsupported element type {:?}", view.dtype())))?;
        let mut tensor = Tensor::from_storage(dtype, view.shape(), Arc::new(MappedRange(bytes.slice_ref(view.data()))))
            .ok_or_else(|| {
                bad_file(
                    path,
                    format!(
                        "tensor {name}: expected the data of {dtype}{:?}, found {} bytes",
                        view.shape(),
                        view.data().len()
                    ),
                )
            })?;
        if dtype == DType::Bool && tensor.bytes().iter().any(|&b| b > 1) {
            let values: Vec<bool> = tensor.bytes().iter().map(|&b| b != 0).collect();
            tensor = Tensor::from_bools(view.shape(), &values);
        }
        tensors.insert(name.to_owned(), tensor);
    }
    Ok(tensors)
}

/// Writes named tensors. Equal tensors produce identical files.
///
/// # Errors
/// If the file cannot be written.
pub fn write<'a>(path: &Path, tensors: impl IntoIterator<Item = (String, &'a Tensor)>) -> Result<(), Diagnostic> {
    let bytes = serialize(tensors);
    write_atomically(path, |file| file.write_all(&bytes?))
}

/// Serializes named tensors as a safetensors file.
///
/// # Errors
/// If the tensors cannot be serialized.
pub fn serialize<'a>(tensors: impl IntoIterator<Item = (String, &'a Tensor)>) -> std::io::Result<Vec<u8>> {
    let views = tensors.into_iter().map(|(name, tensor)| (name, StoredTensor(tensor)));
    safetensors::serialize(views, None).map_err(std::io::Error::other)
}

struct StoredTensor<'a>(&'a Tensor);

impl View for StoredTensor<'_> {
    fn dtype(&self) -> Dtype {
        file_type(self.0.dtype())
    }

    fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.0.bytes().into()
    }

    fn data_len(&self) -> usize {
        self.0.bytes().len()
    }
}

fn file_type(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::Bool => Dtype::BOOL,
        DType::I4 | DType::I2 => Dtype::I8,
        // Element types without a safetensors equivalent are stored as uint8.
        _ => Dtype::U8,
    }
}

fn element_type(dtype: Dtype) -> Option<DType> {
    DType::ALL.iter().copied().find(|&d| file_type(d) == dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_every_element_type() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.safetensors");
        let tensors: Vec<Tensor> =
            DType::COMPUTED.iter().map(|&d| byoc_ir::tensor::random::tensor(d, &[2, 3], 1)).collect();
        write(&path, tensors.iter().enumerate().map(|(i, t)| (i.to_string(), t))).unwrap();
        let read = read(&path).unwrap();
        for (i, tensor) in tensors.iter().enumerate() {
            assert_eq!(&read[&i.to_string()], tensor);
        }
    }

    #[test]
    fn rejects_damaged_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.safetensors");
        write(&path, [("0".to_owned(), &Tensor::from_slice(&[2], &[1f32, 2.0]))]).unwrap();
        let valid_bytes = std::fs::read(&path).unwrap();
        for length in 0..valid_bytes.len() {
            std::fs::write(&path, &valid_bytes[..length]).unwrap();
            assert!(read(&path).is_err(), "expected an error for {length} bytes");
        }
    }
}
