//! User scenarios, run through the `byoc` binary.

mod artifact;
mod bundle;
mod command;
mod conformance;
mod contracts;
mod device;
mod digits;
mod drop_in;
mod embed;
mod explain;
mod export;
mod from_tvm;
mod inputs;
mod lecture;
mod linked;
mod models;
mod models_out;
mod new_plugin;
mod newcomer;
mod nuc_fpga;
mod on_failure;
mod onednn;
mod opencl;
mod opt;
mod precision;
mod quantize;
mod rude;
mod run_errors;
mod skew;
mod template;
mod tensorrt;
mod valgrind;
mod values;
mod vta;
mod whole_graph;

pub use command::*;
