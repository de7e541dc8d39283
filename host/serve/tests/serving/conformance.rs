//! Compares the documented protocol fields with the server's message definitions and responses.

use crate::client::{GrpcClient, GrpcError, bytes, frame};
use crate::grpc::{param, request, tensor};
use crate::models::{RunningServer, TYPES, serve, serve_repository, write};
use crate::shared_memory::Object;
use byoc_serve::proto::*;
use byoc_test_support::workspace;
use bytes::{Buf, Bytes};
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Returns the rows of the page's table of HTTP: object, field and state.
fn http_rows() -> Vec<[String; 3]> {
    let text = std::fs::read_to_string(page()).unwrap();
    let (_, section) = text.split_once("## HTTP").unwrap();
    let lines = section.lines().skip(1).take_while(|line| !line.starts_with("## "));
    let rows = lines.filter_map(|line| line.strip_prefix("| ")).map(|row| {
        let mut cells = row.split(" | ").map(|cell| cell.trim().to_owned());
        std::array::from_fn(|_| cells.next().unwrap())
    });
    rows.skip(1).collect()
}

fn page() -> PathBuf {
    workspace().join("docs/serve-conformance.md")
}

/// Returns the messages of model configurations, which end the file.
fn configuration() -> impl Iterator<Item = &'static Descriptor> {
    MESSAGES.iter().skip_while(|message| message.name != "ModelInstanceGroup")
}

/// Returns the name in the page, and the reason, of a state other than served.
fn exception(state: State) -> Option<(&'static str, &'static str)> {
    match state {
        State::Served => None,
        State::Refused(reason) => Some(("refused", reason)),
        State::RefusedIfTrue(reason) => Some(("refused if true", reason)),
        State::Ignored(reason) => Some(("ignored", reason)),
    }
}

#[test]
fn page_lists_the_fields_that_are_not_served() {
    let mut table = "| message | field | | |\n|---|---|---|---|\n".to_owned();
    // Messages of methods that are refused are not listed.
    let is_refused = |message: &Descriptor| message.fields.iter().all(|f| matches!(f.state, State::Refused(_)));
    for message in MESSAGES.iter().filter(|message| !is_refused(message)) {
        for field in message.fields {
            if let Some((state, reason)) = exception(field.state) {
                table.push_str(&format!("| {} | {} | {state} | {reason} |\n", message.name, field.name));
            }
        }
    }
    let text = std::fs::read_to_string(page()).unwrap();
    let (start, rest) = text.split_once(table.lines().next().unwrap()).unwrap();
    let end = rest.find("\n\n").map_or("", |end| &rest[end + 1..]);
    let expected = format!("{start}{table}{end}");
    if std::env::var_os("BYOC_BLESS").is_some() {
        std::fs::write(page(), &expected).unwrap();
    } else {
        assert_eq!(text, expected, "BYOC_BLESS=1 renews the table");
    }
    // Outside of configurations, only these features are unsupported, and no field is ignored.
    for message in MESSAGES.iter().take_while(|message| message.name != "ModelInstanceGroup") {
        for field in message.fields {
            let is_known = exception(field.state).is_none_or(|(state, reason)| {
                let features = ["CUDA shared memory", "tracing", "streaming", "sequences"];
                state == "refused" && features.iter().any(|feature| reason.starts_with(feature))
            });
            assert!(is_known, "{}: {field:?}", message.name);
        }
    }
}

#[test]
fn every_method_is_served_or_refused() {
    let server = serve(&["relu"], &["--allow-control", "--allow-shared-memory"]);
    let mut client = GrpcClient::connect(server.grpc);
    let lines = include_str!("../../inference.proto").lines();
    let methods: Vec<&str> = lines.filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next()).collect();
    assert_eq!(methods.len(), 20);
    for method in methods {
        let is_refused = ["Request", "Response"].iter().any(|suffix| {
            let first = fields(&format!("{method}{suffix}")).and_then(|fields| fields.first());
            first.is_some_and(|field| matches!(field.state, State::Refused(_)))
        });
        let response = client.call(&format!("/inference.GRPCInferenceService/{method}"), &[], frame(&[]));
        let refusal = response.err().filter(|error| error.code == 12);
        assert_eq!(refusal.is_some(), is_refused, "{method}: {refusal:?}");
        assert!(refusal.is_none_or(|error| !error.message.contains("expected a method")), "{method}");
    }
}

