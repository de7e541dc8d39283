//! Tests of the server over HTTP and gRPC on the loopback interface.

mod batching;
mod binary;
mod cache;
mod client;
mod clients;
mod conformance;
mod documents;
mod endpoints;
mod grpc;
mod hostile;
mod infer;
mod models;
mod mutations;
mod operation;
mod plugins;
mod process;
mod repository;
mod robustness;
mod shapes;
mod shared_memory;
mod strings;
