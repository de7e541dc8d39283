//! gRPC interface: `inference.GRPCInferenceService`, and `grpc.health.v1.Health` for probes.
//!
//! The codec passes the bytes of a request on. They are decoded after their footprint is charged to the memory limit,
//! and on another thread if decoding takes long.

use crate::app::{App, control_error, run_task, too_large_error};
use crate::datatype::{Datatype, Scalar, encode};
use crate::error::{Result, ServeError, Status};
use crate::http::change_log;
use crate::infer_json::unknown_datatype;
use crate::memory::{self, ChargedBytes};
use crate::proto::{
    Empty, HealthCheckResponse, InferParameter, InferTensor, InferTensorContents, LogSetting, LogSettingChoice,
    LogSettings, ModelConfigResponse, ModelInferRequest, ModelInferResponse, ModelMetadataResponse, ModelRequest,
    ModelStatisticsResponse, ParameterChoice, ReadyResponse, RepositoryIndexRequest, RepositoryIndexResponse,
    RepositoryModelLoadResponse, RepositoryModelRequest, RepositoryModelUnloadResponse, RepositoryParameterChoice,
    ServerLiveResponse, ServerMetadataResponse, SharedMemoryRegion, SharedMemoryRequest, SharedMemoryStatusResponse,
};
use crate::repository::Overrides;
use crate::request::{
    InferRequest, InferResponse, InputData, InputTensor, OutputData, Param, Params, check_count,
    check_unload_parameter, requested_output, take_shared,
};
use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use byoc::DType;
use byoc::io::footprint::{self, Decodable};
use byoc_ir::diag::codes::runtime::TIMED_OUT;
use byoc_ir::tensor::memory::Charge;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Frame;
use prost::Message;
use prost::bytes::Buf;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EnabledCompressionEncodings};
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstEncoder;

/// Returns the router for all services.
pub fn router(app: Arc<App>) -> Router {
    Router::new().fallback(dispatch).with_state(app)
}

/// Context of a method call: the server state, the arrival time and the deadline.
#[derive(Clone)]
struct Call {
    app: Arc<App>,
    arrival: Instant,
    deadline: Instant,
}

async fn dispatch(State(app): State<Arc<App>>, request: Request) -> Response {
    let arrival = Instant::now();
    let limit = app.timeout.min(timeout(request.headers()).unwrap_or(Duration::MAX));
    let call = Call { app, arrival, deadline: arrival + limit };
    let path = request.uri().path().to_owned();
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    match (service, method) {
        ("grpc.health.v1.Health", "Check") => unary(call, request, health).await,
        ("inference.GRPCInferenceService", method) => match method {
            "ServerLive" => unary(call, request, server_live).await,
            "ServerReady" => unary(call, request, server_ready).await,
            "ModelReady" => unary(call, request, model_ready).await,
            "ServerMetadata" => unary(call, request, server_metadata).await,
            "ModelMetadata" => unary(call, request, model_metadata).await,
            "ModelInfer" => unary(call, request, model_infer).await,
            "ModelConfig" => unary(call, request, model_config).await,
            "ModelStatistics" => unary(call, request, model_statistics).await,
            "RepositoryIndex" => unary(call, request, repository_index).await,
            "RepositoryModelLoad" | "RepositoryModelUnload" if !call.app.allows_control => {
                tonic::Status::from(control_error()).into_http()
            }
            "RepositoryModelLoad" => unary(with_load_deadline(call), request, repository_load).await,
            "RepositoryModelUnload" => unary(with_load_deadline(call), request, repository_unload).await,
            "SystemSharedMemoryStatus" => unary(call, request, shared_status).await,
            "SystemSharedMemoryRegister" => unary(call, request, shared_register).await,
            "SystemSharedMemoryUnregister" => unary(call, request, shared_unregister).await,
            "LogSettings" => unary(call, request, log_settings).await,
            "ModelStreamInfer" => {
                refuse("ModelStreamInfer is not supported: a request has exactly one response; use ModelInfer")
            }
            "CudaSharedMemoryStatus" | "CudaSharedMemoryRegister" | "CudaSharedMemoryUnregister" => {
                refuse("CUDA shared memory is not supported; use system shared memory")
            }
            "TraceSetting" => refuse("trace settings are not supported; use /v2/models/NAME/explain and /metrics"),
            _ => refuse(&format!("expected a method of inference.GRPCInferenceService, found {method:?}")),
        },
        _ => refuse(&format!("expected the service inference.GRPCInferenceService, found {service:?}")),
    }
}

