//! Builds the book from `docs/`, with the API documentation of the crates beside it.

use crate::process::{self, cargo, root, target_dir};
use std::path::Path;
use std::process::Command;

/// Crates for tests and tools, without a public API.
const INTERNAL: [&str; 5] = ["byoc-benches", "byoc-fuzz", "byoc-test-plugins", "byoc-test-support", "xtask"];

/// Writes `target/book/index.html`, and `target/book/api/` with a page per crate.
pub fn run() -> Result<(), String> {
    let tool = target_dir().join("book-tool");
    let manifest = root().join("xtask/book/Cargo.toml");
    let mut build = cargo(&["run", "--quiet", "--locked", "--manifest-path"]);
    build.arg(&manifest).arg("--target-dir").arg(&tool).arg("--").arg(root());
    process::run(&mut build)?;
    let mut document = cargo(&["doc", "--workspace", "--no-deps", "--lib", "--quiet"]);
    for name in INTERNAL {
        document.args(["--exclude", name]);
    }
    process::run(&mut document)?;
    let book = target_dir().join("book");
    copy(&target_dir().join("doc"), &book.join("api"))?;
    println!("{}", book.join("index.html").display());
    println!("{}", book.join("api/byoc/index.html").display());
    Ok(())
}

fn copy(source: &Path, target: &Path) -> Result<(), String> {
    std::fs::create_dir_all(target).map_err(|e| format!("{}: {e}", target.display()))?;
    process::run(Command::new("cp").arg("-r").arg(source.join(".")).arg(target))
}
