//! Compares the documented protocol fields with the server's message definitions and responses.

use crate::client::{GrpcClient, GrpcError, bytes, frame};
use crate::grpc::{param, request, tensor};
use crate::models::{RunningServer, TYPES, serve_repository, write};
use crate::shared_memory::Object;
use byoc_serve::proto::*;
use byoc_test_support::workspace;
use bytes::{Buf, Bytes};
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Documented field of a message.
struct Field {
    number: u32,
    name: String,
    ty: String,
    state: String,
    note: String,
}

/// Documented messages and HTTP fields.
struct Page {
    messages: BTreeMap<String, Vec<Field>>,
    /// Messages in the section on model configurations.
    configuration: BTreeSet<String>,
    http: Vec<[String; 3]>,
}

impl Page {
    fn read() -> Page {
        let text = std::fs::read_to_string(workspace().join("docs/serve-conformance.md")).unwrap();
        let mut page = Page { messages: BTreeMap::new(), configuration: BTreeSet::new(), http: Vec::new() };
        let (mut section, mut message) = (String::new(), String::new());
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                title.clone_into(&mut section);
            } else if let Some(title) = line.strip_prefix("### ") {
                title.clone_into(&mut message);
                page.messages.insert(message.clone(), Vec::new());
                if section == "Model configuration" {
                    page.configuration.insert(message.clone());
                }
            } else if let Some(row) = line.strip_prefix("| ") {
                let cells: Vec<&str> = row.trim_end_matches('|').split(" | ").map(str::trim).collect();
                if section == "HTTP" && cells[0] != "object" {
                    page.http.push([cells[0].to_owned(), cells[1].to_owned(), cells[2].to_owned()]);
                } else if let Ok(number) = cells[0].parse() {
                    let cell = |cell_index: usize| cells[cell_index].trim_matches('`').to_owned();
                    let note = cells.get(4).map(|note| (*note).to_owned()).unwrap_or_default();
                    let field = Field { number, name: cell(1), ty: cell(2), state: cell(3), note };
                    page.messages.get_mut(&message).unwrap().push(field);
                }
            }
        }
        page
    }

    fn keys(&self, state: &str) -> BTreeSet<String> {
        let rows_of = |(message, fields): (&String, &Vec<Field>)| {
            let fields = fields.iter().filter(|field| field.state == state);
            fields.map(|field| format!("{message}.{}", field.name)).collect::<Vec<_>>()
        };
        self.messages.iter().flat_map(rows_of).collect()
    }
}

/// Messages whose name in the code differs from the documented name: documented name, name in the code.
const COMPILED_AS: [(&str, &str); 23] = [
    ("ServerReadyResponse", "ReadyResponse"),
    ("ModelReadyResponse", "ReadyResponse"),
    ("ModelReadyRequest", "ModelRequest"),
    ("ModelMetadataRequest", "ModelRequest"),
    ("ModelConfigRequest", "ModelRequest"),
    ("ModelStatisticsRequest", "ModelRequest"),
    ("ModelMetadataResponse.TensorMetadata", "TensorMetadata"),
    ("ModelInferRequest.InferInputTensor", "InferTensor"),
    ("ModelInferResponse.InferOutputTensor", "InferTensor"),
    ("ModelInferRequest.InferRequestedOutputTensor", "InferRequestedOutput"),
    ("RepositoryIndexResponse.ModelIndex", "ModelIndex"),
    ("RepositoryModelLoadRequest", "RepositoryModelRequest"),
    ("RepositoryModelUnloadRequest", "RepositoryModelRequest"),
    ("SystemSharedMemoryStatusRequest", "SharedMemoryRequest"),
    ("SystemSharedMemoryUnregisterRequest", "SharedMemoryRequest"),
    ("SystemSharedMemoryStatusResponse", "SharedMemoryStatusResponse"),
    ("SystemSharedMemoryStatusResponse.RegionStatus", "SharedMemoryRegion"),
    ("SystemSharedMemoryRegisterRequest", "SharedMemoryRegion"),
    ("LogSettingsRequest", "LogSettings"),
    ("LogSettingsResponse", "LogSettings"),
    ("ModelVersionPolicy.Latest", "LatestVersions"),
    ("ModelVersionPolicy.Specific", "SpecificVersions"),
    ("ModelWarmup.Input", "WarmupInput"),
];

