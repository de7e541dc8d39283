//! JSON form of a graph. A graph that is written and read back is equal to the original.
//!
//! ```json
//! {"version": 1, "symbol": "f",
//!  "nodes": [{"input": 0, "outputs": [...]},
//!            {"op": "nn.relu", "inputs": [[0, 0]], "attrs": {}, "outputs": [...], "sources": ["Relu_3"]},
//!            {"composite": "dnnl.dense_relu", "body": {...}, "inputs": [[1, 0]], "outputs": [...]}],
//!  "inputs": [{"name": "x", "type": {"dtype": "float32", "dims": [1, "n", null]}}],
//!  "outputs": [[2, 0]], "attrs": {}}
//! ```
//! A dimension is a number, the name of a symbolic dimension, or null. A value is `[node, output]`. Floats without a
//! JSON representation are `{"float": "nan"}`, `"inf"` or `"-inf"`; every other float is written with a decimal point
//! or an exponent.
//!
//! All attributes are present. In graphs from the host, the attribute `padding` is normalized to two integers per
//! spatial axis: the padding before each axis, then the padding after each axis, `[top, left, bottom, right]` for an
//! image.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Attr, AttrValue, Composite, Dim, Graph, Input, Node, NodeKind, TensorType, ValueRef};
use abi_stable::std_types::{RBox, RString, RVec};
use serde_json::Value;

/// Version of the JSON form that this crate writes.
pub const GRAPH_VERSION: u64 = 1;

impl Graph {
    /// Returns the JSON form.
    pub fn to_json(&self) -> String {
        let mut out = Vec::new();
        self.write_json(&mut out);
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    /// Appends the JSON form to `out`.
    pub(crate) fn write_json(&self, out: &mut Vec<u8>) {
        let nodes: usize = self.nodes.iter().map(|node| 128 + 32 * node.attrs.len()).sum();
        write(out, 256 + nodes, |buffer| {
            let buffer = number(text(buffer, "{\"version\":")?, GRAPH_VERSION)?;
            text(graph(text(buffer, ",")?, self)?, "}")
        });
    }

    /// Parses the JSON form. Checks the indices of nodes, outputs and inputs, but not those of constants, because the
    /// text does not contain the constant table (see [`Graph::check`]).
    ///
    /// # Errors
    /// If the text is not JSON, has a different version, or does not describe a valid graph.
    pub fn from_json(text: &str) -> Result<Graph> {
        let value: Value = serde_json::from_str(text)?;
        match value.get("version").and_then(Value::as_u64) {
            Some(GRAPH_VERSION) => {}
            Some(version) => return Err(format!("expected a graph of version {GRAPH_VERSION}, found {version}").into()),
            None => return Err("expected a \"version\" in a graph, found none".into()),
        }
        let graph = read_graph(&value)?;
        graph.check(usize::MAX)?;
        Ok(graph)
    }
}

/// Appends attributes to `out` as a JSON object.
#[cfg(feature = "host")]
pub(crate) fn write_attrs(list: &[Attr], out: &mut Vec<u8>) {
    write(out, 2 + 32 * list.len(), |buffer| attrs(buffer, list));
}

/// Unwritten tail of the output buffer. Each writer function writes to its beginning and returns the remainder, or
/// `None` if the space is insufficient.
///
/// A C backend receives every candidate in this form, possibly thousands per model. The writer functions pass only the
/// slice, which stays in registers; the length of a vector would be loaded and stored for each of a candidate's
/// roughly one hundred tokens.
type Buffer<'o> = &'o mut [u8];

/// Appends the output of `write` to `out`. Reserves `guess` bytes, and doubles the size until the output fits.
fn write(out: &mut Vec<u8>, guess: usize, write: impl Fn(Buffer<'_>) -> Option<Buffer<'_>>) {
    let start = out.len();
    let mut end = start + guess;
    loop {
        out.resize(end, 0);
        if let Some(unused_bytes) = write(&mut out[start..]).map(|buffer| buffer.len()) {
            return out.truncate(end - unused_bytes);
        }
        end += end - start;
    }
}

/// Writes a fixed number of bytes.
fn bytes<const N: usize>(buffer: Buffer<'_>, bytes: [u8; N]) -> Option<Buffer<'_>> {
    let (head, buffer) = buffer.split_first_chunk_mut()?;
    *head = bytes;
    Some(buffer)
}

/// Writes the text without escaping.
#[inline(always)]
fn text<'o>(buffer: Buffer<'o>, text: &str) -> Option<Buffer<'o>> {
    let (head, buffer) = buffer.split_at_mut_checked(text.len())?;
    head.copy_from_slice(text.as_bytes());
    Some(buffer)
}

fn string<'o>(mut buffer: Buffer<'o>, string: &str) -> Option<Buffer<'o>> {
    if is_escaped(string.as_bytes()) {
        // The only possible failure is a lack of space.
        serde_json::to_writer(&mut buffer, string).ok()?;
        return Some(buffer);
    }
    text(text(text(buffer, "\"")?, string)?, "\"")
}

