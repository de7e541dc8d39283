//! Node-by-node access to ONNX graphs. `byoc.onnxruntime` itself runs operators on strings, sequences, maps and
//! optional values, and compiles the parts of the graph in between.

use crate::array::array_of;
use crate::error;
use crate::onnx::{DeclaredPort, decode, ports};
use byoc::Diagnostic;
use byoc::frontend::onnx::external::ExternalFiles;
use byoc::frontend::onnx::proto::{
    AttributeProto, AttributeType, Bytes, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto, is_standard_domain,
};
use byoc::frontend::onnx::tensor;
use byoc_ir::diag::codes;
use byoc_ir::tensor::memory::Charge;
use prost::Message;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// ONNX type code for strings.
const STRING: i32 = 8;

/// Graph of a model or of an attribute. `Constant` nodes are converted to initializers.
#[pyclass(frozen, module = "byoc._byoc")]
pub struct Graph {
    /// Enclosing model without its graph: operator sets and functions.
    model: ModelProto,
    graph: GraphProto,
    /// Memory of the decoded model.
    _charge: Charge,
}

impl Graph {
    fn of(mut model: ModelProto, mut graph: GraphProto, charge: Charge) -> Graph {
        model.graph = None;
        let (constants, nodes) = std::mem::take(&mut graph.node).into_iter().partition(is_constant);
        graph.node = nodes;
        graph.initializer.extend(Vec::into_iter(constants).filter_map(constant));
        Graph { model, graph, _charge: charge }
    }

    fn initializer_names(&self) -> BTreeSet<&str> {
        self.graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect()
    }
}

/// Node: operator, domain, name, inputs, outputs, attributes, and all names read only by its subgraphs.
type Node<'py, 'a> = (&'a str, &'a str, &'a str, &'a [String], &'a [String], Bound<'py, PyDict>, Vec<String>);

/// Input of a partial model: name, ONNX type code, and dimensions, each a number, a name, or `None`.
type InputPort = (String, i32, Option<Vec<Option<Size>>>);

/// Dimension passed from Python.
#[derive(FromPyObject)]
enum Size {
    Fixed(i64),
    Named(String),
}

#[pymethods]
impl Graph {
    /// Decodes a model.
    #[new]
    fn new(py: Python<'_>, bytes: &Bound<'_, PyBytes>) -> PyResult<Graph> {
        let (mut model, charge) = decode(py, bytes)?;
        let graph = model.graph.take().unwrap_or_default();
        Ok(Graph::of(model, graph, charge))
    }

    /// Returns the nodes in order.
    fn nodes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Node<'py, '_>>> {
        self.graph.node.iter().map(|node| self.node(py, node)).collect()
    }

