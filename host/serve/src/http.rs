//! HTTP interface, over HTTP/1.1 and HTTP/2.
//!
//! The content type of a request is ignored, because some clients omit it. Every error response has a JSON body with
//! `error` and `code`.

use crate::app::{App, BodyBytes, run_json_task};
use crate::body::{accepted_coding, drain, infer_response, read_body};
use crate::config;
use crate::error::{Result, ServeError, Status};
use crate::infer_json::{self, HttpRequest};
use crate::memory::{self, ChargedBytes};
use crate::metrics;
use crate::proto;
use crate::repository::Overrides;
use crate::request::{InferRequest, InputData, InputTensor, Param, check_unload_parameter};
use crate::served::{ServedModel, clip, resolve};
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use byoc::io::footprint::JsonCosts;
use byoc_ir::diag::{Code, codes::serving};
use byoc_ir::tensor::memory::Charge;
use bytes::Bytes;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use hyper::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Header with the size of the JSON that precedes the binary data.
pub const JSON_LENGTH: &str = "inference-header-content-length";
/// Maximum body size of requests other than inference and load, in bytes.
const MAX_SMALL_BODY: usize = 1 << 20;

/// Protocol endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Server,
    Live,
    Ready,
    Models,
    Model,
    ModelReady,
    Infer,
    Config,
    Stats,
    Explain,
    Index,
    Load,
    Unload,
    SharedStatus,
    SharedRegister,
    SharedUnregister,
    CudaShared,
    LogGet,
    LogSet,
    Trace,
    Generate,
    Metrics,
}

const GET: MethodFilter = MethodFilter::GET;
const POST: MethodFilter = MethodFilter::POST;

/// Paths and methods of the protocol endpoints.
const ENDPOINTS: &[(MethodFilter, &str, Endpoint)] = &[
    (GET, "/v2", Endpoint::Server),
    (GET, "/v2/health/live", Endpoint::Live),
    (GET, "/v2/health/ready", Endpoint::Ready),
    (GET, "/v2/models", Endpoint::Models),
    (GET, "/v2/models/stats", Endpoint::Stats),
    (GET, "/v2/models/{model}", Endpoint::Model),
    (GET, "/v2/models/{model}/versions/{version}", Endpoint::Model),
    (GET, "/v2/models/{model}/ready", Endpoint::ModelReady),
    (GET, "/v2/models/{model}/versions/{version}/ready", Endpoint::ModelReady),
    (POST, "/v2/models/{model}/infer", Endpoint::Infer),
    (POST, "/v2/models/{model}/versions/{version}/infer", Endpoint::Infer),
    (GET, "/v2/models/{model}/config", Endpoint::Config),
    (GET, "/v2/models/{model}/versions/{version}/config", Endpoint::Config),
    (GET, "/v2/models/{model}/stats", Endpoint::Stats),
    (GET, "/v2/models/{model}/versions/{version}/stats", Endpoint::Stats),
    (GET, "/v2/models/{model}/explain", Endpoint::Explain),
    (GET, "/v2/models/{model}/versions/{version}/explain", Endpoint::Explain),
    (POST, "/v2/models/{model}/generate", Endpoint::Generate),
    (POST, "/v2/models/{model}/versions/{version}/generate", Endpoint::Generate),
    (POST, "/v2/models/{model}/generate_stream", Endpoint::Generate),
    (POST, "/v2/models/{model}/versions/{version}/generate_stream", Endpoint::Generate),
    (POST, "/v2/repository/index", Endpoint::Index),
    (POST, "/v2/repository/models/{model}/load", Endpoint::Load),
    (POST, "/v2/repository/models/{model}/unload", Endpoint::Unload),
    (POST, "/v2/repository/{repository}/index", Endpoint::Index),
    (POST, "/v2/repository/{repository}/models/{model}/load", Endpoint::Load),
    (POST, "/v2/repository/{repository}/models/{model}/unload", Endpoint::Unload),
    (GET, "/v2/systemsharedmemory/status", Endpoint::SharedStatus),
    (GET, "/v2/systemsharedmemory/region/{region}/status", Endpoint::SharedStatus),
    (POST, "/v2/systemsharedmemory/region/{region}/register", Endpoint::SharedRegister),
    (POST, "/v2/systemsharedmemory/unregister", Endpoint::SharedUnregister),
    (POST, "/v2/systemsharedmemory/region/{region}/unregister", Endpoint::SharedUnregister),
    (GET, "/v2/cudasharedmemory/status", Endpoint::CudaShared),
    (GET, "/v2/cudasharedmemory/region/{region}/status", Endpoint::CudaShared),
    (POST, "/v2/cudasharedmemory/region/{region}/register", Endpoint::CudaShared),
    (POST, "/v2/cudasharedmemory/unregister", Endpoint::CudaShared),
    (POST, "/v2/cudasharedmemory/region/{region}/unregister", Endpoint::CudaShared),
    (GET, "/v2/logging", Endpoint::LogGet),
    (POST, "/v2/logging", Endpoint::LogSet),
    (GET, "/v2/trace/setting", Endpoint::Trace),
    (POST, "/v2/trace/setting", Endpoint::Trace),
    (GET, "/v2/models/{model}/trace/setting", Endpoint::Trace),
    (POST, "/v2/models/{model}/trace/setting", Endpoint::Trace),
    (GET, "/metrics", Endpoint::Metrics),
];