fn number(buffer: Buffer<'_>, mut number: u64) -> Option<Buffer<'_>> {
    let digit = |number: u64| b'0' + (number % 10) as u8;
    // Fast path: most numbers are dimensions and strides.
    let digits = match number {
        0..10 => return bytes(buffer, [digit(number)]),
        10..100 => return bytes(buffer, [digit(number / 10), digit(number)]),
        100..1000 => return bytes(buffer, [digit(number / 100), digit(number / 10), digit(number)]),
        _ => number.ilog10() as usize + 1,
    };
    let (head, buffer) = buffer.split_at_mut_checked(digits)?;
    for slot in head.iter_mut().rev() {
        *slot = digit(number);
        number /= 10;
    }
    Some(buffer)
}

#[inline]
fn list<'o, T>(
    buffer: Buffer<'o>,
    items: &[T],
    write: impl Fn(Buffer<'o>, &T) -> Option<Buffer<'o>>,
) -> Option<Buffer<'o>> {
    let mut buffer = text(buffer, "[")?;
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            buffer = text(buffer, ",")?;
        }
        buffer = write(buffer, item)?;
    }
    text(buffer, "]")
}

/// Writes the fields of a graph, without the braces.
///
/// The JSON parser limits the nesting of composite bodies and lists to 128 levels.
fn graph<'o>(buffer: Buffer<'o>, graph: &Graph) -> Option<Buffer<'o>> {
    let buffer = string(text(buffer, "\"symbol\":")?, &graph.symbol)?;
    // Nodes precede inputs, so that a reader can stop after the nodes, which contain everything except the input names.
    let buffer = list(text(buffer, ",\"nodes\":")?, &graph.nodes, node)?;
    let buffer = list(text(buffer, ",\"inputs\":")?, &graph.inputs, |buffer, input| {
        let buffer = string(text(buffer, "{\"name\":")?, &input.name)?;
        text(ty(text(buffer, ",\"type\":")?, &input.ty)?, "}")
    })?;
    let buffer = list(text(buffer, ",\"outputs\":")?, &graph.outputs, value_ref)?;
    match &graph.attrs[..] {
        [] => Some(buffer),
        entries => attrs(text(buffer, ",\"attrs\":")?, entries),
    }
}

fn node<'o>(buffer: Buffer<'o>, node: &Node) -> Option<Buffer<'o>> {
    let mut buffer = match &node.kind {
        NodeKind::Input(index) => number(text(buffer, "{\"input\":")?, (*index).into())?,
        NodeKind::Constant(index) => number(text(buffer, "{\"constant\":")?, (*index).into())?,
        NodeKind::Op(name) => string(text(buffer, "{\"op\":")?, name)?,
        NodeKind::Composite(composite) => {
            let buffer = string(text(buffer, "{\"composite\":")?, &composite.name)?;
            text(graph(text(buffer, ",\"body\":{")?, &composite.body)?, "}")?
        }
    };
    if !node.inputs.is_empty() {
        buffer = list(text(buffer, ",\"inputs\":")?, &node.inputs, value_ref)?;
    }
    if !node.attrs.is_empty() {
        buffer = attrs(text(buffer, ",\"attrs\":")?, &node.attrs)?;
    }
    buffer = list(text(buffer, ",\"outputs\":")?, &node.outputs, ty)?;
    if !node.sources.is_empty() {
        buffer = list(text(buffer, ",\"sources\":")?, &node.sources, |buffer, name| string(buffer, name))?;
    }
    text(buffer, "}")
}

