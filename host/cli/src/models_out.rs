//! Models that commands write: ONNX, or Relay text with its weights beside it, by the extension of the file.

use super::output_file;
use byoc::frontend::onnx::write::{self, Form, Options};
use byoc::frontend::{self, LoadOptions, Loaded, Signature, relay};
use byoc::runtime::error::Failure;
use byoc_ir::ir::Module;
use std::path::Path;

/// Tests whether a file is an ONNX model, by its extension.
pub fn is_onnx(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "onnx")
}

/// Tests whether a file is Relay text, by its extension.
pub fn is_relay(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "relay")
}

/// Returns the options of the ONNX writer.
pub fn options(opset: Option<i64>, form: &str) -> Options {
    let form = if form == "integer" { Form::Integer } else { Form::Qdq };
    Options { opset, form, ..Options::default() }
}

/// Reads a model whose dimensions stay symbolic, except those that `options` or a data set beside the model binds.
///
/// # Errors
/// If the model cannot be read.
pub fn read(path: &Path, options: LoadOptions) -> Result<Loaded, Failure> {
    frontend::load(path, &LoadOptions { open_unbound: true, ..options })
}

/// Writes a typed module whose inputs and outputs are those of `signature`.
///
/// # Errors
/// If the module has no form in ONNX, or the file cannot be written.
pub fn write(path: &Path, module: &Module, signature: &Signature, options: &Options) -> Result<(), Failure> {
    if is_relay(path) {
        return Ok(relay::write(path, &relay::with_names(module, signature)?)?);
    }
    let model = write::write(module, signature, options)?;
    if output_file::is_stdout(path) {
        output_file::write(path, |file| model.write_to(file))?;
    } else {
        model.write_file(path)?;
    }
    Ok(())
}
