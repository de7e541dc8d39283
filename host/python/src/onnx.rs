//! ONNX files as data: the metadata that compilation does not need, and models whose initializers a program replaces.

use crate::error;
use byoc::Diagnostic;
use byoc::frontend::onnx::proto::{DimensionValue, ModelProto, TensorProto, TypeProto, ValueInfoProto};
use byoc_ir::diag::codes;
use prost::Message;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::collections::BTreeSet;

fn decode(py: Python<'_>, bytes: &Bound<'_, PyBytes>) -> PyResult<ModelProto> {
    ModelProto::decode(bytes.as_bytes()).map_err(|cause| {
        let message = format!("expected an ONNX model, found bytes that cannot be decoded: {cause}");
        error::of(py, Diagnostic::error(codes::frontends::BROKEN_MODEL, message))
    })
}

/// Decodes the metadata of an ONNX model: producer, names, versions, properties, inputs and outputs as declared, and the
/// inputs with default values.
#[pyfunction]
pub fn onnx_metadata<'py>(py: Python<'py>, bytes: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyDict>> {
    let model = decode(py, bytes)?;
    let dict = PyDict::new(py);
    dict.set_item("ir_version", model.ir_version)?;
    dict.set_item("producer_name", model.producer_name)?;
    dict.set_item("producer_version", model.producer_version)?;
    dict.set_item("domain", model.domain)?;
    dict.set_item("model_version", model.model_version)?;
    dict.set_item("doc_string", model.doc_string)?;
    let properties = PyDict::new(py);
    for entry in model.metadata_props {
        properties.set_item(entry.key, entry.value)?;
    }
    dict.set_item("metadata_props", properties)?;
    let opsets = PyDict::new(py);
    for opset in model.opset_import {
        opsets.set_item(opset.domain, opset.version)?;
    }
    dict.set_item("opsets", opsets)?;
    dict.set_item("has_graph", model.graph.is_some())?;
    let graph = model.graph.unwrap_or_default();
    let initialized: BTreeSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    let (overridable, inputs): (Vec<&ValueInfoProto>, Vec<&ValueInfoProto>) =
        graph.input.iter().partition(|input| initialized.contains(input.name.as_str()));
    dict.set_item("inputs", ports(py, inputs)?)?;
    dict.set_item("overridable", ports(py, overridable)?)?;
    dict.set_item("outputs", ports(py, graph.output.iter())?)?;
    dict.set_item("initializers", PyList::new(py, &initialized)?)?;
    let external = graph.initializer.iter().filter(|tensor| !tensor.external_data.is_empty());
    dict.set_item("external", PyList::new(py, external.map(|tensor| &tensor.name).collect::<Vec<_>>())?)?;
    dict.set_item("graph_name", &graph.name)?;
    dict.set_item("graph_doc_string", &graph.doc_string)?;
    Ok(dict)
}

/// Converts declared values: name, kind of the type, number of the element type, dimensions or `None`.
fn ports<'py, 'a>(
    py: Python<'py>,
    values: impl IntoIterator<Item = &'a ValueInfoProto>,
) -> PyResult<Vec<(&'a str, &'static str, i32, Option<Bound<'py, PyList>>)>> {
    let port = |value: &'a ValueInfoProto| {
        let kind = match &value.r#type {
            Some(TypeProto { sequence_type: Some(_), .. }) => "seq",
            Some(TypeProto { map_type: Some(_), .. }) => "map",
            Some(TypeProto { optional_type: Some(_), .. }) => "optional",
            Some(TypeProto { sparse_tensor_type: Some(_), .. }) => "sparse_tensor",
            _ => "tensor",
        };
        let tensor = value.r#type.as_ref().and_then(|ty| ty.tensor_type.as_ref());
        let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
        let dims = shape.map(|shape| {
            let dims = PyList::empty(py);
            for dim in &shape.dim {
                match &dim.value {
                    Some(DimensionValue::DimValue(size)) => dims.append(size)?,
                    Some(DimensionValue::DimParam(name)) if !name.is_empty() => dims.append(name)?,
                    _ => dims.append(py.None())?,
                }
            }
            PyResult::Ok(dims)
        });
        Ok((&*value.name, kind, tensor.map_or(0, |tensor| tensor.elem_type), dims.transpose()?))
    };
    values.into_iter().map(port).collect()
}

/// Replaces initializers of a model by tensors (name, number of the element type, dimensions, bytes), and turns those named
/// in `inputs` into inputs without a default value. Returns the bytes of the changed model.
#[pyfunction]
pub fn onnx_edited<'py>(
    py: Python<'py>,
    bytes: &Bound<'py, PyBytes>,
    tensors: Vec<(String, i32, Vec<i64>, Vec<u8>)>,
    inputs: Vec<String>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut model = decode(py, bytes)?;
    let mut graph = model.graph.take().unwrap_or_default();
    for (name, data_type, dims, raw) in tensors {
        graph.initializer.retain(|tensor| tensor.name != name);
        graph.initializer.push(TensorProto {
            name,
            data_type,
            dims,
            raw_data: Some(raw.into()),
            ..TensorProto::default()
        });
    }
    graph.initializer.retain(|tensor| !inputs.contains(&tensor.name));
    model.graph = Some(graph);
    Ok(PyBytes::new(py, &model.encode_to_vec()))
}
