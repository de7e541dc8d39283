//! Model configurations: `config.pbtxt` in the text format of protocol buffers, and the same message as JSON.
//!
//! Both forms become one tree, from which [`read`] takes the fields. A field that the server does not serve is an error
//! that names it, as a model that silently ignores part of its configuration gives wrong answers.

mod json;
mod read;
mod text;
mod tree;

pub use json::to_json;
pub use read::{ConfigFile, read};

use crate::error::Result;

/// Parses the contents of a `config.pbtxt`.
///
/// # Errors
/// Text that is not in the format, or a field that is unknown, wrong or not served.
pub fn parse_text(text: &str) -> Result<ConfigFile> {
    read(&text::parse(text)?)
}

/// Parses a configuration in JSON.
///
/// # Errors
/// Same as [`parse_text`].
pub fn parse_json(text: &str) -> Result<ConfigFile> {
    read(&tree::of_json(text)?)
}
