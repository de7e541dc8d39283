//! Entry point of the server, for the executable `byoc-serve` and for `byoc serve`. It prints only the help and a final
//! error; all other output goes to the log.

use crate::error::{Result, ServeError, Status};
use crate::options;
use crate::server::Server;
use byoc::runtime::plugin::entries::{self, ReservedStdout};
use byoc_ir::diag::codes;
use byoc_ir::escape;
use std::ffi::OsString;

/// Runs the server until a signal stops it, and returns the exit code: 0 for success, 1 for an error with a diagnostic
/// code, 2 for invalid usage. The first argument is the executable name.
#[expect(clippy::print_stderr, reason = "the error with which a program ends")]
pub fn run_program(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let options = match options::parse(arguments) {
        Ok(options) => options,
        Err(error) => {
            // Help and version are printed on standard output and are not errors.
            let _ = error.print();
            return if error.use_stderr() { 2 } else { 0 };
        }
    };
    let result = own_process().and_then(|_stdout| {
        let server = Server::open(&options)?;
        server.wait_for_signal();
        server.stop();
        Ok(())
    });
    entries::mark_finished();
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error[{}]: {}", error.code, escape::line(&error.message));
            1
        }
    }
}

/// Makes the end of the process name the plugin that caused it, in the log, and never look like success. What plugins
/// print on standard output goes to the log, too.
fn own_process() -> Result<ReservedStdout> {
    entries::own_process().map_err(|error| {
        ServeError::new(
            Status::Internal,
            codes::plugins::PROCESS_STATE,
            format!("cannot reserve standard output: {error}"),
        )
    })
}
