//! The bytes of a written model. Weights go to the file from where they are, one after the other.

use super::Model;
use crate::proto::{GraphProto, LOCATION_EXTERNAL, ModelProto, StringStringEntryProto, TensorProto};
use crate::tensor::{pack, type_number};
use byoc_files::output::{Pending, cannot_write};
use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::Tensor;
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};
use std::borrow::Cow;
use std::io::{BufWriter, Error, Result, Write};
use std::path::Path;

/// Maximum size of a message of protobuf.
pub const MAX_MODEL_BYTES: usize = (1 << 31) - 1;
/// Minimum size of a weight that is written to another file; readers need the values of smaller ones for shapes.
const MIN_EXTERNAL_BYTES: usize = 1024;
/// Alignment of weights in their file, which a reader maps.
const ALIGNMENT: usize = 4096;

/// Keys of the fields that hold bytes: `ModelProto.graph`, `GraphProto.initializer`, `TensorProto.raw_data`.
const GRAPH_KEY: u64 = 7 << 3 | 2;
const INITIALIZER_KEY: u64 = 5 << 3 | 2;
const RAW_DATA_KEY: u64 = 9 << 3 | 2;

impl Model {
    /// Writes the model to a file, and its weights to a file beside it if the model would be too large. Both files appear
    /// when they are complete.
    ///
    /// # Errors
    /// E0513 if a file cannot be written.
    pub fn write_file(&self, path: &Path) -> std::result::Result<(), Diagnostic> {
        let mut pending = Pending::begin(path).map_err(|error| cannot_write(path, &error))?;
        if !self.is_external() {
            let written = self.write_to(pending.file()).and_then(|()| pending.commit());
            return written.map_err(|error| cannot_write(path, &error));
        }
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".data");
        let data_path = path.with_file_name(&name);
        let location = name.to_string_lossy().into_owned();
        let mut data = Pending::begin(&data_path).map_err(|error| cannot_write(&data_path, &error))?;
        self.write_weights(data.file()).map_err(|error| cannot_write(&data_path, &error))?;
        self.write_header(pending.file(), Some(&location)).map_err(|error| cannot_write(path, &error))?;
        data.commit().map_err(|error| cannot_write(&data_path, &error))?;
        pending.commit().map_err(|error| cannot_write(path, &error))
    }

    /// Returns true if the weights are in a file beside the model.
    pub fn is_external(&self) -> bool {
        let weights: usize = self.weights.iter().map(|(_, tensor)| tensor.bytes().len()).sum();
        weights.saturating_add(self.proto.encoded_len()) >= self.external_from
    }

    /// Writes the model with its weights.
    ///
    /// # Errors
    /// If the output fails, or the model exceeds the limit of the format.
    pub fn write_to(&self, out: &mut dyn Write) -> Result<()> {
        if self.is_external() {
            return Err(Error::other(
                "expected a model of less than 2 GB, or a file, beside which its weights can stand",
            ));
        }
        self.write_header(out, None)
    }

    /// Writes the model to one output, and its weights to another, which the model names `location`. Small weights
    /// stay in the model, as readers need their values for shapes.
    ///
    /// # Errors
    /// If an output fails.
    pub fn write_parts(&self, location: &str, model: &mut dyn Write, weights: &mut dyn Write) -> Result<()> {
        self.write_weights(weights)?;
        self.write_header(model, Some(location))
    }

    /// Writes the model; weights are in the file `external`, if there is one and they are large enough.
    fn write_header(&self, out: &mut dyn Write, external: Option<&str>) -> Result<()> {
        let mut out = BufWriter::new(out);
        let no_graph = GraphProto::default();
        let graph = self.proto.graph.as_ref().unwrap_or(&no_graph);
        let mut offset = 0;
        let mut headers = Vec::with_capacity(self.weights.len());
        for (name, tensor) in &self.weights {
            let location =
                external.filter(|_| is_external(tensor)).map(|file| (file, next_offset(&mut offset, tensor)));
            headers.push(Header::new(name, tensor, location));
        }
        let weights: usize = headers.iter().map(|header| header.field_len()).sum();
        out.write_all(&ModelProto { graph: None, ..self.shell() }.encode_to_vec())?;
        write_key(&mut out, GRAPH_KEY, graph.encoded_len() + weights)?;
        out.write_all(&graph.encode_to_vec())?;
        for header in &headers {
            write_key(&mut out, INITIALIZER_KEY, header.len())?;
            out.write_all(&header.proto)?;
            if let Some(raw) = &header.raw {
                write_key(&mut out, RAW_DATA_KEY, raw.len())?;
                out.write_all(raw)?;
            }
        }
        out.flush()
    }

    /// Returns the model without its graph.
    fn shell(&self) -> ModelProto {
        let ModelProto { ir_version, opset_import, producer_name, producer_version, functions, .. } = &self.proto;
        ModelProto {
            ir_version: *ir_version,
            opset_import: opset_import.clone(),
            producer_name: producer_name.clone(),
            producer_version: producer_version.clone(),
            functions: functions.clone(),
            ..ModelProto::default()
        }
    }

    fn write_weights(&self, out: &mut dyn Write) -> Result<()> {
        let mut out = BufWriter::new(out);
        let (mut position, mut offset) = (0, 0);
        for (_, tensor) in self.weights.iter().filter(|(_, tensor)| is_external(tensor)) {
            let start = next_offset(&mut offset, tensor);
            out.write_all(&vec![0; start - position])?;
            let raw = raw_bytes(tensor);
            out.write_all(&raw)?;
            position = start + raw.len();
        }
        out.flush()
    }
}