/// Messages that the code defines as oneof types: message name, oneof type.
const CHOICE_OF: [(&str, &str); 5] = [
    ("InferParameter", "ParameterChoice"),
    ("ModelRepositoryParameter", "RepositoryParameterChoice"),
    ("LogSettingsRequest.SettingValue", "LogSettingChoice"),
    ("LogSettingsResponse.SettingValue", "LogSettingChoice"),
    ("ModelVersionPolicy", "VersionPolicyChoice"),
];

/// Returns the `prost` attribute that declares a type.
fn attribute(page: &Page, ty: &str, number: u32, is_choice: bool) -> String {
    let is_scalar = |ty: &str| ty.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let element = |ty: &str| match ty {
        "bytes" => "bytes=\"bytes\"".to_owned(),
        ty if is_scalar(ty) => ty.to_owned(),
        // A type that is not a documented message is an enumeration.
        ty if !page.messages.contains_key(ty) && ty != "ModelVersionPolicy.All" => "int32".to_owned(),
        _ => "message".to_owned(),
    };
    let type_name = if let Some(inner) = ty.strip_prefix("map<") {
        let (key, value) = inner.trim_end_matches('>').split_once(", ").unwrap();
        format!("btree_map=\"{key},{}\"", element(value))
    } else if let Some(inner) = ty.strip_prefix("repeated ") {
        format!("{},repeated", element(inner))
    } else if element(ty) == "message" && !is_choice {
        "message,optional".to_owned()
    } else {
        element(ty)
    };
    format!("prost({type_name},tag=\"{number}\")")
}

fn compiled(message: &str) -> Option<Vec<(Option<&'static str>, String)>> {
    let remove_spaces = |attribute: &str| attribute.replace([' ', '\n'], "");
    if let Some((_, choice_name)) = CHOICE_OF.iter().find(|row| row.0 == message) {
        let fields = CHOICES.iter().find(|row| row.0 == *choice_name).expect("expected a oneof type, found none").1;
        return Some(fields.iter().map(|attribute| (None, remove_spaces(attribute))).collect());
    }
    let name = COMPILED_AS.iter().find(|row| row.0 == message).map_or(message, |row| row.1);
    let fields = MESSAGES.iter().find(|row| row.0 == name)?.1;
    Some(fields.iter().map(|(name, attribute)| (Some(*name), remove_spaces(attribute))).collect())
}

#[test]
fn page_agrees_with_the_compiled_messages() {
    let page = Page::read();
    assert!(page.messages.len() > 70, "expected more than 70 messages, found {}", page.messages.len());
    for (message, fields) in &page.messages {
        let compiled = compiled(message);
        let is_choice = CHOICE_OF.iter().any(|row| row.0 == message);
        for field in fields {
            let field_path = format!("{message}.{}", field.name);
            assert!(["served", "refused", "ignored"].contains(&field.state.as_str()), "{field_path}: {}", field.state);
            let expected = attribute(&page, &field.ty, field.number, is_choice);
            let compiled_field = compiled.iter().flatten().find(|(_, compiled_field)| *compiled_field == expected);
            if field.state == "served" {
                let (name, _) =
                    compiled_field.unwrap_or_else(|| panic!("{field_path}: expected {expected}, found {compiled:?}"));
                let own_name = if field_path == "MemoryUsage.type" { "kind" } else { field.name.as_str() };
                assert!(name.is_none_or(|name| name == own_name), "{field_path}: {name:?}");
            }
            // Outside configurations, only these features are unsupported, and no field is ignored.
            if !page.configuration.contains(message) && field.state != "served" {
                let reasons = ["CUDA shared memory", "tracing", "streaming", "sequences"];
                assert!(field.state == "refused" && reasons.iter().any(|r| field.note.starts_with(r)), "{field_path}");
            }
        }
        // Each compiled field is documented in a table, or in the paragraph on KServe's versions.
        for (name, attribute) in compiled.iter().flatten() {
            let tag = attribute.split("tag=\"").nth(1).and_then(|tail| tail.split('"').next()).unwrap();
            let is_known_tag = fields.iter().any(|field| field.number.to_string() == tag);
            assert!(
                is_known_tag || message == "ModelMetadataResponse" && *name == Some("properties"),
                "{message} {attribute}"
            );
        }
        if message.starts_with("Cuda") || message.starts_with("Trace") || message.starts_with("ModelStream") {
            assert!(compiled.is_none(), "{message}");
        }
    }
}

