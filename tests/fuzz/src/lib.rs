//! Fuzz targets. A [`Target`] consists of a body that reads untrusted bytes, seeds to start from, and a mutation that
//! keeps enough of a seed intact to pass the first checks.
//!
//! The bodies run in two ways: guided by coverage under `cargo-fuzz`, whose targets in `fuzz/` are one line each; and
//! under [`driver`], with any toolchain, where an execution depends only on the target, the seed and the index of the
//! execution, so findings can be reproduced from these three values.
//!
//! A body returns an error for a violation that is not a panic: a result that differs from the reference, or an
//! unexpected type.

mod artifact;
pub mod driver;
mod files;
pub mod hostile;
mod json;
pub mod memory;
mod mutate;
mod onnx_graph;
mod vta_stream;

use byoc::io::random::Random;
use byoc_ir::diag::Diagnostic;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Fuzz target.
pub struct Target {
    /// Name of the target, its directory in `corpus` (if any) and its file in `fuzz/fuzz_targets`.
    pub name: &'static str,
    /// Returns the initial inputs, at least one.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Mutates an input.
    pub mutate: fn(&[u8], &mut Random) -> Vec<u8>,
    /// Returns inputs of about a given number of bytes that grow when they are read.
    pub hostile: fn(usize) -> Vec<hostile::Hostile>,
    /// Runs the target on one input.
    ///
    /// # Errors
    /// If the target violates a property; the error describes the violation.
    pub run: fn(&[u8]) -> Result<(), String>,
}

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    files::ONNX,
    onnx_graph::ONNX_GRAPH,
    files::RELAY,
    artifact::ARTIFACT,
    artifact::BLOB_DNNL,
    artifact::BLOB_NUC_FPGA,
    artifact::BLOB_VTA,
    artifact::BLOB_TEMPLATE,
    artifact::BLOB_CCOMPILER,
    artifact::BLOB_ELEMENTWISE,
    files::NPY,
    files::NPZ,
    files::IMAGE,
    files::PATTERNS,
    files::BOUNDARY_JSON,
    files::SAFETENSORS,
    vta_stream::VTA_STREAM,
];

/// Number of accepted inputs: read or, for models, built and run. A low number indicates an ineffective target.
static ACCEPTED_COUNT: AtomicU64 = AtomicU64::new(0);

/// Counts an accepted input.
fn count_accepted() {
    ACCEPTED_COUNT.fetch_add(1, Ordering::Relaxed);
}

/// Looks up a target in [`TARGETS`].
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Returns the paths and contents of a target's corpus files, sorted by path.
///
/// # Panics
/// If there are no files, as the corpus is part of the project.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    assert!(!files.is_empty(), "expected corpus files in {}, found none", dir.display());
    files.into_iter().filter_map(|file| Some((file.clone(), std::fs::read(file).ok()?))).collect()
}

/// Returns the contents of a target's corpus.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    corpus(name).into_iter().map(|(_, bytes)| bytes).collect()
}

/// Checks that diagnostics are meaningful: each has a code and a message.
fn check_diagnostics<'d>(diagnostics: impl IntoIterator<Item = &'d Diagnostic>) -> Result<(), String> {
    let mut count = 0;
    for diagnostic in diagnostics {
        count += 1;
        if diagnostic.message.trim().is_empty() || diagnostic.code.0 == 0 {
            return Err(format!("expected a diagnostic with a code and a message, found {diagnostic:?}"));
        }
        if diagnostic.notes.iter().chain([&diagnostic.message]).any(|text| text.contains("panicked")) {
            return Err(format!("expected no panic, found {diagnostic}"));
        }
    }
    if count == 0 { Err("expected an error with a diagnostic, found none".into()) } else { Ok(()) }
}

/// Returns a random number below `n`, which must not be 0.
fn random_below(random: &mut Random, n: usize) -> usize {
    (random.next_u64() % n as u64) as usize
}

/// Returns a random element.
fn random_item<'a, T>(random: &mut Random, items: &'a [T]) -> &'a T {
    &items[random_below(random, items.len())]
}
