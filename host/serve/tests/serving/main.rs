//! Tests of the server over HTTP and gRPC on the loopback interface.

mod batching;
mod binary;
mod client;
mod clients;
mod endpoints;
mod grpc;
mod infer;
mod models;
mod operation;
mod repository;
mod shared_memory;
