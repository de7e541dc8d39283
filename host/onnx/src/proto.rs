//! Messages of `onnx.proto` (IR version 10) used by inference models, as `prost` structs.
//!
//! Field numbers and names follow the published schema. Fields used only for training (`TrainingInfoProto`,
//! quantization annotations) are omitted: unknown fields are skipped when a file is read. Weights are [`Bytes`], so
//! decoding a mapped file does not copy them. Large parts of an attribute, of which most have none, are boxed.

#![expect(missing_docs, reason = "fields and variants carry the names of the published schema, which documents them")]

pub use prost::bytes::Bytes;
use std::collections::HashMap;

/// Declares messages, and their layouts in memory from the same tokens.
macro_rules! messages {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$attr:meta])+ pub $field:ident: $ty:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, PartialEq, prost::Message)]
            pub struct $name { $($(#[$attr])+ pub $field: $ty,)* }

            byoc_files::layout!($name { $(concat!($(stringify!($attr)),+) => $ty,)* });
        )*
    };
}

messages! {
    /// Model: a graph and the opsets that it uses.
    pub struct ModelProto {
        #[prost(int64, tag = "1")]
        pub ir_version: i64,
        #[prost(message, repeated, tag = "8")]
        pub opset_import: Vec<OperatorSetIdProto>,
        #[prost(string, tag = "2")]
        pub producer_name: String,
        #[prost(string, tag = "3")]
        pub producer_version: String,
        #[prost(string, tag = "4")]
        pub domain: String,
        #[prost(int64, tag = "5")]
        pub model_version: i64,
        #[prost(string, tag = "6")]
        pub doc_string: String,
        #[prost(message, optional, tag = "7")]
        pub graph: Option<GraphProto>,
        #[prost(message, repeated, tag = "14")]
        pub metadata_props: Vec<StringStringEntryProto>,
        #[prost(message, repeated, tag = "25")]
        pub functions: Vec<FunctionProto>,
    }

    /// Opset: a domain (`""` is the standard domain) and a version.
    pub struct OperatorSetIdProto {
        #[prost(string, tag = "1")]
        pub domain: String,
        #[prost(int64, tag = "2")]
        pub version: i64,
    }

    /// Key-value pair of strings.
    pub struct StringStringEntryProto {
        #[prost(string, tag = "1")]
        pub key: String,
        #[prost(string, tag = "2")]
        pub value: String,
    }

    /// Graph: nodes in evaluation order, initializers, inputs and outputs.
    pub struct GraphProto {
        #[prost(message, repeated, tag = "1")]
        pub node: Vec<NodeProto>,
        #[prost(string, tag = "2")]
        pub name: String,
        #[prost(message, repeated, tag = "5")]
        pub initializer: Vec<TensorProto>,
        #[prost(message, repeated, tag = "15")]
        pub sparse_initializer: Vec<SparseTensorProto>,
        #[prost(string, tag = "10")]
        pub doc_string: String,
        #[prost(message, repeated, tag = "11")]
        pub input: Vec<ValueInfoProto>,
        #[prost(message, repeated, tag = "12")]
        pub output: Vec<ValueInfoProto>,
        #[prost(message, repeated, tag = "13")]
        pub value_info: Vec<ValueInfoProto>,
    }

    /// Application of an operator to named values.
    pub struct NodeProto {
        #[prost(string, repeated, tag = "1")]
        pub input: Vec<String>,
        #[prost(string, repeated, tag = "2")]
        pub output: Vec<String>,
        #[prost(string, tag = "3")]
        pub name: String,
        #[prost(string, tag = "4")]
        pub op_type: String,
        #[prost(string, tag = "7")]
        pub domain: String,
        #[prost(message, repeated, tag = "5")]
        pub attribute: Vec<AttributeProto>,
        #[prost(string, tag = "6")]
        pub doc_string: String,
    }

    /// Model-defined function; a node with the name and domain of the function is a call to it.
    pub struct FunctionProto {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(string, repeated, tag = "4")]
        pub input: Vec<String>,
        #[prost(string, repeated, tag = "5")]
        pub output: Vec<String>,
        #[prost(string, repeated, tag = "6")]
        pub attribute: Vec<String>,
        #[prost(message, repeated, tag = "11")]
        pub attribute_proto: Vec<AttributeProto>,
        #[prost(message, repeated, tag = "7")]
        pub node: Vec<NodeProto>,
        #[prost(string, tag = "8")]
        pub doc_string: String,
        #[prost(message, repeated, tag = "9")]
        pub opset_import: Vec<OperatorSetIdProto>,
        #[prost(string, tag = "10")]
        pub domain: String,
    }

    /// Named attribute. `r#type` selects the value field.
    pub struct AttributeProto {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(string, tag = "21")]
        pub ref_attr_name: String,
        #[prost(enumeration = "AttributeType", tag = "20")]
        pub r#type: i32,
        #[prost(float, optional, tag = "2")]
        pub f: Option<f32>,
        #[prost(int64, optional, tag = "3")]
        pub i: Option<i64>,
        #[prost(bytes = "bytes", optional, tag = "4")]
        pub s: Option<Bytes>,
        #[prost(message, optional, boxed, tag = "5")]
        pub t: Option<Box<TensorProto>>,
        #[prost(message, optional, boxed, tag = "6")]
        pub g: Option<Box<GraphProto>>,
        #[prost(message, optional, boxed, tag = "22")]
        pub sparse_tensor: Option<Box<SparseTensorProto>>,
        #[prost(float, repeated, tag = "7")]
        pub floats: Vec<f32>,
        #[prost(int64, repeated, tag = "8")]
        pub ints: Vec<i64>,
        #[prost(bytes = "bytes", repeated, tag = "9")]
        pub strings: Vec<Bytes>,
        #[prost(message, repeated, tag = "10")]
        pub tensors: Vec<TensorProto>,
        #[prost(message, repeated, tag = "11")]
        pub graphs: Vec<GraphProto>,
    }

    /// Named value with its type.
    pub struct ValueInfoProto {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(message, optional, tag = "2")]
        pub r#type: Option<TypeProto>,
        #[prost(string, tag = "3")]
        pub doc_string: String,
    }

    /// Type of a value. Only models whose inputs and outputs are tensors are compiled; non-tensor types are read to
    /// describe a model.
    pub struct TypeProto {
        #[prost(message, optional, tag = "1")]
        pub tensor_type: Option<TensorTypeProto>,
        #[prost(message, optional, boxed, tag = "4")]
        pub sequence_type: Option<Box<ElementTypeProto>>,
        #[prost(message, optional, boxed, tag = "5")]
        pub map_type: Option<Box<MapTypeProto>>,
        #[prost(message, optional, boxed, tag = "9")]
        pub optional_type: Option<Box<ElementTypeProto>>,
        #[prost(message, optional, tag = "8")]
        pub sparse_tensor_type: Option<TensorTypeProto>,
    }

    /// Element type of a sequence or an optional value.
    pub struct ElementTypeProto {
        #[prost(message, optional, tag = "1")]
        pub elem_type: Option<TypeProto>,
    }

    /// Map type.
    pub struct MapTypeProto {
        #[prost(int32, tag = "1")]
        pub key_type: i32,
        #[prost(message, optional, tag = "2")]
        pub value_type: Option<TypeProto>,
    }

    /// Tensor type.
    pub struct TensorTypeProto {
        #[prost(int32, tag = "1")]
        pub elem_type: i32,
        #[prost(message, optional, tag = "2")]
        pub shape: Option<TensorShapeProto>,
    }

    /// Dimensions of a tensor type.
    pub struct TensorShapeProto {
        #[prost(message, repeated, tag = "1")]
        pub dim: Vec<DimensionProto>,
    }

    /// Dimension: a number, a name, or neither.
    pub struct DimensionProto {
        #[prost(oneof = "DimensionValue", tags = "1, 2")]
        pub value: Option<DimensionValue>,
    }

    /// Tensor whose elements are in `raw_data`, in a type-specific field, or in an external file.
    pub struct TensorProto {
        #[prost(int64, repeated, tag = "1")]
        pub dims: Vec<i64>,
        #[prost(int32, tag = "2")]
        pub data_type: i32,
        #[prost(float, repeated, tag = "4")]
        pub float_data: Vec<f32>,
        #[prost(int32, repeated, tag = "5")]
        pub int32_data: Vec<i32>,
        #[prost(bytes = "bytes", repeated, tag = "6")]
        pub string_data: Vec<Bytes>,
        #[prost(int64, repeated, tag = "7")]
        pub int64_data: Vec<i64>,
        #[prost(string, tag = "8")]
        pub name: String,
        #[prost(string, tag = "12")]
        pub doc_string: String,
        #[prost(bytes = "bytes", optional, tag = "9")]
        pub raw_data: Option<Bytes>,
        #[prost(message, repeated, tag = "13")]
        pub external_data: Vec<StringStringEntryProto>,
        #[prost(int32, tag = "14")]
        pub data_location: i32,
        #[prost(double, repeated, tag = "10")]
        pub double_data: Vec<f64>,
        #[prost(uint64, repeated, tag = "11")]
        pub uint64_data: Vec<u64>,
    }

    /// Sequence of tensors.
    pub struct SequenceProto {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(int32, tag = "2")]
        pub elem_type: i32,
        #[prost(message, repeated, tag = "3")]
        pub tensor_values: Vec<TensorProto>,
    }

    /// Value that may be absent.
    pub struct OptionalProto {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(int32, tag = "2")]
        pub elem_type: i32,
        #[prost(message, optional, tag = "3")]
        pub tensor_value: Option<TensorProto>,
        #[prost(message, optional, tag = "5")]
        pub sequence_value: Option<SequenceProto>,
    }

    /// Sparse tensor in coordinate format.
    pub struct SparseTensorProto {
        #[prost(message, optional, tag = "1")]
        pub values: Option<TensorProto>,
        #[prost(message, optional, tag = "2")]
        pub indices: Option<TensorProto>,
        #[prost(int64, repeated, tag = "3")]
        pub dims: Vec<i64>,
    }
}

