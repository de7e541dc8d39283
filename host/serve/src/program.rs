//! Entry point of the server, for the executable `byoc-serve` and for `byoc serve`. It prints only the help and a final
//! error; all other output goes to the log.

use crate::options;
use crate::server::Server;
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
    match Server::open(&options) {
        Ok(server) => {
            server.wait_for_signal();
            server.stop();
            0
        }
        Err(error) => {
            eprintln!("error[{}]: {}", error.code, error.message);
            1
        }
    }
}
