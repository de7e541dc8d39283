//! Metadata of ONNX files that compilation does not need.

use crate::error;
use byoc::frontend::onnx::proto::ModelProto;
use prost::Message;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Decodes the metadata of an ONNX model: producer, names, versions, properties, and inputs with default values.
#[pyfunction]
pub fn onnx_metadata<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let model = ModelProto::decode(bytes).map_err(|cause| {
        let message = format!("expected an ONNX model, found bytes that cannot be decoded: {cause}");
        error::new(py, "ModelError", &message, None)
    })?;
    let graph = model.graph.unwrap_or_default();
    let dict = PyDict::new(py);
    dict.set_item("ir_version", model.ir_version)?;
    dict.set_item("producer_name", model.producer_name)?;
    dict.set_item("producer_version", model.producer_version)?;
    dict.set_item("domain", model.domain)?;
    dict.set_item("model_version", model.model_version)?;
    dict.set_item("doc_string", model.doc_string)?;
    dict.set_item("graph_name", graph.name)?;
    dict.set_item("graph_doc_string", graph.doc_string)?;
    let properties = PyDict::new(py);
    for entry in model.metadata_props {
        properties.set_item(entry.key, entry.value)?;
    }
    dict.set_item("metadata_props", properties)?;
    let initialized: std::collections::BTreeSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
    let overridable: Vec<&str> =
        graph.input.iter().map(|input| input.name.as_str()).filter(|name| initialized.contains(name)).collect();
    dict.set_item("overridable", PyList::new(py, overridable)?)?;
    Ok(dict)
}
