//! `byoc serve`: executes `byoc-serve` in the directory of this executable, so that `byoc` does not link the
//! dependencies of the server. The Python package links the server and does not use this module.

use super::args::ServeArgs;
use byoc::runtime::error::Failure;
use byoc::runtime::invocation;
use byoc_ir::diag::{Diagnostic, codes};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// File name of the server executable.
const PROGRAM: &str = "byoc-serve";

/// Runs the command: replaces this process with the server.
pub fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let server = server()?;
    let error = Command::new(&server).args(&args.arguments).exec();
    let message = format!("cannot execute {}: {error}", server.display());
    Err(Failure::new(codes::serving::SERVE_OPTIONS, message))
}

/// Returns the path of the server executable.
fn server() -> Result<PathBuf, Failure> {
    let installed_server = invocation::directory().map(|dir| dir.join(PROGRAM));
    installed_server.filter(|path| path.is_file()).ok_or_else(|| {
        let message = format!("expected the executable {PROGRAM} in the directory of byoc, found none");
        let help = "build the server with \"cargo build --package byoc-serve\"";
        Diagnostic::error(codes::serving::SERVE_OPTIONS, message).help(help).into()
    })
}
