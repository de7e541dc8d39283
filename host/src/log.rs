//! Formatter of logs whose texts come from clients, models and plugins.

use crate::escape;
use std::fmt;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::{DefaultFields, FormatFields, Writer};

/// Formatter of the fields of an event, with control characters escaped, so that an event is one line, and a terminal
/// interprets nothing.
#[derive(Debug)]
pub struct EscapedFields;

impl<'writer> FormatFields<'writer> for EscapedFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut text = String::new();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        writer.write_str(&escape::line(&text))
    }
}
