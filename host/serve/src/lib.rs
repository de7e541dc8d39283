//! Inference server: the Open Inference Protocol v2 over HTTP and gRPC, with Triton's extensions.
//!
//! ```text
//! listen -> http, grpc -> app -> repository -> served -> batch -> byoc::Model
//! ```
//!
//! * [`listen`](Server) manages the connections: limits on their number and idle time, and graceful shutdown.
//! * `http` and `grpc` translate between their protocols and common request and response types (`request`).
//! * `repository` stores the model versions. A request holds a reference to its version, so a reload loses no request.
//! * `served` validates a request against its model; `batch` batches requests, runs them, and splits the results.
//!
//! Invariants: every request receives a response with a status, and an error response also has a code and a message;
//! every queue, body, table and wait is bounded; no client input terminates the process.

mod app;
mod artifact_cache;
mod batch;
mod body;
mod config;
mod datatype;
mod error;
mod grpc;
mod http;
mod infer_json;
mod listen;
mod load;
mod loader;
mod log;
mod mapping;
mod memory;
mod metrics;
mod options;
mod outputs;
mod program;
pub mod proto;
mod repository;
mod request;
mod served;
mod server;
mod shared_memory;
mod stats;
mod strings;
mod threads;

pub use error::{ServeError, Status};
pub use log::LogFormat;
pub use options::{Options, parse};
pub use program::run_program;
pub use server::Server;
