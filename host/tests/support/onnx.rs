//! ONNX models made in memory.

use byoc::frontend::onnx::proto::{
    AttributeProto, AttributeType, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use byoc::frontend::onnx::tensor::type_number;
use byoc_ir::tensor::DType;

/// Creates an input or output. A dimension is a size or a name.
pub fn port(name: &str, dtype: DType, dims: &[&str]) -> ValueInfoProto {
    let dim = |dim: &&str| DimensionProto {
        value: Some(match dim.parse() {
            Ok(size) => DimensionValue::DimValue(size),
            Err(_) => DimensionValue::DimParam((*dim).into()),
        }),
    };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type: type_number(dtype), shape });
    let r#type = Some(TypeProto { tensor_type, ..TypeProto::default() });
    ValueInfoProto { name: name.into(), r#type, ..ValueInfoProto::default() }
}

pub fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let names = |names: &[&str]| names.iter().map(|&name| name.into()).collect();
    NodeProto { op_type: op.into(), input: names(inputs), output: names(outputs), ..NodeProto::default() }
}

pub fn number(name: &str, value: f32) -> AttributeProto {
    let r#type = AttributeType::Float as i32;
    AttributeProto { name: name.into(), r#type, f: Some(value), ..AttributeProto::default() }
}

pub fn integer(name: &str, value: i64) -> AttributeProto {
    let r#type = AttributeType::Int as i32;
    AttributeProto { name: name.into(), r#type, i: Some(value), ..AttributeProto::default() }
}

/// Creates a graph of the given inputs, with the output `y`.
pub fn graph(input: Vec<ValueInfoProto>, node: Vec<NodeProto>, initializer: Vec<TensorProto>) -> GraphProto {
    GraphProto { node, initializer, input, output: vec![port("y", DType::F32, &[])], ..GraphProto::default() }
}

/// Creates a model of opset 17.
pub fn model(graph: GraphProto) -> ModelProto {
    let import = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
    let opset_import = vec![import("", 17), import("com.microsoft", 1)];
    ModelProto { ir_version: 8, graph: Some(graph), opset_import, ..ModelProto::default() }
}
