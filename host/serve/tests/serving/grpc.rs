//! Tests of the gRPC interface.

use crate::client::{GrpcError, bytes, call, call_with, floats, frame};
use crate::models::{RunningServer, TYPES, serve};
use byoc_serve::proto::{
    Empty, HealthCheckResponse, InferParameter, InferRequestedOutput, InferTensor, InferTensorContents, LogSetting,
    LogSettingChoice, LogSettings, ModelConfigResponse, ModelInferRequest, ModelInferResponse, ModelMetadataResponse,
    ModelRequest, ModelStatisticsResponse, ParameterChoice, ReadyResponse, RepositoryIndexRequest,
    RepositoryIndexResponse, ServerLiveResponse, ServerMetadataResponse, SharedMemoryRequest,
};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use prost::Message;
use std::io::Write;

const INVALID_ARGUMENT: u32 = 3;
const DEADLINE_EXCEEDED: u32 = 4;
const NOT_FOUND: u32 = 5;
const RESOURCE_EXHAUSTED: u32 = 8;
const UNIMPLEMENTED: u32 = 12;

pub fn tensor(name: &str, datatype: &str, shape: &[i64]) -> InferTensor {
    InferTensor { name: name.into(), datatype: datatype.into(), shape: shape.to_vec(), ..InferTensor::default() }
}

pub fn request(model: &str, inputs: Vec<InferTensor>, raw: Vec<Vec<u8>>) -> ModelInferRequest {
    let raw_input_contents = raw.into_iter().map(Bytes::from).collect();
    ModelInferRequest { model_name: model.into(), inputs, raw_input_contents, ..ModelInferRequest::default() }
}

fn infer(server: &RunningServer, request: &ModelInferRequest) -> Result<ModelInferResponse, GrpcError> {
    call(server.grpc, "ModelInfer", request)
}

#[track_caller]
fn assert_refused(server: &RunningServer, request: &ModelInferRequest, code: u32, expected: &str) {
    let error = infer(server, request).unwrap_err();
    assert!(error.code == code && error.message.contains(expected), "expected {code} {expected}, found {error:?}");
    assert!(error.message.contains("(E0"), "{error:?}");
}

pub fn param(parameter_choice: ParameterChoice) -> InferParameter {
    InferParameter { choice: Some(parameter_choice) }
}

#[test]
fn health_metadata_configuration_and_statistics() {
    let server = serve(&["relu", "fixed"], &[]);
    let relu = ModelRequest { name: "relu".into(), version: String::new() };
    assert!(call::<_, ServerLiveResponse>(server.grpc, "ServerLive", &Empty {}).unwrap().live);
    assert!(call::<_, ReadyResponse>(server.grpc, "ServerReady", &Empty {}).unwrap().ready);
    assert!(call::<_, ReadyResponse>(server.grpc, "ModelReady", &relu).unwrap().ready);
    let metadata: ServerMetadataResponse = call(server.grpc, "ServerMetadata", &Empty {}).unwrap();
    assert!(metadata.name == "byoc" && metadata.extensions.contains(&"statistics".to_owned()));
    for version in ["", "1"] {
        let request = ModelRequest { version: version.into(), ..relu.clone() };
        let metadata: ModelMetadataResponse = call(server.grpc, "ModelMetadata", &request).unwrap();
        assert_eq!((metadata.versions, metadata.platform.as_str()), (vec!["1".to_owned()], "byoc"));
        assert_eq!((metadata.inputs[0].datatype.as_str(), &metadata.inputs[0].shape[..]), ("FP32", &[-1, 4][..]));
        assert_eq!(metadata.outputs[0].name, "output_0");
    }
    let config: ModelConfigResponse = call(server.grpc, "ModelConfig", &relu).unwrap();
    let config = config.config.unwrap();
    assert_eq!((config.max_batch_size, config.input[0].data_type, &config.input[0].dims[..]), (4, 11, &[4][..]));
    assert_eq!(config.dynamic_batching.unwrap().max_queue_delay_microseconds, 0);
    infer(&server, &request("relu", vec![tensor("x", "FP32", &[2, 4])], vec![vec![0; 32]])).unwrap();
    let stats: ModelStatisticsResponse = call(server.grpc, "ModelStatistics", &relu).unwrap();
    let stats = &stats.model_stats[0];
    assert_eq!((stats.inference_count, stats.execution_count, stats.batch_stats[0].batch_size), (2, 1, 2));
    assert_eq!(stats.inference_stats.as_ref().unwrap().success.as_ref().unwrap().count, 1);
    let all_statistics: ModelStatisticsResponse =
        call(server.grpc, "ModelStatistics", &ModelRequest::default()).unwrap();
    assert_eq!(all_statistics.model_stats.len(), 2);
    let index: RepositoryIndexResponse =
        call(server.grpc, "RepositoryIndex", &RepositoryIndexRequest::default()).unwrap();
    assert_eq!(index.models.iter().map(|model| &*model.state).collect::<Vec<_>>(), ["READY", "READY"]);
    let health = |service: &str| {
        let request = SharedMemoryRequest { name: service.into() };
        call_with::<HealthCheckResponse>(
            server.grpc,
            "/grpc.health.v1.Health/Check",
            &[],
            frame(&request.encode_to_vec()),
        )
    };
    assert_eq!((health("").unwrap().status, health("inference.GRPCInferenceService").unwrap().status), (1, 1));
    assert_eq!(health("other").unwrap_err().code, NOT_FOUND);
}

