//! The `byoc` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    byoc::cli::main()
}
