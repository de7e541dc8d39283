//! Runs the tests, updates their expectations, and runs the benches.

use crate::process::{self, cargo};
use crate::{onednn, onnx_suite, opencl, package, python};

/// Runs all tests: unit, file and property tests, tests of the plugins, and end-to-end tests of the binary.
fn run_all(args: &[&str], is_blessing: bool) -> Result<(), String> {
    let library = onednn::fetch_if_possible();
    let device = opencl::install_if_possible();
    // Plugins and binaries are built first: tests load the plugins and start the binaries, but link neither.
    process::run(&mut cargo(&["build", "--workspace", "--lib", "--bins", "--tests", "--examples"]))?;
    let mut test = cargo(&["test", "--workspace"]);
    test.args(args).env("BYOC_TEST_BUILT", process::target_dir().join("debug"));
    if is_blessing {
        test.env("BYOC_BLESS", "1").env("INSTA_UPDATE", "always");
    }
    if let Some(library) = &library {
        test.env("BYOC_DNNL_LIB", library);
    }
    process::run(&mut test)?;
    if args.is_empty() {
        package::run()?;
    }
    let mut has_python = true;
    if args.is_empty() && !is_blessing {
        has_python = python::test(library.as_deref())?;
        onnx_suite::run_in_ci(library.is_some())?;
    }
    if library.is_none() {
        println!("skipped: tests that require oneDNN, which is not installed (see `cargo xtask fetch-onednn`)");
    }
    if !device {
        println!("skipped: tests that require an OpenCL device; install one with `{}`", opencl::INSTALL);
    }
    if !has_python {
        println!(
            "skipped: tests of the Python package, which require Python 3.10; install it with `{}`",
            python::INSTALL
        );
    }
    Ok(())
}

/// Runs `cargo xtask test`.
pub fn run(args: &[&str]) -> Result<(), String> {
    run_all(args, false)
}

/// Runs `cargo xtask bless`.
pub fn bless(args: &[&str]) -> Result<(), String> {
    run_all(args, true)
}

/// Runs `cargo xtask bench`.
pub fn bench(args: &[&str]) -> Result<(), String> {
    onednn::fetch_if_possible();
    process::run(&mut cargo(&["build", "--release", "--workspace"]))?;
    let mut bench = cargo(&["bench", "--package", "byoc-benches", "--package", "byoc-vta-program"]);
    bench.args(args);
    process::run(&mut bench)
}

/// Runs `cargo xtask export`, which tests the export of every model as a C program.
pub fn export() -> Result<(), String> {
    let test_args = ["test", "--package", "byoc-cli", "--test", "end_to_end", "export::"];
    process::run(&mut cargo(&[&test_args[..], &["--", "--include-ignored", "--nocapture"]].concat()))
}

/// Runs `cargo xtask export --random FIRST,COUNT`, which tests random graphs as C programs under sanitizers.
pub fn export_random(seeds: &str) -> Result<(), String> {
    let test_args = ["test", "--package", "byoc-cli", "--test", "end_to_end", "random_graphs_match_the_host"];
    let mut command = cargo(&[&test_args[..], &["--", "--include-ignored", "--nocapture"]].concat());
    process::run(command.env("BYOC_EXPORT_SEEDS", seeds))
}

/// Runs `cargo xtask vta`: the vta tests that take minutes.
pub fn vta() -> Result<(), String> {
    const END: [&str; 3] = ["--", "--ignored", "--nocapture"];
    let stream_test_args = ["test", "--release", "--package", "byoc-vta-program", "--test", "program", "whole_resnet"];
    process::run(&mut cargo(&[&stream_test_args[..], &END].concat()))?;
    let artifact = process::target_dir().join("vta_resnet18.byoc");
    let network_test_args = ["test", "--release", "--package", "byoc-cli", "--test", "end_to_end", "vta::full_size"];
    process::run(cargo(&[&network_test_args[..], &END].concat()).env("BYOC_VTA_ARTIFACT", &artifact))?;
    let token_test_args = ["test", "--release", "--package", "byoc-vta", "--lib", "every_token"];
    process::run(cargo(&[&token_test_args[..], &END].concat()).env("BYOC_VTA_ARTIFACT", &artifact))
}
