//! The JSON form of a graph. Reading what was written gives the same graph again.
//!
//! ```json
//! {"version": 1, "symbol": "f", "inputs": [{"name": "x", "type": {"dtype": "float32", "dims": [1, "n", null]}}],
//!  "nodes": [{"input": 0, "outputs": [...]},
//!            {"op": "nn.relu", "inputs": [[0, 0]], "attrs": {}, "outputs": [...], "sources": ["Relu_3"]},
//!            {"composite": "dnnl.dense_relu", "body": {...}, "inputs": [[1, 0]], "outputs": [...]}],
//!  "outputs": [[2, 0]], "attrs": {}}
//! ```
//! A dimension is a number, the name of a symbolic one, or null. A value is `[node, output]`. A float that JSON has no
//! number for is `{"float": "nan"}`, `"inf"` or `"-inf"`; every other float is written with a point or an exponent.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Attr, AttrValue, Composite, Dim, Graph, Input, Node, NodeKind, TensorType, ValueRef};
use abi_stable::std_types::{RBox, RString, RVec};
use serde_json::{Map, Value, json};

/// The version of the JSON form that this crate writes.
pub const GRAPH_VERSION: u64 = 1;

impl Graph {
    /// The JSON form.
    pub fn to_json(&self) -> String {
        let mut top = Map::new();
        top.insert("version".into(), GRAPH_VERSION.into());
        top.append(&mut write_graph(self));
        Value::Object(top).to_string()
    }

    /// Reads the JSON form. Numbers of nodes, outputs and inputs are checked; those of constants are not, as the table
    /// is not part of it (see [`Graph::check`]).
    ///
    /// # Errors
    /// Where the text is no JSON, of a later version, or not a graph: what is wrong, and where.
    pub fn from_json(text: &str) -> Result<Graph> {
        let value: Value = serde_json::from_str(text)?;
        match value.get("version").and_then(Value::as_u64) {
            Some(GRAPH_VERSION) => {}
            Some(version) => return Err(format!("a graph of version {version}; known is {GRAPH_VERSION}").into()),
            None => return Err("a graph has a \"version\"".into()),
        }
        let graph = read_graph(&value)?;
        graph.check(usize::MAX)?;
        Ok(graph)
    }
}

/// The nesting of composite bodies and of lists is bounded by the JSON reader, at 128 levels.
fn write_graph(graph: &Graph) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("symbol".into(), graph.symbol.as_str().into());
    let inputs = graph.inputs.iter().map(|input| json!({"name": input.name.as_str(), "type": write_type(&input.ty)}));
    map.insert("inputs".into(), inputs.collect());
    map.insert("nodes".into(), graph.nodes.iter().map(write_node).collect());
    map.insert("outputs".into(), graph.outputs.iter().map(write_ref).collect());
    map.insert("attrs".into(), write_attrs(&graph.attrs));
    map
}

fn write_node(node: &Node) -> Value {
    let mut map = Map::new();
    match &node.kind {
        NodeKind::Input(index) => drop(map.insert("input".into(), (*index).into())),
        NodeKind::Constant(index) => drop(map.insert("constant".into(), (*index).into())),
        NodeKind::Op(name) => drop(map.insert("op".into(), name.as_str().into())),
        NodeKind::Composite(composite) => {
            map.insert("composite".into(), composite.name.as_str().into());
            map.insert("body".into(), Value::Object(write_graph(&composite.body)));
        }
    }
    map.insert("inputs".into(), node.inputs.iter().map(write_ref).collect());
    map.insert("attrs".into(), write_attrs(&node.attrs));
    map.insert("outputs".into(), node.outputs.iter().map(write_type).collect());
    map.insert("sources".into(), node.sources.iter().map(|name| Value::from(name.as_str())).collect());
    Value::Object(map)
}

fn write_ref(value: &ValueRef) -> Value {
    json!([value.node, value.index])
}

fn write_type(ty: &TensorType) -> Value {
    let dims: Vec<Value> = ty
        .dims
        .iter()
        .map(|dim| match dim {
            Dim::Known(size) => (*size).into(),
            Dim::Unknown(name) if name.is_empty() => Value::Null,
            Dim::Unknown(name) => name.as_str().into(),
        })
        .collect();
    let dtype = match ty.dtype.name() {
        Some(name) => name.into(),
        None => json!([ty.dtype.code, ty.dtype.bits, ty.dtype.lanes]),
    };
    json!({"dtype": dtype, "dims": dims})
}

fn write_attrs(attrs: &[Attr]) -> Value {
    attrs.iter().map(|attr| (attr.key.to_string(), write_value(&attr.value))).collect::<Map<_, _>>().into()
}

fn write_value(value: &AttrValue) -> Value {
    match value {
        AttrValue::None => Value::Null,
        AttrValue::Bool(value) => (*value).into(),
        AttrValue::Int(value) => (*value).into(),
        AttrValue::Float(value) if value.is_nan() => json!({"float": "nan"}),
        AttrValue::Float(value) if value.is_infinite() => json!({"float": if *value > 0.0 { "inf" } else { "-inf" }}),
        AttrValue::Float(value) => (*value).into(),
        AttrValue::Str(value) => value.as_str().into(),
        AttrValue::List(values) => values.iter().map(write_value).collect(),
    }
}