/// Adds the fields of an encoded message to the set `keys_seen`.
fn walk(message: &str, mut bytes: Bytes, keys_seen: &mut BTreeSet<String>) {
    while bytes.has_remaining() {
        let (number, wire) = decode_key(&mut bytes).unwrap();
        let value = match wire {
            WireType::Varint => {
                decode_varint(&mut bytes).unwrap();
                Bytes::new()
            }
            WireType::ThirtyTwoBit => bytes.split_to(4),
            WireType::SixtyFourBit => bytes.split_to(8),
            WireType::LengthDelimited => {
                let length = decode_varint(&mut bytes).unwrap() as usize;
                bytes.split_to(length)
            }
            other => panic!("{message}: unexpected wire type {other:?}"),
        };
        let field = fields(message).unwrap().iter().find(|field| field.number == number).unwrap();
        keys_seen.insert(format!("{message}.{}", field.name));
        if let Some((_, value_type)) = field.map_types() {
            if fields(value_type).is_some() {
                let mut entry = value;
                while entry.has_remaining() {
                    let (number, wire) = decode_key(&mut entry).unwrap();
                    if wire == WireType::Varint {
                        decode_varint(&mut entry).unwrap();
                        continue;
                    }
                    let length = decode_varint(&mut entry).unwrap() as usize;
                    let part = entry.split_to(length);
                    if number == 2 {
                        walk(value_type, part, keys_seen);
                    }
                }
            }
            continue;
        }
        if fields(field.element()).is_some() {
            walk(field.element(), value, keys_seen);
        }
    }
}

const CONFIGURATION: &str = r#"
    name: "shaped" platform: "onnxruntime_onnx" backend: "onnxruntime"
    default_model_filename: "net.relay"
    max_batch_size: 8
    version_policy { specific { versions: 1 } }
    input { name: "x" data_type: TYPE_FP32 format: FORMAT_NHWC dims: [ 1, 2, 1 ] reshape { shape: [ 2 ] } }
    output { name: "output_0" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] } label_filename: "labels.txt" }
    instance_group { name: "cpu" count: 2 kind: KIND_CPU }
    dynamic_batching {
      preferred_batch_size: 4 max_queue_delay_microseconds: 1 preserve_ordering: true
      priority_levels: 2 default_priority_level: 1
      default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 60000000 allow_timeout_override: true max_queue_size: 7 }
      priority_queue_policy { key: 2 value { max_queue_size: 3 } }
    }
    metric_tags { key: "team" value: "vision" }
    parameters { key: "a" value { string_value: "b" } }
    model_transaction_policy { decoupled: false }
    model_warmup { name: "w" batch_size: 2 count: 2 inputs { key: "x" value { data_type: TYPE_FP32 dims: [1, 2, 1] zero_data: true } } }
    model_warmup { name: "r" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [1, 2, 1] random_data: true } } }
    model_warmup { name: "f" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [1, 2, 1] input_data_file: "x.bin" } } }
"#;

