//! ONNX files as data: metadata that compilation does not need, and models with replaced initializers.

use crate::error;
use byoc::frontend::onnx::proto::{
    Bytes, DimensionValue, ModelProto, TensorProto, TypeProto, ValueInfoProto, external_entries,
};
use byoc::frontend::onnx::proto_of_bytes;
use byoc_ir::tensor::memory::Charge;
use prost::Message;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::collections::BTreeSet;

/// Decodes an ONNX model, whose structures are charged to the memory limit until the charge is dropped.
pub fn decode(py: Python<'_>, bytes: &Bound<'_, PyBytes>) -> PyResult<(ModelProto, Charge)> {
    proto_of_bytes(Bytes::copy_from_slice(bytes.as_bytes())).map_err(|diagnostic| error::of(py, diagnostic))
}

/// Decodes the metadata of an ONNX model: producer, names, versions, properties, declarations of inputs and outputs,
/// the inputs with default values, and for each initializer with external data the file, offset, length, type code and
/// dimensions.
#[pyfunction]
pub fn onnx_metadata<'py>(py: Python<'py>, bytes: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyDict>> {
    let (model, _charge) = decode(py, bytes)?;
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
    let initializer_names: BTreeSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    let (overridable, inputs): (Vec<&ValueInfoProto>, Vec<&ValueInfoProto>) =
        graph.input.iter().partition(|input| initializer_names.contains(input.name.as_str()));
    dict.set_item("inputs", ports(py, inputs)?)?;
    dict.set_item("overridable", ports(py, overridable)?)?;
    dict.set_item("outputs", ports(py, graph.output.iter())?)?;
    dict.set_item("initializers", PyList::new(py, &initializer_names)?)?;
    let external_tensors = PyDict::new(py);
    for tensor in graph.initializer.iter().filter(|tensor| !tensor.external_data.is_empty()) {
        let entries = external_entries(tensor);
        let number = |key: &str| entries.get(key).and_then(|text| text.parse::<u64>().ok());
        let location = entries.get("location").copied().unwrap_or_default();
        let place = (location, number("offset").unwrap_or(0), number("length"), tensor.data_type, &tensor.dims);
        external_tensors.set_item(&tensor.name, place)?;
    }
    dict.set_item("external", external_tensors)?;
    dict.set_item("graph_name", &graph.name)?;
    dict.set_item("graph_doc_string", &graph.doc_string)?;
    Ok(dict)
}

/// Declaration of a value: the name, the type as nested tuples, and the dimensions or `None`.
pub type DeclaredPort<'py, 'a> = (&'a str, Bound<'py, PyTuple>, Option<Bound<'py, PyList>>);

/// Converts declarations of values.
pub fn ports<'py, 'a>(
    py: Python<'py>,
    values: impl IntoIterator<Item = &'a ValueInfoProto>,
) -> PyResult<Vec<DeclaredPort<'py, 'a>>> {
    let port = |value: &'a ValueInfoProto| {
        let unknown_type = TypeProto::default();
        let ty = value.r#type.as_ref().unwrap_or(&unknown_type);
        // The dimensions of an optional tensor are those of its element type.
        let inner = ty.optional_type.as_ref().and_then(|ty| ty.elem_type.as_ref()).unwrap_or(ty);
        let shape = inner.tensor_type.as_ref().and_then(|tensor| tensor.shape.as_ref());
        let dims = shape.map(|shape| {
            let dims = PyList::empty(py);
            for dim in &shape.dim {
                match &dim.value {
                    // A negative size is an unknown one.
                    Some(DimensionValue::DimValue(size)) if *size >= 0 => dims.append(size)?,
                    Some(DimensionValue::DimParam(name)) if !name.is_empty() => dims.append(name)?,
                    _ => dims.append(py.None())?,
                }
            }
            PyResult::Ok(dims)
        });
        Ok((&*value.name, declared_type(py, ty)?, dims.transpose()?))
    };
    values.into_iter().map(port).collect()
}

/// Converts a type to nested tuples: ("tensor", type code), ("seq", type), ("map", type code of the keys, type),
/// ("optional", type), ("sparse_tensor", type code).
fn declared_type<'py>(py: Python<'py>, ty: &TypeProto) -> PyResult<Bound<'py, PyTuple>> {
    // Wrappers, outermost first. The decoder bounds the nesting depth.
    let mut wrappers: Vec<(&str, Option<i32>)> = Vec::new();
    let mut ty = Some(ty);
    let (kind, dtype_number) = loop {
        ty = match ty {
            Some(TypeProto { sequence_type: Some(sequence), .. }) => {
                wrappers.push(("seq", None));
                sequence.elem_type.as_ref()
            }
            Some(TypeProto { optional_type: Some(inner_type), .. }) => {
                wrappers.push(("optional", None));
                inner_type.elem_type.as_ref()
            }
            Some(TypeProto { map_type: Some(map), .. }) => {
                wrappers.push(("map", Some(map.key_type)));
                map.value_type.as_ref()
            }
            Some(TypeProto { sparse_tensor_type: Some(tensor), .. }) => break ("sparse_tensor", tensor.elem_type),
            Some(TypeProto { tensor_type: Some(tensor), .. }) => break ("tensor", tensor.elem_type),
            _ => break ("tensor", 0),
        };
    };
    let mut type_tuple = (kind, dtype_number).into_pyobject(py)?;
    for (kind, key) in wrappers.into_iter().rev() {
        type_tuple = match key {
            Some(key) => (kind, key, type_tuple).into_pyobject(py)?,
            None => (kind, type_tuple).into_pyobject(py)?,
        };
    }
    Ok(type_tuple)
}

/// Replaces initializers of a model with tensors (name, type code, dimensions, bytes), and turns the initializers named
/// in `inputs` into inputs without a default value. Returns the bytes of the edited model.
#[pyfunction]
pub fn onnx_edited<'py>(
    py: Python<'py>,
    bytes: &Bound<'py, PyBytes>,
    tensors: Vec<(String, i32, Vec<i64>, Vec<u8>)>,
    inputs: Vec<String>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (mut model, _charge) = decode(py, bytes)?;
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