#[test]
fn unknown_names_and_methods() {
    let server = serve(&["relu"], &[]);
    for method in ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"] {
        for (name, version) in [("nope", ""), ("relu", "2"), ("relu", "x")] {
            let request = ModelRequest { name: name.into(), version: version.into() };
            match call::<_, ReadyResponse>(server.grpc, method, &request) {
                // A known model without this version is not ready.
                Ok(response) => assert!(method == "ModelReady" && name == "relu" && !response.ready, "{method} {name}"),
                Err(error) => assert_eq!(error.code, NOT_FOUND, "{method} {name} {version}: {error:?}"),
            }
        }
    }
    assert_refused(&server, &request("nope", vec![], vec![]), NOT_FOUND, "'nope' is not found");
    for method in [
        "ModelStreamInfer",
        "CudaSharedMemoryStatus",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
        "TraceSetting",
        "Nothing",
    ] {
        let error = call::<_, Empty>(server.grpc, method, &Empty {}).unwrap_err();
        assert!(error.code == UNIMPLEMENTED && error.message.contains("(E0809)"), "{method}: {error:?}");
    }
    for path in ["/other.Service/Method", "/", "/inference.GRPCInferenceService", "/grpc.health.v1.Health/Watch"] {
        assert_eq!(call_with::<Empty>(server.grpc, path, &[], frame(&[])).unwrap_err().code, UNIMPLEMENTED, "{path}");
    }
    let named_repository = RepositoryIndexRequest { repository_name: "r".into(), ready: false };
    assert_eq!(call::<_, Empty>(server.grpc, "RepositoryIndex", &named_repository).unwrap_err().code, NOT_FOUND);
    // Malformed message bytes.
    for body in [vec![], vec![0, 0, 0, 0, 9, 1], frame(&[0xff; 40]), vec![7; 3]] {
        let error =
            call_with::<Empty>(server.grpc, "/inference.GRPCInferenceService/ModelInfer", &[], body).unwrap_err();
        assert!(error.code != 0, "{error:?}");
    }
    assert!(call::<_, ServerLiveResponse>(server.grpc, "ServerLive", &Empty {}).unwrap().live);
}