fn value_ref<'o>(buffer: Buffer<'o>, value: &ValueRef) -> Option<Buffer<'o>> {
    let buffer = number(text(buffer, "[")?, value.node.into())?;
    text(number(text(buffer, ",")?, value.index.into())?, "]")
}

fn ty<'o>(buffer: Buffer<'o>, ty: &TensorType) -> Option<Buffer<'o>> {
    let buffer = match ty.dtype.name() {
        Some(name) => text(text(text(buffer, "{\"dtype\":\"")?, name)?, "\"")?,
        None => {
            let DType { code, bits, lanes } = ty.dtype;
            let fields = [code.into(), bits.into(), lanes.into()];
            list(text(buffer, "{\"dtype\":")?, &fields, |buffer, &field| number(buffer, field))?
        }
    };
    let buffer = list(text(buffer, ",\"dims\":")?, &ty.dims, |buffer, dim| match dim {
        Dim::Known(size) => number(buffer, *size as u64),
        Dim::Unknown(name) if name.is_empty() => text(buffer, "null"),
        Dim::Unknown(name) => string(buffer, name),
    })?;
    text(buffer, "}")
}

fn attrs<'o>(buffer: Buffer<'o>, attrs: &[Attr]) -> Option<Buffer<'o>> {
    let mut buffer = text(buffer, "{")?;
    for (index, Attr { key, value }) in attrs.iter().enumerate() {
        if index > 0 {
            buffer = text(buffer, ",")?;
        }
        buffer = attr(text(string(buffer, key)?, ":")?, value)?;
    }
    text(buffer, "}")
}

fn attr<'o>(mut buffer: Buffer<'o>, value: &AttrValue) -> Option<Buffer<'o>> {
    match value {
        AttrValue::None => text(buffer, "null"),
        AttrValue::Bool(true) => text(buffer, "true"),
        AttrValue::Bool(false) => text(buffer, "false"),
        AttrValue::Int(value) if *value < 0 => number(text(buffer, "-")?, value.unsigned_abs()),
        AttrValue::Int(value) => number(buffer, value.unsigned_abs()),
        AttrValue::Float(value) if value.is_nan() => text(buffer, "{\"float\":\"nan\"}"),
        AttrValue::Float(value) if value.is_infinite() && *value > 0.0 => text(buffer, "{\"float\":\"inf\"}"),
        AttrValue::Float(value) if value.is_infinite() => text(buffer, "{\"float\":\"-inf\"}"),
        AttrValue::Float(value) => {
            // The only possible failure is a lack of space.
            serde_json::to_writer(&mut buffer, value).ok()?;
            Some(buffer)
        }
        AttrValue::Str(value) => string(buffer, value),
        AttrValue::List(values) => list(buffer, values, attr),
    }
}

/// Returns true if `text` contains a byte that JSON escapes: a quotation mark, a backslash or a control character.
/// Tests eight bytes at a time, because most texts are short operator and attribute names.
fn is_escaped(text: &[u8]) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let has_escape = |letters: u64| {
        let difference = |letter: u8| letters ^ (ONES * u64::from(letter));
        let (quote, slash) = (difference(b'"'), difference(b'\\'));
        // In each term, the highest bit of a byte is set if the byte has to be escaped. Bytes above 127 are never
        // escaped.
        let control = letters.wrapping_sub(ONES * u64::from(b' ')) & !letters;
        let escapes = control | (quote.wrapping_sub(ONES) & !quote) | (slash.wrapping_sub(ONES) & !slash);
        escapes & (ONES << 7) != 0
    };
    match text.last_chunk() {
        // The last chunk may overlap its predecessor.
        Some(last_chunk) => {
            has_escape(u64::from_le_bytes(*last_chunk))
                || text.as_chunks().0.iter().any(|chunk| has_escape(u64::from_le_bytes(*chunk)))
        }
        None => {
            has_escape(text.iter().fold(ONES * u64::from(b' '), |letters, &letter| (letters << 8) | u64::from(letter)))
        }
    }
}

fn read_graph(value: &Value) -> Result<Graph> {
    Ok(Graph {
        symbol: read_text(value, "symbol")?.into(),
        inputs: read_list(value, "inputs")?.iter().map(read_input).collect::<Result<_>>()?,
        nodes: read_list(value, "nodes")?.iter().map(read_node).collect::<Result<_>>()?,
        outputs: read_list(value, "outputs")?.iter().map(read_ref).collect::<Result<_>>()?,
        attrs: read_attrs(value)?,
    })
}

