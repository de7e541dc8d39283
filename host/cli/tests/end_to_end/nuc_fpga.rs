//! Scenario of an FPGA team that replaces convolutions with calls to its driver function: from an int8 model to the
//! driver calls, and the diagnostics for missing parts.

mod regions;

use crate::{CommandOutput, byoc, command, data_text, to_command_output};
use byoc_test_support::{plugin_dir, workspace};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Module with two convolutions and all operators that can follow them, a pooling operator in between, and a dense
/// layer.
const PROGRAM: &str = r#"#[version = "0.0.5"]
def @main(%x: Tensor[(2, 3, 12, 12), int8], %w1: Tensor[(8, 3, 3, 3), int8], %w2: Tensor[(16, 2, 3, 3), int8],
          %w3: Tensor[(10, 144), int8]) {
  %0 = qnn.conv2d(%x, %w1, 0, 0, 0.05f, 0.01f, padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3], out_dtype="int32");
  %1 = add(%0, 100);
  %2 = qnn.requantize(%1, 0.0005f, 0, 0.03f, 0, rounding="TONEAREST", out_dtype="int8");
  %3 = nn.relu(%2);
  %4 = nn.max_pool2d(%3, pool_size=[2, 2], strides=[2, 2]);
  %5 = nn.conv2d(%4, %w2, padding=[1, 1, 1, 1], strides=[2, 2], groups=4, channels=16, kernel_size=[3, 3],
                 out_dtype="int32");
  %6 = clip(%5, a_min=-9000f, a_max=9000f);
  %7 = fixed_point_multiply(%6, multiplier=1518500250, shift=-5);
  %8 = clip(%7, a_min=-128f, a_max=127f);
  %9 = cast(%8, dtype="int8");
  %10 = nn.batch_flatten(%9);
  nn.dense(%10, %w3, units=10, out_dtype="int32")
}
"#;

const INPUTS: [&str; 8] =
    ["--input", "x=random:1", "--input", "w1=random:2", "--input", "w2=random:3", "--input", "w3=random:4"];

/// Directories with the model and with the plugin.
struct Fixture {
    temp_dir: TempDir,
    plugins: TempDir,
    model: String,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("int8.relay");
        std::fs::write(&file, PROGRAM).unwrap();
        Fixture { model: file.display().to_string(), temp_dir: dir, plugins: plugin_dir(&["nuc_fpga"]) }
    }

    fn path(&self, name: &str) -> String {
        self.temp_dir.path().join(name).display().to_string()
    }

    fn build(&self) -> [String; 5] {
        let dir = self.plugins.path().display().to_string();
        ["--backend".into(), "nuc_fpga".into(), "--plugin-dir".into(), dir, "--no-cache".into()]
    }

    /// Returns the arguments of a command that compiles the model for the backend.
    fn args<'s>(&self, verb: &'s str, extra_args: &[&'s str]) -> Vec<String> {
        let args = [verb, &self.model].into_iter().chain(extra_args.iter().copied()).map(String::from);
        args.chain(self.build()).collect()
    }

    /// Returns the output file of a run on the host.
    fn expected(&self) -> Vec<u8> {
        let output = self.path("host.npz");
        byoc(["run", &self.model, "--output", &output].into_iter().chain(INPUTS)).ok();
        std::fs::read(output).unwrap()
    }
}

/// Builds a C library against the shipped header.
fn build_library(source: &Path, target: &Path) {
    build_from_files(&[source], target);
}

/// Builds a C library from several files.
fn build_from_files(sources: &[&Path], target: &Path) {
    let include = workspace().join("plugins/nuc_fpga/include");
    let mut cc = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-I"]).arg(include);
    assert!(cc.arg("-o").arg(target).args(sources).status().unwrap().success());
}

fn sample_driver(dir: &Path) -> PathBuf {
    let driver = dir.join("libdriver.so");
    build_library(&workspace().join("plugins/nuc_fpga/samples/driver.c"), &driver);
    driver
}

