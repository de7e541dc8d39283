//! Failing drivers, simulated by a library without a device.

use super::{Fixture, program};
use crate::{CommandOutput, byoc};
use byoc_test_support::workspace;
use std::process::Command;

/// Runs a network on the stub driver in the given failure mode. The command always ends within 20 seconds.
fn run(mode: &str, extra_args: &[&str]) -> (Fixture, CommandOutput) {
    let parameters = "%x: Tensor[(64, 512), float32], %w: Tensor[(40, 512), float32]";
    run_model(mode, &program(parameters, &["nn.relu(nn.dense(%x, %w))"]), extra_args)
}

fn run_model(mode: &str, model: &str, extra_args: &[&str]) -> (Fixture, CommandOutput) {
    let fixture = Fixture::new();
    let library = fixture.path("libstub.so").display().to_string();
    let source = workspace().join("plugins/opencl/samples/stub.c");
    let mut cc = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    cc.args(["-std=gnu99", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o", &library]).arg(source);
    assert!(cc.status().unwrap().success());
    let model = fixture.write("model.relay", model);
    let args = ["run", &model, "--input=x=random:1", "--input=w=random:2"];
    let variables = [("OPENCL_DYLIB_PATH", library.as_str()), ("STUB_OPENCL", mode)];
    let output = fixture.byoc(&[&args, extra_args].concat(), &variables);
    assert!(!output.err.contains("on a lost device"), "{}", output.err);
    (fixture, output)
}

#[test]
fn works_without_failures() {
    let (_, output) = run("", &["--require-offload"]);
    assert!(output.ok().out.contains("max 0.0"), "expected zeros from the stub driver");
}

/// Tests that a run ends even if the driver never invokes a callback, and that sub-buffers, which share memory, are
/// released in the reverse order of their creation.
#[test]
fn waits_without_callbacks_and_releases_sub_buffers_in_reverse_order() {
    let parameters = "%x: Tensor[(64, 512), float32], %w: Tensor[(512, 512), float32]";
    let layers = ["nn.relu(nn.dense(%x, %w))", "nn.softmax(nn.dense(%0, %w))", "nn.dense(nn.softmax(%1), %w)"];
    for mode in ["", "silent"] {
        let (_, output) = run_model(mode, &program(parameters, &layers), &["--require-offload"]);
        assert!(!output.err.contains("stub:"), "{}", output.err);
        assert!(output.ok().out.contains("max 0.0"), "expected zeros from the stub driver");
    }
}

#[test]
fn no_device_is_a_refusal_with_the_command_that_installs_one() {
    let (_, output) = run("none", &[]);
    output.ok().stderr_contains(&["no OpenCL", "apt-get install -y pocl-opencl-icd"]);
}

#[test]
fn programs_that_do_not_compile_run_on_the_host() {
    let (_, output) = run("build", &[]);
    output.ok().stderr_contains(&["clBuildProgram", "the stub compiles nothing", "runs on the host instead"]);
}

#[test]
fn endless_compilations_end_at_the_time_limit() {
    let (_, output) = run("slow", &["--timeout", "1"]);
    output.fails_with("E0618");
}

#[test]
fn endless_kernels_end_at_the_time_limit() {
    let (_, output) = run("hang", &["--timeout", "1"]);
    output.fails_with("E0618").stderr_contains(&["the device of opencl is lost", "the device did not finish its work"]);
}

#[test]
fn lost_devices_are_reported_once_and_the_host_computes() {
    let (fixture, _) = run("none", &[]);
    let args = ["run", &fixture.path("model.relay").display().to_string(), "--input=x=random:1", "--input=w=random:2"];
    let expected = byoc(args).ok().out;
    for (mode, message) in [("lost", "CL_DEVICE_NOT_AVAILABLE"), ("abort", "a kernel terminated abnormally")] {
        let (_, output) = run(mode, &[]);
        let output = output.ok().stderr_contains(&[message, "run on the host from now on"]);
        assert_eq!(output.err.matches("is lost").count(), 1, "{}", output.err);
        assert_eq!(output.out, expected, "{mode}");
    }
}

#[test]
fn lack_of_memory_is_reported_and_the_host_computes() {
    let (_, output) = run("memory", &[]);
    output.ok().stderr_contains(&["CL_MEM_OBJECT_ALLOCATION_FAILURE", "smaller batch", "runs on the host instead"]);
}
