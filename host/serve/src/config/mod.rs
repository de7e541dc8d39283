//! Model configurations: `config.pbtxt` in the protocol buffers text format, and the same message as JSON.
//!
//! Both formats are parsed to the same tree, from which [`read`] extracts the fields. An unsupported field is an error
//! that names the field, because ignoring part of a configuration could cause wrong results.

mod read;
mod text;
mod tree;

pub use read::{ConfigFile, read};

use crate::error::Result;
use crate::proto::{self, ModelConfig};
use serde_json::{Value, json};

/// Parses the contents of a `config.pbtxt`.
///
/// # Errors
/// If the text is malformed, or a field is unknown, invalid or unsupported.
pub fn parse_text(text: &str) -> Result<ConfigFile> {
    read(&text::parse(text)?)
}

/// Parses a configuration in JSON.
///
/// # Errors
/// Same as [`parse_text`].
pub fn parse_json(text: &str) -> Result<ConfigFile> {
    read(&tree::from_json(text)?)
}

/// Converts a configuration to JSON, with the messages that clients of Triton look for in every configuration.
pub fn to_json(config: &ModelConfig) -> Value {
    let mut fields = proto::to_json("ModelConfig", config);
    for (name, default) in [
        ("version_policy", json!({"latest": {"num_versions": 1}})),
        ("optimization", json!({})),
        ("model_transaction_policy", json!({"decoupled": false})),
    ] {
        if fields[name].is_null() {
            fields[name] = default;
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{ModelTransactionPolicy, WarmupChoice};

    const TEXT: &str = r#"
        name: "m"
        backend: "onnxruntime"
        max_batch_size: 8
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] reshape { shape: [ 3, 1, -1 ] } } ]
        output { name: "y" data_type: TYPE_INT64 dims: 10 label_filename: "labels.txt" }
        version_policy: { specific { versions: [ 1, 3 ] } }
        instance_group [ { count: 2 kind: KIND_CPU } ]
        dynamic_batching {
          preferred_batch_size: [ 4, 8 ]
          max_queue_delay_microseconds: 100
          priority_levels: 2
          default_priority_level: 1
          default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 max_queue_size: 7 }
          priority_queue_policy { key: 2 value { max_queue_size: 3 } }
        }
        parameters { key: "a" value { string_value: "b" } }
        model_warmup { name: "w" batch_size: 2 inputs { key: "x" value { dims: [3, 5] zero_data: true } } }
        metric_tags { key: "team" value: "vision" }
        optimization { graph { level: 1 } }
    "#;

    #[test]
    fn text_and_json_have_the_same_fields() {
        let file = parse_text(TEXT).unwrap();
        assert!(file.has_max_batch_size && file.ignored_fields == ["optimization"]);
        let warm_up = &file.config.model_warmup[0];
        assert!(warm_up.batch_size == 2 && warm_up.inputs["x"].dims == [3, 5]);
        assert_eq!(warm_up.inputs["x"].choice, Some(WarmupChoice::ZeroData(true)));
        assert_eq!(file.config.metric_tags["team"], "vision");
        let reparsed = parse_json(&to_json(&file.config).to_string()).unwrap();
        let policy = Some(ModelTransactionPolicy::default());
        assert_eq!(reparsed.config, ModelConfig { model_transaction_policy: policy, ..file.config });
        assert!(reparsed.ignored_fields.is_empty());
    }

    #[test]
    fn wrong_fields_are_errors() {
        let cases = [
            ("max_batch_size: -1", "max_batch_size: expected an integer >= 0, found -1"),
            ("max_batch_size: 99999999999", "max_batch_size: expected an integer >= 0"),
            ("max_batchsize: 1", "unknown field \"max_batchsize\""),
            ("sequence_batching { }", "does not support sequence_batching"),
            ("ensemble_scheduling { }", "does not support ensemble_scheduling"),
            ("model_transaction_policy { decoupled: true }", "does not support model_transaction_policy.decoupled"),
            ("input { optional: true }", "does not support input.optional"),
            ("input { data_type: FP32 }", "data_type: expected a type such as TYPE_FP32, found FP32"),
            ("input { dims: -2 }", "dims: expected an integer >= -1, found -2"),
            ("input: 3", "input: expected a message, found 3"),
            ("name: 3", "name: expected a quoted string, found 3"),
            ("instance_group { kind: KIND_GPU }", "found KIND_GPU"),
            ("instance_group { count: 0 }", "count: expected an integer >= 1, found 0"),
            ("dynamic_batching { priority_levels: 2 }", "default_priority_level: expected a level from 1"),
            ("dynamic_batching { default_queue_policy { timeout_action: DROP } }", "expected REJECT or DELAY"),
            ("version_policy { newest { } }", "unknown field \"newest\""),
            ("model_warmup { count: 100000 }", "at most 1000"),
            ("metric_tags { key: \"model\" value: \"x\" }", "that is not a label of the server"),
            ("metric_tags { key: \"a b\" value: \"x\" }", "metric_tags: expected a name of letters"),
        ];
        for (text, expected) in cases {
            let error = parse_text(text).unwrap_err();
            assert!(error.message.contains(expected), "{text}: {error}");
        }
        assert!(parse_json("[]").unwrap_err().message.contains("JSON object"));
        assert!(parse_json("{").unwrap_err().message.contains("not valid JSON"));
    }
}