/// Extends the deadline of a load to one day, unless the client has set a deadline.
fn with_load_deadline(call: Call) -> Call {
    if call.deadline < call.arrival + call.app.timeout {
        call
    } else {
        let deadline = call.arrival + Duration::from_secs(86_400);
        Call { deadline, ..call }
    }
}

fn refuse(message: &str) -> Response {
    tonic::Status::from(ServeError::not_served(message)).into_http()
}

/// Parses the `grpc-timeout` header: digits and a unit (gRPC over HTTP2, Requests).
fn timeout(headers: &hyper::HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let amount: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(amount * 3600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    })
}

/// Request of a method, converted from its message.
trait MethodRequest: Sized + Send + 'static {
    type Message: Message + Default + Decodable;

    fn convert(message: Self::Message) -> Result<Self>;
}

impl<M: Message + Default + Decodable + Send + 'static> MethodRequest for M {
    type Message = M;

    fn convert(message: M) -> Result<M> {
        Ok(message)
    }
}

/// Request of ModelInfer.
struct Infer {
    model: String,
    version: String,
    request: InferRequest,
}

impl MethodRequest for Infer {
    type Message = ModelInferRequest;

    fn convert(mut message: ModelInferRequest) -> Result<Infer> {
        let (model, version) = (std::mem::take(&mut message.model_name), std::mem::take(&mut message.model_version));
        let request = infer_request(&model, message)?;
        Ok(Infer { model, version, request })
    }
}

/// Codec that passes on the bytes of requests.
struct RawCodec<B>(PhantomData<B>);

/// Decoder that passes on the bytes of a request.
struct RawDecoder;

impl<B: Message + Send + 'static> Codec for RawCodec<B> {
    type Encode = B;
    type Decode = Bytes;
    type Encoder = ProstEncoder<B>;
    type Decoder = RawDecoder;

    fn encoder(&mut self) -> ProstEncoder<B> {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> RawDecoder {
        RawDecoder
    }
}

impl Decoder for RawDecoder {
    type Item = Bytes;
    type Error = tonic::Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> std::result::Result<Option<Bytes>, tonic::Status> {
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}

/// Decodes a request, whose footprint is added to `charge`.
async fn decode<A: MethodRequest>(bytes: Bytes, charge: &Mutex<Charge>) -> Result<A> {
    /// Number of fields from which a message is decoded on a thread for blocking work.
    const MAX_INLINE_FIELDS: usize = 10_000;
    let decode = |bytes: Bytes| {
        A::Message::decode(bytes)
            .map_err(|error| {
                // The status that gRPC libraries return for a message that cannot be parsed.
                let message = format!("cannot decode the message: {error}");
                ServeError::new(Status::Internal, byoc_ir::diag::codes::serving::BAD_REQUEST, message)
            })
            .and_then(A::convert)
    };
    if let Some(size) = footprint::protobuf::<A::Message>(&bytes, MAX_INLINE_FIELDS) {
        check_expansion(size, bytes.len())?;
        memory::grow(&mut charge.lock().unwrap_or_else(PoisonError::into_inner), size)?;
        return decode(bytes);
    }
    let (request, decoded_charge) = run_task(move || {
        let size = footprint::protobuf::<A::Message>(&bytes, usize::MAX).unwrap_or(usize::MAX);
        check_expansion(size, bytes.len())?;
        let mut charge = Charge::default();
        memory::grow(&mut charge, size)?;
        Ok((decode(bytes)?, charge))
    })
    .await?;
    charge.lock().unwrap_or_else(PoisonError::into_inner).merge(decoded_charge);
    Ok(request)
}

/// Checks that a message is not made of empty parts: a few bytes would take any amount of memory.
fn check_expansion(size: usize, encoded: usize) -> Result<()> {
    if size <= footprint::limit(encoded) {
        return Ok(());
    }
    Err(ServeError::bad_request(format!(
        "expected a message that takes at most {} once it is decoded, {} times its size, found {}",
        byoc_ir::tensor::memory::Bytes(footprint::limit(encoded)),
        footprint::MAX_EXPANSION,
        byoc_ir::tensor::memory::Bytes(size)
    )))
}

/// Method with one request and one response.
struct Method<F, A> {
    call: Call,
    method: F,
    charges: Arc<Charges>,
    request: PhantomData<fn() -> A>,
}

/// Memory of a call.
#[derive(Default)]
struct Charges {
    request: Mutex<Charge>,
    response: Mutex<Charge>,
}

impl<F, R, A, B> UnaryService<Bytes> for Method<F, A>
where
    F: Fn(Call, A) -> R + Clone + Send + 'static,
    R: Future<Output = Result<B>> + Send + 'static,
    A: MethodRequest,
    B: Message + 'static,
{
    type Response = B;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<tonic::Response<B>, tonic::Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let (call, method, charges) = (self.call.clone(), self.method.clone(), self.charges.clone());
        Box::pin(async move {
            let message = decode(request.into_inner(), &charges.request).await?;
            let response = method(call, message).await?;
            // The encoded response is in memory until the client has read it.
            let mut charge = charges.response.lock().unwrap_or_else(PoisonError::into_inner);
            memory::grow_for_response(&mut charge, response.encoded_len())?;
            Ok(tonic::Response::new(response))
        })
    }
}