#[test]
fn int8_program_matches_host_bit_for_bit() {
    let fixture = Fixture::new();
    let (output, trace) = (fixture.path("device.npz"), fixture.path("trace.json"));
    let extra_args = ["--output", &output, "--trace", &trace, "--require-offload=0.98", "-v"];
    let text = byoc(fixture.args("run", &[&INPUTS[..], &extra_args].concat())).ok();
    assert_eq!(std::fs::read(&output).unwrap(), fixture.expected());
    text.stderr_contains(&["event=\"nuc_fpga_conv2d\"", "event=\"nuc_fpga_dense\"", "tvmgen_default_nuc_fpga_main_0"]);

    let trace: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let calls: Vec<&Value> = events.iter().filter(|e| e["cat"] == "plugin" && e["ph"] == "i").collect();
    let names: Vec<&str> = calls.iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["nuc_fpga_conv2d", "nuc_fpga_conv2d", "nuc_fpga_dense"]);
    for call in calls {
        for field in ["cycles", "utilisation", "bytes"] {
            assert!(call["args"][field].as_f64().unwrap() > 0.0, "{call}");
        }
    }
    let regions = events.iter().filter(|e| e["cat"] == "region").count();
    assert_eq!(regions, 3);
}

#[test]
fn artifact_runs_same_commands() {
    let fixture = Fixture::new();
    let (artifact, output) = (fixture.path("int8.byoc"), fixture.path("device.npz"));
    byoc(fixture.args("compile", &["-o", &artifact])).ok();
    let dir = fixture.plugins.path().display().to_string();
    byoc(["run", &artifact, "--plugin-dir", &dir, "--output", &output].into_iter().chain(INPUTS)).ok();
    assert_eq!(std::fs::read(&output).unwrap(), fixture.expected());
}

#[test]
fn bench_reports_cycles_utilization_and_bytes() {
    let fixture = Fixture::new();
    let row = byoc(fixture.args("bench", &["--runs", "3", "--json"])).ok().json().remove(0);
    let metrics = &row["metrics"];
    assert_eq!(metrics["nuc_fpga.calls"], 3.0, "{row}");
    assert!(
        metrics["nuc_fpga.cycles"].as_f64().unwrap() > 100.0 && metrics["nuc_fpga.bytes"].as_f64().unwrap() > 100.0
    );
    let utilisation = metrics["nuc_fpga.macs.utilisation"].as_f64().unwrap();
    let ratio = |name: &str| metrics[name].as_f64().unwrap();
    assert_eq!(utilisation, ratio("nuc_fpga.macs.used") / ratio("nuc_fpga.macs.available"));
    assert!(utilisation > 0.0 && utilisation < 1.0);
}

#[test]
fn graph_and_source_show_calls() {
    let fixture = Fixture::new();
    let graph = byoc(fixture.args("compile", &["--emit", "partitioned"])).ok().out;
    assert!(graph.contains("Compiler=\"nuc_fpga\"") && graph.contains("qnn.conv2d("), "{graph}");
    assert!(graph.contains("Composite=\"nuc_fpga.conv2d_requantize\""), "{graph}");
    // The file of each region compiles separately, and links with a driver without leaving undefined symbols.
    for (region, call) in ["nuc_fpga_conv2d(", "nuc_fpga_conv2d(", "nuc_fpga_dense("].iter().enumerate() {
        let symbol = format!("tvmgen_default_nuc_fpga_main_{region}");
        let source = byoc(fixture.args("source", &["--symbol", &symbol])).ok().out;
        assert!(source.contains(call), "{source}");
        let file = fixture.path(&format!("{symbol}.c"));
        std::fs::write(&file, source).unwrap();
        build_library(Path::new(&file), Path::new(&fixture.path("region.so")));
    }
    // The source of all regions also compiles as one file.
    let file = fixture.path("all.c");
    std::fs::write(&file, byoc(fixture.args("source", &[])).ok().out).unwrap();
    build_library(Path::new(&file), Path::new(&fixture.path("all.so")));
}

