//! Frontends, which convert model files of all supported formats to typed modules with `@main`.

pub mod relay;

pub use byoc_ir::interface::{LoadOptions, Loaded, PortInfo, Signature};
#[cfg(feature = "onnx")]
pub use byoc_onnx::{self as onnx, folder};

use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::interface::unreadable;
use byoc_runtime::error::Failure;
use std::path::Path;

/// Reads a model: `.onnx`, `.relay` with its weights file beside it, or a directory in ONNX test-data layout, whose
/// first data set then provides the shapes of inputs that `options` does not contain.
///
/// # Errors
/// If a file cannot be read, or the model is invalid; all errors that can be detected together are reported.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Loaded, Failure> {
    #[cfg(feature = "onnx")]
    if path.is_dir() {
        return Ok(folder::TestFolder::open(path)?.load(options)?);
    }
    match extension(path) {
        #[cfg(feature = "onnx")]
        "onnx" => Ok(onnx::load(path, options)?),
        "relay" => relay::load(path, options),
        _ => Err(format_error(path).into()),
    }
}

/// Reads an ONNX model from the bytes of its file. External tensor data is read from `folder`.
///
/// # Errors
/// Same as [`load`].
pub fn load_bytes(bytes: bytes::Bytes, dir: Option<&Path>, options: &LoadOptions) -> Result<Loaded, Failure> {
    #[cfg(feature = "onnx")]
    return Ok(onnx::load_bytes(bytes, dir, options)?);
    #[cfg(not(feature = "onnx"))]
    {
        let (_, _, _) = (bytes, dir, options);
        Err(format_error(Path::new("the model in memory")).into())
    }
}

/// Reads the inputs and outputs of a model without converting its operators.
///
/// # Errors
/// If the file cannot be read.
pub fn signature(path: &Path) -> Result<Signature, Failure> {
    #[cfg(feature = "onnx")]
    if path.is_dir() {
        return signature(&folder::TestFolder::open(path)?.model);
    }
    match extension(path) {
        #[cfg(feature = "onnx")]
        "onnx" => Ok(onnx::signature(path)?),
        "relay" => relay::load(path, &LoadOptions::default()).map(|model| model.signature),
        _ => Err(format_error(path).into()),
    }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|e| e.to_str()).unwrap_or("")
}

fn format_error(path: &Path) -> Diagnostic {
    if !path.exists() && cfg!(feature = "onnx") {
        return unreadable(path, "the file does not exist");
    }
    let extension_text = match path.extension() {
        _ if path.is_dir() => "a directory".to_owned(),
        Some(extension) => format!("the extension .{}", extension.to_string_lossy()),
        None => "no extension".to_owned(),
    };
    Diagnostic::error(
        codes::frontends::UNKNOWN_MODEL_FORMAT,
        format!("{}: expected a model in a supported format, found {extension_text}", path.display()),
    )
    .note(if cfg!(feature = "onnx") {
        "supported formats: .onnx files, .relay files, and directories with a model.onnx and test_data_set_N directories"
    } else {
        "supported formats: .relay files; byoc was built without support for ONNX models"
    })
}
