//! Tests that need no host. Operators are tested through the host, against its reference implementations.

#![expect(clippy::print_stdout, reason = "a test reports that it is skipped")]

mod artifacts;
mod batch_norm;
mod bf16;
mod concat;
mod division;
mod gemv;
mod header;
mod overlap;
mod plans;
mod pool;
mod recurrent;
mod region;
mod retained;
mod status;
mod winograd;

use crate::library::{OneDnn, onednn, set_plugin_path};
use std::path::Path;

/// Returns the library, or prints the reason for skipping a test.
fn library() -> Option<&'static OneDnn> {
    set_plugin_path(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    onednn().inspect_err(|error| println!("skipped: {error}")).ok()
}
