//! Log messages on standard error.

use super::escape;
use std::fmt;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::{DefaultFields, FormatFields, Writer};

/// Sends log messages to standard error: by default warnings, with `-v` also region calls, and with `-vv` everything.
/// `BYOC_LOG` sets a detailed filter (`byoc::plugin=debug`).
pub fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    let filter = EnvFilter::builder().with_env_var("BYOC_LOG").try_from_env().unwrap_or_else(|_| EnvFilter::new(level));
    let has_no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    // A second command in the same process keeps the subscriber of the first command.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .fmt_fields(EscapedFields)
        .with_writer(std::io::stderr)
        .with_ansi(!has_no_color && std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .without_time()
        .try_init();
}

/// Formatter of the fields of an event. Names and messages come from models and plugins, so control characters in them
/// are escaped.
struct EscapedFields;

impl<'writer> FormatFields<'writer> for EscapedFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut text = String::new();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        writer.write_str(&escape::line(&text))
    }
}
