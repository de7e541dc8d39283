//! Runner of a bundle, `byoc-run`. Prints the outputs on standard output, and warnings and the final error on standard
//! error.

use byoc_bundle::options::{Command, USAGE, parse};
use byoc_bundle::runner;
use byoc_ir::diag::{Diagnostic, Severity, codes};
use byoc_ir::escape;
use byoc_plugin_api::host::entries;
use byoc_runtime::Failure;
use std::io::Write;
use std::process::ExitCode;

/// Runs the command line. Exit codes: 0 success, 1 user error (a diagnostic with a code), 2 usage error.
#[expect(clippy::print_stderr, reason = "warnings and errors of the program")]
fn main() -> ExitCode {
    let command = match parse(std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("error: {}\n\n{USAGE}", escape::line(&message));
            return ExitCode::from(2);
        }
    };
    let outcome = start(&command, &mut |diagnostic| eprintln!("{}", render(diagnostic)));
    entries::mark_finished();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.diagnostics.iter().for_each(|diagnostic| eprintln!("{}", render(diagnostic)));
            ExitCode::FAILURE
        }
    }
}

fn start(command: &Command, warn: &mut dyn FnMut(&Diagnostic)) -> Result<(), Failure> {
    let failure = |error: std::io::Error| {
        Failure::new(codes::frontends::STDOUT_FAILED, format!("cannot write standard output: {error}"))
    };
    // Text printed by a plugin must not end up in the outputs.
    let mut stdout = entries::own_process().map_err(failure)?;
    match command {
        Command::Help => stdout.write_all(USAGE.as_bytes()).map_err(failure),
        Command::Version => writeln!(stdout, "byoc-run {}", env!("CARGO_PKG_VERSION")).map_err(failure),
        Command::Run(options) => runner::run(options, &mut stdout, warn),
    }
}

/// Formats a diagnostic for standard error.
fn render(diagnostic: &Diagnostic) -> String {
    let severity = match diagnostic.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let mut text = format!("{severity}[{}]: {}", diagnostic.code, escape::line(&diagnostic.message));
    for note in &diagnostic.notes {
        text += &format!("\n  = note: {}", escape::lines(note));
    }
    if let Some(help) = &diagnostic.help {
        text += &format!("\n  = help: {}", escape::lines(help));
    }
    text
}