    /// Returns the declarations of the inputs without a default value.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Vec<DeclaredPort<'py, '_>>> {
        let initializer_names = self.initializer_names();
        ports(py, self.graph.input.iter().filter(|input| !initializer_names.contains(input.name.as_str())))
    }

    /// Returns the declarations of the outputs.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Vec<DeclaredPort<'py, '_>>> {
        ports(py, &self.graph.output)
    }

    /// Returns the declarations of intermediate values, as far as the graph contains them.
    #[getter]
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Vec<DeclaredPort<'py, '_>>> {
        ports(py, &self.graph.value_info)
    }

    /// Returns the names of the initializers, each with a flag that is true for a string tensor.
    #[getter]
    fn initializers(&self) -> Vec<(&str, bool)> {
        let sparse_tensors = self.graph.sparse_initializer.iter().filter_map(|tensor| tensor.values.as_ref());
        let sparse_tensors = sparse_tensors.map(|tensor| (tensor.name.as_str(), false));
        self.graph
            .initializer
            .iter()
            .map(|tensor| (tensor.name.as_str(), tensor.data_type == STRING))
            .chain(sparse_tensors)
            .collect()
    }

    /// Returns the value of an initializer: an array, or the dimensions and elements of a string tensor. `folder`
    /// contains the files with external data.
    #[pyo3(signature = (name, folder=None))]
    fn constant<'py>(&self, py: Python<'py>, name: &str, folder: Option<PathBuf>) -> PyResult<Bound<'py, PyAny>> {
        let initializer = self.graph.initializer.iter().find(|tensor| tensor.name == name);
        let tensor = initializer
            .ok_or_else(|| graph_error(py, format!("expected the name of an initializer, found \"{name}\"")))?;
        tensor_value(py, tensor, folder)
    }

    /// Returns a model of the nodes at the given positions, with the given inputs and outputs. Outputs are declared
    /// without dimensions, and with an arbitrary element type.
    fn part<'py>(
        &self,
        py: Python<'py>,
        nodes: Vec<usize>,
        inputs: Vec<InputPort>,
        outputs: Vec<String>,
    ) -> Bound<'py, PyBytes> {
        let node: Vec<NodeProto> = nodes.iter().filter_map(|&index| self.graph.node.get(index)).cloned().collect();
        let read: BTreeSet<String> = node.iter().flat_map(names_read).chain(outputs.iter().cloned()).collect();
        let input_names: BTreeSet<&str> = inputs.iter().map(|(name, ..)| name.as_str()).collect();
        let has_tensor_name = |tensor: &&TensorProto| {
            read.contains(&tensor.name) && !input_names.contains(tensor.name.as_str()) && tensor.data_type != STRING
        };
        let initializer = self.graph.initializer.iter().filter(has_tensor_name).cloned().collect();
        let input = inputs.into_iter().map(|(name, dtype_number, dims)| value_info(name, dtype_number, dims)).collect();
        let output = outputs.into_iter().map(|name| value_info(name, 1, None)).collect();
        let sparse_initializer = self.graph.sparse_initializer.clone();
        let name = self.graph.name.clone();
        let graph = GraphProto { node, name, initializer, sparse_initializer, input, output, ..GraphProto::default() };
        let model = ModelProto { graph: Some(graph), ..self.model.clone() };
        PyBytes::new(py, &model.encode_to_vec())
    }
}

impl Graph {
    fn node<'py, 'a>(&'a self, py: Python<'py>, node: &'a NodeProto) -> PyResult<Node<'py, 'a>> {
        let attributes = PyDict::new(py);
        for attribute in &node.attribute {
            attributes.set_item(&attribute.name, self.attribute(py, attribute)?)?;
        }
        let read: BTreeSet<String> = names_read(node).collect();
        let captured_names = read.into_iter().filter(|name| !node.input.contains(name)).collect();
        let domain = if is_standard_domain(&node.domain) { "" } else { &*node.domain };
        Ok((&node.op_type, domain, &node.name, &node.input, &node.output, attributes, captured_names))
    }

    fn attribute<'py>(&self, py: Python<'py>, attribute: &AttributeProto) -> PyResult<Bound<'py, PyAny>> {
        Ok(match attribute.r#type() {
            AttributeType::Float => f64::from(attribute.f.unwrap_or_default()).into_pyobject(py)?.into_any(),
            AttributeType::Int => attribute.i.unwrap_or_default().into_pyobject(py)?.into_any(),
            AttributeType::String => text(attribute.s.as_ref()).into_pyobject(py)?.into_any(),
            AttributeType::Floats => {
                PyList::new(py, attribute.floats.iter().map(|&value| f64::from(value)))?.into_any()
            }
            AttributeType::Ints => PyList::new(py, &attribute.ints)?.into_any(),
            AttributeType::Strings => {
                PyList::new(py, attribute.strings.iter().map(|value| text(Some(value))))?.into_any()
            }
            AttributeType::Tensor => match &attribute.t {
                Some(tensor) => tensor_value(py, tensor, None)?,
                None => py.None().into_bound(py),
            },
            AttributeType::Graph => {
                let graph = attribute.g.as_deref().cloned().unwrap_or_default();
                Bound::new(py, Graph::of(self.model.clone(), graph, Charge::default()))?.into_any()
            }
            _ => py.None().into_bound(py),
        })
    }
}

fn text(bytes: Option<&Bytes>) -> String {
    String::from_utf8_lossy(bytes.map_or(&[][..], |bytes| bytes)).into_owned()
}

