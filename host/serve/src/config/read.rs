//! Extraction of fields from a model configuration tree.

use super::tree::{Fields, Node};
use crate::datatype;
use crate::error::{Result, ServeError};
use crate::proto::ModelVersionPolicy;
use crate::proto::{
    Empty, LatestVersions, ModelConfig, ModelDynamicBatching, ModelInput, ModelInstanceGroup, ModelOutput,
    ModelParameter, ModelQueuePolicy, ModelTensorReshape, ModelTransactionPolicy, ModelWarmup, SpecificVersions,
    VersionPolicyChoice, WarmupInput,
};
use std::str::FromStr;

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

/// Names of the input layouts, by enumeration value.
pub const FORMATS: [&str; 3] = ["FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW"];
/// Names of the instance kinds, by enumeration value.
pub const KINDS: [&str; 4] = ["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"];
/// Maximum number of dimensions of an input or output.
const MAX_RANK: usize = 64;
/// Maximum number of warm-up runs per sample.
const MAX_WARM_UP_RUNS: u32 = 1000;

/// Fields without effect on a CPU server.
const IGNORED_FIELDS: [&str; 5] = ["optimization", "cc_model_filenames", "runtime", "model_metrics", "response_cache"];
/// Unsupported fields that would change results.
const REFUSED_FIELDS: [&str; 6] = [
    "sequence_batching",
    "ensemble_scheduling",
    "model_operations",
    "batch_input",
    "batch_output",
    "model_repository_agents",
];

/// Reads a configuration.
///
/// # Errors
/// If a field is unknown, has an invalid value, or is unsupported.
pub fn read(fields: &Fields) -> Result<ConfigFile> {
    let mut file = ConfigFile::default();
    let config = &mut file.config;
    for (name, value) in fields.iter().filter(|(name, value)| !is_unset(name, value)) {
        match name.as_str() {
            "name" => config.name = text(name, value)?,
            "platform" => config.platform = text(name, value)?,
            "backend" => config.backend = text(name, value)?,
            "default_model_filename" => config.default_model_filename = text(name, value)?,
            "max_batch_size" => {
                config.max_batch_size = parse_at_least(name, value, 0)?;
                file.has_max_batch_size = true;
            }
            "version_policy" => config.version_policy = Some(version_policy(message(name, value)?)?),
            "input" => push_each(value, &mut config.input, |value| input(message("input", value)?))?,
            "output" => push_each(value, &mut config.output, |value| output(message("output", value)?))?,
            "instance_group" => {
                push_each(value, &mut config.instance_group, |value| instances(message("instance_group", value)?))?;
            }
            "dynamic_batching" => config.dynamic_batching = Some(batching(message(name, value)?)?),
            "parameters" => for_each_entry(name, value, |key, value| {
                let mut parameter = ModelParameter::default();
                for (field, value) in message("parameters", value)? {
                    match field.as_str() {
                        "string_value" => parameter.string_value = text(field, value)?,
                        _ => return Err(unknown_field_error("parameters", field)),
                    }
                }
                config.parameters.insert(key, parameter);
                Ok(())
            })?,
            "model_transaction_policy" => {
                let mut policy = ModelTransactionPolicy::default();
                for (field, value) in message(name, value)? {
                    match field.as_str() {
                        "decoupled" => policy.decoupled = parse_value(field, value, "true or false")?,
                        _ => return Err(unknown_field_error(name, field)),
                    }
                }
                refuse_true("model_transaction_policy.decoupled", policy.decoupled)?;
                config.model_transaction_policy = Some(policy);
            }
            "model_warmup" => push_each(value, &mut config.model_warmup, |value| warm_up(message(name, value)?))?,
            "metric_tags" => for_each_entry(name, value, |key, value| {
                config.metric_tags.insert(metric_tag(key)?, text("metric_tags", value)?);
                Ok(())
            })?,
            name if REFUSED_FIELDS.contains(&name) => return Err(refused_field_error(name)),
            name if IGNORED_FIELDS.contains(&name) => file.ignored_fields.push(name.to_owned()),
            _ => return Err(unknown_field_error("the model configuration", name)),
        }
    }
    Ok(file)
}

