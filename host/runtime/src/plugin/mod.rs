//! Plugins: discovery and loading, the registry of their code generators and loaders, and the conversion between core
//! modules and boundary graphs.

pub mod cpu;
pub mod devices;
pub mod discover;
pub mod from_graph;
pub mod guard;
pub mod region;
pub mod registry;
pub mod run_slots;
pub mod services;
pub mod to_graph;

pub use crate::error::fault;
pub use byoc_plugin_api::host::entries;

use serde_json::{Value, json};
use std::path::Path;

/// Returns a list of operators of the model, for messages about the end of a process. The first few are named.
pub fn operator_list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const MAX_NAMED: usize = 3;
    let mut names = names.into_iter();
    let mut list = names.by_ref().take(MAX_NAMED).collect::<Vec<_>>().join(", ");
    match names.count() {
        0 => {}
        further => list += &format!(" and {further} more"),
    }
    list
}

/// Returns the options common to all code generators and loaders. A code generator also receives its own options as
/// `backend_options`, and a loader receives the description of the region as `region`.
pub fn options(cache_dir: Option<&Path>, threads: Option<usize>) -> Value {
    json!({
        "cache_dir": cache_dir.map(|d| d.display().to_string()),
        "cpu_features": cpu::features(),
        "threads": threads,
    })
}