/// Returns the router for all protocol endpoints.
pub fn router(app: Arc<App>) -> Router {
    let mut paths: BTreeMap<&str, MethodRouter<Arc<App>>> = BTreeMap::new();
    for &(method, path, endpoint) in ENDPOINTS {
        let handler = move |state, params, request| handle(endpoint, state, params, request);
        let routes = paths.remove(path).unwrap_or_default();
        paths.insert(path, routes.merge(on(method, handler)));
    }
    let routes = paths.into_iter().fold(Router::new(), |router, (path, routes)| router.route(path, routes));
    let unknown = async || error_response(StatusCode::NOT_FOUND, "Not Found", serving::BAD_REQUEST);
    let wrong_method =
        async || error_response(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed", serving::BAD_REQUEST);
    routes.fallback(unknown).method_not_allowed_fallback(wrong_method).with_state(app)
}

/// Returns the router for a server with only `/metrics`.
pub fn metrics_router(app: Arc<App>) -> Router {
    let handler = |state, params, request| handle(Endpoint::Metrics, state, params, request);
    let unknown = async || error_response(StatusCode::NOT_FOUND, "Not Found", serving::BAD_REQUEST);
    Router::new().route("/metrics", on(GET, handler)).fallback(unknown).with_state(app)
}

/// Path parameters.
struct Path {
    model: String,
    version: String,
    region: Option<String>,
    repository: String,
}

async fn handle(
    endpoint: Endpoint,
    State(app): State<Arc<App>>,
    params: std::result::Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
) -> Response {
    let mut path = Path { model: String::new(), version: String::new(), region: None, repository: String::new() };
    match &params {
        Ok(params) => {
            for (name, value) in params {
                match name {
                    "model" => value.clone_into(&mut path.model),
                    "version" => value.clone_into(&mut path.version),
                    "region" => path.region = Some(value.to_owned()),
                    "repository" => value.clone_into(&mut path.repository),
                    _ => {}
                }
            }
        }
        Err(_) => {
            return respond_error(&ServeError::bad_request("expected a UTF-8 path, found invalid bytes"));
        }
    }
    // As in Triton, a path with a non-numeric version is unknown.
    if !path.version.bytes().all(|byte| byte.is_ascii_digit()) {
        return error_response(StatusCode::NOT_FOUND, "Not Found", serving::BAD_REQUEST);
    }
    let arrival = Instant::now();
    // The time limit includes the time to receive a request; loads and unloads have no time limit.
    let result = match endpoint {
        Endpoint::Load | Endpoint::Unload => serve(endpoint, &app, path, request, arrival).await,
        _ => {
            let limit = tokio::time::Instant::from_std(arrival + app.timeout);
            match tokio::time::timeout_at(limit, serve(endpoint, &app, path, request, arrival)).await {
                Ok(result) => result,
                Err(_) => Err(timeout_error(&app)),
            }
        }
    };
    result.unwrap_or_else(|error| respond_error(&error))
}

/// Returns the error for a request that exceeded its time limit.
fn timeout_error(app: &App) -> ServeError {
    let message = format!("the request was not received and served within {} s", app.timeout.as_secs_f64());
    ServeError::new(Status::DeadlineExceeded, byoc_ir::diag::codes::runtime::TIMED_OUT, message)
}

/// Reads and discards a body, so that the connection can be reused.
async fn discard_body(app: &Arc<App>, request: Request, arrival: Instant) -> Result<()> {
    let deadline = tokio::time::Instant::from_std(arrival + app.timeout);
    let (parts, body) = request.into_parts();
    let read = read_body(app, &parts.headers, body, MAX_SMALL_BODY.min(app.max_request_size), 0);
    tokio::time::timeout_at(deadline, read).await.unwrap_or_else(|_| Err(timeout_error(app))).map(drop)
}

async fn serve(endpoint: Endpoint, app: &Arc<App>, path: Path, request: Request, arrival: Instant) -> Result<Response> {
    match endpoint {
        Endpoint::Infer => infer(app, &path, request, arrival).await,
        Endpoint::Server => Ok(json_response(&proto::to_json("ServerMetadataResponse", &app.metadata()))),
        Endpoint::Live => Ok(health(app, "live", true)),
        Endpoint::Ready => Ok(health(app, "ready", app.is_ready())),
        Endpoint::Models => Ok(json_response(&json!({"models": app.repository.names()}))),
        Endpoint::Model => {
            let served_model = app.find(&path.model, &path.version)?;
            let versions = match path.version.as_str() {
                "" => app.repository.ready_versions(&path.model),
                version => vec![version.to_owned()],
            };
            let metadata = served_model.metadata(versions);
            let mut fields = proto::to_json("ModelMetadataResponse", &metadata);
            // The properties are KServe's, in gRPC.
            if let Some(fields) = fields.as_object_mut() {
                fields.shift_remove("properties");
            }
            Ok(json_response(&fields))
        }
        Endpoint::ModelReady => {
            let served_model = match app.find(&path.model, &path.version) {
                Ok(served_model) => served_model,
                Err(error) if app.repository.is_known(&path.model) => {
                    let fields = json!({"name": path.model, "ready": false, "error": error.to_string()});
                    return Ok(with_status(json_response(&fields), StatusCode::BAD_REQUEST));
                }
                Err(error) => return Err(error),
            };
            Ok(json_response(&json!({"name": served_model.name, "ready": true})))
        }
        Endpoint::Config => Ok(json_response(&config::to_json(&app.find(&path.model, &path.version)?.config))),
        Endpoint::Stats => {
            let served_model = match path.model.as_str() {
                "" => app.repository.ready_models(),
                model => vec![app.find(model, &path.version)?],
            };
            let stats = served_model.iter().map(|model| {
                let stats = model.stats.message(&model.name, &model.version.to_string());
                proto::to_json("ModelStatistics", &stats)
            });
            Ok(json_response(&json!({"model_stats": stats.collect::<Vec<_>>()})))
        }
        Endpoint::Explain => explain(app, &path, &request),
        Endpoint::Index => {
            #[derive(Default, Deserialize)]
            struct Fields {
                #[serde(default)]
                ready: bool,
            }
            let fields: Fields = small_body(app, request).await?;
            app.repository.check_repository(&path.repository)?;
            let entries = app.repository.index(fields.ready).into_iter().map(|entry| {
                let mut fields = json!({"name": entry.name});
                for (name, value) in [("version", entry.version), ("state", entry.state), ("reason", entry.reason)] {
                    if !value.is_empty() {
                        fields[name] = value.into();
                    }
                }
                fields
            });
            Ok(json_response(&Value::Array(entries.collect())))
        }
        Endpoint::Load => {
            let (overrides, _charge) = control_request(app, &path, request, arrival, load_overrides).await?;
            app.load(path.model.clone(), overrides).await?;
            Ok(json_response(&json!({"name": path.model, "load": true})))
        }
        Endpoint::Unload => {
            control_request(app, &path, request, arrival, check_unload).await?;
            app.unload(path.model.clone()).await?;
            Ok(json_response(&json!({"name": path.model, "unload": true})))
        }
        Endpoint::SharedStatus => {
            let regions = app.regions.status(path.region.as_deref())?.into_iter().map(|(name, region)| {
                json!({"name": name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size})
            });
            Ok(json_response(&Value::Array(regions.collect())))
        }
        Endpoint::SharedRegister => {
            #[derive(Default, Deserialize)]
            #[serde(default)]
            struct Fields {
                key: String,
                offset: u64,
                byte_size: u64,
            }
            let Fields { key, offset, byte_size } = small_body(app, request).await?;
            app.regions.register(path.region.as_deref().unwrap_or_default(), &key, offset, byte_size)?;
            Ok(json_response(&json!({})))
        }
        Endpoint::SharedUnregister => {
            discard_body(app, request, arrival).await?;
            app.regions.unregister(path.region.as_deref())?;
            Ok(json_response(&json!({})))
        }
        Endpoint::CudaShared => {
            discard_body(app, request, arrival).await?;
            Err(ServeError::not_served("CUDA shared memory is not supported; use system shared memory"))
        }
        Endpoint::Trace => {
            discard_body(app, request, arrival).await?;
            Err(ServeError::not_served("trace settings are not supported; use /v2/models/NAME/explain and /metrics"))
        }
        Endpoint::Generate => {
            discard_body(app, request, arrival).await?;
            app.find(&path.model, &path.version)?;
            Err(ServeError::not_served(
                "generate is not supported: models do not accept or return text; send tensors to /infer",
            ))
        }
        Endpoint::LogGet => Ok(json_response(&log_settings(app))),
        Endpoint::LogSet => {
            let fields: BTreeMap<String, Value> = small_body(app, request).await?;
            set_log(app, &fields)?;
            Ok(json_response(&log_settings(app)))
        }
        Endpoint::Metrics => Ok(text_response(metrics::text(app), "text/plain; version=0.0.4; charset=utf-8")),
    }
}

fn health(app: &App, name: &str, is_healthy: bool) -> Response {
    let response = json_response(&json!({name: is_healthy && !app.is_stopping()}));
    match (app.is_stopping(), is_healthy) {
        (true, _) => with_status(response, StatusCode::SERVICE_UNAVAILABLE),
        (false, true) => response,
        (false, false) => with_status(response, StatusCode::BAD_REQUEST),
    }
}

fn explain(app: &App, path: &Path, request: &Request) -> Result<Response> {
    let model = app.find(&path.model, &path.version)?;
    let explanation = model.model.explanation();
    let wants_page = request.uri().query() == Some("format=html")
        || request
            .headers()
            .get(ACCEPT)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.starts_with("text/html"));
    if !wants_page {
        return Ok(json_response(&json!(explanation)));
    }
    let page = byoc::driver::explain_page::page(&model.name, explanation);
    Ok(text_response(page, "text/html; charset=utf-8"))
}

