//! Server state, and the operations shared by both protocols.

use crate::error::{Result, ServeError, Status};
use crate::listen::Connections;
use crate::loader::Loader;
use crate::log::LogControl;
use crate::memory;
use crate::proto::ServerMetadataResponse;
use crate::repository::{Overrides, Repository};
use crate::request::{InferRequest, InferResponse};
use crate::served::ServedModel;
use crate::shared_memory::Regions;
use byoc_ir::diag::codes::serving;
use byoc_ir::tensor::memory::Charge;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Minimum size in bytes of JSON that is parsed and written outside the connection threads.
const LARGE_JSON: usize = 256 << 10;

/// Server state.
pub struct App {
    pub repository: Repository,
    pub regions: Regions,
    pub log: Arc<LogControl>,
    pub connections: Arc<Connections>,
    /// True if clients may load and unload models.
    pub allows_control: bool,
    /// Time limit per request.
    pub timeout: Duration,
    /// Maximum size of a request in bytes.
    pub max_request_size: usize,
    /// True once the initial load of every model has succeeded or failed.
    pub is_started: AtomicBool,
    /// True once shutdown has begun.
    pub is_stopping: AtomicBool,
    /// Id of the next request without a client-supplied id.
    pub next_request_id: AtomicU64,
    /// Threads that load and unload models.
    pub loader: Loader,
}

impl App {
    /// Returns true once all models are ready.
    pub fn is_ready(&self) -> bool {
        self.is_started.load(Ordering::Relaxed) && !self.is_stopping() && self.repository.is_ready()
    }

    /// Returns true once shutdown has begun.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Returns the server metadata, including the supported extensions.
    pub fn metadata(&self) -> ServerMetadataResponse {
        let mut extensions = vec![
            "classification",
            "schedule_policy",
            "model_configuration",
            "binary_tensor_data",
            "parameters",
            "statistics",
            "logging",
        ];
        if self.allows_control {
            extensions.extend(["model_repository", "model_repository(unload_dependents)"]);
        }
        if self.regions.are_allowed() {
            extensions.push("system_shared_memory");
        }
        ServerMetadataResponse {
            name: "byoc".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: extensions.into_iter().map(str::to_owned).collect(),
        }
    }

    /// Finds the model of a request.
    ///
    /// # Errors
    /// If the model or version is unknown or not ready.
    pub fn find(&self, name: &str, version: &str) -> Result<Arc<ServedModel>> {
        self.repository.find(name, version).map_err(|error| {
            let is_early = !self.is_started.load(Ordering::Relaxed) && error.status == Status::NotFound;
            if is_early && self.repository.is_known(name) {
                let message = format!("model '{name}' is not ready: the server is loading its models; retry later");
                return ServeError::new(Status::Unavailable, serving::NOT_READY, message);
            }
            error
        })
    }

    /// Runs a request, and logs it.
    ///
    /// # Errors
    /// See [`ServedModel::infer`].
    pub async fn infer(
        &self,
        served_model: &ServedModel,
        protocol: &str,
        request: InferRequest,
        arrival: Instant,
        deadline: Instant,
    ) -> Result<InferResponse> {
        let id = match request.id.as_str() {
            "" => format!("#{}", self.next_request_id.fetch_add(1, Ordering::Relaxed)),
            id => id.chars().take(128).collect(),
        };
        let result = served_model.infer(request, &self.regions, arrival, deadline).await;
        let (model, version, microseconds) =
            (&*served_model.name, served_model.version, arrival.elapsed().as_micros() as u64);
        match &result {
            Ok(_) if self.log.logs_requests() => {
                tracing::info!(target: "byoc::serve", request = id, protocol, model, version, status = 200, microseconds, "infer");
            }
            Err(error) if error.status == Status::Internal => {
                tracing::error!(target: "byoc::serve", request = id, protocol, model, version, status = 500, microseconds, "infer: {error}");
            }
            Err(error) if self.log.logs_requests() => {
                let status = error.status.http();
                tracing::info!(target: "byoc::serve", request = id, protocol, model, version, status, microseconds, "infer: {error}");
            }
            _ => {}
        }
        result
    }

    /// Fails unless clients may load and unload models.
    ///
    /// # Errors
    /// If the server runs without `--allow-control`.
    pub fn check_control(&self) -> Result<()> {
        if self.allows_control { Ok(()) } else { Err(control_error()) }
    }

    /// Loads a model.
    ///
    /// # Errors
    /// If the server runs without `--allow-control`, too many loads are in progress, or the model cannot be loaded
    /// within its time limit.
    pub async fn load(self: &Arc<Self>, name: String, overrides: Overrides) -> Result<()> {
        self.check_control()?;
        let app = self.clone();
        self.loader.run(move || app.repository.load(&name, &overrides)).await
    }

    /// Unloads a model.
    ///
    /// # Errors
    /// If the server runs without `--allow-control`, too many loads are in progress, or the model is unknown.
    pub async fn unload(self: &Arc<Self>, name: String) -> Result<()> {
        self.check_control()?;
        let app = self.clone();
        self.loader.run(move || app.repository.unload(&name)).await
    }

    /// Adds the next `extra` bytes of a request, which follow `size` earlier bytes, to `charge`.
    ///
    /// # Errors
    /// If the request exceeds the request size limit, or the memory limit is exhausted.
    pub fn charge(&self, charge: &mut Charge, size: usize, extra: usize) -> Result<()> {
        if size.saturating_add(extra) > self.max_request_size {
            return Err(too_large_error(self.max_request_size, size.saturating_add(extra)));
        }
        memory::grow(charge, extra)
    }
}

/// Returns the error for a load or unload by a client without permission.
pub fn control_error() -> ServeError {
    let message = "loading and unloading of models by clients is disabled; start the server with --allow-control";
    ServeError::new(Status::Unavailable, serving::NOT_SERVED, message)
}

/// Returns the error for a request that exceeds the size limit.
pub fn too_large_error(limit: usize, size: usize) -> ServeError {
    let message = format!("expected a request of at most {limit} bytes (--max-request-size), found {size} or more");
    ServeError::new(Status::TooLarge, serving::BAD_REQUEST, message)
}

fn panic_error() -> ServeError {
    let message = "the request panicked; this is a bug in byoc: please report it";
    ServeError::new(Status::Internal, byoc_ir::diag::codes::runtime::BAD_PROGRAM, message)
}

/// Runs `task` on `size` bytes of JSON: inline if the JSON is small, otherwise on a blocking thread.
///
/// # Errors
/// If `task` fails or panics.
pub async fn run_json_task<T: Send + 'static>(
    size: usize,
    task: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if size < LARGE_JSON { task() } else { run_task(task).await }
}

/// Runs `task` on a blocking thread.
///
/// # Errors
/// If `task` fails or panics.
pub async fn run_task<T: Send + 'static>(task: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(task).await.unwrap_or_else(|_| Err(panic_error()))
}

/// Request bytes, charged to the memory limit until dropped.
#[derive(Debug, Default)]
pub struct BodyBytes {
    pub bytes: Bytes,
    pub charge: Charge,
}