#[test]
fn calls_driver_instead_of_software_device() {
    let fixture = Fixture::new();
    let driver = sample_driver(fixture.temp_dir.path());
    let output = fixture.path("device.npz");
    let args = fixture.args("run", &[&INPUTS[..], &["--output", &output]].concat());
    let run_output = to_command_output(command(args).env("NUC_FPGA_DRIVER", &driver).output().unwrap()).ok();
    let lines = |expected_line: &str| run_output.err.lines().filter(|line| line.trim() == expected_line).count();
    assert_eq!(lines("Calling From nuc_fpga_conv2d"), 2, "{}", run_output.err);
    assert_eq!(lines("Calling From nuc_fpga_dense"), 1, "{}", run_output.err);
    assert_eq!(std::fs::read(&output).unwrap(), fixture.expected());
}

#[test]
fn reports_invalid_driver() {
    let fixture = Fixture::new();
    let run_with = |driver: &str| -> CommandOutput {
        to_command_output(command(fixture.args("run", &INPUTS)).env("NUC_FPGA_DRIVER", driver).output().unwrap())
    };
    let message = |name: &str| format!("{name} (NUC_FPGA_DRIVER)");
    let text = fixture.path("text.so");
    std::fs::write(&text, "no library\n").unwrap();
    run_with(&text).fails_with("E0406").stderr_contains(&[
        &message(&text),
        "expected a shared library",
        "nuc_fpga_dense as declared in nuc_fpga.h",
    ]);
    let missing_driver = fixture.path("missing.so");
    run_with(&missing_driver).fails_with("E0406").stderr_contains(&[&message(&missing_driver), "cannot be read"]);
    let source = fixture.path("half.c");
    std::fs::write(&source, "void nuc_fpga_conv2d(void);\nvoid nuc_fpga_conv2d(void) {}\n").unwrap();
    let incomplete_driver = fixture.path("half.so");
    build_library(Path::new(&source), Path::new(&incomplete_driver));
    run_with(&incomplete_driver)
        .fails_with("E0406")
        .stderr_contains(&[&message(&incomplete_driver), "missing functions: nuc_fpga_dense"]);
    let driver_bytes = std::fs::read(sample_driver(fixture.temp_dir.path())).unwrap();
    let truncated_driver = fixture.path("cut.so");
    std::fs::write(&truncated_driver, &driver_bytes[..driver_bytes.len() / 4]).unwrap();
    run_with(&truncated_driver)
        .fails_with("E0406")
        .stderr_contains(&[&message(&truncated_driver), "expected a complete library, found a truncated one"]);
}

#[test]
fn reads_device_parameters_beside_plugin() {
    let fixture = Fixture::new();
    let cycles = || {
        let row = byoc(fixture.args("bench", &["--runs", "1", "--json"])).ok().json().remove(0);
        row["metrics"]["nuc_fpga.cycles"].as_f64().unwrap()
    };
    let cycles_before = cycles();
    let text = std::fs::read_to_string(workspace().join("plugins/nuc_fpga/device.json")).unwrap();
    let file = fixture.plugins.path().join("libbyoc_nuc_fpga.json");
    std::fs::write(&file, text.replace("3200000000", "320000000")).unwrap();
    assert!(cycles() > 2.0 * cycles_before, "expected more cycles at a tenth of the bandwidth");
    std::fs::write(&file, text.replace("\"array_rows\": 16", "\"array_rows\": 0")).unwrap();
    let listing = byoc(["plugins", "--plugin-dir", &fixture.plugins.path().display().to_string()]).ok();
    assert!(listing.out.contains("array_rows: expected 1 to 4096"), "{}", listing.out);
}

