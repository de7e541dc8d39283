//! The binary `byoc-serve`, which `byoc serve` executes. It prints its help and the error with which it ends; everything
//! else goes to the log.

use byoc_serve::Server;
use std::process::ExitCode;

/// Exit codes: 0 success, 1 error of the user (a diagnostic with a code), 2 wrong usage.
#[expect(clippy::print_stderr, reason = "the error of a program that ends is printed by its `main`")]
fn main() -> ExitCode {
    let options = match byoc_serve::parse(std::env::args_os()) {
        Ok(options) => options,
        Err(error) => {
            // Help and version are printed on standard output and are not errors.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let served = Server::start(&options).and_then(|server| {
        let waited = server.wait_for_signal();
        server.stop();
        waited
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error[{}]: {}", error.code, error.message);
            ExitCode::FAILURE
        }
    }
}
