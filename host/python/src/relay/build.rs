//! Modules from model files, and modules partitioned for backends.

use super::module::RelayModule;
use crate::error;
use crate::session::Session;
use byoc::frontend::{self, LoadOptions};
use byoc::runtime::plugin::fault;
use byoc::{Compilation, CompileOptions, Source};
use pyo3::prelude::*;
use std::path::PathBuf;

/// Partitions a module for backends, by their patterns and verdicts. Returns the module and the warnings.
#[pyfunction]
pub fn partition_module(
    py: Python<'_>,
    session: &Session,
    module: PyRef<'_, RelayModule>,
    backends: Vec<String>,
) -> PyResult<(RelayModule, Vec<String>)> {
    let options = backends.into_iter().fold(CompileOptions::new().open_unbound_dims(), CompileOptions::backend);
    let (source, engine) = (Source::Module(module.typed(py)?), session.session.clone());
    let outcome = py.detach(|| error::catch_panics(|| Compilation::partition(&engine, source, &options)));
    let (module, warnings) = error::result(py, outcome)?;
    Ok((RelayModule::of_ir(module, true), super::module::messages(&warnings)))
}

/// Reads an ONNX model as a module. `bytes` is the contents of its file, `shapes` are those of its inputs.
#[pyfunction]
pub fn read_model(
    py: Python<'_>,
    bytes: Vec<u8>,
    folder: Option<PathBuf>,
    shapes: Vec<(String, Vec<usize>)>,
) -> PyResult<RelayModule> {
    let options =
        LoadOptions { open_unbound: true, input_shapes: shapes.into_iter().collect(), ..LoadOptions::default() };
    let outcome =
        py.detach(|| error::catch_panics(|| Ok(frontend::load_bytes(bytes.into(), folder.as_deref(), &options)?)));
    Ok(RelayModule::of_ir(error::result(py, outcome)?.module, true))
}

/// Returns the description of a backend as JSON; `None` if no plugin registers it.
#[pyfunction]
pub fn describe_backend(py: Python<'_>, session: &Session, name: &str) -> PyResult<Option<String>> {
    let engine = session.session.clone();
    let outcome = py.detach(|| {
        error::catch_panics(|| {
            let Ok((codegen, _)) = engine.registry.codegen(name) else { return Ok(None) };
            Ok(Some(codegen.describe().map_err(|error| fault(&error))?.to_json()))
        })
    });
    error::result(py, outcome)
}
