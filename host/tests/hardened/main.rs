//! Inputs, files and plugins that mean harm, and what becomes of them.

mod artifacts;
mod boundary;
#[path = "../end_to_end/command.rs"]
mod command;
mod compatibility;
mod plans;

pub use command::*;