fn read_input(value: &Value) -> Result<Input> {
    Ok(Input { name: read_text(value, "name")?.into(), ty: read_type(&value["type"])? })
}

fn read_node(value: &Value) -> Result<Node> {
    let kind = if let Some(index) = value.get("input") {
        NodeKind::Input(read_number(index)?)
    } else if let Some(index) = value.get("constant") {
        NodeKind::Constant(read_number(index)?)
    } else if value.get("op").is_some() {
        NodeKind::Op(read_text(value, "op")?.into())
    } else if value.get("composite").is_some() {
        let body = RBox::new(read_graph(&value["body"])?);
        NodeKind::Composite(Composite { name: read_text(value, "composite")?.into(), body })
    } else {
        let found = abbreviate(value);
        let message = format!("expected a node with \"input\", \"constant\", \"op\" or \"composite\", found {found}");
        return Err(message.into());
    };
    let sources = match value.get("sources") {
        None => RVec::new(),
        Some(_) => read_list(value, "sources")?.iter().filter_map(Value::as_str).map(RString::from).collect(),
    };
    let inputs = match value.get("inputs") {
        None => RVec::new(),
        Some(_) => read_list(value, "inputs")?.iter().map(read_ref).collect::<Result<_>>()?,
    };
    let outputs = read_list(value, "outputs")?.iter().map(read_type).collect::<Result<_>>()?;
    Ok(Node { kind, inputs, attrs: read_attrs(value)?, outputs, sources })
}

fn read_ref(value: &Value) -> Result<ValueRef> {
    match value.as_array().map(Vec::as_slice) {
        Some([node, index]) => Ok(ValueRef { node: read_number(node)?, index: read_number(index)? }),
        _ => Err(format!("expected a value [node, output], found {}", abbreviate(value)).into()),
    }
}

/// Reads a tensor type.
pub(crate) fn read_type(value: &Value) -> Result<TensorType> {
    let dtype = match &value["dtype"] {
        Value::String(name) => {
            DType::parse(name).ok_or_else(|| Error::new(format!("unknown element type \"{name}\"")))?
        }
        Value::Array(parts) => read_dtype_code(parts)?,
        other => return Err(format!("expected a \"dtype\", found {}", abbreviate(other)).into()),
    };
    let dims = read_list(value, "dims")?.iter().map(|dim| match dim {
        Value::Null => Ok(Dim::Unknown(RString::new())),
        Value::String(name) => Ok(Dim::Unknown(name.as_str().into())),
        size => match size.as_u64().and_then(|size| usize::try_from(size).ok()) {
            Some(size) => Ok(Dim::Known(size)),
            None => {
                Err(format!("expected an integer, a name or null as a dimension, found {}", abbreviate(size)).into())
            }
        },
    });
    Ok(TensorType { dtype, dims: dims.collect::<Result<_>>()? })
}

fn read_dtype_code(parts: &[Value]) -> Result<DType> {
    let malformed_dtype = || {
        let found = abbreviate(&Value::from(parts));
        Error::new(format!("expected an element type as a name or [code, bits, lanes], found {found}"))
    };
    let [code, bits, lanes] = parts else { return Err(malformed_dtype()) };
    let byte = |value: &Value| u8::try_from(read_number(value)?).map_err(|_| malformed_dtype());
    let lanes = u16::try_from(read_number(lanes)?).map_err(|_| malformed_dtype())?;
    Ok(DType { code: byte(code)?, bits: byte(bits)?, lanes })
}

fn read_attrs(value: &Value) -> Result<RVec<Attr>> {
    match value.get("attrs") {
        None => Ok(RVec::new()),
        Some(Value::Object(map)) => {
            map.iter().map(|(key, value)| Ok(Attr { key: key.as_str().into(), value: read_value(value)? })).collect()
        }
        Some(other) => Err(format!("expected an object \"attrs\", found {}", abbreviate(other)).into()),
    }
}

