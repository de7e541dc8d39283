//! Model configuration as JSON, with the field names, default values and enumeration names of the protocol buffers
//! message.

use super::read::{FORMATS, KINDS};
use crate::datatype::config_name;
use crate::proto::{
    ModelConfig, ModelDynamicBatching, ModelQueuePolicy, ModelTensorReshape, ModelWarmup, VersionPolicyChoice,
};
use serde_json::{Map, Value, json};

/// Converts a configuration to JSON.
pub fn to_json(config: &ModelConfig) -> Value {
    let input = config.input.iter().map(|input| {
        let format = FORMATS.get(input.format as usize);
        let mut fields = json!({
            "name": input.name,
            "data_type": config_name(input.data_type),
            "format": format,
            "dims": input.dims,
            "is_shape_tensor": input.is_shape_tensor,
            "allow_ragged_batch": input.allow_ragged_batch,
            "optional": input.optional,
            "is_non_linear_format_io": input.is_non_linear_format_io,
        });
        add_reshape(&mut fields, input.reshape.as_ref());
        fields
    });
    let output = config.output.iter().map(|output| {
        let mut fields = json!({
            "name": output.name,
            "data_type": config_name(output.data_type),
            "dims": output.dims,
            "label_filename": output.label_filename,
            "is_shape_tensor": output.is_shape_tensor,
            "is_non_linear_format_io": output.is_non_linear_format_io,
        });
        add_reshape(&mut fields, output.reshape.as_ref());
        fields
    });
    let instance_group = config.instance_group.iter().map(|group| {
        let kind = KINDS.get(group.kind as usize);
        json!({"name": group.name, "kind": kind, "count": group.count, "gpus": [], "secondary_devices": [],
               "profile": [], "passive": false, "host_policy": ""})
    });
    let parameters: Map<String, Value> = config
        .parameters
        .iter()
        .map(|(name, value)| (name.clone(), json!({"string_value": value.string_value})))
        .collect();
    let version_policy = match config.version_policy.as_ref().and_then(|policy| policy.choice.as_ref()) {
        Some(VersionPolicyChoice::All(_)) => json!({"all": {}}),
        Some(VersionPolicyChoice::Specific(specific)) => json!({"specific": {"versions": specific.versions}}),
        Some(VersionPolicyChoice::Latest(latest_versions)) => {
            json!({"latest": {"num_versions": latest_versions.num_versions}})
        }
        None => json!({"latest": {"num_versions": 1}}),
    };
    let mut fields = json!({
        "name": config.name,
        "platform": config.platform,
        "backend": config.backend,
        "runtime": "",
        "version_policy": version_policy,
        "max_batch_size": config.max_batch_size,
        "input": input.collect::<Vec<_>>(),
        "output": output.collect::<Vec<_>>(),
        "batch_input": [],
        "batch_output": [],
        "optimization": {},
        "instance_group": instance_group.collect::<Vec<_>>(),
        "default_model_filename": config.default_model_filename,
        "cc_model_filenames": {},
        "metric_tags": config.metric_tags,
        "parameters": parameters,
        "model_warmup": config.model_warmup.iter().map(warm_up_json).collect::<Vec<_>>(),
        "model_transaction_policy": {"decoupled": false},
    });
    if let Some(batching) = &config.dynamic_batching {
        fields["dynamic_batching"] = batching_json(batching);
    }
    fields
}

fn warm_up_json(warm_up: &ModelWarmup) -> Value {
    let inputs: Map<String, Value> = warm_up
        .inputs
        .iter()
        .map(|(name, input)| {
            let data_type = config_name(input.data_type);
            let mut fields = json!({"dims": input.dims});
            if input.data_type != 0 {
                fields["data_type"] = data_type.into();
            }
            match (input.zero_data, input.random_data, input.input_data_file.as_str()) {
                (_, true, _) => fields["random_data"] = true.into(),
                (_, _, "") => fields["zero_data"] = true.into(),
                (_, _, file) => fields["input_data_file"] = file.into(),
            }
            (name.clone(), fields)
        })
        .collect();
    json!({"name": warm_up.name, "batch_size": warm_up.batch_size, "count": warm_up.count, "inputs": inputs})
}

fn add_reshape(fields: &mut Value, reshape: Option<&ModelTensorReshape>) {
    if let Some(reshape) = reshape {
        fields["reshape"] = json!({"shape": reshape.shape});
    }
}

fn batching_json(batching: &ModelDynamicBatching) -> Value {
    let policies: Map<String, Value> =
        batching.priority_queue_policy.iter().map(|(level, policy)| (level.to_string(), policy_json(policy))).collect();
    let mut fields = json!({
        "preferred_batch_size": batching.preferred_batch_size,
        "max_queue_delay_microseconds": batching.max_queue_delay_microseconds,
        "preserve_ordering": batching.preserve_ordering,
        "priority_levels": batching.priority_levels,
        "default_priority_level": batching.default_priority_level,
        "priority_queue_policy": policies,
    });
    if let Some(policy) = &batching.default_queue_policy {
        fields["default_queue_policy"] = policy_json(policy);
    }
    fields
}

fn policy_json(policy: &ModelQueuePolicy) -> Value {
    json!({
        "timeout_action": if policy.timeout_action == 0 { "REJECT" } else { "DELAY" },
        "default_timeout_microseconds": policy.default_timeout_microseconds,
        "allow_timeout_override": policy.allow_timeout_override,
        "max_queue_size": policy.max_queue_size,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{parse_json, parse_text};
    use super::to_json;
    use crate::proto::{ModelConfig, ModelTransactionPolicy};

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
        assert!(warm_up.batch_size == 2 && warm_up.inputs["x"].dims == [3, 5] && warm_up.inputs["x"].zero_data);
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
