//! The tests, their expectations, and the benches.

use crate::process::{self, cargo};

/// Every test: units, files, properties, the plugins, and the stories through the binary.
fn run_all(args: &[&str], bless: bool) -> Result<(), String> {
    // The plugins are libraries that no test links, and the end-to-end tests start the binary: build everything first.
    process::run(&mut cargo(&["build", "--workspace", "--all-targets"]))?;
    let mut test = cargo(&["test", "--workspace"]);
    test.args(args);
    if bless {
        test.env("BYOC_BLESS", "1").env("INSTA_UPDATE", "always");
    }
    process::run(&mut test)
}

/// `cargo xtask test`.
pub fn run(args: &[&str]) -> Result<(), String> {
    run_all(args, false)
}

/// `cargo xtask bless`.
pub fn bless(args: &[&str]) -> Result<(), String> {
    run_all(args, true)
}

/// `cargo xtask bench`.
pub fn bench(args: &[&str]) -> Result<(), String> {
    process::run(&mut cargo(&["build", "--release", "--workspace"]))?;
    let mut bench = cargo(&["bench", "--package", "byoc-benches"]);
    bench.args(args);
    process::run(&mut bench)
}