/// Starts a server with models of every datatype, a model with every configuration field, and a model that does not
/// load.
fn server() -> RunningServer {
    let dir = tempfile::tempdir().unwrap();
    let path_of = |path: &str| dir.path().join(path);
    write(&path_of("relu/1/model.relay"), "relu");
    for (datatype, ..) in TYPES {
        write(&path_of(&format!("copy_{datatype}/1/model.relay")), &format!("copy_{datatype}"));
    }
    write(&path_of("wide/1/model.relay"), "wide");
    write(&path_of("shaped/1/net.relay"), "copy_FP32");
    std::fs::write(path_of("shaped/config.pbtxt"), CONFIGURATION).unwrap();
    std::fs::write(path_of("shaped/labels.txt"), "zero\none\n").unwrap();
    std::fs::create_dir_all(path_of("shaped/warmup")).unwrap();
    std::fs::write(path_of("shaped/warmup/x.bin"), [0; 8]).unwrap();
    for (name, policy) in [("latest", "latest { num_versions: 2 }"), ("all", "all { }")] {
        write(&path_of(&format!("{name}/1/model.relay")), "relu");
        std::fs::write(path_of(&format!("{name}/config.pbtxt")), format!("version_policy {{ {policy} }}")).unwrap();
    }
    std::fs::create_dir_all(path_of("bad/1")).unwrap();
    std::fs::write(path_of("bad/1/model.onnx"), b"garbage").unwrap();
    serve_repository(dir, &["--allow-control", "--allow-shared-memory"])
}

/// Client that records the fields that occur in responses, and the request fields that affect responses.
struct Recorder {
    client: GrpcClient,
    keys_seen: BTreeSet<String>,
}

impl Recorder {
    fn call(&mut self, method: &str, request: &impl Message) -> Result<Bytes, GrpcError> {
        let path = format!("/inference.GRPCInferenceService/{method}");
        self.client.call(&path, &[], frame(&request.encode_to_vec()))
    }

    /// Records the fields of a response.
    fn record(&mut self, method: &str, request: &impl Message) {
        let response = self.call(method, request).unwrap();
        walk(&format!("{method}Response"), response, &mut self.keys_seen);
    }

    /// Records the field in which two requests differ, after checking that the responses differ.
    fn assert_differ(&mut self, field: &str, method: &str, first: &impl Message, other: &impl Message) {
        let (first_request, other) = (self.call(method, first), self.call(method, other));
        assert!(first_request != other, "{field}: expected different responses, found {first_request:?} twice");
        self.keys_seen.insert(field.to_owned());
    }
}

fn plain_request() -> ModelInferRequest {
    request("relu", vec![tensor("x", "FP32", &[1, 4])], vec![bytes(&[-1.0, 2.0, -3.0, 4.0])])
}

fn changed_request(change: impl Fn(&mut ModelInferRequest)) -> ModelInferRequest {
    let mut request = plain_request();
    change(&mut request);
    request
}

fn output(name: &str, parameters: &[(&str, ParameterChoice)]) -> InferRequestedOutput {
    let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), param(value.clone())));
    InferRequestedOutput { name: name.into(), parameters: parameters.collect() }
}

