//! Inputs, files and plugins that mean harm, through the `byoc` binary.

mod artifacts;
#[path = "../end_to_end/command.rs"]
mod command;
mod compatibility;

pub use command::*;
