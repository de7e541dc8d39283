//! What can be tested without a host. Operators are tested through the host, against its naive references.

#![expect(clippy::print_stdout, reason = "a test says what it leaves out")]

mod artifacts;
mod division;
mod header;
mod join;
mod narrow;
mod normal;
mod plans;
mod pool;
mod recurrent;
mod region;
mod row;
mod status;
mod winograd;

use crate::library::{OneDnn, onednn, set_plugin_path};
use std::path::Path;

/// The library, or a line that says that it is not there.
fn library() -> Option<&'static OneDnn> {
    set_plugin_path(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    onednn().inspect_err(|error| println!("left out: {error}")).ok()
}