pub(crate) fn read_value(value: &Value) -> Result<AttrValue> {
    Ok(match value {
        Value::Null => AttrValue::None,
        Value::Bool(value) => AttrValue::Bool(*value),
        Value::Number(integer) => match integer.as_i64() {
            Some(value) => AttrValue::Int(value),
            None if integer.is_f64() => AttrValue::Float(integer.as_f64().unwrap_or(f64::NAN)),
            None => return Err(format!("expected a signed 64-bit integer, found {integer}").into()),
        },
        Value::String(value) => AttrValue::Str(value.as_str().into()),
        Value::Array(values) => AttrValue::List(values.iter().map(read_value).collect::<Result<_>>()?),
        Value::Object(map) => match map.get("float").and_then(Value::as_str) {
            Some("nan") => AttrValue::Float(f64::NAN),
            Some("inf") => AttrValue::Float(f64::INFINITY),
            Some("-inf") => AttrValue::Float(f64::NEG_INFINITY),
            _ => return Err(format!("expected an attribute value, found {}", abbreviate(value)).into()),
        },
    })
}

fn read_list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value]> {
    match value.get(key).and_then(Value::as_array) {
        Some(values) => Ok(values),
        None => Err(format!("expected a list \"{key}\", found {}", abbreviate(&value[key])).into()),
    }
}

fn read_text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    match value.get(key).and_then(Value::as_str) {
        Some(text) => Ok(text),
        None => Err(format!("expected a string \"{key}\", found {}", abbreviate(&value[key])).into()),
    }
}

fn read_number(value: &Value) -> Result<u32> {
    match value.as_u64().and_then(|integer| u32::try_from(integer).ok()) {
        Some(number) => Ok(number),
        None => Err(format!("expected an unsigned 32-bit integer, found {}", abbreviate(value)).into()),
    }
}

