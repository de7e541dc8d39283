//! Plugins: discovery and loading, the registry of their code generators and loaders, and the bridge between core
//! modules and boundary graphs.

pub mod bridge;
pub mod cpu;
pub mod devices;
pub mod discover;
pub mod from_graph;
pub mod guard;
pub mod region;
pub mod registry;
pub mod run_slots;
pub mod services;

pub use crate::error::fault;

use serde_json::{Value, json};
use std::path::Path;

/// Returns the options common to all code generators and loaders. A code generator also receives its own options as
/// `backend_options`, and a loader receives the description of the region as `region`.
pub fn options(cache_dir: Option<&Path>, threads: Option<usize>) -> Value {
    json!({
        "cache_dir": cache_dir.map(|d| d.display().to_string()),
        "cpu_features": cpu::features(),
        "threads": threads,
    })
}