#[test]
fn suggests_quantize_for_float_model() {
    let fixture = Fixture::new();
    let build = fixture.build();
    let model = data_text("digits/digits.onnx");
    let args = |verb: &str, extra_args: &[&str]| -> Vec<String> {
        let arguments =
            [verb, &model, "--dim", "batch=1"].into_iter().chain(extra_args.iter().copied()).map(String::from);
        arguments.chain(build.iter().cloned()).collect()
    };
    let failure = byoc(args("run", &["--input", "image=random", "--require-offload"])).fails_with("E0404");
    let first_line = failure.err.lines().next().unwrap_or_default();
    assert!(
        first_line.contains("input 0: expected int8, found float32: run \"byoc quantize\" first"),
        "{}",
        failure.err
    );
    assert!(
        first_line.contains("byoc quantize MODEL --calibrate DATA --backend nuc_fpga -o FILE.relay"),
        "{first_line}"
    );
    assert_eq!(failure.err.matches("E0404").count(), 1, "{}", failure.err);

    let warning_output = byoc(args("explain", &["--json"])).ok();
    assert!(
        warning_output.err.lines().next().unwrap_or_default().contains("run \"byoc quantize\" first"),
        "{}",
        warning_output.err
    );
    let explanation = warning_output.json().remove(0);
    assert_eq!(explanation["totals"]["regions"], 0);
    let nodes = explanation["nodes"].as_array().unwrap();
    let layer = nodes.iter().find(|node| node["op"] == "Conv" || node["op"] == "nn.conv2d").unwrap();
    let refusal = &layer["refusals"][0];
    assert_eq!(refusal["code"], "UnsupportedDtype");
    assert_eq!(refusal["detail"], "input 0: expected int8, found float32");
    assert!(refusal["hint"].as_str().unwrap().starts_with("run \"byoc quantize\" first"));
}

/// Runs `byoc quantize` on a model with the plugin's scheme; returns the path of the quantized model and the report
/// rows.
fn quantize(fixture: &Fixture, model: &str, calibrate: &str, extra_args: &[&str]) -> (String, Vec<Value>) {
    let output = fixture.path("quantized.relay");
    let args = ["quantize", model, "--calibrate", calibrate, "--json", "-o", &output].map(String::from);
    let dir = fixture.plugins.path().display().to_string();
    let plugin = ["--backend", "nuc_fpga", "--plugin-dir", &dir].map(String::from);
    let rows = byoc(args.into_iter().chain(plugin).chain(extra_args.iter().map(|&m| m.to_owned()))).ok().json();
    (output, rows)
}

#[test]
fn runs_all_test_images_in_one_batch() {
    let fixture = Fixture::new();
    let calibration = data_text("digits/calibration.npz");
    let (model, _) = quantize(&fixture, &data_text("digits/digits.onnx"), &calibration, &[]);
    let (output, trace) = (fixture.path("logits.npz"), fixture.path("trace.json"));
    let input = format!("image={}", data_text("digits/test.npz"));
    let args = ["run", &model, "--input", &input, "--output", &output, "--trace", &trace, "--require-offload=0.9"];
    byoc(args.map(String::from).into_iter().chain(fixture.build())).ok();
    let logits = byoc::io::npz::read(Path::new(&output)).unwrap().remove(0).1;
    let labels = byoc::io::npz::read_entry(&crate::data("digits/test.npz"), Some("label")).unwrap();
    let labels = labels.view().to_i64s().unwrap();
    let right = byoc_quantize::labels::count_correct(&logits.view().to_f64s(), &labels);
    assert!(right >= 355, "expected at least 355 of {} correct, found {right}", labels.len());
    // Each layer processes all images in one call.
    let trace: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let calls: Vec<&Value> = events.iter().filter(|e| e["cat"] == "plugin" && e["ph"] == "i").collect();
    assert_eq!(calls.len(), 4);
    assert!(calls.iter().all(|call| call["args"]["arguments"][0] == 360), "{calls:?}");
    // The host runs the same model with bit-identical results.
    let host_path = fixture.path("host.npz");
    byoc(["run", &model, "--input", &input, "--output", &host_path]).ok();
    assert_eq!(std::fs::read(&host_path).unwrap(), std::fs::read(&output).unwrap());
}

#[test]
fn residual_network_runs_on_device() {
    let network = Network { model: &data_text("models/resnet18_w16"), input: "input.1", samples: "4", min_share: 0.7 };
    for keep_option in ["first", "none"] {
        network.check(keep_option, &["nuc_fpga"]);
    }
}