fn region(name: &str, size: i64) -> [(&'static str, ParameterChoice); 2] {
    let name = ParameterChoice::Text(name.to_owned());
    [("shared_memory_region", name), ("shared_memory_byte_size", ParameterChoice::Int(size))]
}

#[test]
fn every_served_field_is_written_or_has_an_effect() {
    let server = server();
    let client = GrpcClient::connect(server.grpc);
    let mut calls = Recorder { client, keys_seen: BTreeSet::new() };
    infer_fields(&mut calls);
    model_fields(&mut calls);
    repository_fields(&mut calls);
    memory_and_log_fields(&mut calls);
    let documented_keys: BTreeSet<String> = MESSAGES
        .iter()
        .flat_map(|message| message.fields.iter().map(move |field| (message.name, field)))
        .filter(|(_, field)| field.state == State::Served)
        .map(|(message, field)| format!("{message}.{}", field.name))
        .collect();
    let missing_keys = documented_keys.difference(&calls.keys_seen);
    // The number of the only memory is 0.
    let missing_keys: Vec<&String> = missing_keys.filter(|key| *key != "MemoryUsage.id").collect();
    let unexpected_keys: Vec<&String> = calls.keys_seen.difference(&documented_keys).collect();
    // The message is present without a value: false is the default, and true is refused.
    let unexpected_keys: Vec<_> =
        unexpected_keys.into_iter().filter(|key| *key != "ModelTransactionPolicy.decoupled").collect();
    assert!(
        missing_keys.is_empty() && unexpected_keys.is_empty(),
        "undocumented keys: {unexpected_keys:?}; documented keys not found: {missing_keys:?}"
    );
}

fn infer_fields(calls: &mut Recorder) {
    const INFER: &str = "ModelInfer";
    let mut request_with_id = plain_request();
    request_with_id.id = "7".into();
    calls.record(INFER, &request_with_id);
    calls.assert_differ("ModelInferRequest.id", INFER, &plain_request(), &request_with_id);
    let mut check_difference = |field: &str, change: &dyn Fn(&mut ModelInferRequest)| {
        calls.assert_differ(field, INFER, &plain_request(), &changed_request(change))
    };
    check_difference("ModelInferRequest.model_name", &|r| r.model_name = "nope".into());
    check_difference("ModelInferRequest.model_version", &|r| r.model_version = "9".into());
    check_difference("ModelInferRequest.parameters", &|r| {
        r.parameters.insert("sequence_id".into(), param(ParameterChoice::Int(1)));
    });
    check_difference("ModelInferRequest.inputs", &|r| r.inputs.clear());
    check_difference("ModelInferRequest.outputs", &|r| r.outputs.push(output("z", &[])));
    check_difference("ModelInferRequest.raw_input_contents", &|r| r.raw_input_contents[0] = bytes(&[9.0; 4]).into());
    check_difference("ModelInferRequest.InferInputTensor.name", &|r| r.inputs[0].name = "y".into());
    check_difference("ModelInferRequest.InferInputTensor.datatype", &|r| r.inputs[0].datatype = "INT32".into());
    check_difference("ModelInferRequest.InferInputTensor.shape", &|r| r.inputs[0].shape = vec![4]);
    check_difference("ModelInferRequest.InferInputTensor.parameters", &|r| {
        r.inputs[0].parameters = output("", &region("none", 16)).parameters;
    });
    check_difference("ModelInferRequest.InferRequestedOutputTensor.name", &|r| {
        r.outputs = vec![output("output_1", &[])]
    });
    check_difference("ModelInferRequest.InferRequestedOutputTensor.parameters", &|r| {
        r.outputs = vec![output("output_0", &[("classification", ParameterChoice::Int(1))])];
    });
    for (field, value) in [
        ("uint64_param", ParameterChoice::Uint(1)),
        ("int64_param", ParameterChoice::Int(1)),
        ("string_param", ParameterChoice::Text("1".into())),
        ("double_param", ParameterChoice::Float(1.0)),
    ] {
        check_difference(&format!("InferParameter.{field}"), &|r| {
            r.outputs = vec![output("output_0", &[("classification", value.clone())])];
        });
    }
    let parameters = [("binary_data", ParameterChoice::Bool(false))];
    check_difference("InferParameter.bool_param", &|r| r.outputs = vec![output("output_0", &parameters)]);
    // Typed contents of every datatype, as inputs and outputs.
    for (datatype, ..) in TYPES.into_iter().filter(|row| !["FP16", "BF16"].contains(&row.0)) {
        let contents = |second_element: i32| {
            let empty_contents = InferTensorContents::default();
            match datatype {
                "BOOL" => InferTensorContents { bool_contents: vec![true, second_element == 1], ..empty_contents },
                "INT8" | "INT16" | "INT32" => {
                    InferTensorContents { int_contents: vec![-5, second_element], ..empty_contents }
                }
                "INT64" => {
                    InferTensorContents { int64_contents: vec![i64::MIN, second_element.into()], ..empty_contents }
                }
                "UINT8" | "UINT16" | "UINT32" => {
                    InferTensorContents { uint_contents: vec![5, second_element as u32], ..empty_contents }
                }
                "UINT64" => {
                    InferTensorContents { uint64_contents: vec![u64::MAX, second_element as u64], ..empty_contents }
                }
                "FP32" => InferTensorContents { fp32_contents: vec![0.5, second_element as f32], ..empty_contents },
                _ => InferTensorContents { fp64_contents: vec![0.5, second_element.into()], ..empty_contents },
            }
        };
        let request_with = |second_element: i32| {
            let input = InferTensor { contents: Some(contents(second_element)), ..tensor("x", datatype, &[1, 2]) };
            let mut request = request(&format!("copy_{datatype}"), vec![input], vec![]);
            request.outputs.push(output("output_0", &parameters));
            request
        };
        calls.assert_differ("ModelInferRequest.InferInputTensor.contents", INFER, &request_with(0), &request_with(1));
        calls.record(INFER, &request_with(1));
        let response = ModelInferResponse::decode(calls.call(INFER, &request_with(1)).unwrap()).unwrap();
        assert!(response.raw_output_contents.is_empty(), "{datatype}");
        // The model concatenates its input with itself.
        let mut concatenated_contents = contents(1).encode_to_vec();
        concatenated_contents.extend(contents(1).encode_to_vec());
        assert_eq!(
            response.outputs[0].contents,
            Some(InferTensorContents::decode(&*concatenated_contents).unwrap()),
            "{datatype}"
        );
    }
    // Classification results are strings.
    let classes = [("classification", ParameterChoice::Int(2)), ("binary_data", ParameterChoice::Bool(false))];
    calls.record(INFER, &changed_request(|r| r.outputs = vec![output("output_0", &classes)]));
    // Datatypes without typed contents stay raw.
    let mut half_request = request("copy_FP16", vec![tensor("x", "FP16", &[1, 2])], vec![vec![0; 4]]);
    half_request.outputs.push(output("output_0", &parameters));
    let response = ModelInferResponse::decode(calls.call(INFER, &half_request).unwrap()).unwrap();
    assert_eq!((response.raw_output_contents[0].len(), &response.outputs[0].contents), (8, &None));
}

fn model_fields(calls: &mut Recorder) {
    for method in ["ServerLive", "ServerMetadata"] {
        calls.record(method, &Empty {});
    }
    for method in ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"] {
        let model_request = |name: &str, version: &str| ModelRequest { name: name.into(), version: version.into() };
        let message = format!("{method}Request");
        calls.assert_differ(&format!("{message}.name"), method, &model_request("relu", ""), &model_request("nope", ""));
        calls.assert_differ(
            &format!("{message}.version"),
            method,
            &model_request("relu", ""),
            &model_request("relu", "9"),
        );
        for model in ["relu", "shaped", "latest", "all", "wide"] {
            calls.record(method, &model_request(model, ""));
        }
    }
    // The model that does not load is unloaded, so that the server is ready.
    let unload = RepositoryModelRequest { model_name: "bad".into(), ..RepositoryModelRequest::default() };
    calls.record("RepositoryIndex", &RepositoryIndexRequest::default());
    let is_ready =
        |calls: &mut Recorder| ReadyResponse::decode(calls.call("ServerReady", &Empty {}).unwrap()).unwrap().ready;
    assert!(!is_ready(calls));
    calls.record("RepositoryModelUnload", &unload);
    assert!(is_ready(calls));
    calls.record("ServerReady", &Empty {});
}