fn read_graph(value: &Value) -> Result<Graph> {
    Ok(Graph {
        symbol: text(value, "symbol")?.into(),
        inputs: list(value, "inputs")?.iter().map(read_input).collect::<Result<_>>()?,
        nodes: list(value, "nodes")?.iter().map(read_node).collect::<Result<_>>()?,
        outputs: list(value, "outputs")?.iter().map(read_ref).collect::<Result<_>>()?,
        attrs: read_attrs(value)?,
    })
}

fn read_input(value: &Value) -> Result<Input> {
    Ok(Input { name: text(value, "name")?.into(), ty: read_type(&value["type"])? })
}

fn read_node(value: &Value) -> Result<Node> {
    let kind = if let Some(index) = value.get("input") {
        NodeKind::Input(number(index)?)
    } else if let Some(index) = value.get("constant") {
        NodeKind::Constant(number(index)?)
    } else if value.get("op").is_some() {
        NodeKind::Op(text(value, "op")?.into())
    } else if value.get("composite").is_some() {
        let body = RBox::new(read_graph(&value["body"])?);
        NodeKind::Composite(Composite { name: text(value, "composite")?.into(), body })
    } else {
        return Err(format!("a node is an input, a constant, an op or a composite, not {}", short(value)).into());
    };
    let sources = match value.get("sources") {
        None => RVec::new(),
        Some(_) => list(value, "sources")?.iter().filter_map(Value::as_str).map(RString::from).collect(),
    };
    let inputs = match value.get("inputs") {
        None => RVec::new(),
        Some(_) => list(value, "inputs")?.iter().map(read_ref).collect::<Result<_>>()?,
    };
    let outputs = list(value, "outputs")?.iter().map(read_type).collect::<Result<_>>()?;
    Ok(Node { kind, inputs, attrs: read_attrs(value)?, outputs, sources })
}

fn read_ref(value: &Value) -> Result<ValueRef> {
    match value.as_array().map(Vec::as_slice) {
        Some([node, index]) => Ok(ValueRef { node: number(node)?, index: number(index)? }),
        _ => Err(format!("a value is [node, output], not {}", short(value)).into()),
    }
}

fn read_type(value: &Value) -> Result<TensorType> {
    let dtype = match &value["dtype"] {
        Value::String(name) => DType::parse(name).ok_or_else(|| Error::new(format!("no element type \"{name}\"")))?,
        Value::Array(parts) => read_dtype_code(parts)?,
        other => return Err(format!("a type has a \"dtype\", not {}", short(other)).into()),
    };
    let dims = list(value, "dims")?.iter().map(|dim| match dim {
        Value::Null => Ok(Dim::Unknown(RString::new())),
        Value::String(name) => Ok(Dim::Unknown(name.as_str().into())),
        size => match size.as_u64().and_then(|size| usize::try_from(size).ok()) {
            Some(size) => Ok(Dim::Known(size)),
            None => Err(format!("a dimension is a number, a name or null, not {}", short(size)).into()),
        },
    });
    Ok(TensorType { dtype, dims: dims.collect::<Result<_>>()? })
}

fn read_dtype_code(parts: &[Value]) -> Result<DType> {
    let wrong = || Error::new("an element type without a name is [code, bits, lanes]");
    let [code, bits, lanes] = parts else { return Err(wrong()) };
    let small = |value: &Value| u8::try_from(number(value)?).map_err(|_| wrong());
    let lanes = u16::try_from(number(lanes)?).map_err(|_| wrong())?;
    Ok(DType { code: small(code)?, bits: small(bits)?, lanes })
}

fn read_attrs(value: &Value) -> Result<RVec<Attr>> {
    match value.get("attrs") {
        None => Ok(RVec::new()),
        Some(Value::Object(map)) => {
            map.iter().map(|(key, value)| Ok(Attr { key: key.as_str().into(), value: read_value(value)? })).collect()
        }
        Some(other) => Err(format!("\"attrs\" is an object, not {}", short(other)).into()),
    }
}

fn read_value(value: &Value) -> Result<AttrValue> {
    Ok(match value {
        Value::Null => AttrValue::None,
        Value::Bool(value) => AttrValue::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(value) => AttrValue::Int(value),
            None if number.is_f64() => AttrValue::Float(number.as_f64().unwrap_or(f64::NAN)),
            None => return Err(format!("an integer beyond 64 bits: {number}").into()),
        },
        Value::String(value) => AttrValue::Str(value.as_str().into()),
        Value::Array(values) => AttrValue::List(values.iter().map(read_value).collect::<Result<_>>()?),
        Value::Object(map) => match map.get("float").and_then(Value::as_str) {
            Some("nan") => AttrValue::Float(f64::NAN),
            Some("inf") => AttrValue::Float(f64::INFINITY),
            Some("-inf") => AttrValue::Float(f64::NEG_INFINITY),
            _ => return Err(format!("no attribute value: {}", short(value)).into()),
        },
    })
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value]> {
    match value.get(key).and_then(Value::as_array) {
        Some(values) => Ok(values),
        None => Err(format!("a list \"{key}\" is missing in {}", short(value)).into()),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    match value.get(key).and_then(Value::as_str) {
        Some(text) => Ok(text),
        None => Err(format!("a text \"{key}\" is missing in {}", short(value)).into()),
    }
}

fn number(value: &Value) -> Result<u32> {
    match value.as_u64().and_then(|number| u32::try_from(number).ok()) {
        Some(number) => Ok(number),
        None => Err(format!("a number of 32 bits is expected, not {}", short(value)).into()),
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
