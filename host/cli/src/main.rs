//! The `byoc` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    byoc_cli::main()
}