fn repository_fields(calls: &mut Recorder) {
    let index = |repository: &str, ready| RepositoryIndexRequest { repository_name: repository.into(), ready };
    let (all_models, ready_models, other) = (index("", false), index("", true), index("other", false));
    calls.assert_differ("RepositoryIndexRequest.ready", "RepositoryIndex", &all_models, &ready_models);
    calls.assert_differ("RepositoryIndexRequest.repository_name", "RepositoryIndex", &all_models, &other);
    let repository_request = |repository: &str, model: &str| RepositoryModelRequest {
        repository_name: repository.into(),
        model_name: model.into(),
        ..RepositoryModelRequest::default()
    };
    let with_parameter = |request: &RepositoryModelRequest, name: &str, value: RepositoryParameterChoice| {
        let mut request = request.clone();
        request.parameters.insert(name.into(), ModelRepositoryParameter { choice: Some(value) });
        request
    };
    use RepositoryParameterChoice::{Bool, Int, Text};
    for verb in ["Load", "Unload"] {
        let (method, message) = (format!("RepositoryModel{verb}"), format!("RepositoryModel{verb}Request"));
        calls.assert_differ(
            &format!("{message}.repository_name"),
            &method,
            &repository_request("", "relu"),
            &repository_request("other", "relu"),
        );
        calls.assert_differ(
            &format!("{message}.model_name"),
            &method,
            &repository_request("", "relu"),
            &repository_request("", "nope"),
        );
    }
    let load_request = with_parameter(&repository_request("", "sent"), "config", Text("{}".into()));
    let session = byoc::Session::builder().threads(1).build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("relu.relay");
    write(&source, "relu");
    let options = byoc::CompileOptions::new().open_unbound_dims();
    let artifact = byoc::Compilation::new(&session, source, &options).unwrap().to_bytes().unwrap();
    let file = RepositoryParameterChoice::Bytes(artifact.into());
    let file_request = with_parameter(&load_request, "file:1/model.byoc", file);
    calls.record("RepositoryModelLoad", &file_request);
    calls.assert_differ("ModelRepositoryParameter.bytes_param", "RepositoryModelLoad", &file_request, &load_request);
    let invalid_request =
        with_parameter(&repository_request("", "relu"), "config", Text("{\"max_batch_size\": -1}".into()));
    calls.assert_differ(
        "RepositoryModelLoadRequest.parameters",
        "RepositoryModelLoad",
        &repository_request("", "relu"),
        &invalid_request,
    );
    let right = with_parameter(&repository_request("", "relu"), "config", Text("{\"max_batch_size\": 2}".into()));
    calls.assert_differ("ModelRepositoryParameter.string_param", "RepositoryModelLoad", &right, &invalid_request);
    let unload_request = |value| with_parameter(&repository_request("", "all"), "unload_dependents", value);
    calls.assert_differ(
        "ModelRepositoryParameter.int64_param",
        "RepositoryModelUnload",
        &unload_request(Bool(true)),
        &unload_request(Int(1)),
    );
    let unknown = with_parameter(&repository_request("", "all"), "other", Bool(true));
    calls.assert_differ(
        "ModelRepositoryParameter.bool_param",
        "RepositoryModelUnload",
        &unload_request(Bool(true)),
        &unknown,
    );
    calls.assert_differ(
        "RepositoryModelUnloadRequest.parameters",
        "RepositoryModelUnload",
        &repository_request("", "all"),
        &unknown,
    );
}

