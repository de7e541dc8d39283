//! Directories in ONNX test-data layout: `model.onnx`, `test_data_set_N/{input,output}_K.pb`, and an optional
//! `data.json` with tolerances.

use crate::pb;
use byoc_files::bad_file;
use byoc_ir::diag::{Diagnostic, codes, list};
use byoc_ir::interface::{LoadOptions, Loaded, PortInfo, PortKind, Signature, unreadable};
use byoc_ir::tensor::{DType, Tensor};
use std::path::{Path, PathBuf};

/// Maximum size of `data.json` in bytes.
const MAX_SETTINGS: usize = 1 << 20;

/// Directory in ONNX test-data layout.
#[derive(Clone, Debug)]
pub struct TestFolder {
    /// Name of the directory.
    pub name: String,
    /// Path of the model file.
    pub model: PathBuf,
    /// Data sets, sorted by number.
    pub sets: Vec<TestSet>,
    /// Relative tolerance in `data.json`.
    pub rtol: Option<f64>,
    /// Absolute tolerance in `data.json`.
    pub atol: Option<f64>,
}

/// Recorded inputs and outputs, by position. A position without a file is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TestSet {
    /// Input files.
    pub inputs: Vec<Option<PathBuf>>,
    /// Output files.
    pub outputs: Vec<Option<PathBuf>>,
}

impl TestFolder {
    /// Opens a directory, without reading tensor data.
    ///
    /// # Errors
    /// If the directory cannot be listed, has no `model.onnx`, or has an invalid `data.json`.
    pub fn open(path: &Path) -> Result<TestFolder, Diagnostic> {
        let folder_error = |reason: String| {
            Diagnostic::error(codes::frontends::BAD_TEST_FOLDER, format!("{}: {reason}", path.display())).note(
                "a test directory contains model.onnx and directories test_data_set_N with input_K.pb and output_K.pb",
            )
        };
        let model = path.join("model.onnx");
        if !model.exists() {
            return Err(folder_error("missing model.onnx".into()));
        }
        let mut numbered_sets: Vec<(u64, TestSet)> = Vec::new();
        for entry in files_in(path).map_err(|e| folder_error(e.to_string()))? {
            let number = entry.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix("test_data_set_"));
            let Some(number) = number.and_then(|n| n.parse::<u64>().ok()) else { continue };
            let files = files_in(&entry).map_err(|e| folder_error(e.to_string()))?;
            numbered_sets.push((
                number,
                TestSet { inputs: files_by_position(&files, "input_"), outputs: files_by_position(&files, "output_") },
            ));
        }
        numbered_sets.sort_by_key(|(number, _)| *number);
        let (mut rtol, mut atol) = (None, None);
        let settings = path.join("data.json");
        if settings.exists() {
            let text = byoc_files::read_text(&settings).map_err(|e| folder_error(format!("data.json: {e}")))?;
            if text.len() > MAX_SETTINGS {
                let found = text.len();
                return Err(folder_error(format!("data.json: expected at most {MAX_SETTINGS} bytes, found {found}")));
            }
            let json: serde_json::Value =
                serde_json::from_str(&text).map_err(|e| folder_error(format!("data.json: {e}")))?;
            let tolerance = |key: &str| match json.get(key).and_then(serde_json::Value::as_f64) {
                Some(number) if number < 0.0 => {
                    Err(folder_error(format!("data.json: {key}: expected a number >= 0, found {number}")))
                }
                number => Ok(number),
            };
            (rtol, atol) = (tolerance("rtol")?, tolerance("atol")?);
        }
        let absolute_path = path.canonicalize();
        let name = absolute_path.as_deref().unwrap_or(path).file_name().map(|n| n.to_string_lossy().into_owned());
        let sets = numbered_sets.into_iter().map(|(_, set)| set).collect();
        Ok(TestFolder { name: name.unwrap_or_default(), model, sets, rtol, atol })
    }

    /// Reads the inputs recorded in the first data set, by name.
    ///
    /// # Errors
    /// If the model or a data file cannot be read.
    pub fn recorded_inputs(&self) -> Result<Vec<(String, Tensor)>, Vec<Diagnostic>> {
        let Some(set) = self.sets.first() else { return Ok(Vec::new()) };
        set.recorded_inputs(&crate::signature(&self.model)?).map_err(|error| vec![error])
    }

    /// Imports the model. An input without a shape in `options` is given the shape recorded in the first data set.
    ///
    /// # Errors
    /// See [`crate::load`]. Also fails if a data file cannot be read.
    pub fn load(&self, options: &LoadOptions) -> Result<Loaded, Vec<Diagnostic>> {
        let mut options = options.clone();
        for (name, tensor) in self.recorded_inputs()? {
            options.input_shapes.entry(name).or_insert_with(|| tensor.shape().to_vec());
        }
        crate::load(&self.model, &options)
    }
}