fn graph_error(py: Python<'_>, message: String) -> PyErr {
    error::of(py, Diagnostic::error(codes::frontends::BROKEN_MODEL, message))
}

/// Converts a tensor to an array, or a string tensor to its dimensions and elements.
fn tensor_value<'py>(py: Python<'py>, proto: &TensorProto, folder: Option<PathBuf>) -> PyResult<Bound<'py, PyAny>> {
    if proto.data_type == STRING {
        let elements: Vec<String> = proto.string_data.iter().map(|value| text(Some(value))).collect();
        return Ok((&proto.dims, elements).into_pyobject(py)?.into_any());
    }
    let external_files = folder.map(|folder| ExternalFiles::beside(&folder.join("model.onnx")));
    let decode_result = tensor::decode(proto, external_files.as_ref());
    array_of(py, decode_result.map_err(|reason| graph_error(py, format!("initializer \"{}\": {reason}", proto.name)))?)
}

fn is_constant(node: &NodeProto) -> bool {
    let is_plain = |attribute: &AttributeProto| attribute.sparse_tensor.is_none() && attribute.ref_attr_name.is_empty();
    node.op_type == "Constant" && is_standard_domain(&node.domain) && node.attribute.iter().all(is_plain)
}

/// Converts a `Constant` node to an initializer; `None` if the attribute is not supported.
fn constant(node: NodeProto) -> Option<TensorProto> {
    let name = node.output.into_iter().next()?;
    let attribute = node.attribute.into_iter().next()?;
    let tensor_proto = |data_type: i32, dims: Vec<i64>| TensorProto { data_type, dims, ..TensorProto::default() };
    let count = |elements: usize| vec![elements as i64];
    let tensor = match attribute.name.as_str() {
        "value" => *attribute.t?,
        "value_float" => TensorProto { float_data: vec![attribute.f?], ..tensor_proto(1, Vec::new()) },
        "value_int" => TensorProto { int64_data: vec![attribute.i?], ..tensor_proto(7, Vec::new()) },
        "value_string" => TensorProto { string_data: vec![attribute.s?], ..tensor_proto(STRING, Vec::new()) },
        "value_floats" => TensorProto {
            dims: count(attribute.floats.len()),
            float_data: attribute.floats,
            ..tensor_proto(1, Vec::new())
        },
        "value_ints" => {
            TensorProto { dims: count(attribute.ints.len()), int64_data: attribute.ints, ..tensor_proto(7, Vec::new()) }
        }
        "value_strings" => TensorProto {
            dims: count(attribute.strings.len()),
            string_data: attribute.strings,
            ..tensor_proto(STRING, Vec::new())
        },
        _ => return None,
    };
    Some(TensorProto { name, ..tensor })
}

/// Returns all names that a node and its subgraphs read, including names that the subgraphs define.
fn names_read(node: &NodeProto) -> impl Iterator<Item = String> + use<> {
    let mut names = Vec::new();
    let mut worklist = vec![node];
    while let Some(node) = worklist.pop() {
        names.extend(node.input.iter().filter(|name| !name.is_empty()).cloned());
        for graph in
            node.attribute.iter().flat_map(|attribute| attribute.g.as_deref().into_iter().chain(&attribute.graphs))
        {
            names.extend(graph.output.iter().map(|output| output.name.clone()));
            worklist.extend(&graph.node);
        }
    }
    names.into_iter()
}

fn value_info(name: String, elem_type: i32, dims: Option<Vec<Option<Size>>>) -> ValueInfoProto {
    let dimension = |size: Option<Size>| DimensionProto {
        value: size.map(|size| match size {
            Size::Fixed(size) => DimensionValue::DimValue(size),
            Size::Named(name) => DimensionValue::DimParam(name),
        }),
    };
    let shape = dims.map(|dims| TensorShapeProto { dim: dims.into_iter().map(dimension).collect() });
    let ty = TypeProto { tensor_type: Some(TensorTypeProto { elem_type, shape }), ..TypeProto::default() };
    ValueInfoProto { name, r#type: Some(ty), ..ValueInfoProto::default() }
}