async fn infer(app: &Arc<App>, path: &Path, request: Request, arrival: Instant) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let header = json_length(&parts.headers);
    let compression = accepted_coding(&parts.headers);
    // The body is read before the request is checked: a connection with an unread body cannot be reused.
    let expected = header.as_ref().ok().copied().flatten().unwrap_or(0);
    let mut body_bytes = read_body(app, &parts.headers, body, app.max_request_size, expected).await?;
    let header = header?;
    let model = app.find(&path.model, &path.version)?;
    let bytes = body_bytes.bytes.clone();
    let HttpRequest { mut request, binary_output } = match header {
        Some(0) => HttpRequest { request: raw_request(&model, bytes)?, binary_output: true },
        header => {
            let header = header.unwrap_or(bytes.len());
            if header > bytes.len() {
                let message = format!(
                    "Inference-Header-Content-Length: expected at most the {} bytes of the body, found {header}",
                    bytes.len()
                );
                return Err(ServeError::bad_request(message));
            }
            let parse = move || {
                let mut charge = Charge::default();
                Ok((infer_json::parse(&bytes, header, &mut charge)?, charge))
            };
            let (request, charge) = run_json_task(header, parse).await?;
            body_bytes.charge.merge(charge);
            request
        }
    };
    if request.id.is_empty()
        && let Some(id) = parts.headers.get("x-request-id").and_then(|id| id.to_str().ok())
    {
        id.clone_into(&mut request.id);
    }
    let response = app.infer(&model, "http", request, arrival, arrival + app.timeout).await?;
    drop(body_bytes);
    let size = response.outputs.iter().map(|output| match &output.data {
        crate::request::OutputData::Bytes(bytes) if !output.binary.unwrap_or(binary_output) => bytes.len(),
        _ => 0,
    });
    let response = run_json_task(size.sum(), move || infer_json::write(&response, binary_output)).await?;
    infer_response(response, compression).await
}

