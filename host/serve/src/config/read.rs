//! Extraction of fields from a model configuration tree: the tree is encoded by the table of the protocol's fields, and
//! decoded as [`ModelConfig`].

use super::tree::{Fields, Node};
use crate::error::{Result, ServeError};
use crate::proto::{self, Field, ModelConfig, ModelDynamicBatching, State, VersionPolicyChoice};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

/// Parsed model configuration.
#[derive(Clone, Debug, Default)]
pub struct ConfigFile {
    /// Supported fields.
    pub config: ModelConfig,
    /// True if the configuration sets `max_batch_size`, whose default depends on the model.
    pub has_max_batch_size: bool,
    /// Names of fields without effect in this server.
    pub ignored_fields: Vec<String>,
}

/// Maximum number of dimensions of an input or output.
const MAX_RANK: usize = 64;
/// Maximum number of warm-up runs per sample.
const MAX_WARM_UP_RUNS: u32 = 1000;

/// Minimum values of integers other than 0.
const MINIMA: [(&str, i128); 9] = [
    ("dynamic_batching.preferred_batch_size", 1),
    ("input.dims", -1),
    ("input.reshape.shape", -1),
    ("instance_group.count", 1),
    ("model_warmup.inputs.dims", -1),
    ("output.dims", -1),
    ("output.reshape.shape", -1),
    ("version_policy.latest.num_versions", 1),
    ("version_policy.specific.versions", 1),
];

/// Reads a configuration.
///
/// # Errors
/// If a field is unknown, has an invalid value, or is unsupported.
pub fn read(fields: &Fields) -> Result<ConfigFile> {
    let mut encoder = Encoder::default();
    let bytes = encoder.message("ModelConfig", "", fields)?;
    let mut config = ModelConfig::decode(&*bytes)
        .map_err(|error| ServeError::repository(format!("cannot decode the model configuration: {error}")))?;
    complete(&mut config);
    check(&config)?;
    let has_max_batch_size = fields.iter().any(|(name, _)| name == "max_batch_size");
    Ok(ConfigFile { config, has_max_batch_size, ignored_fields: encoder.ignored_fields })
}

/// Sets the fields whose default is 1.
fn complete(config: &mut ModelConfig) {
    for group in &mut config.instance_group {
        group.count = group.count.max(1);
    }
    for warm_up in &mut config.model_warmup {
        warm_up.batch_size = warm_up.batch_size.max(1);
        warm_up.count = warm_up.count.max(1);
    }
    if let Some(VersionPolicyChoice::Latest(latest)) =
        config.version_policy.as_mut().and_then(|policy| policy.choice.as_mut())
    {
        latest.num_versions = latest.num_versions.max(1);
    }
}

fn check(config: &ModelConfig) -> Result<()> {
    let value_error = |field: &str, expected: &str, found: &dyn std::fmt::Display| {
        Err(ServeError::repository(format!("{field}: expected {expected}, found {found}")))
    };
    let warm_ups = config.model_warmup.iter().flat_map(|warm_up| warm_up.inputs.values());
    let reshapes = config.input.iter().map(|input| &input.reshape);
    let reshapes = reshapes.chain(config.output.iter().map(|output| &output.reshape)).flatten();
    let dims = (config.input.iter().map(|input| &input.dims))
        .chain(config.output.iter().map(|output| &output.dims))
        .chain(warm_ups.map(|input| &input.dims))
        .chain(reshapes.map(|reshape| &reshape.shape));
    if let Some(rank) = dims.map(Vec::len).max().filter(|rank| *rank > MAX_RANK) {
        return value_error("dims", &format!("at most {MAX_RANK} dimensions"), &rank);
    }
    if config.instance_group.iter().any(|group| group.kind == 1) {
        let found = "KIND_GPU; select the device of a backend with --device";
        return value_error("instance_group.kind", "KIND_CPU or KIND_AUTO", &found);
    }
    if let Some(warm_up) = config.model_warmup.iter().find(|warm_up| warm_up.count > MAX_WARM_UP_RUNS) {
        return value_error("model_warmup.count", &format!("at most {MAX_WARM_UP_RUNS}"), &warm_up.count);
    }
    if let Some(name) = config.metric_tags.keys().find(|name| !is_label(name)) {
        let expected = "a name of letters, digits and _ that is not a label of the server";
        return value_error("metric_tags", expected, &format!("{name:?}"));
    }
    let Some(batching) = &config.dynamic_batching else { return Ok(()) };
    let ModelDynamicBatching { priority_levels: levels, default_priority_level: default, .. } = *batching;
    if default > levels || (levels > 0 && default == 0) {
        let expected = format!("a level from 1 to priority_levels ({levels})");
        return value_error("default_priority_level", &expected, &default);
    }
    match batching.priority_queue_policy.keys().find(|level| !(1..=levels).contains(*level)) {
        Some(level) => {
            let expected = format!("levels from 1 to priority_levels ({levels})");
            value_error("priority_queue_policy", &expected, level)
        }
        None => Ok(()),
    }
}

/// Returns true for a name of a Prometheus label that the server does not use.
fn is_label(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !["model", "version", "reason", "region", "le"].contains(&name)
}

/// Encoder of configuration trees.
#[derive(Default)]
struct Encoder {
    /// Names of fields without effect in this server.
    ignored_fields: Vec<String>,
}

