//! The server as a program: `byoc-serve`, and `byoc serve` inside of another program. It prints its help and the error with
//! which it ends; everything else goes to the log.

use crate::options;
use crate::server::Server;
use std::ffi::OsString;

/// Runs the server until a signal ends it, and returns the exit code: 0 success, 1 error of the user (a diagnostic with a
/// code), 2 wrong usage. The first argument is the name of the program.
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
    let served = Server::start(&options).and_then(|server| {
        let waited = server.wait_for_signal();
        server.stop();
        waited
    });
    match served {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error[{}]: {}", error.code, error.message);
            1
        }
    }
}
