//! Messages of `inference.GRPCInferenceService` and of `grpc.health.v1.Health`: compiled by `build.rs` from
//! `inference.proto`, with a table of their fields, from which messages become JSON and configurations are read.
#![expect(missing_docs, reason = "the protocol documents the fields")]

use bytes::Bytes;
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

include!(concat!(env!("OUT_DIR"), "/inference.rs"));

/// Response of `grpc.health.v1.Health`.
#[derive(Clone, PartialEq, Message)]
pub struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    pub status: i32,
}

/// Message of the protocol, under the name that it has in the protocol.
#[derive(Debug)]
pub struct Descriptor {
    pub name: &'static str,
    pub fields: &'static [Field],
}

/// Field of a message.
#[derive(Debug)]
pub struct Field {
    pub number: u32,
    pub name: &'static str,
    /// Type as the protocol writes it, such as `repeated int64`.
    pub ty: &'static str,
    /// True if the field excludes the other fields of a choice.
    pub is_choice: bool,
    pub state: State,
}

/// Treatment of a field by the server, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Read, or written into the response.
    Served,
    /// An error that names the field; in a response, never written.
    Refused(&'static str),
    RefusedIfTrue(&'static str),
    /// In a configuration: without effect.
    Ignored(&'static str),
}

impl Field {
    /// Returns the types of key and value of a map.
    pub fn map_types(&self) -> Option<(&'static str, &'static str)> {
        self.ty.strip_prefix("map<")?.trim_end_matches('>').split_once(", ")
    }

    /// Returns the type of the field or of its elements.
    pub fn element(&self) -> &'static str {
        self.ty.strip_prefix("repeated ").unwrap_or(self.ty)
    }

    /// Returns the value in JSON of a field that has none; `None` for a message, and for a part of a choice.
    fn default_json(&self) -> Option<Value> {
        Some(match self.ty {
            _ if self.is_choice => return None,
            ty if ty.starts_with("repeated ") => Value::Array(Vec::new()),
            ty if ty.starts_with("map<") => Value::Object(Map::new()),
            ty if fields(ty).is_some() => return None,
            ty => default_value(ty),
        })
    }
}

/// Returns the fields of a message, by its name in the protocol.
pub fn fields(message: &str) -> Option<&'static [Field]> {
    MESSAGES.iter().find(|descriptor| descriptor.name == message).map(|descriptor| descriptor.fields)
}

/// Returns the names of the values of an enumeration, which are numbered from zero.
pub fn enumeration(name: &str) -> Option<&'static [&'static str]> {
    ENUMERATIONS.iter().find(|row| row.0 == name).map(|row| row.1)
}

/// Converts a message to JSON: every field under its name in the protocol, numbers of any size as numbers.
///
/// Messages with floating-point fields or bytes have no such form.
pub fn to_json(name: &str, message: &impl Message) -> Value {
    json_of(name, &message.encode_to_vec())
}

fn json_of(name: &str, mut bytes: &[u8]) -> Value {
    let fields = fields(name).unwrap_or_default();
    let defaults = fields.iter().filter_map(|field| Some((field.name.to_owned(), field.default_json()?)));
    let mut object: Map<String, Value> = defaults.collect();
    while let Ok((number, wire)) = decode_key(&mut bytes) {
        let Some(field) = fields.iter().find(|field| field.number == number) else { break };
        let slot = object.entry(field.name).or_insert(Value::Null);
        match (field.map_types(), slot) {
            (Some((key, item)), Value::Object(entries)) => {
                let mut entry = delimited(&mut bytes);
                let (mut key_value, mut item_value) = (default_value(key), default_value(item));
                while let Ok((number, wire)) = decode_key(&mut entry) {
                    let (part, ty) = if number == 1 { (&mut key_value, key) } else { (&mut item_value, item) };
                    *part = value(ty, wire, &mut entry);
                }
                let key = key_value.as_str().map_or_else(|| key_value.to_string(), str::to_owned);
                entries.insert(key, item_value);
            }
            (_, Value::Array(values)) => match value(field.element(), wire, &mut bytes) {
                Value::Array(packed) => values.extend(packed),
                single => values.push(single),
            },
            (_, slot) => *slot = value(field.ty, wire, &mut bytes),
        }
    }
    Value::Object(object)
}

fn default_value(ty: &str) -> Value {
    match ty {
        "string" => String::new().into(),
        ty if fields(ty).is_some() => json_of(ty, &[]),
        ty => number_json(ty, 0),
    }
}

/// Reads a value: a number, packed numbers, a text or a message.
fn value(ty: &str, wire: WireType, bytes: &mut &[u8]) -> Value {
    if wire != WireType::LengthDelimited {
        return number_json(ty, decode_varint(bytes).unwrap_or_default());
    }
    let mut content = delimited(bytes);
    match ty {
        "string" => String::from_utf8_lossy(content).into(),
        ty if fields(ty).is_some() => json_of(ty, content),
        ty => std::iter::from_fn(|| Some(number_json(ty, decode_varint(&mut content).ok()?))).collect(),
    }
}

fn delimited<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let length = decode_varint(bytes).unwrap_or_default() as usize;
    let (content, rest) = bytes.split_at(length.min(bytes.len()));
    *bytes = rest;
    content
}

fn number_json(ty: &str, number: u64) -> Value {
    match ty {
        "bool" => (number != 0).into(),
        "int32" | "int64" => number.cast_signed().into(),
        ty => match enumeration(ty) {
            Some(names) => names.get(number as usize).copied().into(),
            None => number.into(),
        },
    }
}