fn version_policy(fields: &Fields) -> Result<ModelVersionPolicy> {
    let mut policy = None;
    for (name, value) in fields {
        let fields = message(name, value)?;
        policy = Some(match name.as_str() {
            "latest" => {
                let mut latest_versions = LatestVersions { num_versions: 1 };
                for (name, value) in fields {
                    match name.as_str() {
                        "num_versions" => latest_versions.num_versions = parse_at_least(name, value, 1)?,
                        _ => return Err(unknown_field_error("version_policy.latest", name)),
                    }
                }
                VersionPolicyChoice::Latest(latest_versions)
            }
            "all" => VersionPolicyChoice::All(Empty {}),
            "specific" => {
                let mut specific_versions = SpecificVersions::default();
                for (name, value) in fields {
                    match name.as_str() {
                        "versions" => push_each(value, &mut specific_versions.versions, |value| {
                            parse_at_least("versions", value, 1)
                        })?,
                        _ => return Err(unknown_field_error("version_policy.specific", name)),
                    }
                }
                VersionPolicyChoice::Specific(specific_versions)
            }
            _ => return Err(unknown_field_error("version_policy", name)),
        });
    }
    Ok(ModelVersionPolicy { choice: policy })
}

fn input(fields: &Fields) -> Result<ModelInput> {
    let mut input = ModelInput::default();
    for (name, value) in fields {
        match name.as_str() {
            "name" => input.name = text(name, value)?,
            "data_type" => input.data_type = data_type(value)?,
            "format" => {
                input.format = enumeration(name, value, &FORMATS)?;
            }
            "dims" => input.dims = dims(name, value, &input.dims)?,
            "reshape" => input.reshape = Some(reshape(message(name, value)?)?),
            "is_shape_tensor" | "allow_ragged_batch" | "optional" | "is_non_linear_format_io" => {
                refuse_true(&format!("input.{name}"), parse_value(name, value, "true or false")?)?;
            }
            _ => return Err(unknown_field_error("input", name)),
        }
    }
    Ok(input)
}

fn output(fields: &Fields) -> Result<ModelOutput> {
    let mut output = ModelOutput::default();
    for (name, value) in fields {
        match name.as_str() {
            "name" => output.name = text(name, value)?,
            "data_type" => output.data_type = data_type(value)?,
            "dims" => output.dims = dims(name, value, &output.dims)?,
            "reshape" => output.reshape = Some(reshape(message(name, value)?)?),
            "label_filename" => output.label_filename = text(name, value)?,
            "is_shape_tensor" | "is_non_linear_format_io" => {
                refuse_true(&format!("output.{name}"), parse_value(name, value, "true or false")?)?;
            }
            _ => return Err(unknown_field_error("output", name)),
        }
    }
    Ok(output)
}

fn reshape(fields: &Fields) -> Result<ModelTensorReshape> {
    let mut reshape = ModelTensorReshape::default();
    for (name, value) in fields {
        match name.as_str() {
            "shape" => reshape.shape = dims(name, value, &reshape.shape)?,
            _ => return Err(unknown_field_error("reshape", name)),
        }
    }
    Ok(reshape)
}

fn instances(fields: &Fields) -> Result<ModelInstanceGroup> {
    let mut group = ModelInstanceGroup { count: 1, ..ModelInstanceGroup::default() };
    for (name, value) in fields.iter().filter(|(_, value)| !is_default(value)) {
        match name.as_str() {
            "name" => group.name = text(name, value)?,
            "count" => group.count = parse_at_least(name, value, 1)?,
            "kind" => {
                group.kind = enumeration(name, value, &KINDS)?;
                if group.kind == 1 {
                    let message = "instance_group.kind: expected KIND_CPU or KIND_AUTO, found KIND_GPU; \
                                   select the device of a backend with --device";
                    return Err(ServeError::repository(message));
                }
            }
            "rate_limiter" | "passive" | "gpus" | "secondary_devices" | "host_policy" | "profile" => {
                return Err(refused_field_error(&format!("instance_group.{name}")));
            }
            _ => return Err(unknown_field_error("instance_group", name)),
        }
    }
    Ok(group)
}

