//! ONNX frontend: translates the operators of opsets 1 to 28 into Relay's operators.
//!
//! | file | contents |
//! |---|---|
//! | [`proto`] | messages of `onnx.proto` |
//! | `decode` | decoding of messages within the memory limit and the time limit |
//! | [`folder`], [`pb`] | directories in ONNX test-data layout, and tensors in `.pb` files |
//! | [`tensor`], [`external`] | tensors, and tensor data in external files |
//! | `port` | inputs and outputs as the model declares them |
//! | `graph`, `functions` | nodes in topological order, and inlining of model-defined functions |
//! | `import` | model checks, and conversion of the graph node by node |
//! | `state` | state of the conversion: values by name, constants, folding |
//! | `node` | view of a node for converters: inputs, attributes, creation of Relay calls |
//! | `sources` | the operators that a written node combines, in its doc string |
//! | `size`, `open` | integer expressions over symbolic dimensions, and calls that use them |
//! | `ops` | converters, one file per operator family, and their table |
//! | [`write`] | the other direction: from modules to models |
//!
//! A call with constant arguments is folded immediately if that is cheap; this removes the shape arithmetic that
//! exporters emit.

mod decode;
pub mod external;
pub mod folder;
mod functions;
mod graph;
mod import;
mod names;
mod node;
mod open;
mod ops;
pub mod pb;
mod port;
pub mod proto;
mod schema;
mod size;
mod sources;
mod state;
pub mod tensor;
pub mod write;

use byoc_files::mapped;
use byoc_ir::cancel::{self, Ticks};
use byoc_ir::diag::{Diagnostic, Reports, codes};
use byoc_ir::interface::{LoadOptions, Loaded, OptionalInput, PortInfo, Signature, unreadable};
use byoc_ir::tensor::memory::Charge;
use bytes::Bytes;
use external::ExternalFiles;
use folder::read_model;
use proto::{GraphProto, ModelProto, ValueInfoProto};
use std::collections::{BTreeSet, HashSet};
use std::path::Path;

/// Oldest supported opset.
pub const OLDEST_OPSET: i64 = 1;
/// Newest supported opset.
pub const NEWEST_OPSET: i64 = 28;

/// Reads a model file.
///
/// # Errors
/// If the model is invalid or unsupported; independent errors are reported together.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Loaded, Vec<Diagnostic>> {
    let file = byoc_files::open_regular(path).map_err(|error| vec![unreadable(path, error)])?;
    let external = ExternalFiles::beside_file(path, &file);
    let bytes = byoc_files::map(&file).map_err(|error| vec![unreadable(path, error)])?;
    let digest = mapped::digest(&bytes).to_hex().to_string();
    let (model, _charge) = decode_model(path, bytes)?;
    let model = convert_model(model, options, Some(&external))?;
    Ok(Loaded { digest, is_self_contained: external.is_unused(), ..model })
}

/// Reads a model from the bytes of its file. External tensor data is read from `dir`; without a directory, external
/// data is an error.
///
/// # Errors
/// If the model is invalid or unsupported; independent errors are reported together.
pub fn load_bytes(bytes: Bytes, dir: Option<&Path>, options: &LoadOptions) -> Result<Loaded, Vec<Diagnostic>> {
    let digest = mapped::digest(&bytes).to_hex().to_string();
    let external = dir.map(|dir| ExternalFiles::beside(&dir.join(IN_MEMORY)));
    let (model, _charge) = decode_model(Path::new(IN_MEMORY), bytes)?;
    let model = convert_model(model, options, external.as_ref())?;
    Ok(Loaded { digest, is_self_contained: external.is_none_or(|files| files.is_unused()), ..model })
}

/// Reads the signature of a model from the bytes of its file.
///
/// # Errors
/// If the model is invalid.
pub fn signature_of_bytes(bytes: Bytes) -> Result<Signature, Vec<Diagnostic>> {
    let (model, _charge) = decode_model(Path::new(IN_MEMORY), bytes)?;
    model_signature(&model)
}

/// Name used in messages for a model that was not read from a file.
const IN_MEMORY: &str = "the model in memory";

/// Reads the signature of a model file.
///
/// # Errors
/// If the file cannot be read, or the model is invalid.
pub fn signature(path: &Path) -> Result<Signature, Vec<Diagnostic>> {
    let (model, _charge) = decode_model(path, read_model(path)?)?;
    model_signature(&model)
}