async fn unary<A, B, R, F>(call: Call, request: Request, method: F) -> Response
where
    A: MethodRequest,
    B: Message + Send + Sync + 'static,
    R: Future<Output = Result<B>> + Send + 'static,
    F: Fn(Call, A) -> R + Clone + Send + 'static,
{
    let mut encodings = EnabledCompressionEncodings::default();
    encodings.enable(CompressionEncoding::Gzip);
    encodings.enable(CompressionEncoding::Deflate);
    // Responses are not compressed: clients accept compression by default, and compression takes longer than sending.
    let mut grpc = Grpc::new(RawCodec::<B>(PhantomData))
        .apply_compression_config(encodings, EnabledCompressionEncodings::default())
        .apply_max_message_size_config(Some(call.app.max_request_size), Some(i32::MAX as usize));
    let app = call.app.clone();
    let charges = Arc::new(Charges::default());
    if request.headers().get("grpc-encoding").is_some_and(|coding| coding != "identity") {
        // The decompressed size is known too late, so the maximum is charged.
        let mut charge = charges.request.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = app.charge(&mut charge, 0, app.max_request_size) {
            return tonic::Status::from(error).into_http();
        }
    }
    let max_size = app.max_request_size;
    let request = request.map(|body| ChargedBody { body, app, size: 0, charges: charges.clone() });
    let deadline = tokio::time::Instant::from_std(call.deadline);
    let service = Method { call, method, charges: charges.clone(), request: PhantomData };
    let response = tokio::time::timeout_at(deadline, grpc.unary(service, request)).await;
    match response {
        // Replaces the codec's message for a request that exceeds the limit.
        Ok(response) if response.headers().get("grpc-status").is_some_and(|status| status == OUT_OF_RANGE) => {
            tonic::Status::from(too_large_error(max_size, max_size)).into_http()
        }
        Ok(response) => {
            let charge = std::mem::take(&mut *charges.response.lock().unwrap_or_else(PoisonError::into_inner));
            // The message is the first frame, and keeps the charge until it is sent.
            let mut charge = Some(charge);
            response.map(|body| {
                axum::body::Body::new(body.map_frame(move |frame| {
                    frame.map_data(|bytes| match charge.take() {
                        Some(charge) => ChargedBytes::of(bytes, charge),
                        None => bytes,
                    })
                }))
            })
        }
        Err(_) => {
            let message = "the request was not received and served before its deadline";
            tonic::Status::from(ServeError::new(Status::DeadlineExceeded, TIMED_OUT, message)).into_http()
        }
    }
}

/// Status code with which the codec rejects a message that exceeds the limit; no method returns it.
const OUT_OF_RANGE: &str = "11";

/// Body whose bytes are charged to the memory limit.
struct ChargedBody {
    body: axum::body::Body,
    app: Arc<App>,
    size: usize,
    charges: Arc<Charges>,
}