fn batching(fields: &Fields) -> Result<ModelDynamicBatching> {
    let mut batching = ModelDynamicBatching::default();
    for (name, value) in fields {
        match name.as_str() {
            "preferred_batch_size" => push_each(value, &mut batching.preferred_batch_size, |value| {
                parse_at_least("preferred_batch_size", value, 1)
            })?,
            "max_queue_delay_microseconds" => batching.max_queue_delay_microseconds = parse_at_least(name, value, 0)?,
            "preserve_ordering" => batching.preserve_ordering = parse_value(name, value, "true or false")?,
            "priority_levels" => batching.priority_levels = parse_at_least(name, value, 0)?,
            "default_priority_level" => batching.default_priority_level = parse_at_least(name, value, 0)?,
            "default_queue_policy" => batching.default_queue_policy = Some(queue_policy(message(name, value)?)?),
            "priority_queue_policy" => for_each_entry(name, value, |key, value| {
                let level = key
                    .parse()
                    .map_err(|_| type_error("priority_queue_policy", "a priority level", &Node::Text(key.clone())))?;
                batching.priority_queue_policy.insert(level, queue_policy(message("priority_queue_policy", value)?)?);
                Ok(())
            })?,
            _ => return Err(unknown_field_error("dynamic_batching", name)),
        }
    }
    let (levels, default) = (batching.priority_levels, batching.default_priority_level);
    if default > levels || (levels > 0 && default == 0) {
        return Err(ServeError::repository(format!(
            "default_priority_level: expected a level from 1 to priority_levels ({levels}), found {default}"
        )));
    }
    if let Some(level) = batching.priority_queue_policy.keys().find(|level| !(1..=levels).contains(*level)) {
        return Err(ServeError::repository(format!(
            "priority_queue_policy: expected levels from 1 to priority_levels ({levels}), found {level}"
        )));
    }
    Ok(batching)
}

fn queue_policy(fields: &Fields) -> Result<ModelQueuePolicy> {
    let mut policy = ModelQueuePolicy::default();
    for (name, value) in fields {
        match name.as_str() {
            "timeout_action" => policy.timeout_action = enumeration(name, value, &["REJECT", "DELAY"])?,
            "default_timeout_microseconds" => policy.default_timeout_microseconds = parse_at_least(name, value, 0)?,
            "allow_timeout_override" => policy.allow_timeout_override = parse_value(name, value, "true or false")?,
            "max_queue_size" => policy.max_queue_size = parse_at_least(name, value, 0)?,
            _ => return Err(unknown_field_error("queue policy", name)),
        }
    }
    Ok(policy)
}

/// Checks the name of a Prometheus label.
fn metric_tag(name: String) -> Result<String> {
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !["model", "version", "reason", "region", "le"].contains(&name.as_str());
    let expected = "a name of letters, digits and _ that is not a label of the server";
    if is_name { Ok(name) } else { Err(type_error("metric_tags", expected, &Node::Text(name))) }
}

fn warm_up(fields: &Fields) -> Result<ModelWarmup> {
    let mut warm_up = ModelWarmup { batch_size: 1, count: 1, ..ModelWarmup::default() };
    for (name, value) in fields {
        match name.as_str() {
            "name" => warm_up.name = text(name, value)?,
            "batch_size" => warm_up.batch_size = parse_at_least(name, value, 0)?,
            "count" => {
                let count: u32 = parse_at_least(name, value, 0)?;
                if count > MAX_WARM_UP_RUNS {
                    return Err(type_error("model_warmup.count", &format!("at most {MAX_WARM_UP_RUNS}"), value));
                }
                warm_up.count = count.max(1);
            }
            "inputs" => for_each_entry(name, value, |key, value| {
                warm_up.inputs.insert(key, warm_up_input(message("inputs", value)?)?);
                Ok(())
            })?,
            _ => return Err(unknown_field_error("model_warmup", name)),
        }
    }
    Ok(warm_up)
}

fn warm_up_input(fields: &Fields) -> Result<WarmupInput> {
    let mut input = WarmupInput::default();
    for (name, value) in fields {
        match name.as_str() {
            "data_type" => input.data_type = data_type(value)?,
            "dims" => input.dims = dims(name, value, &input.dims)?,
            "zero_data" => input.zero_data = parse_value(name, value, "true or false")?,
            "random_data" => input.random_data = parse_value(name, value, "true or false")?,
            "input_data_file" => input.input_data_file = text(name, value)?,
            _ => return Err(unknown_field_error("model_warmup.inputs", name)),
        }
    }
    Ok(input)
}

/// Returns true if a field is unsupported or ignored, and has its default value. Such fields are accepted, because JSON
/// configurations returned by the server contain all fields.
fn is_unset(name: &str, value: &Node) -> bool {
    (REFUSED_FIELDS.contains(&name) || IGNORED_FIELDS.contains(&name))
        && (is_default(value) || (IGNORED_FIELDS.contains(&name) && *value == Node::Message(Fields::new())))
}