/// Creates the request for a body that consists of the binary data of the model's only input.
fn raw_request(model: &ServedModel, bytes: Bytes) -> Result<InferRequest> {
    let [spec] = &model.inputs[..] else {
        let message = format!(
            "expected a model with one input for a request without JSON, found {} inputs of '{}'",
            model.inputs.len(),
            model.name
        );
        return Err(ServeError::bad_request(message));
    };
    let batch = usize::from(model.config.max_batch_size > 0);
    let inner = &spec.shape[batch..];
    let unknown = inner.iter().filter(|size| **size < 0).count();
    let size = spec.dtype.size();
    let shape = if unknown > 1 || !bytes.len().is_multiple_of(size) {
        None
    } else {
        resolve(inner, &[1][..batch], bytes.len() / size)
    };
    let Some(shape) = shape else {
        let message = format!(
            "expected the binary data of input '{}' of shape {}, with at most one unknown dimension, found {} bytes",
            spec.name,
            crate::served::dims(&spec.shape),
            bytes.len()
        );
        return Err(ServeError::bad_tensor(message));
    };
    let datatype = spec.datatype_name().to_owned();
    let shape = shape.into_iter().map(|size| size as i64).collect();
    let input = InputTensor { name: spec.name.clone(), datatype, shape, data: InputData::Bytes(bytes) };
    Ok(InferRequest { inputs: vec![input], ..InferRequest::default() })
}