fn abbreviate(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dtype() -> impl Strategy<Value = DType> {
        let named_dtype = (0..DType::ALL.len()).prop_map(|index| DType::ALL[index].0);
        prop_oneof![8 => named_dtype, 1 => Just(DType { code: 200, bits: 4, lanes: 2 })]
    }

    fn tensor_type() -> impl Strategy<Value = TensorType> {
        let dim = prop_oneof![
            4 => any::<usize>().prop_map(Dim::Known),
            1 => Just(Dim::Unknown(RString::new())),
            1 => "[a-z]{1,5}".prop_map(|name| Dim::Unknown(name.into())),
        ];
        (dtype(), prop::collection::vec(dim, 0..5)).prop_map(|(dtype, dims)| TensorType { dtype, dims: dims.into() })
    }

    fn value() -> impl Strategy<Value = AttrValue> {
        let leaf = prop_oneof![
            Just(AttrValue::None),
            any::<bool>().prop_map(AttrValue::Bool),
            any::<i64>().prop_map(AttrValue::Int),
            // NaN is not equal to itself; `round_trips_non_finite_floats` covers NaN.
            any::<f64>().prop_filter("NaN", |value| !value.is_nan()).prop_map(AttrValue::Float),
            Just(AttrValue::Float(f64::INFINITY)),
            Just(AttrValue::Float(-0.0)),
            any::<String>().prop_map(|text| AttrValue::Str(text.into())),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop::collection::vec(inner, 0..4).prop_map(|values| AttrValue::List(values.into()))
        })
    }

    fn attrs() -> impl Strategy<Value = RVec<Attr>> {
        // Generated as a map to make the keys distinct, as in an operator's schema.
        prop::collection::btree_map("[a-z_]{1,8}", value(), 0..4)
            .prop_map(|map| map.into_iter().map(|(key, value)| Attr { key: key.into(), value }).collect())
    }

    /// Generates valid graphs from arbitrary integers.
    fn graph() -> impl Strategy<Value = Graph> {
        let node = (0u8..4, any::<[u32; 2]>(), attrs(), prop::collection::vec(tensor_type(), 1..3), any::<String>());
        (any::<String>(), attrs(), prop::collection::vec(node, 1..8)).prop_map(|(symbol, function_attrs, nodes)| {
            let mut graph = Graph::new(&symbol);
            graph.attrs = function_attrs;
            for (kind, operands, attrs, outputs, text) in nodes {
                let index = graph.nodes.len() as u32;
                let inputs: Vec<ValueRef> = match index {
                    0 => Vec::new(),
                    _ => operands.iter().map(|read| ValueRef::of(read % index)).collect(),
                };
                match kind {
                    0 => graph.push_input(&text, outputs[0].clone()),
                    1 => graph.push_constant(operands[0], outputs[0].clone()),
                    2 if index > 0 => {
                        let mut body = Graph::new(&text);
                        let ids: Vec<u32> =
                            inputs.iter().map(|&input| body.push_input("p", graph.type_of(input).clone())).collect();
                        body.outputs.push(ValueRef::of(ids[0]));
                        graph.push(Node::composite(&text, body, inputs))
                    }
                    _ => {
                        let op_index = graph.push_op(&text, inputs, attrs, outputs);
                        graph.nodes[op_index as usize].sources.push(text.as_str().into());
                        op_index
                    }
                };
            }
            graph.outputs.push(ValueRef::of(graph.nodes.len() as u32 - 1));
            graph
        })
    }

    proptest! {
        #[test]
        fn round_trips_through_json(graph in graph()) {
            let text = graph.to_json();
            let parsed_graph = Graph::from_json(&text).unwrap();
            prop_assert_eq!(&parsed_graph, &graph);
            prop_assert_eq!(parsed_graph.to_json(), text);
        }

        #[test]
        fn never_panics_on_damaged_text(graph in graph(), at in any::<prop::sample::Index>(), byte in 32u8..127) {
            let mut bytes = graph.to_json().into_bytes();
            let position = at.index(bytes.len());
            bytes[position] = byte;
            let _ = Graph::from_json(&String::from_utf8_lossy(&bytes));
            let _ = Graph::from_json(&String::from_utf8_lossy(&bytes[..position]));
        }
    }

    #[test]
    fn round_trips_non_finite_floats() {
        let mut graph = Graph::new("f");
        let x = graph.push_input("x", TensorType::new(DType::F32, &[]));
        graph.outputs.push(ValueRef::of(x));
        graph.attrs.push(Attr::new("nan", f64::NAN));
        graph.attrs.push(Attr::new("least", f64::NEG_INFINITY));
        graph.attrs.push(Attr::new("whole", 2.0));
        let parsed_graph = Graph::from_json(&graph.to_json()).unwrap();
        assert!(parsed_graph.attr("nan").and_then(AttrValue::as_float).unwrap().is_nan());
        assert_eq!(parsed_graph.attr("least"), Some(&AttrValue::Float(f64::NEG_INFINITY)));
        assert_eq!(parsed_graph.attr("whole"), Some(&AttrValue::Float(2.0)), "an integral float stays a float");
    }

    #[track_caller]
    fn expect_error(text: &str, message: &str) {
        let error = Graph::from_json(text).expect_err(text);
        assert!(error.message.contains(message), "{}", error.message);
    }

    #[test]
    fn reports_malformed_graphs() {
        expect_error("", "EOF while parsing");
        expect_error("[]", "expected a \"version\" in a graph");
        expect_error(r#"{"version": 2}"#, "expected a graph of version 1, found 2");
        expect_error(r#"{"version": 1}"#, "expected a string \"symbol\", found null");
        let graph = |inputs: &str, nodes: &str, outputs: &str| {
            format!(r#"{{"version": 1, "symbol": "f", "inputs": {inputs}, "nodes": {nodes}, "outputs": {outputs}}}"#)
        };
        let vector_type = r#"{"dtype": "float32", "dims": [2]}"#;
        expect_error(
            &graph("[]", "[{}]", "[]"),
            "expected a node with \"input\", \"constant\", \"op\" or \"composite\", found {}",
        );
        expect_error(&graph("[]", r#"[{"op": "f", "outputs": [{"dtype": "float33", "dims": []}]}]"#, "[]"), "float33");
        expect_error(&graph("[]", "[]", "[]"), "graph f: expected at least one output");
        expect_error(&graph("[]", "[]", "[[0, 0]]"), "graph f: output 0 of node 0 does not exist");
        expect_error(&graph("[]", "[]", "[[0]]"), "expected a value [node, output], found [0]");
        expect_error(
            &graph("[]", &format!(r#"[{{"input": 0, "outputs": [{vector_type}]}}]"#), "[]"),
            "input 0 is out of range 0..0",
        );
        let forward_reference = format!(r#"[{{"op": "f", "inputs": [[0, 0]], "outputs": [{vector_type}]}}]"#);
        expect_error(
            &graph("[]", &forward_reference, "[]"),
            "graph f, node 0: expected an earlier node as operand, found node 0",
        );
        let deep_list = "[".repeat(100_000);
        expect_error(&format!(r#"{{"version": 1, "attrs": {{"a": {deep_list}"#), "recursion limit");
    }
}