/// Full-size ResNet-18: `cargo test --release -p byoc-cli --test end_to_end full_size -- --ignored --nocapture` prints
/// the figures.
#[test]
#[ignore = "a minute of computation"]
#[expect(clippy::print_stdout, reason = "prints the measured figures")]
fn full_size_residual_network_runs_on_device() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("resnet18.onnx").display().to_string();
    byoc(["zoo", "resnet18", "-o", &model]).ok();
    let network = Network { model: &model, input: "image", samples: "64", min_share: 0.9 };
    for keep_option in ["first", "none"] {
        let rows = network.check(keep_option, &["nuc_fpga"]);
        let ratios = rows.iter().filter_map(|row| row["signal_to_noise_db"].as_f64());
        let lowest_ratio = ratios.fold(f64::INFINITY, f64::min);
        let cosine = rows.last().unwrap()["summary"]["cosine"].as_f64().unwrap();
        println!(
            "--keep {keep_option}: cosine {cosine:.5} over 64 inputs, lowest signal-to-noise ratio {lowest_ratio:.1} dB"
        );
        assert!(
            cosine >= 0.95 && lowest_ratio >= 15.0,
            "expected a cosine >= 0.95 and a ratio >= 15 dB, found {cosine} and {lowest_ratio}"
        );
    }
    if byoc_test_support::onednn().is_some() {
        network.check("first", &["nuc_fpga", "dnnl"]);
    }
}

/// Configuration of a ResNet-18 test.
struct Network<'a> {
    model: &'a str,
    input: &'a str,
    /// Number of random inputs for calibration.
    samples: &'a str,
    /// Minimum share of the model's FLOPs on backends.
    min_share: f64,
}

impl Network<'_> {
    /// Quantizes the model and checks its regions, its results and the driver calls. Returns the report rows.
    fn check(&self, keep_option: &str, backends: &[&str]) -> Vec<Value> {
        let mut fixture = Fixture::new();
        fixture.plugins = plugin_dir(backends);
        let convolutions = if keep_option == "none" { 20 } else { 19 };
        let (model, rows) =
            quantize(&fixture, self.model, "random:1", &["--samples", self.samples, "--keep", keep_option]);
        let dir = fixture.plugins.path().display().to_string();
        let build = ["--backend", &backends.join(","), "--plugin-dir", &dir, "--no-cache"].map(String::from);
        let args = |verb: &str, extra_args: &[&str]| -> Vec<String> {
            let arguments = [verb, &model].into_iter().chain(extra_args.iter().copied()).map(String::from);
            arguments.chain(build.iter().cloned()).collect()
        };
        let min_share = format!("--require-offload={}", self.min_share);
        let explanation = byoc(args("explain", &["--json", &min_share])).ok().json().remove(0);
        let nodes = explanation["nodes"].as_array().unwrap();
        let count_on_device = |op: &str| {
            let op_nodes = nodes.iter().filter(|node| node["op"] == op);
            op_nodes.filter(|node| node["placement"]["backend"] == "nuc_fpga").count()
        };
        assert_eq!((count_on_device("qnn.conv2d"), count_on_device("qnn.dense")), (convolutions, 1));

        let driver = sample_driver(fixture.temp_dir.path());
        regions::check(&fixture, Path::new(&model), convolutions + 1);
        // The naive loops of the sample driver and the software device produce bit-identical results.
        let (ours, theirs) = (fixture.path("software.npz"), fixture.path("driver.npz"));
        let input = format!("{}=random:5", self.input);
        let run = |output: &str| args("run", &["--input", &input, "--output", output]);
        byoc(run(&ours)).ok();
        let run = command(run(&theirs)).env("NUC_FPGA_DRIVER", &driver).output().unwrap();
        let run_output = to_command_output(run).ok().err.matches("Calling From nuc_fpga_conv2d").count();
        assert_eq!(run_output, convolutions);
        assert_eq!(std::fs::read(&ours).unwrap(), std::fs::read(&theirs).unwrap());
        rows
    }
}