/// Initializer: its message without the data, and the data unless it is in another file.
struct Header<'t> {
    proto: Vec<u8>,
    raw: Option<Cow<'t, [u8]>>,
}

impl<'t> Header<'t> {
    fn new(name: &str, tensor: &'t Tensor, external: Option<(&str, usize)>) -> Header<'t> {
        let raw = raw_bytes(tensor);
        let mut proto = TensorProto {
            name: name.to_owned(),
            dims: tensor.shape().iter().map(|&dim| dim as i64).collect(),
            data_type: type_number(tensor.dtype()),
            ..TensorProto::default()
        };
        if let Some((location, offset)) = external {
            let entry = |key: &str, value: String| StringStringEntryProto { key: key.to_owned(), value };
            let length = raw.len().to_string();
            proto.external_data = vec![
                entry("location", location.to_owned()),
                entry("offset", offset.to_string()),
                entry("length", length),
            ];
            proto.data_location = LOCATION_EXTERNAL;
        }
        Header { proto: proto.encode_to_vec(), raw: external.is_none().then_some(raw) }
    }

    /// Returns the length of the message.
    fn len(&self) -> usize {
        self.proto.len() + self.raw.as_ref().map_or(0, |raw| key_len(RAW_DATA_KEY, raw.len()) + raw.len())
    }

    /// Returns the length of the message with its key.
    fn field_len(&self) -> usize {
        key_len(INITIALIZER_KEY, self.len()) + self.len()
    }
}

fn is_external(tensor: &Tensor) -> bool {
    tensor.bytes().len() >= MIN_EXTERNAL_BYTES
}

/// Returns the aligned position of a weight in the file of weights, and moves `offset` after it.
fn next_offset(offset: &mut usize, tensor: &Tensor) -> usize {
    let start = offset.next_multiple_of(ALIGNMENT);
    *offset = start + tensor.bytes().len().div_ceil(8 / tensor.dtype().bits().min(8));
    start
}

/// Returns the elements as ONNX stores them: those of fewer than 8 bits are packed.
fn raw_bytes(tensor: &Tensor) -> Cow<'_, [u8]> {
    match tensor.dtype() {
        dtype if dtype.bits() < 8 => Cow::Owned(pack(dtype, tensor.bytes())),
        _ => Cow::Borrowed(tensor.bytes()),
    }
}

fn key_len(key: u64, len: usize) -> usize {
    encoded_len_varint(key) + encoded_len_varint(len as u64)
}

fn write_key(out: &mut impl Write, key: u64, len: usize) -> Result<()> {
    let mut bytes = Vec::with_capacity(20);
    encode_varint(key, &mut bytes);
    encode_varint(len as u64, &mut bytes);
    out.write_all(&bytes)
}
