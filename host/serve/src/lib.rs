//! Inference server: the Open Inference Protocol v2 over HTTP and gRPC, with Triton's extensions.
//!
//! ```text
//! listen -> http, grpc -> app -> repository -> served -> batch -> byoc::Model
//! ```
//!
//! * [`listen`](Server) holds the connections: their number, their idle time, the end without a lost request.
//! * `http` and `grpc` translate between the protocol and one form of requests and responses (`request`).
//! * `repository` keeps the versions of the models. A request holds the version that it found, so that a reload loses none.
//! * `served` checks a request against its model; `batch` joins requests, runs them, and gives each its part of the results.
//!
//! Invariants: every request gets an answer with a status, a code and a text; every queue, body, table and wait has a
//! bound; nothing that a client sends ends the process.

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
mod log;
mod metrics;
mod options;
mod program;
pub mod proto;
mod repository;
mod request;
mod served;
mod server;
mod shared_memory;
mod stats;
mod threads;

pub use error::{ServeError, Status};
pub use log::LogFormat;
pub use options::{Options, parse};
pub use program::run_program;
pub use server::Server;
