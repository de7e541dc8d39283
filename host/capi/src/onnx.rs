//! Models out: `byoc_export_onnx`.

use crate::error::{Error, report};
use crate::model::Dim;
use crate::options::{ExtensibleStruct, array, read, text};
use byoc::driver::written::{ModelStage, export_onnx};
use byoc::frontend::LoadOptions;
use byoc::frontend::onnx::write::{Form, Options};
use std::ffi::{c_char, c_int};
use std::path::Path;

/// Options of the export, as declared in `byoc.h`.
#[repr(C)]
pub struct OnnxOptions {
    struct_size: usize,
    stage: *const c_char,
    opset: i64,
    integer_form: c_int,
    dims: *const Dim,
    dim_count: usize,
}

// SAFETY: the structure is `repr(C)`, begins with its size, and holds only integers and pointers.
unsafe impl ExtensibleStruct for OnnxOptions {}

/// Writes a model as ONNX.
///
/// # Safety
/// The pointers meet the requirements of `byoc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_export_onnx(
    model: *const c_char,
    path: *const c_char,
    options: *const OnnxOptions,
) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    report(|| unsafe {
        let (model, path) = (text(model, "model")?, text(path, "path")?);
        let c_options = read(options, "byoc_onnx_options")?;
        let stage = match c_options.stage.is_null() {
            true => ModelStage::default(),
            false => {
                let name = text(c_options.stage, "stage")?;
                let message = || format!("stage: expected imported, quantized or simplified, found \"{name}\"");
                ModelStage::parse(name).ok_or_else(|| Error::argument(message()))?
            }
        };
        let mut load = LoadOptions::default();
        for dim in array(c_options.dims, c_options.dim_count, "dims")? {
            let name = text(dim.name, "dims")?;
            let size = usize::try_from(dim.size)
                .map_err(|_| Error::argument(format!("dims: expected a size >= 0 for {name}, found {}", dim.size)))?;
            load.dims.insert(name.to_owned(), size);
        }
        let form = if c_options.integer_form == 0 { Form::Qdq } else { Form::Integer };
        let opset = (c_options.opset != 0).then_some(c_options.opset);
        let options = Options { opset, form, ..Options::default() };
        export_onnx(Path::new(model), load, stage, &options, Path::new(path)).map_err(byoc::Error::from)?;
        Ok(())
    })
}
