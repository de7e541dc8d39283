//! Inputs, files and plugins that mean harm, through the `byoc` binary.

mod cache;
#[path = "../end_to_end/command.rs"]
mod command;
mod inputs;
mod nodes;
mod outputs;
mod plugins;
mod terminal;

pub use command::*;
