//! JSON form of IR types and attributes in `program.json`.
//!
//! A type is `["float32", 1, 3, "?", "n"]`: the element type, then each dimension as a number, `"?"` or a name. An
//! attribute is the corresponding JSON value; a number that JSON cannot represent is an object such as `{"float":
//! "inf"}`.

use byoc_ir::ir::{AttrValue, Dim, TensorType};
use byoc_ir::tensor::DType;
use byoc_ir::text::dim_or_symbol;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Number, Value};

/// Maximum nesting depth of lists in attributes.
const MAX_DEPTH: usize = 8;

/// Converts a tensor type to JSON.
pub fn type_to_json(ty: &TensorType) -> Value {
    let dim = |dim: &Dim| match dim {
        Dim::Fixed(n) => Value::from(*n),
        other => Value::from(other.to_string()),
    };
    std::iter::once(Value::from(ty.dtype.name())).chain(ty.dims.iter().map(dim)).collect()
}

/// Converts JSON to a tensor type.
///
/// # Errors
/// If the value is not a tensor type.
pub fn type_from_json(value: &Value) -> Result<TensorType, String> {
    let type_error = || format!("expected a tensor type, found {value}");
    let (first_item, remaining_items) =
        value.as_array().and_then(|items| items.split_first()).ok_or_else(type_error)?;
    let dtype = first_item.as_str().and_then(DType::parse).ok_or_else(type_error)?;
    let dim = |item: &Value| match item {
        Value::String(name) if name == "?" => Ok(Dim::Any),
        Value::String(name) if !name.is_empty() => Ok(dim_or_symbol(name)),
        item => item.as_u64().and_then(|n| usize::try_from(n).ok()).map(Dim::Fixed).ok_or_else(type_error),
    };
    let ty = TensorType { dtype, dims: remaining_items.iter().map(dim).collect::<Result<_, _>>()? };
    if ty.is_addressable() { Ok(ty) } else { Err(format!("expected an addressable tensor size, found {value}")) }
}

/// Converts an attribute value to JSON.
pub fn attr_to_json(value: &AttrValue) -> Value {
    match value {
        AttrValue::Int(v) => Value::from(*v),
        AttrValue::Float(v) => match Number::from_f64(*v) {
            Some(number) => Value::Number(number),
            None => serde_json::json!({ "float": v.to_string() }),
        },
        AttrValue::Bool(v) => Value::from(*v),
        AttrValue::Str(v) => Value::from(&**v),
        AttrValue::List(items) => Value::Array(items.iter().map(attr_to_json).collect()),
        AttrValue::None => Value::Null,
    }
}

/// Converts JSON to an attribute value.
///
/// # Errors
/// If the value is not an attribute value.
pub fn attr_from_json(value: &Value) -> Result<AttrValue, String> {
    nested_value(value, MAX_DEPTH)
}

fn nested_value(value: &Value, depth: usize) -> Result<AttrValue, String> {
    let type_error = || format!("expected an attribute value, found {value}");
    Ok(match value {
        Value::Null => AttrValue::None,
        Value::Bool(v) => AttrValue::Bool(*v),
        Value::Number(n) => match n.as_i64() {
            Some(v) => AttrValue::Int(v),
            None => AttrValue::Float(n.as_f64().ok_or_else(type_error)?),
        },
        Value::String(v) => AttrValue::from(v.as_str()),
        Value::Array(items) if depth > 0 => {
            let items: Vec<AttrValue> =
                items.iter().map(|item| nested_value(item, depth - 1)).collect::<Result<_, _>>()?;
            AttrValue::List(items.into())
        }
        Value::Object(fields) if fields.len() == 1 => {
            let text = fields.get("float").and_then(Value::as_str).ok_or_else(type_error)?;
            AttrValue::Float(text.parse().map_err(|_| type_error())?)
        }
        _ => return Err(type_error()),
    })
}

/// Serde form of a tensor type.
pub mod tensor_type {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(ty: &TensorType, s: S) -> Result<S::Ok, S::Error> {
        type_to_json(ty).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<TensorType, D::Error> {
        type_from_json(&Value::deserialize(d)?).map_err(D::Error::custom)
    }
}

/// Serde form of the kind of a port: its name.
pub mod port_kind {
    use super::*;
    use byoc_ir::interface::PortKind;

    pub(crate) fn serialize<S: Serializer>(kind: &PortKind, s: S) -> Result<S::Ok, S::Error> {
        kind.name().serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<PortKind, D::Error> {
        let name = String::deserialize(d)?;
        PortKind::parse(&name).ok_or_else(|| D::Error::custom(format!("expected the kind of a value, found {name}")))
    }
}

/// Serde form of an optional tensor type.
pub mod optional_tensor_type {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(ty: &Option<TensorType>, s: S) -> Result<S::Ok, S::Error> {
        ty.as_ref().map(type_to_json).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<TensorType>, D::Error> {
        let value: Option<Value> = Option::deserialize(d)?;
        value.map(|value| type_from_json(&value)).transpose().map_err(D::Error::custom)
    }
}

/// Serde form of a list of tensor types.
pub mod tensor_types {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(types: &[TensorType], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(types.iter().map(type_to_json))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<TensorType>, D::Error> {
        let values: Vec<Value> = Vec::deserialize(d)?;
        values.iter().map(|value| type_from_json(value).map_err(D::Error::custom)).collect()
    }
}

/// Serde form of attributes: an object.
pub mod attrs {
    use super::*;
    use byoc_ir::ir::Attrs;

    pub(crate) fn serialize<S: Serializer>(attrs: &Attrs, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(attrs.iter().map(|(key, value)| (&**key, attr_to_json(value))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Attrs, D::Error> {
        let object: serde_json::Map<String, Value> = serde_json::Map::deserialize(d)?;
        let pairs: Vec<(String, AttrValue)> = object
            .iter()
            .map(|(key, value)| Ok((key.clone(), attr_from_json(value)?)))
            .collect::<Result<_, String>>()
            .map_err(D::Error::custom)?;
        Ok(Attrs::new(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_types() {
        for text in [r#"["float32"]"#, r#"["int8",1,3,"?","a, b"]"#, r#"["bool",0]"#] {
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(type_to_json(&type_from_json(&value).unwrap()).to_string(), text);
        }
        for text in
            ["[]", "3", r#"["float33",1]"#, r#"["int8",-1]"#, r#"["int8",1.5]"#, r#"["int8",""]"#, r#"["int8",[1]]"#]
        {
            assert!(type_from_json(&serde_json::from_str(text).unwrap()).is_err(), "{text}");
        }
    }

    #[test]
    fn round_trips_attributes_bit_for_bit() {
        let floats = [0.1, -0.0, 1.0, f64::MIN_POSITIVE, 1e300, f64::INFINITY, f64::NAN, 0.1f32 as f64];
        for value in floats.map(AttrValue::Float) {
            let text = attr_to_json(&value).to_string();
            let AttrValue::Float(round_trip) = attr_from_json(&serde_json::from_str(&text).unwrap()).unwrap() else {
                panic!("{text} is a float")
            };
            assert_eq!(round_trip.to_bits(), value.as_float().unwrap().to_bits(), "{text}");
        }
        let list = AttrValue::List([AttrValue::Int(1), AttrValue::None, AttrValue::ints([2, 3])].into());
        assert_eq!(attr_from_json(&attr_to_json(&list)).unwrap(), list);
    }
}
