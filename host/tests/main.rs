//! Tests of the library, of what it reads and of what it runs.

mod artifact;
mod codes;
mod common;
mod control_flow;
mod declared;
mod decoding;
mod emit;
mod executor;
mod interfaces;
mod library;
mod onednn;
mod onnx_bad_input;
mod onnx_files;
mod onnx_models;
mod onnx_operators;
mod onnx_service;
mod onnx_written;
mod relay_programs;
mod specialized;
mod strings;
mod support;
mod unwritten_memory;