fn memory_and_log_fields(calls: &mut Recorder) {
    let object = Object::new(4096);
    let base_region = SharedMemoryRegion { name: "r".into(), key: object.key.clone(), offset: 8, byte_size: 64 };
    calls.record("SystemSharedMemoryRegister", &base_region);
    let region_named = |name: &str| SharedMemoryRegion { name: name.into(), ..base_region.clone() };
    let register = "SystemSharedMemoryRegister";
    let mut check_regions = |field: &str, first: &SharedMemoryRegion, other_region: &SharedMemoryRegion| {
        calls.assert_differ(&format!("SystemSharedMemoryRegisterRequest.{field}"), register, first, other_region);
    };
    check_regions("name", &base_region, &region_named("s"));
    check_regions(
        "key",
        &region_named("t"),
        &SharedMemoryRegion { key: "byoc_no_such_key".into(), ..region_named("u") },
    );
    check_regions("offset", &region_named("u"), &SharedMemoryRegion { offset: 9999, ..region_named("v") });
    check_regions("byte_size", &region_named("v"), &SharedMemoryRegion { byte_size: 9999, ..region_named("w") });
    let named_request = |name: &str| SharedMemoryRequest { name: name.into() };
    calls.record("SystemSharedMemoryStatus", &named_request(""));
    let status = "SystemSharedMemoryStatus";
    calls.assert_differ("SystemSharedMemoryStatusRequest.name", status, &named_request(""), &named_request("r"));
    let request_with_output = changed_request(|r| r.outputs = vec![output("output_0", &region("r", 16))]);
    calls.record("ModelInfer", &request_with_output);
    assert_eq!(object.read(8, 4), [0.0, 2.0, 0.0, 4.0]);
    let response_before = calls.call(status, &named_request("s")).unwrap();
    assert!(!response_before.is_empty());
    calls.call("SystemSharedMemoryUnregister", &named_request("s")).unwrap();
    assert!(calls.call(status, &named_request("s")).is_err() && calls.call(status, &named_request("r")).is_ok());
    calls.keys_seen.insert("SystemSharedMemoryUnregisterRequest.name".into());

    let setting = |name: &str, choice_name: LogSettingChoice| LogSettings {
        settings: BTreeMap::from([(name.to_owned(), LogSetting { choice: Some(choice_name) })]),
    };
    use LogSettingChoice::{Bool, Text, Uint};
    let log = "LogSettings";
    calls.record(log, &LogSettings::default());
    for (field, name, first, other) in [
        ("bool_param", "log_warning", Bool(false), Bool(true)),
        ("uint32_param", "log_verbose_level", Uint(1), Uint(0)),
        ("string_param", "log_file", Text(String::new()), Text("/x".into())),
    ] {
        let (first, other) = (setting(name, first), setting(name, other));
        calls.assert_differ(&format!("LogSettingsRequest.SettingValue.{field}"), log, &first, &other);
    }
    let invalid_request = setting("log_nothing", Bool(true));
    calls.assert_differ("LogSettingsRequest.settings", log, &LogSettings::default(), &invalid_request);
}