fn json_length(headers: &HeaderMap) -> Result<Option<usize>> {
    let Some(value) = headers.get(JSON_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    length.and_then(|text| text.parse().ok()).map(Some).ok_or_else(|| {
        ServeError::bad_request(format!("Inference-Header-Content-Length: expected a number of bytes, found {value:?}"))
    })
}

/// Reads the JSON body of a non-inference request; an empty body represents the default value.
async fn small_body<T: Default + for<'a> Deserialize<'a>>(app: &Arc<App>, request: Request) -> Result<T> {
    let (parts, body) = request.into_parts();
    let body_bytes = read_body(app, &parts.headers, body, MAX_SMALL_BODY.min(app.max_request_size), 0).await?;
    parse_json(&body_bytes.bytes, &mut Charge::default())
}

/// Parses JSON whose memory is added to `charge`; white space stands for the default value.
fn parse_json<T: Default + for<'a> Deserialize<'a>>(text: &[u8], charge: &mut Charge) -> Result<T> {
    if text.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    memory::grow(charge, JsonCosts::tree(size_of::<Value>()).of(text))?;
    serde_json::from_slice(text)
        .map_err(|error| ServeError::bad_request(format!("failed to parse the request JSON buffer: {error}")))
}

/// Parameters of a load or unload request.
#[derive(Default, Deserialize)]
struct ControlParams {
    #[serde(default)]
    parameters: BTreeMap<String, Value>,
}

/// Reads a load or unload request within the time limit of requests, and converts its parameters on a thread for
/// blocking work. The charge covers them.
async fn control_request<T: Send + 'static>(
    app: &Arc<App>,
    path: &Path,
    request: Request,
    arrival: Instant,
    convert: impl FnOnce(BTreeMap<String, Value>) -> Result<T> + Send + 'static,
) -> Result<(T, Charge)> {
    let (parts, body) = request.into_parts();
    let read = async {
        if let Err(error) = app.repository.check_repository(&path.repository).and_then(|()| app.check_control()) {
            drain(body, app.max_request_size).await;
            return Err(error);
        }
        let BodyBytes { bytes, mut charge } = read_body(app, &parts.headers, body, app.max_request_size, 0).await?;
        run_json_task(bytes.len(), move || {
            let params: ControlParams = parse_json(&bytes, &mut charge)?;
            Ok((convert(params.parameters)?, charge))
        })
        .await
    };
    let deadline = tokio::time::Instant::from_std(arrival + app.timeout);
    tokio::time::timeout_at(deadline, read).await.unwrap_or_else(|_| Err(timeout_error(app)))
}

/// Checks the parameters of an unload request.
fn check_unload(parameters: BTreeMap<String, Value>) -> Result<()> {
    for (name, value) in parameters {
        let value = match value {
            Value::Bool(value) => Some(Param::Bool(value)),
            Value::String(text) => Some(Param::Text(text)),
            Value::Number(value) => Some(Param::Float(value.as_f64().unwrap_or_default())),
            _ => None,
        };
        check_unload_parameter(&name, value.as_ref())?;
    }
    Ok(())
}

