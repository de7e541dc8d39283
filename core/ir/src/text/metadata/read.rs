//! Reader of the metadata section.

use super::{base64, ndarray};
use crate::cancel::CancellableReader;
use crate::ir::{AttrValue, Name};
use crate::op::{AttrKind, Default as AttrDefault, OpDef};
use crate::tensor::Tensor;
use crate::text::MAX_NESTING;
use serde_json::Value;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

/// Contents of a metadata section.
pub(crate) struct Metadata {
    nodes: Vec<Value>,
    /// Indices in `nodes` of the objects with each type key.
    keys: HashMap<String, Vec<usize>>,
    arrays: Vec<Value>,
    /// Decoded arrays, by index in `arrays`.
    tensors: HashMap<usize, Arc<Tensor>>,
    /// Number of attribute values that may still be read.
    values_left: Cell<usize>,
}

/// Maximum number of attribute values that are read from a section. Lists can share their items, so the size of a section
/// does not bound the size of its values.
const MAX_VALUES: usize = 1 << 20;

impl Metadata {
    /// Returns the maximum size in bytes of the tree of a JSON text, of which a byte can become a hundred: an object of
    /// one entry has a node of a search tree for eleven.
    pub(crate) fn tree_size(json: &str) -> usize {
        let sizes = json.bytes().map(|byte| match byte {
            b'{' => 11 * size_of::<(String, Value)>() + 64,
            b'[' => 4 * size_of::<Value>(),
            b',' => 2 * size_of::<(String, Value)>(),
            b'"' => 16,
            _ => 1,
        });
        sizes.sum()
    }

    /// Reads the JSON of a section. Arrays are decoded on demand.
    ///
    /// # Errors
    /// If the text is not JSON, or the root is not a map from type keys to lists of objects.
    pub(crate) fn read(json: &str) -> Result<Metadata, String> {
        let reader = CancellableReader::new(json.as_bytes());
        let mut json: Value = serde_json::from_reader(reader).map_err(|error| format!("invalid JSON: {error}"))?;
        let nodes = match json.get_mut("nodes").map(Value::take) {
            Some(Value::Array(nodes)) => nodes,
            Some(other) => return Err(format!("expected a list \"nodes\", found {other}")),
            None => return Err("expected a list \"nodes\", found none".to_owned()),
        };
        let arrays = match json["b64ndarrays"].take() {
            Value::Array(arrays) => arrays,
            _ => Vec::new(),
        };
        let root = index(&json["root"])
            .and_then(|root| nodes.get(root))
            .ok_or_else(|| format!("expected the index of a node as \"root\", found {}", json["root"]))?;
        let mut keys = HashMap::new();
        let (names, values) = (root["keys"].as_array(), root["data"].as_array());
        if let (Some(names), Some(values)) = (names, values) {
            for (name, value) in names.iter().zip(values) {
                let name =
                    name.as_str().ok_or_else(|| format!("expected strings as keys of the root, found {name}"))?;
                let array = index(value).and_then(|node_index| nodes.get(node_index));
                let items = array.and_then(|array| array["data"].as_array());
                let items: Option<Vec<usize>> = items.and_then(|items| items.iter().map(index).collect());
                keys.insert(
                    name.to_owned(),
                    items.ok_or_else(|| {
                        format!("key \"{name}\": expected the index of a list of objects, found {value}")
                    })?,
                );
            }
        } else {
            let root_type = &root["type_key"];
            return Err(format!("expected a map of type keys as the root, found an object of type {root_type}"));
        }
        Ok(Metadata { nodes, keys, arrays, tensors: HashMap::new(), values_left: Cell::new(MAX_VALUES) })
    }

