//! `cargo xtask bench serve`, `cargo xtask soak` and `cargo xtask test-serve`: long-running tests and measurements of
//! the inference server.

use crate::onednn;
use crate::process::{self, cargo, environment, target_dir};
use std::process::Command;

/// Python packages of the compared servers.
const KSERVE: [&str; 2] = ["kserve==0.21.0", "onnxruntime==1.32.0"];
const MLSERVER: [&str; 2] = ["mlserver==1.7.1", "onnxruntime==1.32.0"];

/// Builds the server, its client and the backend, and returns a measurement command.
fn measurement(arguments: &[&str]) -> Result<Command, String> {
    let library = onednn::fetch_if_possible();
    let mut build = cargo(&["build", "--release", "--quiet"]);
    for package in ["byoc-benches", "byoc-cli", "byoc-dnnl", "byoc-serve"] {
        build.args(["--package", package]);
    }
    process::run(build.args(["--lib", "--bins"]))?;
    let mut command = Command::new(target_dir().join("release").join("byoc-bench-serve"));
    command.args(arguments);
    if let Some(library) = library {
        command.env("BYOC_DNNL_LIB", library);
    }
    Ok(command)
}

/// Runs `cargo xtask bench serve [overhead|processor|peers] [OPTIONS]`.
pub fn bench(arguments: &[&str]) -> Result<(), String> {
    match arguments {
        [] => {
            process::run(&mut measurement(&["overhead"])?)?;
            process::run(&mut measurement(&["processor"])?)
        }
        ["peers", rest @ ..] => {
            if !process::exists("hey") {
                return Err("expected hey, found none; install it with `apt-get install hey`".into());
            }
            let kserve = environment(&target_dir().join("python/kserve-peer"), &KSERVE)?.display().to_string();
            let mut command = measurement(&["peers", "--kserve", &kserve])?;
            match environment(&target_dir().join("python/mlserver-peer"), &MLSERVER) {
                Ok(python) => drop(command.arg("--mlserver").arg(python)),
                Err(problem) => println!("skipped: MLServer: {problem}"),
            }
            process::run(command.args(rest))
        }
        measurements => process::run(&mut measurement(measurements)?),
    }
}

/// Runs `cargo xtask soak [--minutes N]`.
pub fn soak(arguments: &[&str]) -> Result<(), String> {
    process::run(measurement(&["soak"])?.args(arguments))
}

/// Runs `cargo xtask test-serve`: all server tests, with full case counts and with the KServe client, which is fetched.
pub fn test() -> Result<(), String> {
    let mut test = cargo(&["test", "--package", "byoc-serve", "--", "--include-ignored"]);
    process::run(test.env("BYOC_SERVE_FULL", "1"))
}