#[test]
fn raw_and_typed_contents_of_every_datatype() {
    let names: Vec<String> = TYPES.iter().map(|row| format!("copy_{}", row.0)).collect();
    let server = serve(&names.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    for (datatype, _, size) in TYPES {
        let model = format!("copy_{datatype}");
        let raw: Vec<u8> = (0..2 * size).map(|i| if datatype == "BOOL" { i as u8 % 2 } else { i as u8 }).collect();
        let response =
            infer(&server, &request(&model, vec![tensor("x", datatype, &[1, 2])], vec![raw.clone()])).unwrap();
        assert_eq!(response.outputs[0].datatype, datatype);
        assert_eq!((response.outputs[0].shape.as_slice(), &response.outputs[0].contents), (&[1, 4][..], &None));
        assert_eq!(response.raw_output_contents[0], [&raw[..], &raw[..]].concat(), "{datatype}");
        let contents = InferTensorContents::default();
        let contents = match datatype {
            "BOOL" => InferTensorContents { bool_contents: vec![true, false], ..contents },
            "INT8" | "INT16" | "INT32" => InferTensorContents { int_contents: vec![-1, 2], ..contents },
            "INT64" => InferTensorContents { int64_contents: vec![-1, 2], ..contents },
            "UINT8" | "UINT16" | "UINT32" => InferTensorContents { uint_contents: vec![1, 2], ..contents },
            "UINT64" => InferTensorContents { uint64_contents: vec![1, u64::MAX], ..contents },
            "FP64" => InferTensorContents { fp64_contents: vec![0.5, f64::NAN], ..contents },
            _ => InferTensorContents { fp32_contents: vec![0.5, f32::INFINITY], ..contents },
        };
        let expected: Vec<u8> = match datatype {
            "BOOL" => vec![1, 0],
            "FP32" => bytes(&[0.5, f32::INFINITY]),
            "FP64" => [0.5f64, f64::NAN].iter().flat_map(|value| value.to_le_bytes()).collect(),
            "UINT64" => [1, u64::MAX].iter().flat_map(|value| value.to_le_bytes()).collect(),
            unsigned_type if unsigned_type.starts_with('U') => {
                [1u64, 2].iter().flat_map(|v| v.to_le_bytes()[..size].to_vec()).collect()
            }
            _ => [-1i64, 2].iter().flat_map(|value| value.to_le_bytes()[..size].to_vec()).collect(),
        };
        let input = InferTensor { contents: Some(contents), ..tensor("x", datatype, &[1, 2]) };
        let typed_request = request(&model, vec![input], vec![]);
        if ["FP16", "BF16"].contains(&datatype) {
            assert_refused(&server, &typed_request, INVALID_ARGUMENT, "expected raw_input_contents for datatype");
            continue;
        }
        let response = infer(&server, &typed_request).unwrap();
        assert_eq!(response.raw_output_contents[0], [&expected[..], &expected[..]].concat(), "{datatype}");
    }
    let contents = |contents| InferTensor { contents: Some(contents), ..tensor("x", "INT8", &[1, 2]) };
    let ints = |values: &[i32]| InferTensorContents { int_contents: values.to_vec(), ..InferTensorContents::default() };
    assert_refused(
        &server,
        &request("copy_INT8", vec![contents(ints(&[1, 128]))], vec![]),
        INVALID_ARGUMENT,
        "found 128",
    );
    assert_refused(
        &server,
        &request("copy_INT8", vec![contents(ints(&[1]))], vec![]),
        INVALID_ARGUMENT,
        "with the elements of shape [1, 2], found 1",
    );
    let other = InferTensorContents { fp32_contents: vec![1.0, 2.0], ..InferTensorContents::default() };
    assert_refused(
        &server,
        &request("copy_INT8", vec![contents(other)], vec![]),
        INVALID_ARGUMENT,
        "expected int_contents for datatype INT8, found fp32_contents",
    );
    assert_refused(
        &server,
        &request("copy_INT8", vec![contents(ints(&[1, 2]))], vec![vec![1, 2]]),
        INVALID_ARGUMENT,
        "contents field must not be specified",
    );
    let strings = InferTensorContents {
        bytes_contents: vec![Bytes::new(), Bytes::from_static(b"\xff\0")],
        ..InferTensorContents::default()
    };
    let strings = InferTensor { contents: Some(strings), ..tensor("x", "BYTES", &[1, 2]) };
    assert_refused(&server, &request("copy_INT8", vec![strings], vec![]), INVALID_ARGUMENT, "data-type is 'BYTES'");
}

#[test]
fn wrong_requests() {
    let server = serve(&["relu", "sums"], &[]);
    let x = || vec![tensor("x", "FP32", &[1, 4])];
    assert_refused(
        &server,
        &request("relu", x(), vec![vec![0; 12]]),
        INVALID_ARGUMENT,
        "got unexpected byte size 12, expected 16",
    );
    assert_refused(
        &server,
        &request("relu", x(), vec![vec![0; 16], vec![]]),
        INVALID_ARGUMENT,
        "expected 1 entries of raw_input_contents",
    );
    assert_refused(
        &server,
        &request("sums", x(), vec![vec![0; 16]]),
        INVALID_ARGUMENT,
        "expected 3 inputs but got 1 inputs",
    );
    assert_refused(&server, &request("relu", [x(), x()].concat(), vec![vec![0; 16]; 2]), INVALID_ARGUMENT, "'x' twice");
    for shape in [&[][..], &[4], &[-1, 4], &[1, -4], &[i64::MAX, 4], &[1, 4, 1], &[i64::MAX; 70]] {
        let invalid_request = request("relu", vec![tensor("x", "FP32", shape)], vec![vec![0; 16]]);
        let error = infer(&server, &invalid_request).unwrap_err();
        assert!(error.code == INVALID_ARGUMENT && error.message.len() < 2000, "{shape:?}: {error:?}");
    }
    assert_refused(
        &server,
        &request("relu", vec![tensor("x", "FP33", &[1, 4])], vec![vec![0; 16]]),
        INVALID_ARGUMENT,
        "data-type is 'FP33'",
    );
    // A BYTES element whose length exceeds the data.
    assert_refused(
        &server,
        &request("relu", vec![tensor("x", "BYTES", &[1])], vec![vec![255, 255, 255, 255]]),
        INVALID_ARGUMENT,
        "data-type is 'BYTES'",
    );
    let with_parameter = |name: &str, parameter_choice: ParameterChoice| {
        let mut request = request("relu", x(), vec![vec![0; 16]]);
        request.id = "r1".into();
        request.parameters.insert(name.into(), param(parameter_choice));
        request
    };
    infer(&server, &with_parameter("priority", ParameterChoice::Uint(0))).unwrap();
    infer(&server, &with_parameter("priority", ParameterChoice::Int(0))).unwrap();
    infer(&server, &with_parameter("timeout", ParameterChoice::Int(10_000_000))).unwrap();
    assert_refused(
        &server,
        &with_parameter("timeout", ParameterChoice::Text("1".into())),
        INVALID_ARGUMENT,
        "[request id: r1] parameter 'timeout'",
    );
    assert_refused(&server, &with_parameter("sequence_id", ParameterChoice::Int(1)), UNIMPLEMENTED, "sequence_id");
    assert_refused(
        &server,
        &with_parameter("sequence_id", ParameterChoice::Text("s".into())),
        UNIMPLEMENTED,
        "sequence_id",
    );
    assert_refused(
        &server,
        &with_parameter("triton_enable_empty_final_response", ParameterChoice::Bool(true)),
        INVALID_ARGUMENT,
        "'triton_'",
    );
    let mut unknown = request("relu", x(), vec![vec![0; 16]]);
    unknown.outputs.push(InferRequestedOutput { name: "z".into(), ..InferRequestedOutput::default() });
    assert_refused(&server, &unknown, INVALID_ARGUMENT, "unexpected inference output 'z'");
    unknown.outputs[0].name = "output_0".into();
    unknown.outputs[0].parameters.insert("classification".into(), param(ParameterChoice::Int(1)));
    let response = infer(&server, &unknown).unwrap();
    assert_eq!((response.outputs[0].datatype.as_str(), &response.outputs[0].shape[..]), ("BYTES", &[1, 1][..]));
    assert_eq!(&response.raw_output_contents[0][4..], b"0.000000:0");
}

#[test]
fn messages_of_12_mb_and_a_limit() {
    let server = serve(&["relu"], &["--max-batch-size", "65536", "--max-request-size", "16MiB"]);
    let values: Vec<f32> = (0..4 * 65536).map(|i| (i % 100) as f32 - 50.0).collect();
    let raw = bytes(&values);
    let response = infer(&server, &request("relu", vec![tensor("x", "FP32", &[65536, 4])], vec![raw])).unwrap();
    assert!(
        floats(&response.raw_output_contents[0]).iter().zip(&values).all(|(actual, value)| *actual == value.max(0.0))
    );
    // A request of 12 MiB is received, but does not match the shape.
    assert_refused(
        &server,
        &request("relu", vec![tensor("x", "FP32", &[1, 4])], vec![vec![0; 12 << 20]]),
        INVALID_ARGUMENT,
        "byte size 12582912",
    );
    assert_refused(
        &server,
        &request("relu", vec![tensor("x", "FP32", &[1, 4])], vec![vec![0; 17 << 20]]),
        RESOURCE_EXHAUSTED,
        "--max-request-size",
    );
}

#[test]
fn compressed_requests_and_deadlines() {
    let server = serve(&["relu", "rounds"], &[]);
    let message =
        request("relu", vec![tensor("x", "FP32", &[1, 4])], vec![bytes(&[-1.0, 2.0, -3.0, 4.0])]).encode_to_vec();
    let gzip = {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&message).unwrap();
        encoder.finish().unwrap()
    };
    let deflate = {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&message).unwrap();
        encoder.finish().unwrap()
    };
    let path = "/inference.GRPCInferenceService/ModelInfer";
    for (coding, message) in [("gzip", gzip), ("deflate", deflate)] {
        let mut body = frame(&message);
        body[0] = 1;
        let headers = [("grpc-encoding", coding), ("grpc-accept-encoding", "identity, deflate, gzip")];
        let response: ModelInferResponse = call_with(server.grpc, path, &headers, body).unwrap();
        assert_eq!(floats(&response.raw_output_contents[0]), [0.0, 2.0, 0.0, 4.0]);
    }
    // A long run ends at the client's deadline, and the server continues to serve requests.
    let endless_count = i64::MAX.to_le_bytes().to_vec();
    let inputs = vec![tensor("n", "INT64", &[]), tensor("x", "FP32", &[4])];
    let endless_request = request("rounds", inputs, vec![endless_count, vec![0; 16]]);
    let error =
        call_with::<Empty>(server.grpc, path, &[("grpc-timeout", "200m")], frame(&endless_request.encode_to_vec()))
            .unwrap_err();
    assert_eq!(error.code, DEADLINE_EXCEEDED, "{error:?}");
    let inputs = vec![tensor("n", "INT64", &[]), tensor("x", "FP32", &[4])];
    let short_request = request("rounds", inputs, vec![3i64.to_le_bytes().to_vec(), vec![0; 16]]);
    assert_eq!(floats(&infer(&server, &short_request).unwrap().raw_output_contents[0]), [3.0; 4]);
}

#[test]
fn log_settings() {
    let server = serve(&["relu"], &[]);
    let settings_before: LogSettings = call(server.grpc, "LogSettings", &LogSettings::default()).unwrap();
    let level = |settings: &LogSettings| settings.settings["log_verbose_level"].choice.clone();
    assert_eq!(level(&settings_before), Some(LogSettingChoice::Uint(0)));
    let mut change = LogSettings::default();
    change.settings.insert("log_verbose_level".into(), LogSetting { choice: Some(LogSettingChoice::Uint(1)) });
    let settings_after: LogSettings = call(server.grpc, "LogSettings", &change).unwrap();
    assert_eq!(level(&settings_after), Some(LogSettingChoice::Uint(1)));
    change.settings.insert("log_info".into(), LogSetting { choice: None });
    assert_eq!(call::<_, Empty>(server.grpc, "LogSettings", &change).unwrap_err().code, INVALID_ARGUMENT);
}
