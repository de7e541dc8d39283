//! Endless work ends at the time limit or on cancellation, with a report of its progress.

use super::limited::{byoc, command, hostile, program};
use super::{CommandOutput, to_command_output};
use byoc_test_support::temporary_folder;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Module that counts down from %n with one call per iteration.
const LOOP: &str = "
def @count(%n: int64) -> int64 {
  if (greater(%n, 0i64)) { @count(subtract(%n, 1i64)) } else { %n }
}
def @main(%n: int64) { @count(add(%n, 4611686018427387904i64)) }";

/// Module with a single call to a reference kernel that takes hours.
const KERNEL: &str = "
def @main(%x: Tensor[(4096, 4096), float64]) { nn.dense(%x, %x, units=4096) }";

#[track_caller]
fn assert_ends_in_time(args: &[&str], code: &str, fragments: &[&str]) {
    let start = Instant::now();
    // The address space is not limited here, as the large values would exceed the limit.
    crate::byoc(args).fails_with(code).stderr_contains(fragments);
    // The bound is generous, to allow for a busy machine; without the time limit a run takes hours.
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(60), "expected less than 60 s, found {elapsed:?}");
}

#[test]
fn endless_loop_ends_at_limit() {
    let dir = temporary_folder();
    let model = program(dir.path(), LOOP);
    let args = ["run", &model, "--input", "n=ones", "--timeout", "0.7"];
    assert_ends_in_time(&args, "E0618", &["time limit of 0.7 s", "in count", "the run had executed", "--timeout"]);
}

#[test]
fn large_kernel_ends_at_limit() {
    let dir = temporary_folder();
    let model = program(dir.path(), KERNEL);
    assert_ends_in_time(&["run", &model, "--input", "x=ones", "--timeout", "1"], "E0618", &["nn.dense", "step 0 of"]);
}

#[test]
fn build_ends_at_limit() {
    let dir = temporary_folder();
    let long_chain: String = (1..40_000).map(|i| format!("%{i} = nn.relu(%{});\n", i - 1)).collect();
    let text = format!("def @main(%x: Tensor[(2), float32]) {{ %0 = nn.relu(%x);\n{long_chain}%39999 }}");
    let model = program(dir.path(), &text);
    for command in ["explain", "source"] {
        assert_ends_in_time(&[command, &model, "--timeout", "0.000001"], "E0618", &["time limit of 0.000001 s"]);
    }
    assert_ends_in_time(
        &["opt", &model, "--pass", "fold_constant", "--timeout", "0.000001"],
        "E0618",
        &["of the text was being parsed"],
    );
}

#[test]
fn reading_model_ends_at_limit() {
    let model = hostile("poolkernelhuge.onnx");
    assert_ends_in_time(
        &["run", &model, "--input", "x=ones", "--timeout", "0.000001"],
        "E0618",
        &["was being decoded"],
    );
}

#[test]
fn validates_time_limit() {
    for invalid in ["0", "-1", "nan", "soon", "1e300"] {
        let usage = byoc(&["run", &hostile("esc.onnx"), &format!("--timeout={invalid}")]);
        assert_eq!(usage.code, 2, "{invalid}: {}", usage.err);
    }
}

#[test]
fn ctrl_c_ends_run_with_diagnostic() {
    let dir = temporary_folder();
    let model = program(dir.path(), LOOP);
    // On a busy machine the signal may arrive during compilation and end the command.
    for pause in [300, 3_000, 30_000] {
        let output = interrupt(&["run", &model, "--input", "n=ones"], Duration::from_millis(pause));
        if !output.err.contains("error[E0426]") {
            output.fails_with("E0617").stderr_contains(&["cancelled", "in count"]);
            return;
        }
    }
    panic!("expected the model to be compiled within half a minute");
}

/// Sends SIGINT to `byoc` after it has installed its handler and `pause` has elapsed.
fn interrupt(args: &[&str], pause: Duration) -> CommandOutput {
    let child = command(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    let status = format!("/proc/{}/status", child.id());
    while !std::fs::read_to_string(&status).is_ok_and(|status| catches_interrupts(&status)) {
        assert!(start.elapsed() < Duration::from_secs(60), "expected a handler for SIGINT within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(pause);
    let kill_status = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill_status.success());
    to_command_output(child.wait_with_output().unwrap())
}

/// Returns true if `/proc/PID/status` reports a handler for SIGINT (signal 2).
fn catches_interrupts(status: &str) -> bool {
    let caught_signals = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
    u64::from_str_radix(caught_signals.trim(), 16).unwrap_or(0) & 0b10 != 0
}

/// The host runs the layer as one operator; a program in C has the operators of each step.
#[test]
fn rejects_sequence_too_long_to_unroll() {
    let model = hostile("lstmseq20k.onnx");
    byoc(&["explain", &model]).ok();
    let dir = tempfile::tempdir().unwrap();
    let fragments = ["expected a sequence of at most 10000 steps", "found 20000 steps"];
    let target = dir.path().join("program").display().to_string();
    byoc(&["export", &model, "--c", &target]).fails_with("E0505").stderr_contains(&fragments);
}
