//! Plugins: discovery and loading, the registry of their code generators and loaders, and the bridge between the core's
//! programs and the boundary's graphs.

pub mod bridge;
pub mod cpu;
pub mod discover;
pub mod guard;
pub mod region;
pub mod registry;
pub mod services;

use byoc_ir::diag::{Diagnostic, codes};
use byoc_plugin_api as api;
use serde_json::{Value, json};
use std::path::Path;

/// Returns the options common to all code generators and loaders. A code generator also gets its own options as
/// `backend_options`, and a loader gets the description of the region as `region`.
pub fn options(cache_dir: Option<&Path>, threads: Option<usize>) -> Value {
    json!({
        "cache_dir": cache_dir.map(|d| d.display().to_string()),
        "cpu_features": cpu::features(),
        "threads": threads,
    })
}

/// Converts an error of a plugin's entry to a diagnostic.
pub fn fault(error: &api::Error) -> Diagnostic {
    let diagnostic = Diagnostic::error(codes::plugins::PLUGIN_FAULT, error.to_string());
    if error.hint.is_empty() { diagnostic } else { diagnostic.help(error.hint.as_str()) }
}
