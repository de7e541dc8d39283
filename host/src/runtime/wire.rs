//! How types and attributes of `core` are written in `program.json`.
//!
//! A type is `"float32[1, 3, ?, n]"`: the element type, then each dimension as a number, `?` or a name. An attribute is
//! the JSON value that looks like it; numbers that JSON cannot write are `{"float": "inf"}`.

use byoc_core::ir::{AttrValue, Dim, TensorType};
use byoc_core::tensor::DType;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Number, Value};

/// Nested lists in attributes go no deeper.
const DEPTH: usize = 8;

/// A tensor type as text.
pub fn format_type(ty: &TensorType) -> String {
    let dims: Vec<String> = ty.dims.iter().map(Dim::to_string).collect();
    format!("{}[{}]", ty.dtype, dims.join(", "))
}

/// A tensor type from its text.
///
/// # Errors
/// What is wrong with it.
pub fn parse_type(text: &str) -> Result<TensorType, String> {
    let wrong = || format!("\"{text}\" is no tensor type");
    let (dtype, rest) = text.split_once('[').ok_or_else(wrong)?;
    let dtype = DType::parse(dtype).ok_or_else(wrong)?;
    let dims = rest.strip_suffix(']').ok_or_else(wrong)?;
    let dim = |text: &str| match text {
        "" => Err(wrong()),
        "?" => Ok(Dim::Any),
        _ if text.starts_with(|c: char| c.is_ascii_digit()) => text.parse().map(Dim::Fixed).map_err(|_| wrong()),
        name => Ok(Dim::Named(name.into())),
    };
    let dims = if dims.is_empty() { Box::default() } else { dims.split(", ").map(dim).collect::<Result<_, _>>()? };
    Ok(TensorType { dtype, dims })
}

/// An attribute's value as JSON.
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

/// An attribute's value from JSON.
///
/// # Errors
/// When it is nothing that an attribute can be.
pub fn attr_from_json(value: &Value) -> Result<AttrValue, String> {
    nested(value, DEPTH)
}

fn nested(value: &Value, depth: usize) -> Result<AttrValue, String> {
    let wrong = || format!("{value} is no attribute value");
    Ok(match value {
        Value::Null => AttrValue::None,
        Value::Bool(v) => AttrValue::Bool(*v),
        Value::Number(n) => match n.as_i64() {
            Some(v) => AttrValue::Int(v),
            None => AttrValue::Float(n.as_f64().ok_or_else(wrong)?),
        },
        Value::String(v) => AttrValue::from(v.as_str()),
        Value::Array(items) if depth > 0 => {
            let items: Vec<AttrValue> = items.iter().map(|item| nested(item, depth - 1)).collect::<Result<_, _>>()?;
            AttrValue::List(items.into())
        }
        Value::Object(fields) if fields.len() == 1 => {
            let text = fields.get("float").and_then(Value::as_str).ok_or_else(wrong)?;
            AttrValue::Float(text.parse().map_err(|_| wrong())?)
        }
        _ => return Err(wrong()),
    })
}

/// Serde form of a tensor type.
pub mod tensor_type {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(ty: &TensorType, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format_type(ty))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<TensorType, D::Error> {
        parse_type(&String::deserialize(d)?).map_err(D::Error::custom)
    }
}

/// Serde form of a tensor type or none.
pub mod optional_tensor_type {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(ty: &Option<TensorType>, s: S) -> Result<S::Ok, S::Error> {
        ty.as_ref().map(format_type).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<TensorType>, D::Error> {
        let text: Option<String> = Option::deserialize(d)?;
        text.map(|text| parse_type(&text)).transpose().map_err(D::Error::custom)
    }
}

/// Serde form of a list of tensor types.
pub mod tensor_types {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(types: &[TensorType], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(types.iter().map(format_type))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<TensorType>, D::Error> {
        let texts: Vec<String> = Vec::deserialize(d)?;
        texts.iter().map(|text| parse_type(text).map_err(D::Error::custom)).collect()
    }
}

/// Serde form of attributes: an object.
pub mod attrs {
    use super::*;
    use byoc_core::ir::Attrs;

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
    fn types_round_trip() {
        for text in ["float32[]", "int8[1, 3, ?, batch]", "bool[0]"] {
            assert_eq!(format_type(&parse_type(text).unwrap()), text);
        }
        for text in ["", "float32", "float33[1]", "float32[1", "float32[1,2]", "float32[-1]", "float32[1, ]"] {
            assert!(parse_type(text).is_err(), "{text}");
        }
    }

    #[test]
    fn attributes_round_trip_bit_for_bit() {
        let floats = [0.1, -0.0, 1.0, f64::MIN_POSITIVE, 1e300, f64::INFINITY, f64::NAN, 0.1f32 as f64];
        for value in floats.map(AttrValue::Float) {
            let text = attr_to_json(&value).to_string();
            let AttrValue::Float(back) = attr_from_json(&serde_json::from_str(&text).unwrap()).unwrap() else {
                panic!("{text} is a float")
            };
            assert_eq!(back.to_bits(), value.as_float().unwrap().to_bits(), "{text}");
        }
        let list = AttrValue::List([AttrValue::Int(1), AttrValue::None, AttrValue::ints([2, 3])].into());
        assert_eq!(attr_from_json(&attr_to_json(&list)).unwrap(), list);
    }
}
