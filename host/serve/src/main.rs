//! Executable `byoc-serve`, which `byoc serve` executes.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(byoc_serve::run_program(std::env::args_os()))
}