/// Adds the fields of an encoded message to the set `keys_seen`.
fn walk(page: &Page, message: &str, mut bytes: Bytes, keys_seen: &mut BTreeSet<String>) {
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
        let Some(field) = page.messages[message].iter().find(|field| field.number == number) else {
            assert!(message == "ModelMetadataResponse" && number == 6, "{message}: unknown field {number}");
            continue;
        };
        keys_seen.insert(format!("{message}.{}", field.name));
        if let Some(inner) = field.ty.strip_prefix("map<") {
            let (_, value_type) = inner.trim_end_matches('>').split_once(", ").unwrap();
            if page.messages.contains_key(value_type) {
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
                        walk(page, value_type, part, keys_seen);
                    }
                }
            }
            continue;
        }
        let inner = field.ty.strip_prefix("repeated ").unwrap_or(&field.ty);
        if page.messages.contains_key(inner) {
            walk(page, inner, value, keys_seen);
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
    page: Page,
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
        // Only KServe's version of these responses has fields.
        if !method.starts_with("RepositoryModel") {
            walk(&self.page, &format!("{method}Response"), response, &mut self.keys_seen);
        }
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
    let mut calls = Recorder { page: Page::read(), client, keys_seen: BTreeSet::new() };
    infer_fields(&mut calls);
    model_fields(&mut calls);
    repository_fields(&mut calls);
    memory_and_log_fields(&mut calls);
    let documented_keys = calls.page.keys("served");
    let always_zero = |key: &&String| {
        let (message, name) = key.rsplit_once('.').unwrap();
        calls.page.messages[message].iter().any(|field| field.name == name && field.note == "0")
    };
    let missing_keys: Vec<&String> =
        documented_keys.difference(&calls.keys_seen).filter(|key| !always_zero(key)).collect();
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
    calls.call("RepositoryModelLoad", &file_request).unwrap();
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
    let page = Page::read();
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("m/1/model.relay"), "relu");
    let server = serve_repository(dir, &["--allow-control"]);
    let mut client = server.client();
    let mut load = |config: &Value| {
        let body = json!({"parameters": {"config": config.to_string()}});
        client.post("/v2/repository/models/m/load", &body)
    };
    for message in &page.configuration {
        for field in page.messages[message].iter().filter(|field| field.state != "served") {
            let value = match field.ty.as_str() {
                "bool" => json!(true),
                "string" => json!("x"),
                repeated if repeated.starts_with("repeated") => json!([{}]),
                map if map.starts_with("map") => json!({"a": "b"}),
                _ => json!({"a": 1}),
            };
            let fields = json!({field.name.clone(): value});
            let config = match message.as_str() {
                "ModelConfig" => fields,
                "ModelInput" => json!({"input": [fields]}),
                "ModelOutput" => json!({"output": [fields]}),
                "ModelInstanceGroup" => json!({"instance_group": [fields]}),
                "ModelTransactionPolicy" => json!({"model_transaction_policy": fields}),
                other => panic!("{other}: expected a message of the model configuration"),
            };
            let reply = load(&config);
            if field.state == "ignored" {
                reply.ok();
                continue;
            }
            assert!(reply.json()["code"] == "E0803", "{config}");
            let text = reply.error(400);
            assert!(text.contains(&field.name) && text.contains("byoc serve does not support"), "{config}: {text}");
        }
    }
    let text = load(&json!({"instance_group": [{"kind": "KIND_GPU"}]})).error(400);
    assert!(text.contains("KIND_GPU"), "{text}");
}

#[test]
fn fields_of_http_are_written_or_have_an_effect() {
    let page = Page::read();
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
        let rows = page.http.iter().filter(|row| row[2] == state);
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
