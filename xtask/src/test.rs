//! The tests, their expectations, and the benches.

use crate::onednn;
use crate::process::{self, cargo};

/// Every test: units, files, properties, the plugins, and the stories through the binary.
fn run_all(args: &[&str], bless: bool) -> Result<(), String> {
    let library = onednn::fetch_if_possible();
    // The plugins are libraries that no test links, and the end-to-end tests start the binary: build everything first.
    process::run(&mut cargo(&["build", "--workspace", "--all-targets"]))?;
    let mut test = cargo(&["test", "--workspace"]);
    test.args(args);
    if bless {
        test.env("BYOC_BLESS", "1").env("INSTA_UPDATE", "always");
    }
    if let Some(library) = &library {
        test.env("BYOC_DNNL_LIB", library);
    }
    process::run(&mut test)?;
    if library.is_none() {
        println!("left out: what runs on oneDNN, which is not on this machine (see `cargo xtask fetch-onednn`)");
    }
    Ok(())
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
    onednn::fetch_if_possible();
    process::run(&mut cargo(&["build", "--release", "--workspace"]))?;
    let mut bench = cargo(&["bench", "--package", "byoc-benches"]);
    bench.args(args);
    process::run(&mut bench)
}