    /// Returns the type keys, in order.
    pub(crate) fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = self.keys.keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys
    }

    /// Returns the number of objects with the type key `key`.
    pub(crate) fn count(&self, key: &str) -> usize {
        self.keys.get(key).map_or(0, Vec::len)
    }

    fn object(&self, key: &str, node_index: usize) -> Result<&Value, String> {
        let node = self.keys.get(key).and_then(|nodes| nodes.get(node_index)).and_then(|&node| self.nodes.get(node));
        node.ok_or_else(|| format!("object {node_index} of type {key} does not exist"))
    }

    /// Returns the tensor of `meta[relay.Constant][node_index]`.
    ///
    /// # Errors
    /// If the constant does not exist, or its array is missing or invalid.
    pub(crate) fn constant(&mut self, node_index: usize) -> Result<Arc<Tensor>, String> {
        let node = self.object("relay.Constant", node_index)?;
        let data = &node["attrs"]["data"];
        let array = text_index(data).ok_or_else(|| format!("expected the index of an array, found {data}"))?;
        if let Some(tensor) = self.tensors.get(&array) {
            return Ok(tensor.clone());
        }
        let text = self.arrays.get(array).and_then(Value::as_str).ok_or_else(|| {
            format!("expected text as array {array}, found {}", self.arrays.get(array).unwrap_or(&Value::Null))
        })?;
        let tensor = Arc::new(ndarray::read(&base64::decode(text)?)?);
        self.tensors.insert(array, tensor.clone());
        Ok(tensor)
    }

    /// Returns the attributes of `meta[key][node_index]` for an operator. Attributes that are not in the operator's
    /// schema are omitted: later stages of TVM add them for internal use.
    ///
    /// # Errors
    /// If the object does not exist or has no attributes, or an attribute has an invalid value.
    pub(crate) fn op_attrs(&self, key: &str, node_index: usize, op: &OpDef) -> Result<Vec<(Name, AttrValue)>, String> {
        let attrs = &self.object(key, node_index)?["attrs"];
        let attrs = attrs.as_object().ok_or_else(|| format!("expected a map of attributes, found {attrs}"))?;
        let mut values = Vec::new();
        for def in op.attrs {
            let Some(written) = attrs.get(def.name) else { continue };
            let text = written
                .as_str()
                .ok_or_else(|| format!("attribute {}: expected a string, found {written}", def.name))?;
            let invalid = || format!("attribute {}: expected {}, found {text:?}", def.name, def.kind);
            let is_optional = matches!(def.default, AttrDefault::None);
            let value = match def.kind {
                AttrKind::Str | AttrKind::DType if is_optional && text_index(written).is_some() => {
                    self.value(written, 0)?
                }
                AttrKind::Str | AttrKind::DType => AttrValue::from(text),
                AttrKind::Bool => AttrValue::Bool(text.parse::<i64>().map_err(|_| invalid())? != 0),
                AttrKind::Float if !is_optional => AttrValue::Float(text.parse().map_err(|_| invalid())?),
                // An optional number is stored as an object, a required number inline.
                AttrKind::Int if !is_optional => AttrValue::Int(text.parse().map_err(|_| invalid())?),
                _ => self.value(written, 0)?,
            };
            // The null object denotes the default.
            if value != AttrValue::None {
                values.push((Name::from(def.name), value));
            }
        }
        Ok(values)
    }

    /// Returns the value of `meta[key][node_index]` as an attribute.
    ///
    /// # Errors
    /// If the object does not exist or is not an attribute value.
    pub(crate) fn attribute(&self, key: &str, node_index: usize) -> Result<AttrValue, String> {
        let node = self.object(key, node_index)?;
        self.object_value(node, 0)
    }

    /// Returns the attribute value of the object at index `json`; `AttrValue::None` for the null object.
    fn value(&self, json: &Value, depth: usize) -> Result<AttrValue, String> {
        let node_index = text_index(json).ok_or_else(|| format!("expected the index of an object, found {json}"))?;
        let node = self.nodes.get(node_index).ok_or_else(|| format!("object {node_index} does not exist"))?;
        self.object_value(node, depth)
    }

    fn object_value(&self, node: &Value, depth: usize) -> Result<AttrValue, String> {
        if depth > MAX_NESTING {
            return Err(format!("lists nested more than {MAX_NESTING} levels deep"));
        }
        let values_left = self.values_left.get().checked_sub(1);
        self.values_left.set(values_left.ok_or_else(|| format!("expected at most {MAX_VALUES} values, found more"))?);
        let key = node["type_key"].as_str().unwrap_or_default();
        let text = || node["attrs"]["value"].as_str();
        match key {
            "" => Ok(AttrValue::None),
            "IntImm" => match text().and_then(|text| text.parse::<i64>().ok()) {
                Some(value) if node["attrs"]["dtype"] == "bool" => Ok(AttrValue::Bool(value != 0)),
                Some(value) => Ok(AttrValue::Int(value)),
                None => Err(format!("IntImm: expected an int64, found {}", node["attrs"]["value"])),
            },
            "FloatImm" => match text().and_then(|text| text.parse().ok()) {
                Some(value) => Ok(AttrValue::Float(value)),
                None => Err(format!("FloatImm: expected a float64, found {}", node["attrs"]["value"])),
            },
            "runtime.String" | "String" | "StringImm" | "tir.StringImm" => {
                let base64 = || base64::decode(node["repr_b64"].as_str()?).ok().and_then(|b| String::from_utf8(b).ok());
                let text = node["repr_str"].as_str().or_else(text).map(str::to_owned).or_else(base64);
                match text {
                    Some(text) if !text.contains('"') => Ok(AttrValue::from(&*text)),
                    Some(text) => Err(format!("expected a string without quotation marks, found {text:?}")),
                    None => Err(format!("{key}: expected a string, found none")),
                }
            }
            "Array" => {
                let items = node["data"].as_array().map(Vec::as_slice).unwrap_or_default();
                let items: Result<Vec<AttrValue>, String> =
                    items.iter().map(|item| self.value(item, depth + 1)).collect();
                Ok(AttrValue::List(items?.into()))
            }
            other => Err(format!("expected an attribute value, found an object of type {other}")),
        }
    }
}

/// Parses an index that is a number or a string, as TVM writes both.
fn text_index(value: &Value) -> Option<usize> {
    match value {
        Value::String(text) => text.parse().ok(),
        other => index(other),
    }
}

fn index(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|i| usize::try_from(i).ok())
}