/// Value of a dimension.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum DimensionValue {
    /// Fixed dimension.
    #[prost(int64, tag = "1")]
    DimValue(i64),
    /// Name of an unknown dimension.
    #[prost(string, tag = "2")]
    DimParam(String),
}

byoc_files::choice_layout!(DimensionValue);

/// Kind of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum AttributeType {
    Undefined = 0,
    Float = 1,
    Int = 2,
    String = 3,
    Tensor = 4,
    Graph = 5,
    Floats = 6,
    Ints = 7,
    Strings = 8,
    Tensors = 9,
    Graphs = 10,
    SparseTensor = 11,
    SparseTensors = 12,
    TypeProto = 13,
    TypeProtos = 14,
}

impl AttributeType {
    /// Returns the name in `onnx.proto`.
    pub const fn name(self) -> &'static str {
        match self {
            AttributeType::Undefined => "UNDEFINED",
            AttributeType::Float => "FLOAT",
            AttributeType::Int => "INT",
            AttributeType::String => "STRING",
            AttributeType::Tensor => "TENSOR",
            AttributeType::Graph => "GRAPH",
            AttributeType::Floats => "FLOATS",
            AttributeType::Ints => "INTS",
            AttributeType::Strings => "STRINGS",
            AttributeType::Tensors => "TENSORS",
            AttributeType::Graphs => "GRAPHS",
            AttributeType::SparseTensor => "SPARSE_TENSOR",
            AttributeType::SparseTensors => "SPARSE_TENSORS",
            AttributeType::TypeProto => "TYPE_PROTO",
            AttributeType::TypeProtos => "TYPE_PROTOS",
        }
    }
}

/// Value `EXTERNAL` of `TensorProto.DataLocation`: the data is in an external file.
pub const LOCATION_EXTERNAL: i32 = 1;

/// Name of the standard domain; the empty name is equivalent.
pub const STANDARD_DOMAIN: &str = "ai.onnx";

/// Returns true for both names of the standard domain.
pub fn is_standard_domain(domain: &str) -> bool {
    domain.is_empty() || domain == STANDARD_DOMAIN
}

/// Returns the external data entries of a tensor as a map.
pub fn external_entries(tensor: &TensorProto) -> HashMap<&str, &str> {
    tensor.external_data.iter().map(|e| (e.key.as_str(), e.value.as_str())).collect()
}
