//! The backend on a stub of the library and of CUDA's run time: versions, refusals, the order of calls in a run, failures.

use super::Fixture;
use crate::CommandOutput;
use byoc_ir::tensor::{DType, Tensor};
use byoc_test_support::{temporary_folder, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use tempfile::TempDir;

/// Three relus; the stub computes one.
const RELU: &str = "fn (%x: Tensor[(4, 8), float32]) { nn.relu(nn.relu(nn.relu(%x))) }";
/// The same with an open dimension.
const OPEN: &str = "fn (%x: Tensor[(n, 8), float32]) { nn.relu(nn.relu(%x)) }";

/// Builds the stub's three libraries, once for all tests.
fn stub() -> &'static Path {
    static DIR: LazyLock<TempDir> = LazyLock::new(|| {
        let dir = temporary_folder();
        let libraries = [
            ("LIBRARY", "libtensorrt_rtx.so.1.7.1"),
            ("PARSER", "libtensorrt_onnxparser_rtx.so.1.7.1"),
            ("CUDART", "libcudart.so.13"),
        ];
        for (define, name) in libraries {
            let mut cc = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
            cc.args(["-std=gnu11", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-D", define, "-o"]);
            cc.arg(dir.path().join(name)).arg(workspace().join("plugins/tensorrt/samples/stub.c"));
            assert!(cc.status().unwrap().success());
        }
        dir
    });
    DIR.path()
}

fn fixture() -> Fixture {
    Fixture::new(stub())
}

/// Runs a program on the stub in the given modes of library and run time, with its calls in the file `log`.
fn run_on(fixture: &Fixture, program: &str, modes: [&str; 2], extra: &[&str]) -> CommandOutput {
    let model = fixture.write("model.relay", program);
    let log = fixture.text_path("log");
    let args = ["run", &model, "--backend", "tensorrt", "--input", "x=random:1"];
    let variables = [("STUB_TENSORRT", modes[0]), ("STUB_CUDA", modes[1]), ("STUB_LOG", log.as_str())];
    fixture.byoc(&[&args, extra].concat(), &variables)
}

/// Returns the result of a program on the host.
fn host_result(fixture: &Fixture, program: &str, extra: &[&str]) -> String {
    let model = fixture.write("host.relay", program);
    fixture.byoc(&[&["run", &model, "--backend", "none", "--input", "x=random:1"], extra].concat(), &[]).ok().out
}

fn log(fixture: &Fixture) -> Vec<String> {
    std::fs::read_to_string(fixture.path("log")).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn run_copies_enqueues_and_waits_in_order() {
    let fixture = fixture();
    let output = run_on(&fixture, RELU, ["", ""], &["--require-offload"]).ok();
    assert_eq!(output.out, host_result(&fixture, RELU, &[]));
    let log = log(&fixture);
    // The probe builds nothing; the engine is for the device at hand, of capability 8.9.
    assert_eq!(log.iter().filter(|line| line.starts_with("build")).collect::<Vec<_>>(), ["build 89"]);
    let run: Vec<&str> = log.iter().skip_while(|line| *line != "deserialize").map(String::as_str).collect();
    let position = |call: &str| {
        let position = run.iter().position(|line| line.starts_with(call));
        position.unwrap_or_else(|| panic!("expected {call} in {run:?}"))
    };
    let order = ["deserialize", "context", "stream", "copy in 128", "address", "enqueue", "copy out 128"];
    let positions = order.map(|call| (position(call), call));
    assert!(positions.is_sorted(), "{positions:?} in {run:?}");
    assert_eq!(run.iter().filter(|line| **line == "enqueue").count(), 1);
    let after = run.iter().skip_while(|line| **line != "enqueue").filter(|line| **line == "synchronize").count();
    assert!(after >= 1, "{run:?}");
}

#[test]
fn capabilities_are_chosen_by_the_user_or_by_the_device() {
    let fixture = fixture();
    let option = "--backend-option=tensorrt.capability=12.0,8.9";
    run_on(&fixture, RELU, ["", ""], &["--require-offload", option]).ok();
    let builds: Vec<String> = log(&fixture).into_iter().filter(|line| line.starts_with("build")).collect();
    assert_eq!(builds, ["build 120", "build 89"]);
    let output = run_on(&fixture, RELU, ["", ""], &["--backend-option=tensorrt.capability=12.0"]).ok();
    assert_eq!(output.out, host_result(&fixture, RELU, &[]));
    output.stderr_contains(&["of capability 8.9, found engines for 12.0", "tensorrt.capability=8.9"]);
}

#[test]
fn devices_that_the_library_does_not_offer_are_refused_by_name() {
    let fixture = fixture();
    let output = run_on(&fixture, RELU, ["", "hopper"], &[]).ok();
    assert_eq!(output.out, host_result(&fixture, RELU, &[]));
    output.stderr_contains(&[
        "of capability 9.0",
        "found engines for any",
        "TensorRT for RTX has no engines for capability 9.0",
    ]);
}

#[test]
fn open_dimensions_need_a_profile_and_stay_in_it() {
    let fixture = fixture();
    let (profile, shape) = ("--backend-option=tensorrt.profile=n:1:4:16", ["--dim", "n=?"]);
    let model = fixture.write("open.relay", OPEN);
    let explained = fixture.byoc(&["explain", &model, "--backend", "tensorrt", "--dim", "n=?"], &[]).ok();
    assert!(explained.out.contains("DynamicDim") && explained.out.contains("tensorrt.profile"), "{}", explained.out);
    let run = |rows: usize| {
        let file = fixture.path(&format!("{rows}.npy"));
        let bytes: Vec<u8> = (0..rows * 8).flat_map(|i| (i as f32 - 20.0).to_le_bytes()).collect();
        let tensor = Tensor::from_bytes(DType::F32, &[rows, 8], &bytes).unwrap();
        byoc::io::npy::write(&file, &tensor).unwrap();
        let input = format!("x={}", file.display());
        let args = ["run", &model, "--backend", "tensorrt", profile, "--input", &input];
        let log = fixture.text_path("log");
        fixture.byoc(&[&args[..], &shape].concat(), &[("STUB_LOG", &log)])
    };
    let output = run(5).ok();
    assert!(output.out.contains("min 0.000000  max 19.000000"), "{}", output.out);
    let log = log(&fixture);
    assert!(log.contains(&"profile".to_owned()) && log.iter().any(|line| line.starts_with("shape ")), "{log:?}");
    assert_eq!(log.iter().filter(|line| line.starts_with("range ")).count(), 3);
    let outside = run(17).ok();
    assert!(outside.out.contains("max 115.000000"), "{}", outside.out);
    outside.stderr_contains(&["n: expected 1 to 16, the profile's range, found 17"]);
}

#[test]
fn versions_that_were_not_run_are_refused_and_others_go_on() {
    let fixture = fixture();
    let cases = [
        (
            "version",
            "expected TensorRT for RTX 1.5.0, 1.6.1, 1.7.1, the versions that have been run, found TensorRT for RTX 1.8.0",
        ),
        ("full", "found full TensorRT 10.16.0"),
        (
            "tables",
            "version 1.7.1 answers otherwise than the one that has been run: expected a network of 1 layer, found 2",
        ),
    ];
    for (mode, message) in cases {
        let output = fixture.byoc(&["plugins"], &[("STUB_TENSORRT", mode)]).ok();
        let line = output.out.lines().find(|line| line.starts_with("tensorrt: ")).unwrap_or_default().to_owned();
        assert!(line.contains(message), "{mode}: {}", output.out);
        assert!(line.contains("cargo xtask tensorrt") && line.contains("pip install"), "{line}");
        let output = run_on(&fixture, RELU, [mode, ""], &[]).ok();
        assert_eq!(output.out, host_result(&fixture, RELU, &[]));
    }
}

#[test]
fn missing_and_truncated_libraries_are_one_line() {
    let fixture = fixture();
    let none = fixture.path("none").display().to_string();
    let output = fixture.byoc(&["plugins"], &[("BYOC_TENSORRT_LIB", &none)]).ok();
    assert!(output.out.contains("tensorrt: BYOC_TENSORRT_LIB="), "{}", output.out);
    assert!(output.out.contains("expected libtensorrt_rtx.so.1 or its directory, found none"), "{}", output.out);
    let cut: PathBuf = fixture.path("cut");
    std::fs::create_dir(&cut).unwrap();
    for name in ["libtensorrt_rtx.so.1.7.1", "libtensorrt_onnxparser_rtx.so.1.7.1"] {
        let bytes = std::fs::read(stub().join(name)).unwrap();
        std::fs::write(cut.join(name), &bytes[..bytes.len() / 3]).unwrap();
    }
    let output = fixture.byoc(&["plugins"], &[("BYOC_TENSORRT_LIB", cut.to_str().unwrap())]).ok();
    assert!(output.out.contains("expected a complete library, found a truncated one"), "{}", output.out);
}

#[test]
fn library_that_ends_the_process_is_named() {
    let fixture = fixture();
    let model = fixture.write("model.relay", RELU);
    let mut command = crate::command(["explain", &model, "--backend", "tensorrt", "--plugin-dir"]);
    command.arg(fixture.plugins.path()).env("BYOC_TENSORRT_LIB", stub()).env("STUB_TENSORRT", "crash");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(text.contains("tensorrt") && text.contains("judge"), "{text}");
}

#[test]
fn without_a_device_the_host_computes_and_says_so() {
    let fixture = fixture();
    let model = fixture.write("model.relay", RELU);
    let artifact = fixture.text_path("model.byoc");
    let option = "--backend-option=tensorrt.capability=8.9";
    let args = ["compile", &model, "--backend", "tensorrt", option, "-o", &artifact, "--require-offload"];
    fixture.byoc(&args, &[("STUB_CUDA", "none")]).ok();
    let args = ["run", &artifact, "--input", "x=random:1"];
    let output = fixture.byoc(&args, &[("STUB_CUDA", "none")]).ok();
    assert_eq!(output.out, host_result(&fixture, RELU, &[]));
    output.stderr_contains(&["cudaGetDeviceCount", "on a machine with an NVIDIA GPU"]);
    let summary = fixture.byoc(&["inspect", &artifact], &[]).ok();
    assert!(summary.out.contains("engine for capability 8.9"), "{}", summary.out);
}

#[test]
fn failures_of_a_run_are_reported_and_the_host_computes() {
    let fixture = fixture();
    let expected = host_result(&fixture, RELU, &[]);
    let lost = run_on(&fixture, RELU, ["", "lost"], &[]).ok();
    assert_eq!(lost.out, expected);
    let lost = lost.stderr_contains(&["the device of tensorrt is lost", "cudaErrorLaunchFailure"]);
    assert_eq!(lost.err.matches("is lost").count(), 1, "{}", lost.err);
    let refused = run_on(&fixture, RELU, ["refuse", ""], &[]).ok();
    assert_eq!(refused.out, expected);
    refused.stderr_contains(&["capability 8.9: building the engine failed: the stub builds nothing"]);
}

#[test]
fn refusals_have_the_parsers_reason() {
    let fixture = fixture();
    let model = fixture.write("tan.relay", "fn (%x: Tensor[(4, 8), float32]) { tan(nn.relu(%x)) }");
    let output = fixture.byoc(&["explain", &model, "--backend", "tensorrt"], &[]).ok();
    assert!(output.out.contains("tan: TensorRT's parser: Tan: the stub does not know this operator"), "{}", output.out);
    let wide = fixture.write("wide.relay", "fn (%x: Tensor[(4, 8), float64]) { nn.relu(%x) }");
    let output = fixture.byoc(&["explain", &wide, "--backend", "tensorrt"], &[]).ok();
    assert!(output.out.contains("UnsupportedDtype"), "{}", output.out);
}

#[test]
fn options_out_of_range_end_the_command() {
    let fixture = fixture();
    let cases = [
        ("level=9", "tensorrt.level: expected a number from 0 to 5, found \"9\""),
        ("workspace=0", "tensorrt.workspace: expected a number from 1 to 1048576, found \"0\""),
        ("profile=n:3:2:1", "tensorrt.profile: expected NAME:MIN:OPT:MAX"),
        ("capability=9.0", "expected any or some of 7.5, 8.0, 8.6, 8.9, 12.0, 12.1, found \"9.0\""),
    ];
    for (option, message) in cases {
        let option = format!("--backend-option=tensorrt.{option}");
        run_on(&fixture, RELU, ["", ""], &[&option]).fails_with("E0406").stderr_contains(&[message]);
    }
    run_on(&fixture, RELU, ["", ""], &["--backend-option=tensorrt.tf32=maybe"]).fails_with("E0427");
}
