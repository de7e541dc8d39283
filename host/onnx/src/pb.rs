//! Files with a single ONNX `TensorProto`, the format of data sets in test directories.

use crate::decode::decode;
use crate::proto::TensorProto;
use crate::tensor;
use byoc_files::{bad_file, map_file, write_atomically};
use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::Tensor;
use prost::Message;
use std::io::Write;
use std::path::Path;

/// Reads a tensor from a `.pb` file.
///
/// # Errors
/// If the file cannot be read or is not a tensor.
pub fn read(path: &Path) -> Result<Tensor, Diagnostic> {
    read_named(path).map(|(_, tensor)| tensor)
}

/// Reads a tensor from a `.pb` file, with its name, which may be empty.
///
/// # Errors
/// If the file cannot be read or is not a tensor.
pub fn read_named(path: &Path) -> Result<(String, Tensor), Diagnostic> {
    let bytes = map_file(path).map_err(|e| bad_file(path, e))?;
    let error = |reason| bad_file(path, format!("expected a TensorProto, found {reason}"));
    let (proto, _charge) = decode::<TensorProto>(bytes, error)?;
    let tensor = tensor::decode(&proto, None).map_err(|reason| bad_file(path, reason))?;
    Ok((proto.name, tensor))
}

/// Writes a tensor named `name` to a `.pb` file.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, name: &str, value: &Tensor) -> Result<(), Diagnostic> {
    write_atomically(path, |file| file.write_all(&tensor::encode(name, value).encode_to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::tensor::DType;

    #[test]
    fn round_trips_every_element_type() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("input_0.pb");
        for &dtype in DType::ALL {
            let tensor = byoc_ir::tensor::random::tensor(dtype, &[2, 3], 5);
            write(&path, "x", &tensor).unwrap();
            assert_eq!(read(&path).unwrap(), tensor);
        }
    }

    #[test]
    fn rejects_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("input_0.pb");
        std::fs::write(&path, "not a tensor").unwrap();
        assert_eq!(read(&path).unwrap_err().code, byoc_ir::diag::codes::frontends::BAD_TENSOR_FILE);
    }
}
