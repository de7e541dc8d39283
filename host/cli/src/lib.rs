//! Command line: one file per command, and the only part of the host that prints. Results go to standard output,
//! diagnostics to standard error.

// Declared first, as all modules below print with its macros.
#[macro_use]
mod stdout;

mod architectures;
mod args;
mod bench;
mod bundle;
mod compile;
mod error_page;
mod explain;
mod explain_diff;
mod export;
mod inputs;
mod inspect;
mod interrupt;
mod log;
mod models_out;
mod ops;
mod opt;
mod output_file;
mod plugins;
mod plugins_check;
mod plugins_list;
mod plugins_new;
mod plugins_test;
mod quantize;
mod ready;
mod reasons;
mod render;
pub mod report;
mod run;
mod serve;
mod suggest;
mod table;
mod verify;
mod verify_isolated;
mod verify_result;
mod wrap;
mod zoo;

use args::{Cli, Command, LimitArgs, ServeArgs};
use byoc::escape;
use byoc::runtime::cancel::Cancel;
use byoc::runtime::error::Failure;
use byoc::runtime::invocation;
use byoc_ir::diag::{Diagnostic, Severity, codes};
use byoc_plugin_api::host::entries::{self, Limits, Watchdog};
use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs the command that the process arguments specify.
///
/// Exit codes: 0 success, 1 user error (a diagnostic with a code) or a check that found a fault, 2 usage error, 101 bug in
/// byoc.
pub fn main() -> ExitCode {
    main_with(|args| serve::run(args).unwrap_or_else(|failure| report_failure(&failure)))
}

/// Variant of [`main`] for a host process such as the Python interpreter; returns the exit code as a number. `serve`
/// is the inference server linked into that process and receives the arguments of `byoc serve`.
pub fn main_number(serve: impl FnOnce(&[OsString]) -> u8) -> u8 {
    let code = main_with(|args| ExitCode::from(serve(&args.arguments)));
    (0..=u8::MAX).find(|code_number| ExitCode::from(*code_number) == code).unwrap_or(101)
}

fn main_with(serve: impl FnOnce(&ServeArgs) -> ExitCode) -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        eprintln!("byoc has a bug: {}", escape::lines(&info.to_string()));
        eprintln!("please report it with the command and the model that reproduce it");
    }));
    let arguments = std::iter::once("byoc".into()).chain(invocation::arguments());
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are printed on standard output and are not errors.
            let code = if error.use_stderr() { 2 } else { 0 };
            let result = error.print().map_err(stdout::OutputError::from);
            return if code == 0 { exit_code(result, ExitCode::SUCCESS) } else { ExitCode::from(code) };
        }
    };
    // The server replaces this process and inherits its standard output and signal handling.
    if let Command::Serve(args) = &cli.command {
        return serve(args);
    }
    if let Err(failure) = reserve_process() {
        return report_failure(&failure);
    }
    let LimitArgs { timeout, max_memory } = cli.command.limits();
    if let Some(bytes) = max_memory {
        byoc::runtime::limits::set_max_memory(bytes);
    }
    byoc::runtime::limits::default_memory();
    // All parts of the command check this token, and sessions inherit it.
    let cancel = Cancel::default();
    cancel.set_timeout(timeout);
    let _scope = cancel.enter();
    let _watchdog = match watch(timeout) {
        Ok(watchdog) => watchdog,
        Err(failure) => return report_failure(&failure),
    };
    let code = match std::panic::catch_unwind(|| dispatch(cli)) {
        Ok(Ok(code)) => exit_code(stdout::flush(), code),
        Ok(Err(failure)) => report_failure(&failure),
        Err(payload) => match payload.downcast::<stdout::OutputError>() {
            Ok(output_error) => exit_code(Err(*output_error), ExitCode::SUCCESS),
            Err(_) => ExitCode::from(101),
        },
    };
    entries::mark_finished();
    code
}

/// Reserves standard output for command results, and installs the reporters for plugins that terminate the process or
/// change its state.
fn reserve_process() -> Result<(), Failure> {
    let stdout = entries::own_process().map_err(|error| {
        Failure::new(codes::plugins::PROCESS_STATE, format!("cannot reserve standard output: {error}"))
    })?;
    stdout::install(stdout);
    interrupt::report_plugin_on_interrupt();
    entries::set_change_reporter(|change| {
        render::print_diagnostic(&Diagnostic::warning(codes::plugins::PROCESS_STATE, change.to_string()));
    });
    Ok(())
}

/// Starts the watchdog that enforces the time and memory limits on plugins, whose calls cannot be interrupted.
fn watch(timeout: Option<Duration>) -> Result<Watchdog, Failure> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let limits = Limits { deadline, resident: Some(byoc::runtime::limits::max_memory() as u64), ..Limits::default() };
    Watchdog::start(limits)
        .map_err(|error| Failure::new(codes::runtime::NO_THREADS, format!("cannot start the plugin watchdog: {error}")))
}

/// Returns `code`, or the exit code of an error if standard output could not be written.
fn exit_code(result: Result<(), stdout::OutputError>, code: ExitCode) -> ExitCode {
    match result.err().and_then(|output_error| output_error.failure()) {
        None => code,
        Some(failure) => report_failure(&failure),
    }
}

fn report_failure(failure: &Failure) -> ExitCode {
    let _ = stdout::flush();
    render::print_failure(failure);
    // The code says whether the work was done, so warnings alone leave it at 0, as they do when a command prints them. A
    // failure without diagnostics is still one.
    let has_errors = failure.diagnostics.iter().any(|d| d.severity == Severity::Error);
    ExitCode::from(u8::from(has_errors || failure.diagnostics.is_empty()))
}

fn dispatch(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Bundle(args) => bundle::run(&args),
        Command::Compile(args) => compile::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Opt(args) => opt::run(&args),
        Command::Source(args) => compile::run_source(&args),
        Command::Plugins(args) => plugins::run(args),
        Command::Ops(args) => ops::run(&args),
        Command::Error(args) => error_page::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Zoo(args) => zoo::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Serve(args) => serve::run(&args),
    }
}