impl http_body::Body for ChargedBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, tonic::Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        let Some(frame) = frame else { return Poll::Ready(None) };
        let frame = frame.map_err(|error| tonic::Status::cancelled(format!("cannot read the request: {error}")))?;
        if let Some(bytes) = frame.data_ref() {
            // The five bytes of the frame header are not part of the message.
            let mut charge = self.charges.request.lock().unwrap_or_else(PoisonError::into_inner);
            self.app.charge(&mut charge, self.size.saturating_sub(5), bytes.len())?;
            drop(charge);
            self.size += bytes.len();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

async fn health(call: Call, request: SharedMemoryRequest) -> Result<HealthCheckResponse> {
    const SERVING: i32 = 1;
    const NOT_SERVING: i32 = 2;
    if !["", "inference.GRPCInferenceService"].contains(&request.name.as_str()) {
        let message = format!("expected the service inference.GRPCInferenceService, found {:?}", request.name);
        return Err(ServeError::new(Status::NotFound, byoc_ir::diag::codes::serving::BAD_REQUEST, message));
    }
    Ok(HealthCheckResponse { status: if call.app.is_stopping() { NOT_SERVING } else { SERVING } })
}

async fn server_live(call: Call, _: Empty) -> Result<ServerLiveResponse> {
    Ok(ServerLiveResponse { live: !call.app.is_stopping() })
}

async fn server_ready(call: Call, _: Empty) -> Result<ReadyResponse> {
    Ok(ReadyResponse { ready: call.app.is_ready() })
}

async fn model_ready(call: Call, request: ModelRequest) -> Result<ReadyResponse> {
    match call.app.find(&request.name, &request.version) {
        Ok(_) => Ok(ReadyResponse { ready: true }),
        Err(_) if call.app.repository.is_known(&request.name) => Ok(ReadyResponse { ready: false }),
        Err(error) => Err(error),
    }
}

async fn server_metadata(call: Call, _: Empty) -> Result<ServerMetadataResponse> {
    Ok(call.app.metadata())
}

async fn model_metadata(call: Call, request: ModelRequest) -> Result<ModelMetadataResponse> {
    let model = call.app.find(&request.name, &request.version)?;
    let versions = if request.version.is_empty() {
        call.app.repository.ready_versions(&request.name)
    } else {
        vec![request.version]
    };
    Ok(model.metadata(versions))
}

async fn model_config(call: Call, request: ModelRequest) -> Result<ModelConfigResponse> {
    let model = call.app.find(&request.name, &request.version)?;
    Ok(ModelConfigResponse { config: Some(model.config.clone()) })
}

async fn model_statistics(call: Call, request: ModelRequest) -> Result<ModelStatisticsResponse> {
    let model = match request.name.as_str() {
        "" => call.app.repository.ready_models(),
        name => vec![call.app.find(name, &request.version)?],
    };
    let model_stats = model.iter().map(|model| model.stats.message(&model.name, &model.version.to_string()));
    Ok(ModelStatisticsResponse { model_stats: model_stats.collect() })
}

async fn model_infer(call: Call, infer: Infer) -> Result<ModelInferResponse> {
    let model = call.app.find(&infer.model, &infer.version)?;
    let response = call.app.infer(&model, "grpc", infer.request, call.arrival, call.deadline).await?;
    Ok(infer_response(response))
}

async fn repository_index(call: Call, request: RepositoryIndexRequest) -> Result<RepositoryIndexResponse> {
    call.app.repository.check_repository(&request.repository_name)?;
    Ok(RepositoryIndexResponse { models: call.app.repository.index(request.ready) })
}

/// Returns the model name from the field used by KServe's or by Triton's version of the message.
fn repository_model(app: &App, request: &RepositoryModelRequest) -> Result<String> {
    match (request.repository_name.as_str(), request.model_name.as_str()) {
        (name, "") | ("", name) => Ok(name.to_owned()),
        (repository, name) => app.repository.check_repository(repository).map(|()| name.to_owned()),
    }
}

async fn repository_load(call: Call, request: RepositoryModelRequest) -> Result<RepositoryModelLoadResponse> {
    let model_name = repository_model(&call.app, &request)?;
    let mut overrides = Overrides::default();
    for (name, value) in request.parameters {
        match (name.as_str(), name.strip_prefix("file:"), value.choice) {
            ("config", _, Some(RepositoryParameterChoice::Text(text))) => overrides.config = Some(text),
            (_, Some(file), Some(RepositoryParameterChoice::Bytes(bytes))) => {
                overrides.files.insert(file.to_owned(), bytes);
            }
            _ => {
                let message = format!(
                    "expected the parameter 'config' (string) or 'file:VERSION/NAME' (bytes), found '{}'",
                    crate::served::clip(&name)
                );
                return Err(ServeError::bad_request(message));
            }
        }
    }
    call.app.load(model_name.clone(), overrides).await?;
    Ok(RepositoryModelLoadResponse { model_name, is_loaded: true })
}

async fn repository_unload(call: Call, request: RepositoryModelRequest) -> Result<RepositoryModelUnloadResponse> {
    let model_name = repository_model(&call.app, &request)?;
    for (name, value) in request.parameters {
        let value = value.choice.map(|value| match value {
            RepositoryParameterChoice::Bool(value) => Param::Bool(value),
            RepositoryParameterChoice::Int(value) => Param::Int(value),
            RepositoryParameterChoice::Text(value) => Param::Text(value),
            RepositoryParameterChoice::Bytes(value) => Param::Text(format!("{} bytes", value.len())),
        });
        check_unload_parameter(&name, value.as_ref())?;
    }
    call.app.unload(model_name.clone()).await?;
    Ok(RepositoryModelUnloadResponse { model_name, is_unloaded: true })
}

async fn shared_status(call: Call, request: SharedMemoryRequest) -> Result<SharedMemoryStatusResponse> {
    let name = Some(request.name.as_str()).filter(|name| !name.is_empty());
    let regions = call.app.regions.status(name)?.into_iter().map(|(name, region)| {
        let status = SharedMemoryRegion {
            name: name.clone(),
            key: region.key.clone(),
            offset: region.offset,
            byte_size: region.byte_size,
        };
        (name, status)
    });
    Ok(SharedMemoryStatusResponse { regions: regions.collect() })
}

async fn shared_register(call: Call, request: SharedMemoryRegion) -> Result<Empty> {
    call.app.regions.register(&request.name, &request.key, request.offset, request.byte_size)?;
    Ok(Empty {})
}

async fn shared_unregister(call: Call, request: SharedMemoryRequest) -> Result<Empty> {
    call.app.regions.unregister(Some(request.name.as_str()).filter(|name| !name.is_empty()))?;
    Ok(Empty {})
}

async fn log_settings(call: Call, request: LogSettings) -> Result<LogSettings> {
    let fields: BTreeMap<String, Value> = request
        .settings
        .into_iter()
        .map(|(name, setting)| {
            let value = match setting.choice {
                Some(LogSettingChoice::Bool(value)) => json!(value),
                Some(LogSettingChoice::Uint(value)) => json!(value),
                Some(LogSettingChoice::Text(value)) => json!(value),
                None => Value::Null,
            };
            (name, value)
        })
        .collect();
    let settings = change_log(&call.app, &fields)?;
    let settings = settings.as_object().into_iter().flatten().map(|(name, value)| {
        let parameter_choice = match value {
            Value::Bool(value) => LogSettingChoice::Bool(*value),
            Value::Number(value) => LogSettingChoice::Uint(value.as_u64().unwrap_or_default() as u32),
            other => LogSettingChoice::Text(other.as_str().unwrap_or_default().to_owned()),
        };
        (name.clone(), LogSetting { choice: Some(parameter_choice) })
    });
    Ok(LogSettings { settings: settings.collect() })
}

fn params(parameters: BTreeMap<String, InferParameter>) -> Params {
    let param = |(name, parameter): (String, InferParameter)| {
        let value = match parameter.choice? {
            ParameterChoice::Bool(value) => Param::Bool(value),
            ParameterChoice::Int(value) => Param::Int(value),
            ParameterChoice::Uint(value) => Param::Uint(value),
            ParameterChoice::Float(value) => Param::Float(value),
            ParameterChoice::Text(value) => Param::Text(value),
        };
        Some((name, value))
    };
    parameters.into_iter().filter_map(param).collect()
}

/// Converts an inference request for a model. Raw data has one entry per input outside shared memory.
fn infer_request(model: &str, request: ModelInferRequest) -> Result<InferRequest> {
    check_count("inputs", request.inputs.len())?;
    check_count("outputs", request.outputs.len())?;
    check_count("entries of raw_input_contents", request.raw_input_contents.len())?;
    let is_raw = !request.raw_input_contents.is_empty();
    let content_count = request.raw_input_contents.len();
    let mut raw = request.raw_input_contents.into_iter();
    let mut input_index = 0;
    let mut inputs = Vec::with_capacity(request.inputs.len());
    for InferTensor { name, datatype, shape, parameters, contents } in request.inputs {
        let shared_span = take_shared(&mut params(parameters))?;
        let data = match (shared_span, contents) {
            (Some(shared_span), None) => InputData::Shared(shared_span),
            (Some(_), Some(_)) => {
                let message = format!("input '{name}': expected 'contents' or shared memory, found both");
                return Err(ServeError::bad_request(message));
            }
            (None, Some(_)) if is_raw => {
                let message = format!(
                    "contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
                );
                return Err(ServeError::bad_request(message));
            }
            (None, None) if is_raw => {
                input_index += 1;
                InputData::Bytes(raw.next().unwrap_or_default())
            }
            (None, contents) => InputData::Bytes(typed_bytes(&name, &datatype, contents.unwrap_or_default(), &shape)?),
        };
        inputs.push(InputTensor { name, datatype, shape, data });
    }
    if is_raw && input_index != content_count {
        let message = format!(
            "expected {input_index} entries of raw_input_contents, one for each input that is not in shared memory, found {content_count}"
        );
        return Err(ServeError::bad_request(message));
    }
    let outputs = request.outputs.into_iter();
    let outputs = outputs.map(|output| {
        let mut params = params(output.parameters);
        // Outputs are raw unless the request selects typed contents.
        if params.get("binary_data") == Some(&Param::Bool(true)) {
            params.remove("binary_data");
        }
        requested_output(output.name, params)
    });
    let outputs = outputs.collect::<Result<_>>()?;
    Ok(InferRequest { id: request.id, params: params(request.parameters), inputs, outputs })
}

/// Encodes the typed contents of an input in the binary layout of the protocol.
fn typed_bytes(input: &str, datatype: &str, contents: InferTensorContents, shape: &[i64]) -> Result<Bytes> {
    let Some(parsed_datatype) = Datatype::parse(datatype) else { return Err(unknown_datatype(input, datatype)) };
    let InferTensorContents {
        bool_contents,
        int_contents,
        int64_contents,
        uint_contents,
        uint64_contents,
        fp32_contents,
        fp64_contents,
        bytes_contents,
    } = contents;
    let typed_contents = [
        ("bool_contents", bool_contents.len()),
        ("int_contents", int_contents.len()),
        ("int64_contents", int64_contents.len()),
        ("uint_contents", uint_contents.len()),
        ("uint64_contents", uint64_contents.len()),
        ("fp32_contents", fp32_contents.len()),
        ("fp64_contents", fp64_contents.len()),
        ("bytes_contents", bytes_contents.len()),
    ];
    let field = match datatype {
        "BOOL" => "bool_contents",
        "INT8" | "INT16" | "INT32" => "int_contents",
        "INT64" => "int64_contents",
        "UINT8" | "UINT16" | "UINT32" => "uint_contents",
        "UINT64" => "uint64_contents",
        "FP32" => "fp32_contents",
        "FP64" => "fp64_contents",
        "BYTES" => "bytes_contents",
        other => {
            let field_name = typed_contents.iter().find(|(_, count)| *count > 0).map_or("none", |(name, _)| *name);
            let message =
                format!("input '{input}': expected raw_input_contents for datatype {other}, found {field_name}");
            return Err(ServeError::bad_request(message));
        }
    };
    if let Some((wrong_field, _)) = typed_contents.iter().find(|(name, count)| *name != field && *count > 0) {
        let message = format!("input '{input}': expected {field} for datatype {datatype}, found {wrong_field}");
        return Err(ServeError::bad_request(message));
    }
    let count = typed_contents.iter().find(|(name, _)| *name == field).map_or(0, |(_, count)| *count);
    let expected = shape.iter().try_fold(1i64, |n, &d| n.checked_mul(d));
    if expected != i64::try_from(count).ok() {
        let message = format!("input '{input}': expected {field} with the elements of shape {shape:?}, found {count}");
        return Err(ServeError::bad_tensor(message));
    }
    match field {
        "fp32_contents" => return Ok(fp32_contents.iter().flat_map(|value| value.to_le_bytes()).collect()),
        "fp64_contents" => return Ok(fp64_contents.iter().flat_map(|value| value.to_le_bytes()).collect()),
        "bytes_contents" => {
            let mut bytes = Vec::new();
            for content in bytes_contents {
                let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
                bytes.extend_from_slice(&length.to_le_bytes());
                bytes.extend_from_slice(&content);
            }
            return Ok(bytes.into());
        }
        _ => {}
    }
    let elements: Vec<Scalar> = bool_contents
        .into_iter()
        .map(Scalar::Bool)
        .chain(int_contents.into_iter().map(|value| Scalar::Int(value.into())))
        .chain(int64_contents.into_iter().map(Scalar::Int))
        .chain(uint_contents.into_iter().map(|value| Scalar::Uint(value.into())))
        .chain(uint64_contents.into_iter().map(Scalar::Uint))
        .collect();
    Ok(encode(input, parsed_datatype, &elements)?.into())
}

/// Decodes elements to typed contents; `None` for a datatype without typed contents.
fn contents(datatype: Datatype, bytes: &[u8]) -> Option<InferTensorContents> {
    let mut contents = InferTensorContents::default();
    macro_rules! elements {
        ($ty:ty, $to:ident) => {{
            let chunks = bytes.chunks_exact(size_of::<$ty>());
            let values = chunks.map(|chunk| <$ty>::from_le_bytes(chunk.try_into().unwrap_or_default()).into());
            contents.$to = values.collect();
        }};
    }
    match datatype {
        Datatype::Fixed(DType::Bool) => contents.bool_contents = bytes.iter().map(|byte| *byte != 0).collect(),
        Datatype::Fixed(DType::I8) => elements!(i8, int_contents),
        Datatype::Fixed(DType::I16) => elements!(i16, int_contents),
        Datatype::Fixed(DType::I32) => elements!(i32, int_contents),
        Datatype::Fixed(DType::I64) => elements!(i64, int64_contents),
        Datatype::Fixed(DType::U8) => elements!(u8, uint_contents),
        Datatype::Fixed(DType::U16) => elements!(u16, uint_contents),
        Datatype::Fixed(DType::U32) => elements!(u32, uint_contents),
        Datatype::Fixed(DType::U64) => elements!(u64, uint64_contents),
        Datatype::Fixed(DType::F32) => elements!(f32, fp32_contents),
        Datatype::Fixed(DType::F64) => elements!(f64, fp64_contents),
        Datatype::Bytes => {
            let mut unread_bytes = bytes;
            while let Some((length, tail)) = unread_bytes.split_first_chunk::<4>() {
                let (text, tail) = tail.split_at_checked(u32::from_le_bytes(*length) as usize)?;
                contents.bytes_contents.push(Bytes::copy_from_slice(text));
                unread_bytes = tail;
            }
        }
        Datatype::Fixed(_) => return None,
    }
    Some(contents)
}

/// Converts an inference response. Outputs are raw unless the request selects typed contents for all outputs, because
/// some clients read only raw outputs.
fn infer_response(response: InferResponse) -> ModelInferResponse {
    let typed_responses: Option<Vec<InferTensorContents>> = response
        .outputs
        .iter()
        .map(|output| match &output.data {
            OutputData::Bytes(bytes) if output.binary == Some(false) => contents(output.datatype, bytes),
            _ => None,
        })
        .collect();
    let is_typed = typed_responses.is_some();
    let mut typed_responses = typed_responses.into_iter().flatten();
    let mut raw = Vec::with_capacity(response.outputs.len());
    let outputs = response.outputs.into_iter().map(|output| {
        let mut parameters = BTreeMap::new();
        match output.data {
            OutputData::Bytes(_) if is_typed => {}
            OutputData::Bytes(bytes) => raw.push(bytes),
            OutputData::Shared(span) => {
                // An empty entry keeps raw contents aligned with the outputs.
                raw.push(Bytes::new());
                let text = ParameterChoice::Text(span.region);
                let span_numbers = [("shared_memory_offset", span.offset), ("shared_memory_byte_size", span.byte_size)];
                parameters.insert("shared_memory_region".to_owned(), InferParameter { choice: Some(text) });
                for (name, value) in span_numbers {
                    let parameter_choice = Some(ParameterChoice::Int(i64::try_from(value).unwrap_or(i64::MAX)));
                    parameters.insert(name.to_owned(), InferParameter { choice: parameter_choice });
                }
            }
        }
        InferTensor {
            name: output.name,
            datatype: output.datatype.name().unwrap_or_default().to_owned(),
            shape: output.shape,
            parameters,
            contents: typed_responses.next(),
        }
    });
    let outputs = outputs.collect();
    ModelInferResponse {
        model_name: response.model,
        model_version: response.version,
        id: response.id,
        outputs,
        raw_output_contents: raw,
    }
}
