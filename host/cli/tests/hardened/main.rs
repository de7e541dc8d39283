//! Handling of malicious inputs, files and plugins.

mod artifacts;
mod boundary;
mod cache;
#[path = "../end_to_end/command.rs"]
mod command;
mod compatibility;
mod inputs;
mod limited;
mod memory;
mod nodes;
mod outputs;
mod plans;
mod plugins;
mod terminal;
mod time;

pub use command::*;