impl Encoder {
    /// Encodes a message; `path` names it in errors.
    fn message(&mut self, message: &str, path: &str, values: &Fields) -> Result<Vec<u8>> {
        let fields = proto::fields(message).unwrap_or_default();
        let mut bytes = Vec::new();
        for (name, value) in values {
            let Some(field) = fields.iter().find(|field| field.name == name) else {
                let path = if path.is_empty() { "the model configuration" } else { path };
                let message = format!("expected a field of {path}, found the unknown field \"{name}\"");
                return Err(ServeError::repository(message));
            };
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            // JSON configurations that the server returns have all fields.
            let is_set = !is_default(value);
            match field.state {
                State::Refused(_) if is_set => return Err(refused_field_error(&path)),
                State::RefusedIfTrue(_) if parse_bool(&path, value)? => {
                    return Err(refused_field_error(&format!("{path}: true")));
                }
                State::Ignored(_) if is_set && *value != Node::Message(Fields::new()) => self.ignored_fields.push(path),
                State::Refused(_) | State::Ignored(_) => {}
                State::Served | State::RefusedIfTrue(_) => self.field(field, &path, value, &mut bytes)?,
            }
        }
        Ok(bytes)
    }

    fn field(&mut self, field: &Field, path: &str, value: &Node, bytes: &mut Vec<u8>) -> Result<()> {
        if let Some((key_type, value_type)) = field.map_types() {
            for_each_entry(path, value, |key, value| {
                let mut entry = Vec::new();
                self.value(1, key_type, path, &Node::Text(key), &mut entry)?;
                self.value(2, value_type, path, value, &mut entry)?;
                append(field.number, &entry, bytes);
                Ok(())
            })
        } else if field.element() == field.ty {
            self.value(field.number, field.ty, path, value, bytes)
        } else {
            for_each(value, |value| self.value(field.number, field.element(), path, value, bytes))
        }
    }

    fn value(&mut self, number: u32, ty: &str, path: &str, value: &Node, bytes: &mut Vec<u8>) -> Result<()> {
        let varint = match (ty, proto::enumeration(ty)) {
            ("string", _) => {
                append(number, text(path, value)?.as_bytes(), bytes);
                return Ok(());
            }
            ("bool", _) => u64::from(parse_bool(path, value)?),
            ("int32", _) => integer(path, value, i32::MAX)?,
            ("int64", _) => integer(path, value, i64::MAX)?,
            ("uint32", _) => integer(path, value, u32::MAX)?,
            ("uint64", _) => integer(path, value, u64::MAX)?,
            (_, Some(names)) => {
                let index = names.iter().position(|name| Some(*name) == value.word());
                let expected = if ty == "DataType" { "a type such as TYPE_FP32" } else { &names.join(" or ") };
                index.ok_or_else(|| type_error(path, expected, value))? as u64
            }
            (_, None) => {
                append(number, &self.message(ty, path, message(path, value)?)?, bytes);
                return Ok(());
            }
        };
        encode_key(number, WireType::Varint, bytes);
        encode_varint(varint, bytes);
        Ok(())
    }
}

fn append(number: u32, content: &[u8], bytes: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, bytes);
    encode_varint(content.len() as u64, bytes);
    bytes.extend_from_slice(content);
}

fn is_default(value: &Node) -> bool {
    match value {
        Node::Word(content) => content == "false",
        Node::Text(text) => text.is_empty(),
        Node::List(values) => values.is_empty(),
        Node::Message(_) => false,
    }
}

fn refused_field_error(field: &str) -> ServeError {
    ServeError::repository(format!("configuration: byoc serve does not support {field}"))
}

fn type_error(path: &str, expected: &str, found: &Node) -> ServeError {
    let field = path.rsplit('.').next().unwrap_or_default();
    let found = match found {
        Node::Word(content) => content.clone(),
        Node::Text(text) => format!("{text:?}"),
        Node::List(_) => "a list".to_owned(),
        Node::Message(_) => "a message".to_owned(),
    };
    ServeError::repository(format!("{field}: expected {expected}, found {found}"))
}

fn text<'a>(path: &str, value: &'a Node) -> Result<&'a str> {
    match value {
        Node::Text(text) => Ok(text),
        other => Err(type_error(path, "a quoted string", other)),
    }
}

fn message<'a>(path: &str, value: &'a Node) -> Result<&'a Fields> {
    match value {
        Node::Message(fields) => Ok(fields),
        other => Err(type_error(path, "a message", other)),
    }
}

fn parse_bool(path: &str, value: &Node) -> Result<bool> {
    let parsed = value.word().and_then(|word| word.parse().ok());
    parsed.ok_or_else(|| type_error(path, "true or false", value))
}

/// Returns an integer as a varint encodes it. JSON quotes 64-bit numbers.
fn integer(path: &str, value: &Node, maximum: impl Into<i128>) -> Result<u64> {
    let minimum = MINIMA.iter().find(|row| row.0 == path).map_or(0, |row| row.1);
    let parsed = value.word().and_then(|word| word.parse().ok());
    let integer = parsed.filter(|integer| (minimum..=maximum.into()).contains(integer));
    Ok(integer.ok_or_else(|| type_error(path, &format!("an integer >= {minimum}"), value))? as u64)
}

/// Visits the values of a repeated field: the items of a list, or a single value.
fn for_each(value: &Node, mut visit: impl FnMut(&Node) -> Result<()>) -> Result<()> {
    match value {
        Node::List(values) => values.iter().try_for_each(visit),
        single_value => visit(single_value),
    }
}

/// Visits the entries of a map: messages with `key` and `value` in the text format, or an object in JSON.
fn for_each_entry(path: &str, value: &Node, mut visit: impl FnMut(String, &Node) -> Result<()>) -> Result<()> {
    for_each(value, |entry| {
        let fields = message(path, entry)?;
        match &fields[..] {
            [(key, Node::Text(name) | Node::Word(name)), (value, node)] if key == "key" && value == "value" => {
                visit(name.clone(), node)
            }
            fields => fields.iter().try_for_each(|(key, value)| visit(key.clone(), value)),
        }
    })
}
