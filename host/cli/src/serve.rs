//! `byoc serve`: executes the program `byoc-serve` in the directory of this one, so that the server's libraries are not
//! part of the command line. The Python package contains the server and does not come here.

use super::args::ServeArgs;
use byoc::runtime::error::Failure;
use byoc::runtime::program;
use byoc_ir::diag::{Diagnostic, codes};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Name of the server's program.
const PROGRAM: &str = "byoc-serve";

/// Runs the command: replaces this process by the server.
pub fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let server = server()?;
    let error = Command::new(&server).args(&args.arguments).exec();
    let message = format!("cannot execute {}: {error}", server.display());
    Err(Failure::new(codes::serving::SERVE_OPTIONS, message))
}

/// Returns the path of the server's program.
fn server() -> Result<PathBuf, Failure> {
    let beside = program::folder().map(|folder| folder.join(PROGRAM));
    beside.filter(|path| path.is_file()).ok_or_else(|| {
        let message = format!("expected the program {PROGRAM} in the folder of byoc, found none");
        let help = "build it with \"cargo build --package byoc-serve\"";
        Diagnostic::error(codes::serving::SERVE_OPTIONS, message).help(help).into()
    })
}
