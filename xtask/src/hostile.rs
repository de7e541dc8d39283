//! `cargo xtask test-hostile`: requests, files and models that grow, do not end, or end the process, with full counts.
//!
//! Servers listen on the loopback interface, and every run is bounded in number and time.

use crate::onednn;
use crate::process::{self, cargo};
use std::process::Command;

/// Size of hostile files in bytes.
const SIZE: &str = "4194304";
/// Executions of each fuzz target with a seed that no other run uses.
const GUARDS: [(&str, u64); 17] = [
    ("onnx_graph", 10_000),
    ("onnx", 10_000),
    ("relay", 10_000),
    ("npy", 10_000),
    ("npz", 5_000),
    ("image", 5_000),
    ("patterns", 10_000),
    ("boundary_json", 10_000),
    ("safetensors", 10_000),
    ("artifact", 5_000),
    ("blob_dnnl", 1_000),
    ("blob_nuc_fpga", 1_000),
    ("blob_vta", 1_000),
    ("blob_template", 1_000),
    ("blob_ccompiler", 200),
    ("blob_elementwise", 1_000),
    ("vta_stream", 10_000),
];

/// Runs `cargo xtask test-hostile [--seed N]`.
pub fn test(arguments: &[&str]) -> Result<(), String> {
    let seed = match arguments {
        [] => "7",
        ["--seed", seed] => seed,
        _ => return Err(format!("expected `[--seed N]`, found `{}`", arguments.join(" "))),
    };
    let library = onednn::fetch_if_possible();
    let with_library = |command: &mut Command| {
        if let Some(library) = &library {
            command.env("BYOC_DNNL_LIB", library);
        }
    };
    let mut failures = Vec::new();
    let mut run = |name: &str, command: &mut Command| {
        println!("{name}");
        with_library(command);
        if let Err(error) = process::run(command) {
            failures.push(format!("{name}: {error}"));
        }
    };
    // One build for all: builds of single packages would select other features of the dependencies.
    let build = ["build", "--workspace", "--lib", "--bins", "--tests", "--examples"];
    process::run(&mut cargo(&build))?;
    let built = process::target_dir().join("debug");
    let tests = |arguments: &[&str]| {
        let mut command = cargo(&["test", "--workspace"]);
        command.args(arguments).env("BYOC_TEST_BUILT", &built);
        command
    };
    run("server", tests(&["--test", "serving", "--", "--include-ignored"]).env("BYOC_SERVE_FULL", "1"));
    run("programs", &mut tests(&["--test", "end_to_end", "--test", "hardened", "--test", "c_programs"]));
    run("libraries", &mut tests(&["--lib"]));
    for (target, executions) in GUARDS {
        let fuzz = |arguments: &[&str]| {
            let mut command = Command::new(built.join("byoc-fuzz"));
            command.arg(target).args(arguments).env("BYOC_CHECK_REGIONS", "1").env("BYOC_LOG", "off");
            command
        };
        run(&format!("{target}: hostile inputs"), &mut fuzz(&["--hostile", SIZE]));
        let executions = executions.to_string();
        run(
            &format!("{target}: seed {seed}"),
            &mut fuzz(&["--seed", seed, "--executions", &executions, "--seconds", "1200"]),
        );
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(format!("{} of the runs failed:\n  {}", failures.len(), failures.join("\n  "))),
    }
}
