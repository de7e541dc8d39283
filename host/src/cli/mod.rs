//! The command line: one file per command, and the only place that prints. Standard output is the product, standard
//! error is talk.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is where byoc talks")]

mod args;
mod bench;
mod compile;
mod error_page;
mod explain;
mod explain_html;
mod inputs;
mod inspect;
mod interrupt;
mod ops;
mod opt;
mod plugins;
mod plugins_check;
mod plugins_list;
mod plugins_new;
mod plugins_test;
mod quantize;
mod ready;
mod render;
mod run;
mod table;
mod verify;
mod zoo;

use crate::cancel::Cancel;
use crate::error::Failure;
use args::{Cli, Command, LimitArgs};
use byoc_core::diag::Severity;
use clap::Parser;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether standard output was closed by whoever read it.
static READER_GONE: AtomicBool = AtomicBool::new(false);

/// Runs the command that the process was started with.
///
/// Exit codes: 0 fine, 1 the user's error (a diagnostic with a code), 2 usage, 101 our bug.
pub fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        // A reader that has seen enough (`byoc explain MODEL | head`) is no bug; the printing macros know only panics.
        if info.to_string().contains("Broken pipe") {
            READER_GONE.store(true, Ordering::Relaxed);
            return;
        }
        eprintln!("byoc has a bug: {info}");
        eprintln!("please report it, with the command and the model that show it");
    }));
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are printed on standard output and are no errors.
            let code = if error.use_stderr() { 2 } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let LimitArgs { timeout, max_memory } = cli.command.limits();
    if let Some(bytes) = max_memory {
        crate::limits::set_max_memory(bytes);
    }
    crate::limits::default_memory();
    // Everything that the command does looks at it, and sessions that it makes take it over.
    let cancel = Cancel::default();
    cancel.set_timeout(timeout);
    let _scope = cancel.enter();
    match std::panic::catch_unwind(|| dispatch(cli)) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => {
            render::failure(&failure);
            let failed = failure.diagnostics.iter().any(|d| d.severity == Severity::Error);
            ExitCode::from(u8::from(failed || failure.diagnostics.is_empty()))
        }
        Err(_) if READER_GONE.load(Ordering::Relaxed) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(101),
    }
}

fn dispatch(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Compile(args) => compile::run(&args),
        Command::Explain(args) => explain::run(&args),
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
    }
}
