//! Compilation of a module to a program, which an executor runs or an artifact stores.

pub mod backend;
pub mod codegen;
mod explain;
pub mod explain_page;
pub mod explanation;
pub mod export;
#[cfg(feature = "onnx")]
mod onnx_service;
mod pipeline;
pub mod plan;
mod progress;
mod specialize;
pub mod written;

pub use byoc_runtime::compiled::{self, Compiled, CompiledRegion, PluginId, RegionSource};
pub use pipeline::{
    BuildOptions, BuildOutput, RefusalSummary, SIMPLIFY, UnusedBackend, build, partitioned, refusal_headline,
    refusal_summary,
};
pub use progress::{Progress, Stage};
pub use specialize::build_programs;