fn is_default(value: &Node) -> bool {
    match value {
        Node::Word(content) => content == "false",
        Node::Text(text) => text.is_empty(),
        Node::List(values) => values.is_empty(),
        Node::Message(_) => false,
    }
}

fn unknown_field_error(message: &str, field: &str) -> ServeError {
    ServeError::repository(format!("expected a field of {message}, found the unknown field \"{field}\""))
}

fn refused_field_error(field: &str) -> ServeError {
    ServeError::repository(format!("configuration: byoc serve does not support {field}"))
}

fn refuse_true(field: &str, value: bool) -> Result<()> {
    if value { Err(refused_field_error(&format!("{field}: true"))) } else { Ok(()) }
}

fn type_error(field: &str, expected: &str, found: &Node) -> ServeError {
    let found = match found {
        Node::Word(content) => content.clone(),
        Node::Text(text) => format!("{text:?}"),
        Node::List(_) => "a list".to_owned(),
        Node::Message(_) => "a message".to_owned(),
    };
    ServeError::repository(format!("{field}: expected {expected}, found {found}"))
}

fn text(field: &str, value: &Node) -> Result<String> {
    match value {
        Node::Text(text) => Ok(text.clone()),
        other => Err(type_error(field, "a quoted string", other)),
    }
}

fn message<'a>(field: &str, value: &'a Node) -> Result<&'a Fields> {
    match value {
        Node::Message(fields) => Ok(fields),
        other => Err(type_error(field, "a message", other)),
    }
}

/// Visits the values of a repeated field: the items of a list, or a single value.
fn for_each(value: &Node, mut visit: impl FnMut(&Node) -> Result<()>) -> Result<()> {
    match value {
        Node::List(values) => values.iter().try_for_each(visit),
        single_value => visit(single_value),
    }
}

/// Adds the values of a repeated field.
fn push_each<T>(value: &Node, target: &mut Vec<T>, read: impl Fn(&Node) -> Result<T>) -> Result<()> {
    for_each(value, |value| {
        target.push(read(value)?);
        Ok(())
    })
}

/// Visits the entries of a map: messages with `key` and `value` in the text format, or an object in JSON.
fn for_each_entry(field: &str, value: &Node, mut visit: impl FnMut(String, &Node) -> Result<()>) -> Result<()> {
    for_each(value, |entry| {
        let fields = message(field, entry)?;
        match &fields[..] {
            [(key, Node::Text(name) | Node::Word(name)), (value, node)] if key == "key" && value == "value" => {
                visit(name.clone(), node)
            }
            fields => fields.iter().try_for_each(|(key, value)| visit(key.clone(), value)),
        }
    })
}

/// Parses a word or, because JSON quotes 64-bit numbers, a string.
fn parse_value<T: FromStr>(field: &str, value: &Node, expected: &str) -> Result<T> {
    match value {
        Node::Word(text) | Node::Text(text) => text.parse().map_err(|_| type_error(field, expected, value)),
        other => Err(type_error(field, expected, other)),
    }
}

fn parse_at_least<T: FromStr + PartialOrd + std::fmt::Display>(field: &str, value: &Node, min: T) -> Result<T> {
    let expected = format!("an integer >= {min}");
    let parsed_value: T = parse_value(field, value, &expected)?;
    if parsed_value < min { Err(type_error(field, &expected, value)) } else { Ok(parsed_value) }
}

fn dims(field: &str, value: &Node, prefix: &[i64]) -> Result<Vec<i64>> {
    let mut dims = prefix.to_vec();
    push_each(value, &mut dims, |value| parse_at_least(field, value, -1))?;
    if dims.len() > MAX_RANK {
        return Err(type_error(field, &format!("at most {} dimensions", MAX_RANK), value));
    }
    Ok(dims)
}

fn data_type(value: &Node) -> Result<i32> {
    match value {
        Node::Word(name) | Node::Text(name) => {
            datatype::config_number(name).ok_or_else(|| type_error("data_type", "a type such as TYPE_FP32", value))
        }
        other => Err(type_error("data_type", "a type such as TYPE_FP32", other)),
    }
}

fn enumeration(field: &str, value: &Node, names: &[&str]) -> Result<i32> {
    let index = match value {
        Node::Word(name) | Node::Text(name) => names.iter().position(|value_name| value_name == name),
        _ => None,
    };
    index.map(|position| position as i32).ok_or_else(|| type_error(field, &names.join(" or "), value))
}
