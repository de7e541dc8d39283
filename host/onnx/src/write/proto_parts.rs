//! Parts of messages: attributes, and declarations of values.

use crate::proto::{
    AttributeProto, AttributeType, Bytes, DimensionProto, DimensionValue, GraphProto, TensorShapeProto,
    TensorTypeProto, TypeProto, ValueInfoProto,
};
use crate::tensor;
use byoc_ir::ir::{Dim, TensorType};
use byoc_ir::tensor::Tensor;

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: name.to_owned(), r#type: kind as i32, ..AttributeProto::default() }
}

/// Creates an integer attribute.
pub fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) }
}

/// Creates an attribute that is a list of integers.
pub fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..attribute(name, AttributeType::Ints) }
}

/// Creates a floating-point attribute.
pub fn float(name: &str, value: f64) -> AttributeProto {
    AttributeProto { f: Some(value as f32), ..attribute(name, AttributeType::Float) }
}

/// Creates a string attribute.
pub fn string(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: Some(Bytes::copy_from_slice(value.as_bytes())), ..attribute(name, AttributeType::String) }
}

/// Creates an attribute that is a list of floating-point numbers.
pub fn floats(name: &str, values: &[f64]) -> AttributeProto {
    AttributeProto {
        floats: values.iter().map(|&value| value as f32).collect(),
        ..attribute(name, AttributeType::Floats)
    }
}

/// Creates an attribute that is a list of strings.
pub fn strings(name: &str, values: Vec<Bytes>) -> AttributeProto {
    AttributeProto { strings: values, ..attribute(name, AttributeType::Strings) }
}

/// Creates an attribute that is a small tensor.
pub fn tensor(name: &str, value: &Tensor) -> AttributeProto {
    AttributeProto { t: Some(Box::new(tensor::encode("", value))), ..attribute(name, AttributeType::Tensor) }
}

/// Creates an attribute that is a graph.
pub fn graph(name: &str, value: GraphProto) -> AttributeProto {
    AttributeProto { g: Some(Box::new(value)), ..attribute(name, AttributeType::Graph) }
}

/// Declares a tensor of numbers, or of strings; `dim_name` translates the names of dimensions.
pub fn value_info(name: &str, ty: &TensorType, has_strings: bool, dim_name: impl Fn(&Dim) -> String) -> ValueInfoProto {
    let dim = |dim: &Dim| DimensionProto {
        value: match dim {
            Dim::Fixed(size) => Some(DimensionValue::DimValue(*size as i64)),
            Dim::Symbolic(_) => Some(DimensionValue::DimParam(dim_name(dim))),
            Dim::Any => None,
        },
    };
    let shape = TensorShapeProto { dim: ty.dims.iter().map(dim).collect() };
    let elem_type = if has_strings { tensor::STRING } else { tensor::type_number(ty.dtype) };
    let tensor_type = TensorTypeProto { elem_type, shape: Some(shape) };
    let r#type = Some(TypeProto { tensor_type: Some(tensor_type), ..TypeProto::default() });
    ValueInfoProto { name: name.to_owned(), r#type, doc_string: String::new() }
}
