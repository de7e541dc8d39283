//! Log messages on standard error.

use byoc::log::EscapedFields;
use tracing_subscriber::EnvFilter;

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
