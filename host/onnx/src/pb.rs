//! Files with a single ONNX `TensorProto`, the format of data sets in test directories.

use crate::decode::decode;
use crate::proto::{OptionalProto, SequenceProto, TensorProto};
use crate::tensor;
use byoc_files::footprint::Decodable;
use byoc_files::{bad_file, map_file, write_atomically};
use byoc_ir::diag::Diagnostic;
use byoc_ir::interface::PortKind;
use byoc_ir::tensor::memory::Charge;
use byoc_ir::tensor::{DType, Tensor, strings};
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

/// Contents of a `.pb` file with a tensor.
pub enum Content {
    /// Tensor of numbers.
    Tensor(Tensor),
    /// Spans and bytes of a tensor of strings.
    Strings([Tensor; 2]),
}

/// Reads a tensor of numbers from a `.pb` file, with its name, which may be empty.
///
/// # Errors
/// If the file cannot be read or is not a tensor of numbers.
pub fn read_named(path: &Path) -> Result<(String, Tensor), Diagnostic> {
    match read_any(path)? {
        (name, Content::Tensor(tensor)) => Ok((name, tensor)),
        (_, Content::Strings(_)) => Err(bad_file(path, "expected a tensor of numbers, found a tensor of strings")),
    }
}

/// Reads a tensor of numbers or strings from a `.pb` file, with its name, which may be empty.
///
/// # Errors
/// If the file cannot be read or is not a tensor.
pub fn read_any(path: &Path) -> Result<(String, Content), Diagnostic> {
    let (proto, _charge) = read_message::<TensorProto>(path)?;
    let content = content(path, &proto)?;
    Ok((proto.name, content))
}

fn read_message<M: Message + Default + Decodable>(path: &Path) -> Result<(M, Charge), Diagnostic> {
    let bytes = map_file(path).map_err(|e| bad_file(path, e))?;
    decode::<M>(bytes, |reason| bad_file(path, format!("expected a tensor, found {reason}")))
}

fn content(path: &Path, proto: &TensorProto) -> Result<Content, Diagnostic> {
    if proto.data_type != tensor::STRING {
        return Ok(Content::Tensor(tensor::decode(proto, None).map_err(|reason| bad_file(path, reason))?));
    }
    let (shape, strings) = tensor::decode_strings(proto).map_err(|reason| bad_file(path, reason))?;
    strings::encode(&shape, &strings).map(Content::Strings).map_err(|error| match error {
        strings::EncodeError::Memory(error) => Diagnostic::from(error),
        strings::EncodeError::Invalid(reason) => bad_file(path, reason),
    })
}

/// Reads the value of an input or output from a `.pb` file: its name, which may be empty, and the tensors of its ports.
/// A sequence has tensors of `rank`, if it is known, which matters for an empty one.
///
/// # Errors
/// If the file cannot be read, or has no value of this kind.
pub fn read_value(
    path: &Path,
    kind: PortKind,
    dtype: DType,
    rank: Option<usize>,
) -> Result<(String, Vec<Tensor>), Diagnostic> {
    let mut is_present = true;
    let sequence_elements = |proto: &SequenceProto| -> Result<Vec<Content>, Diagnostic> {
        proto.tensor_values.iter().map(|proto| content(path, proto)).collect()
    };
    let (name, elements) = match kind {
        PortKind::Sequence | PortKind::StringSequence => {
            let (proto, _charge) = read_message::<SequenceProto>(path)?;
            let elements = sequence_elements(&proto)?;
            (proto.name, elements)
        }
        PortKind::Optional => {
            let (proto, _charge) = read_message::<OptionalProto>(path)?;
            let value = proto.tensor_value.as_ref().map(|proto| content(path, proto)).transpose()?;
            (proto.name, value.into_iter().collect())
        }
        PortKind::OptionalSequence => {
            let (proto, _charge) = read_message::<OptionalProto>(path)?;
            is_present = proto.sequence_value.is_some();
            let elements = proto.sequence_value.as_ref().map(sequence_elements).transpose()?;
            (proto.name, elements.unwrap_or_default())
        }
        _ => {
            return Ok(match read_any(path)? {
                (name, Content::Tensor(tensor)) => (name, vec![tensor]),
                (name, Content::Strings(strings)) => (name, strings.into()),
            });
        }
    };
    let has_strings = kind == PortKind::StringSequence;
    let rank = match elements.first() {
        Some(Content::Tensor(tensor) | Content::Strings([tensor, _])) => tensor.shape().len(),
        None => rank.unwrap_or(0),
    };
    let (mut data, mut shapes, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for element in &elements {
        let shift = bytes.len() as i64;
        let tensor = match element {
            Content::Tensor(tensor) if !has_strings => {
                data.extend_from_slice(tensor.bytes());
                tensor
            }
            Content::Strings([spans, own_bytes]) if has_strings => {
                let shifted = spans.as_slice::<i64>().iter().map(|span| span + (shift << strings::BEGIN_SHIFT));
                data.extend(shifted.flat_map(i64::to_le_bytes));
                bytes.extend_from_slice(own_bytes.bytes());
                spans
            }
            _ => return Err(bad_file(path, "expected a sequence of numbers or of strings, found both")),
        };
        if tensor.dtype() != dtype || tensor.shape().len() != rank {
            let reason = format!("expected tensors of type {dtype} and rank {rank}, found {tensor:?}");
            return Err(bad_file(path, reason));
        }
        shapes.extend(tensor.shape().iter().map(|&size| size as i64));
    }
    let length = data.len() / dtype.size();
    let mut tensors = vec![
        Tensor::build(dtype, &[length], |out| out.copy_from_slice(&data))?,
        Tensor::from_vec(&[elements.len(), rank], shapes),
    ];
    if has_strings {
        tensors.push(Tensor::from_slice(&[bytes.len()], &bytes));
    }
    if kind == PortKind::OptionalSequence {
        tensors.push(Tensor::from_bools(&[], &[is_present]));
    }
    Ok((name, tensors))
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
