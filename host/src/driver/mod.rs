//! Compilation of a module to a program, which an executor runs or an artifact stores.

pub mod backend;
mod claims;
pub mod codegen;
pub mod contract;
pub mod contract_report;
mod declared;
mod explain;
pub mod explain_page;
pub mod explanation;
pub mod explanation_diff;
pub mod export;
pub mod judge;
#[cfg(feature = "onnx")]
mod onnx_service;
mod options;
mod pass_log;
mod pipeline;
pub mod plan;
pub mod precision;
mod progress;
mod recovery;
mod round;
mod specialize;
pub mod written;

pub use byoc_runtime::compiled::{self, Compiled, CompiledRegion, PluginId, RegionSource};
pub use options::BuildOptions;
pub use pipeline::{
    BuildOutput, RefusalSummary, SIMPLIFY, UnusedBackend, build, declare_operators, partitioned, placement,
    refusal_headline, refusal_summary,
};
pub use progress::{Progress, Stage};
pub use recovery::OnFailure;
pub use specialize::build_programs;
