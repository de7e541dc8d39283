//! Model configurations: `config.pbtxt` in the protocol buffers text format, and the same message as JSON.
//!
//! Both formats are parsed to the same tree, from which [`read`] extracts the fields. An unsupported field is an error
//! that names the field, because ignoring part of a configuration could cause wrong results.

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
/// If the text is malformed, or a field is unknown, invalid or unsupported.
pub fn parse_text(text: &str) -> Result<ConfigFile> {
    read(&text::parse(text)?)
}

/// Parses a configuration in JSON.
///
/// # Errors
/// Same as [`parse_text`].
pub fn parse_json(text: &str) -> Result<ConfigFile> {
    read(&tree::from_json(text)?)
}