impl TestSet {
    /// Reads the recorded inputs, by name: a file belongs to the input that its tensor names, otherwise to that at its
    /// position. Of a model with optional inputs, positions count these as well if there are files for them.
    ///
    /// # Errors
    /// If a file is not a tensor, or belongs to no input.
    pub fn recorded_inputs(&self, signature: &Signature) -> Result<Vec<(String, Tensor)>, Diagnostic> {
        let names_with = |has_default: bool| -> Vec<&str> {
            let names = signature.declared.iter().filter(|(_, is_optional)| has_default || !is_optional);
            names.map(|(name, _)| name.as_str()).collect()
        };
        let (declared_names, mut names) = (names_with(true), names_with(false));
        if self.inputs.len() > names.len() {
            names.clone_from(&declared_names);
        }
        let mut inputs: Vec<(String, Tensor)> = Vec::new();
        for (position, file) in self.inputs.iter().enumerate() {
            let Some(file) = file else { continue };
            let ports_of =
                |name: &str| signature.inputs.iter().skip_while(|port| port.name != name).collect::<Vec<_>>();
            let positional_name = names.get(position).copied();
            let ports = positional_name.map(ports_of).unwrap_or_default();
            let (name, tensors) = read_value(file, &ports)?;
            let is_declared =
                declared_names.contains(&name.as_str()) && !inputs.iter().any(|(other, _)| *other == name);
            let name = if is_declared { Some(name) } else { positional_name.map(str::to_owned) };
            match name {
                Some(name) => {
                    // Strings that the model does not expect have no port for their bytes.
                    let kind = if tensors.len() == 2 && ports.first().is_none_or(|port| port.kind == PortKind::Tensor) {
                        PortKind::Strings
                    } else {
                        ports.first().map_or(PortKind::Tensor, |port| port.kind)
                    };
                    let ends = std::iter::once("").chain(kind.parts().iter().copied());
                    inputs.extend(ends.zip(tensors).map(|(end, tensor)| (format!("{name}{end}"), tensor)));
                }
                None => {
                    let message = format!("input_{position}.pb: the model has no such input");
                    let inputs = format!("inputs of the model: {}", list(&declared_names, ", "));
                    return Err(Diagnostic::error(codes::frontends::BAD_TEST_FOLDER, message).note(inputs));
                }
            }
        }
        Ok(inputs)
    }

    /// Reads the recorded values of the inputs of `signature`, in their order.
    ///
    /// # Errors
    /// If a file is missing or is not a tensor, or there is a file for an optional input.
    pub fn read_inputs(&self, signature: &Signature) -> Result<Vec<Tensor>, Diagnostic> {
        let mut recorded = self.recorded_inputs(signature)?;
        let value = |(position, port): (usize, &PortInfo)| {
            let index = recorded.iter().position(|(name, _)| *name == port.name);
            index.map(|index| recorded.swap_remove(index).1).ok_or_else(|| missing_file("input", position, port))
        };
        let values = signature.inputs.iter().enumerate().map(value).collect::<Result<Vec<_>, _>>()?;
        match recorded.first() {
            None => Ok(values),
            Some((name, _)) => {
                let message = format!("expected a program that takes the recorded value of input \"{name}\"");
                Err(Diagnostic::error(codes::frontends::BAD_TEST_FOLDER, message))
            }
        }
    }

    /// Reads the recorded outputs: the tensors of each port.
    ///
    /// # Errors
    /// If a file is missing or is not a tensor.
    pub fn read_outputs(&self, ports: &[PortInfo]) -> Result<Vec<Tensor>, Diagnostic> {
        let mut tensors = Vec::new();
        for (position, ports) in ports.chunk_by(|_, next| next.kind == PortKind::Part).enumerate() {
            let file = self.outputs.get(position).and_then(Option::as_ref);
            let file = file.ok_or_else(|| missing_file("output", position, &ports[0]))?;
            let value = read_value(file, &ports.iter().collect::<Vec<_>>())?.1;
            if value.len() != ports.len() {
                let reason = format!("expected {}, found a value of another kind", ports[0].kind.name());
                return Err(bad_file(file, reason));
            }
            tensors.extend(value);
        }
        Ok(tensors)
    }
}

/// Reads the value of the first of `ports`, a tensor of any type if there are none.
fn read_value(file: &Path, ports: &[&PortInfo]) -> Result<(String, Vec<Tensor>), Diagnostic> {
    let Some(port) = ports.first() else { return pb::read_value(file, PortKind::Tensor, DType::F32, None) };
    let rank = ports.get(1).and_then(|shapes| shapes.dims.as_ref()?.get(1)?.fixed());
    pb::read_value(file, port.kind, port.dtype, rank)
}

fn missing_file(role: &str, position: usize, port: &PortInfo) -> Diagnostic {
    let message = format!("missing {role}_{position}.pb for {role} \"{}\"", port.name);
    Diagnostic::error(codes::frontends::BAD_TEST_FOLDER, message)
}

/// Returns the entries of a directory, sorted.
fn files_in(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut entries = std::fs::read_dir(path)?.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>()?;
    entries.sort();
    Ok(entries)
}

/// Returns the files `<prefix>K.pb`, each at index K.
fn files_by_position(files: &[PathBuf], prefix: &str) -> Vec<Option<PathBuf>> {
    let mut out: Vec<Option<PathBuf>> = Vec::new();
    for file in files {
        let stem = file.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix(prefix)?.strip_suffix(".pb"));
        // Files with implausibly large indices are unrelated to the inputs and outputs of the model.
        let Some(position) = stem.and_then(|n| n.parse::<usize>().ok()).filter(|&n| n < 10_000) else { continue };
        if out.len() <= position {
            out.resize(position + 1, None);
        }
        out[position] = Some(file.clone());
    }
    out
}

/// Reads the bytes of a model file.
pub(crate) fn read_model(path: &Path) -> Result<bytes::Bytes, Vec<Diagnostic>> {
    byoc_files::map_file(path).map_err(|e| vec![unreadable(path, e)])
}