#[test]
fn refused_and_ignored_fields_of_configurations() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("m/1/model.relay"), "relu");
    let server = serve_repository(dir, &["--allow-control"]);
    let mut client = server.client();
    let mut load = |config: &Value| {
        let body = json!({"parameters": {"config": config.to_string()}});
        client.post("/v2/repository/models/m/load", &body)
    };
    for message in configuration() {
        for field in message.fields.iter().filter(|field| field.state != State::Served) {
            let value = match field.ty {
                "bool" => json!(true),
                "string" => json!("x"),
                repeated if repeated.starts_with("repeated") => json!([{}]),
                map if map.starts_with("map") => json!({"a": "b"}),
                _ => json!({"a": 1}),
            };
            let fields = json!({field.name: value});
            let config = match message.name {
                "ModelConfig" => fields,
                "ModelInput" => json!({"input": [fields]}),
                "ModelOutput" => json!({"output": [fields]}),
                "ModelInstanceGroup" => json!({"instance_group": [fields]}),
                "ModelTransactionPolicy" => json!({"model_transaction_policy": fields}),
                other => panic!("{other}: expected a message of the model configuration"),
            };
            let reply = load(&config);
            if matches!(field.state, State::Ignored(_)) {
                reply.ok();
                continue;
            }
            assert!(reply.json()["code"] == "E0803", "{config}");
            let text = reply.error(400);
            assert!(text.contains(field.name) && text.contains("byoc serve does not support"), "{config}: {text}");
        }
    }
    let text = load(&json!({"instance_group": [{"kind": "KIND_GPU"}]})).error(400);
    assert!(text.contains("KIND_GPU"), "{text}");
}