/// Converts a decoded model to a module. External tensor data is read through `external`.
///
/// # Errors
/// If the model is invalid or unsupported; independent errors are reported together.
pub fn convert_model(
    model: ModelProto,
    options: &LoadOptions,
    external: Option<&ExternalFiles>,
) -> Result<Loaded, Vec<Diagnostic>> {
    import::convert(model, options, external)
}

/// Decodes the `ModelProto` message in a file, whose structures are charged to the memory limit until the charge is
/// dropped.
fn decode_model(path: &Path, bytes: Bytes) -> Result<(ModelProto, Charge), Vec<Diagnostic>> {
    if bytes.is_empty() {
        return Err(vec![unreadable(path, "the file is empty")]);
    }
    let error = |reason| unreadable(path, format!("expected an ONNX model, found {reason}"));
    let (model, charge) = decode::decode::<ModelProto>(bytes, error).map_err(|error| vec![error])?;
    if model.graph.is_none() {
        return Err(vec![unreadable(path, "expected an ONNX model with a graph, found a model without a graph")]);
    }
    Ok((model, charge))
}

/// Decodes a model from the bytes of its file, whose structures are charged to the memory limit until the charge is
/// dropped. The graph may be missing.
///
/// # Errors
/// If the bytes are not a model, or the structures exceed the memory limit.
pub fn proto_of_bytes(bytes: Bytes) -> Result<(ModelProto, Charge), Diagnostic> {
    decode::decode(bytes, |reason| invalid_model(format!("expected an ONNX model, found {reason}")))
}

/// Oldest version of the format in which the initializer of an input is its default value. In older files, every
/// initializer has an input, whose value runs do not replace.
const DEFAULTS_IR_VERSION: i64 = 4;

/// Returns the inputs and outputs that the graph of a model declares. An input with an initializer is optional.
pub(crate) fn model_signature(model: &ModelProto) -> Result<Signature, Vec<Diagnostic>> {
    let no_graph = GraphProto::default();
    let graph = model.graph.as_ref().unwrap_or(&no_graph);
    let sparse_values = graph.sparse_initializer.iter().filter_map(|s| s.values.as_ref());
    let constants: HashSet<&str> = graph.initializer.iter().chain(sparse_values).map(|t| t.name.as_str()).collect();
    let is_optional = |name: &str| constants.contains(name);
    let mut errors = Reports::default();
    let mut ticks = Ticks::every(1 << 8);
    let mut ports = |infos: &[ValueInfoProto], role: &str| -> Result<Vec<PortInfo>, Vec<Diagnostic>> {
        let mut names = BTreeSet::new();
        let mut ports = Vec::new();
        for info in infos {
            if ticks.is_requested() {
                cancel::check(|| format!("{} {role}s had been read", ports.len())).map_err(|reason| vec![reason])?;
            }
            if role == "input" && !names.insert(info.name.as_str()) {
                let message = format!("duplicate input \"{}\"", info.name);
                errors.add(|| Diagnostic::error(codes::frontends::DUPLICATE_VALUE, message));
            }
            // An optional input of another type is a constant, of which only the nodes that read it know the type.
            let is_constant = is_optional(&info.name) && role == "input";
            match port::of(info, role) {
                Ok(value_ports) if !is_constant || value_ports.len() == 1 => ports.extend(value_ports),
                Err(error) if !is_constant => errors.add(|| error),
                _ => {}
            }
        }
        Ok(ports)
    };
    let (declared, outputs) = (ports(&graph.input, "input")?, ports(&graph.output, "output")?);
    let declared_names = graph.input.iter().map(|input| (input.name.clone(), is_optional(&input.name))).collect();
    let mut signature = Signature { outputs, declared: declared_names, ..Signature::default() };
    let is_weight = model.ir_version < DEFAULTS_IR_VERSION;
    for port in declared {
        if is_optional(&port.name) {
            signature.optional.push(OptionalInput { port, is_weight });
        } else {
            signature.inputs.push(port);
        }
    }
    if errors.is_empty() { Ok(signature) } else { Err(errors.into_vec()) }
}

/// Returns the diagnostic for an inconsistent model.
fn invalid_model(message: String) -> Diagnostic {
    Diagnostic::error(codes::frontends::BROKEN_MODEL, message)
}