fn load_overrides(parameters: BTreeMap<String, Value>) -> Result<Overrides> {
    let mut overrides = Overrides::default();
    for (name, value) in parameters {
        let text = value
            .as_str()
            .ok_or_else(|| ServeError::bad_request(format!("parameter '{name}': expected a string, found {value}")));
        if name == "config" {
            overrides.config = Some(text?.to_owned());
        } else if let Some(file) = name.strip_prefix("file:") {
            let bytes = STANDARD.decode(text?).map_err(|error| {
                ServeError::bad_request(format!("parameter '{name}': the value is not valid base64: {error}"))
            })?;
            overrides.files.insert(file.to_owned(), bytes.into());
        } else {
            let message = format!("expected the parameter 'config' or 'file:VERSION/NAME', found '{}'", clip(&name));
            return Err(ServeError::bad_request(message));
        }
    }
    Ok(overrides)
}

fn log_settings(app: &App) -> Value {
    let log = &app.log;
    json!({
        "log_file": "",
        "log_info": log.info.load(Ordering::Relaxed),
        "log_warning": log.warning.load(Ordering::Relaxed),
        "log_error": log.error.load(Ordering::Relaxed),
        "log_verbose_level": log.verbose.load(Ordering::Relaxed),
        "log_format": "ISO8601",
    })
}

fn set_log(app: &App, fields: &BTreeMap<String, Value>) -> Result<()> {
    let setting_error = |name: &str, expected: &str, value: &Value| {
        ServeError::bad_request(format!("log setting '{name}': expected {expected}, found {value}"))
    };
    // All settings are checked before any setting is changed.
    for is_set in [false, true] {
        for (name, value) in fields {
            let flag = match name.as_str() {
                "log_info" => &app.log.info,
                "log_warning" => &app.log.warning,
                "log_error" => &app.log.error,
                "log_verbose_level" => {
                    let level = value.as_u64().and_then(|level| u32::try_from(level).ok());
                    let level = level.ok_or_else(|| setting_error(name, "an integer >= 0", value))?;
                    if is_set {
                        app.log.verbose.store(level, Ordering::Relaxed);
                    }
                    continue;
                }
                "log_file" if value == "" => continue,
                "log_file" => return Err(setting_error(name, "\"\" (standard error)", value)),
                "log_format" if value == "ISO8601" => continue,
                "log_format" => return Err(setting_error(name, "\"ISO8601\"", value)),
                _ => {
                    return Err(ServeError::bad_request(format!(
                        "expected a log setting such as log_info, found '{name}'"
                    )));
                }
            };
            let is_enabled = value.as_bool().ok_or_else(|| setting_error(name, "true or false", value))?;
            if is_set {
                flag.store(is_enabled, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Applies log settings from a gRPC request, and returns the effective settings.
///
/// # Errors
/// If a setting is unknown or has an invalid value.
pub fn change_log(app: &App, fields: &BTreeMap<String, Value>) -> Result<Value> {
    set_log(app, fields)?;
    Ok(log_settings(app))
}

fn json_response(value: &Value) -> Response {
    text_response(value.to_string(), "application/json")
}

/// Returns a response whose text is charged to the memory limit until the client has read it.
fn text_response(text: String, content_type: &'static str) -> Response {
    let mut response = match ChargedBytes::charge(text) {
        Ok(bytes) => Response::new(Body::from(bytes)),
        Err(error) => return respond_error(&error),
    };
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(content_type));
    response
}

fn with_status(mut response: Response, status: StatusCode) -> Response {
    *response.status_mut() = status;
    response
}

fn error_response(status: StatusCode, message: &str, code: Code) -> Response {
    let mut response = Response::new(Body::from(json!({"error": message, "code": code.to_string()}).to_string()));
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    with_status(response, status)
}

fn respond_error(error: &ServeError) -> Response {
    let status = StatusCode::from_u16(error.status.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = error_response(status, &error.to_string(), error.code);
    let headers = response.headers_mut();
    if error.status == Status::Unavailable {
        headers.insert(RETRY_AFTER, hyper::header::HeaderValue::from_static("1"));
    }
    if error.status == Status::Unsupported {
        headers.insert(ACCEPT_ENCODING, hyper::header::HeaderValue::from_static("gzip, deflate"));
    }
    response
}