#[test]
fn fields_of_http_are_written_or_have_an_effect() {
    let page_rows = http_rows();
    let server = server();
    let object = Object::new(64);
    let mut client = server.client();
    let register = json!({"key": object.key, "offset": 0, "byte_size": 64});
    client.post("/v2/systemsharedmemory/region/r/register", &register).ok();
    let mut fields_seen: BTreeSet<(String, String)> = BTreeSet::new();
    let mut record = |object: &str, value: &Value| {
        fields_seen.extend(value.as_object().unwrap().keys().map(|key| (object.to_owned(), key.clone())));
    };
    let input = json!({"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [-1, 2, -3, 4]});
    let base_request = json!({"inputs": [input]});
    let shared_input = json!({"shared_memory_region": "r", "shared_memory_byte_size": 16});
    let mut request_with_id = base_request.clone();
    request_with_id["id"] = "7".into();
    let mut request_in_region = base_request.clone();
    request_in_region["outputs"] = json!([{"name": "output_0", "parameters": shared_input}]);
    for request in [&base_request, &request_with_id, &request_in_region] {
        let response = client.infer("relu", request).ok().json();
        record("response", &response);
        record("response output", &response["outputs"][0]);
    }
    record("error", &client.infer("nope", &base_request).json());
    let mut assert_differ = |object: &str, field: &str, change: &dyn Fn(&mut Value)| {
        let mut other = base_request.clone();
        change(&mut other);
        let responses = [&base_request, &other].map(|request| client.infer("relu", request).body);
        assert!(responses[0] != responses[1], "{object} {field}: {}", String::from_utf8_lossy(&responses[0]));
        fields_seen.insert((object.to_owned(), field.to_owned()));
    };
    assert_differ("request", "id", &|r| r["id"] = "7".into());
    assert_differ("request", "parameters", &|r| r["parameters"] = json!({"binary_data_output": true}));
    assert_differ("request", "inputs", &|r| r["inputs"] = json!([]));
    assert_differ("request", "outputs", &|r| r["outputs"] = json!([{"name": "z"}]));
    assert_differ("request input", "name", &|r| r["inputs"][0]["name"] = "y".into());
    assert_differ("request input", "shape", &|r| r["inputs"][0]["shape"] = json!([4]));
    assert_differ("request input", "datatype", &|r| r["inputs"][0]["datatype"] = "INT8".into());
    assert_differ("request input", "data", &|r| r["inputs"][0]["data"][1] = 5.into());
    assert_differ("request input", "parameters", &|r| r["inputs"][0]["parameters"] = json!({"binary_data_size": 16}));
    assert_differ("request output", "name", &|r| r["outputs"] = json!([{"name": "z"}]));
    assert_differ("request output", "parameters", &|r| {
        r["outputs"] = json!([{"name": "output_0", "parameters": {"classification": 1}}]);
    });
    let rows = |state: &str| -> BTreeSet<(String, String)> {
        let rows = page_rows.iter().filter(|row| row[2] == state);
        rows.map(|[object, field, _]| (object.clone(), field.clone())).collect()
    };
    assert_eq!(fields_seen, rows("served"));
    assert_eq!(rows("refused"), BTreeSet::from([("response".to_owned(), "parameters".to_owned())]));
    // The path may contain the repository name.
    let name = server.temp_dir.path().file_name().unwrap().to_str().unwrap();
    let index = client.post(&format!("/v2/repository/{name}/index"), &json!({})).ok().json();
    assert!(index.as_array().unwrap().len() > 5, "{index}");
    client.post(&format!("/v2/repository/{name}/models/relu/unload"), &json!({})).ok();
    client.post(&format!("/v2/repository/{name}/models/relu/load"), &json!({})).ok();
    let text =
        client.post("/v2/repository/models/relu/unload", &json!({"parameters": {"unload_dependents": 1}})).error(400);
    assert!(text.contains("expected true or false, found 1"), "{text}");
}
