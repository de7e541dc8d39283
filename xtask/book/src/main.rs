//! Builds the book of a project: `byoc-book DIR`, where DIR contains `book.toml`.

use mdbook_driver::MDBook;
use std::process::ExitCode;

fn main() -> ExitCode {
    let dir = std::env::args_os().nth(1).unwrap_or_else(|| ".".into());
    match MDBook::load(std::path::PathBuf::from(dir)).and_then(|book| book.build()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
