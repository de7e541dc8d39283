//! VTA accelerator: from a float model to its instruction stream, with the simulator and with a driver.

mod device;

use crate::{CommandOutput, byoc, data, data_text};
use byoc_ir::tensor::{DType, Tensor};
use byoc_test_support::{plugin_dir, workspace};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Scratch directory, and directory with the plugin.
struct Fixture {
    temp_dir: TempDir,
    plugins: TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture { temp_dir: tempfile::tempdir().unwrap(), plugins: plugin_dir(&["vta"]) }
    }

    fn path(&self, name: &str) -> String {
        self.temp_dir.path().join(name).display().to_string()
    }

    /// Writes the device parameters next to the plugin: the defaults with the given changes.
    fn set_device(&self, changes: &[(&str, u32)]) {
        let text = std::fs::read_to_string(workspace().join("plugins/vta/vta_config.json")).unwrap();
        let mut device: Value = serde_json::from_str(&text).unwrap();
        for (key, value) in changes {
            device[*key] = (*value).into();
        }
        std::fs::write(self.plugins.path().join("libbyoc_vta.json"), device.to_string()).unwrap();
    }

    /// Returns the arguments that select the backend.
    fn backend(&self) -> [String; 5] {
        let dir = self.plugins.path().display().to_string();
        ["--backend".into(), "vta".into(), "--plugin-dir".into(), dir, "--no-cache".into()]
    }

    /// Returns the arguments of a command for the backend.
    fn args(&self, extra_args: &[&str]) -> Vec<String> {
        extra_args.iter().map(|arg| (*arg).to_owned()).chain(self.backend()).collect()
    }

    /// Quantizes a model with the plugin's scheme; returns the path of the quantized model.
    fn quantize(&self, model: &str, calibrate: &str, extra_args: &[&str]) -> String {
        let output = self.path("int8.relay");
        let dir = self.plugins.path().display().to_string();
        let args =
            ["quantize", model, "--calibrate", calibrate, "--plugin-dir", &dir, "--backend", "vta", "-o", &output];
        byoc(args.iter().chain(extra_args)).ok();
        output
    }

    /// Quantizes the digits model; returns the path of the quantized model.
    fn digits(&self) -> String {
        self.quantize(&data_text("digits/digits.onnx"), &data_text("digits/calibration.npz"), &["--keep", "none"])
    }

    /// Returns the output file of a run on the host.
    fn expected(&self, model: &str, inputs: &[&str]) -> Vec<u8> {
        let output = self.path("host.npz");
        byoc(["run", model, "--output", &output].iter().chain(inputs)).ok();
        std::fs::read(output).unwrap()
    }

    /// Returns the output file of a run on the device.
    fn run_on_device(&self, model: &str, args: &[&str]) -> Vec<u8> {
        let output = self.path("device.npz");
        byoc(self.args(&[&["run", model, "--output", &output], args].concat())).ok();
        std::fs::read(output).unwrap()
    }

    /// Writes a Relay program with random int8 constants of the given shapes.
    fn program(&self, name: &str, text: &str, constants: &[&[usize]]) -> String {
        let random =
            |(seed, shape): (usize, &&[usize])| Arc::new(byoc::io::random::tensor(DType::I8, shape, seed as u64));
        let constants: Vec<Arc<Tensor>> = constants.iter().enumerate().map(random).collect();
        let reports = byoc_ir::text::parse(
            &format!("#[version = \"0.0.5\"]\n{text}"),
            &byoc_ir::text::ParseOptions { constants: &constants },
        );
        assert!(reports.diagnostics.is_empty(), "{:?}", reports.diagnostics);
        let path = self.path(name);
        byoc::frontend::relay::write(Path::new(&path), &reports.module).unwrap();
        path
    }
}

/// Returns the regions and the operators of an explanation.
fn explain(output: &CommandOutput) -> (Vec<Value>, Vec<Value>) {
    let explanation = output.json().remove(0);
    let list = |key: &str| explanation[key].as_array().unwrap().clone();
    (list("regions"), list("nodes"))
}

#[test]
fn float_program_needs_quantization_and_is_then_one_region() {
    let fixture = Fixture::new();
    let page = std::fs::read_to_string(workspace().join("docs/vta.md")).unwrap();
    let program = page.split("```relay\n").nth(1).unwrap().split("```").next().unwrap();
    let model = fixture.path("float.relay");
    std::fs::write(&model, program).unwrap();
    let output = byoc(fixture.args(&["explain", &model])).ok();
    let first_line = output.err.lines().next().unwrap_or_default();
    assert!(first_line.contains("expected int8, found float32"), "{first_line}");
    assert!(first_line.contains("byoc quantize MODEL --calibrate DATA --backend vta -o FILE.relay"), "{first_line}");
    assert!(page.contains(first_line), "expected the page to contain: {first_line}");

    let quantized_model = fixture.quantize(&model, "random", &["--keep", "none"]);
    let (regions, nodes) = explain(&byoc(fixture.args(&["explain", &quantized_model, "--json"])).ok());
    assert_eq!(regions.len(), 1);
    for name in ["qnn.conv2d", "nn.relu"] {
        let node =
            nodes.iter().find(|node| node["op"] == name).unwrap_or_else(|| panic!("expected {name} in {nodes:?}"));
        assert_eq!(node["placement"]["region"], regions[0]["symbol"], "{node}");
    }
    let inputs = ["--input", "data=random:1"];
    assert_eq!(fixture.run_on_device(&quantized_model, &inputs), fixture.expected(&quantized_model, &inputs));
}

#[test]
fn digits_match_host_in_every_mode() {
    let fixture = Fixture::new();
    let model = fixture.digits();
    let images = format!("image={}", data_text("digits/test.npz"));
    let inputs = ["--input", &images, "--dim", "batch=360"];
    let expected = fixture.expected(&model, &inputs);
    for option in ["simulator=functional", "simulator=strict", "runs=layer"] {
        let option = format!("vta.{option}");
        let actual = fixture.run_on_device(&model, &[&inputs[..], &["--backend-option", &option]].concat());
        assert_eq!(actual, expected, "{option}");
    }
    let sample_args = ["--input", "image=random:3", "--dim", "batch=1"];
    let schedule_args = [&sample_args[..], &["--backend-option", "vta.simulator=schedules"]].concat();
    assert_eq!(fixture.run_on_device(&model, &schedule_args), fixture.expected(&model, &sample_args));

    let logits = byoc::io::npz::read(Path::new(&fixture.path("host.npz"))).unwrap();
    assert_eq!(logits.len(), 1);
    fixture.expected(&model, &inputs);
    let logits = byoc::io::npz::read(Path::new(&fixture.path("host.npz"))).unwrap().remove(0).1;
    let labels = byoc::io::npz::read_entry(&data("digits/test.npz"), Some("label")).unwrap();
    let labels = labels.view().to_i64s().unwrap();
    let correct_count = byoc_quantize::labels::count_correct(&logits.view().to_f64s(), &labels);
    assert!(correct_count >= 354, "expected at least 354 of {} correct, found {correct_count}", labels.len());
}

/// Residual block as written by TVM's `relay.quantize`: int32 accumulators, rounding by an addition before the shift,
/// clamping, and an int32 addition.
const SHIFTS_PROGRAM: &str = "def @main(%x: Tensor[(1, 20, 12, 12), int8]) {
  %0 = nn.conv2d(%x, meta[relay.Constant][0], padding=[1, 1, 1, 1], channels=24, kernel_size=[3, 3], out_dtype=\"int32\");
  %1 = nn.relu(add(%0, 77));
  %2 = right_shift(add(%1, 256), 9);
  %3 = cast(clip(%2, a_min=-127f, a_max=127f), dtype=\"int8\");
  %4 = nn.conv2d(%3, meta[relay.Constant][1], padding=[1, 1, 1, 1], channels=20, kernel_size=[3, 3], out_dtype=\"int32\");
  %5 = right_shift(add(%4, 512), 10);
  %6 = left_shift(cast(%x, dtype=\"int32\"), 1);
  %7 = clip(add(%5, %6), a_min=-127f, a_max=127f);
  %8 = nn.relu(cast(%7, dtype=\"int8\"));
  %9 = nn.max_pool2d(%8, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1]);
  %10 = nn.batch_flatten(%9);
  nn.dense(%10, meta[relay.Constant][2], units=33, out_dtype=\"int32\")
}
";

#[test]
fn networks_in_plain_operators_match() {
    let fixture = Fixture::new();
    let model = fixture.program("shifts.relay", SHIFTS_PROGRAM, &[&[24, 20, 3, 3], &[20, 24, 3, 3], &[33, 720]]);
    let (_, nodes) = explain(&byoc(fixture.args(&["explain", &model, "--json"])).ok());
    let on_host: Vec<&str> = nodes
        .iter()
        .filter(|node| node["placement"]["kind"] == "host")
        .filter_map(|node| node["op"].as_str())
        .collect();
    assert_eq!(on_host, ["nn.batch_flatten"], "{}", byoc(fixture.args(&["explain", &model])).ok().out);
    let inputs = ["--input", "x=random:1"];
    let expected = fixture.expected(&model, &inputs);
    for device in [&[][..], &[("LOG_BATCH", 2), ("LOG_BLOCK", 3)], &[("LOG_BLOCK", 5)], SMALL_BUFFERS] {
        fixture.set_device(device);
        assert_eq!(fixture.run_on_device(&model, &inputs), expected, "{device:?}");
    }
}

/// Buffer sizes that are large enough only for small tiles.
const SMALL_BUFFERS: &[(&str, u32)] =
    &[("LOG_UOP_BUFF_SIZE", 9), ("LOG_INP_BUFF_SIZE", 10), ("LOG_WGT_BUFF_SIZE", 11), ("LOG_ACC_BUFF_SIZE", 11)];

/// Module with depthwise and grouped convolutions, a strided 5 x 5 kernel, a single channel, and accumulators as
/// results.
const SHAPES_PROGRAM: &str = "def @main(%x: Tensor[(3, 34, 11, 9), int8]) {
  %0 = nn.conv2d(%x, meta[relay.Constant][0], padding=[1, 1, 1, 1], groups=34, channels=34, kernel_size=[3, 3], out_dtype=\"int32\");
  %1 = qnn.requantize(%0, 0.015625f, 0, 1f, 0, out_dtype=\"int8\");
  %2 = nn.conv2d(%1, meta[relay.Constant][1], padding=[2, 0, 1, 3], strides=[3, 2], groups=2, channels=6, kernel_size=[5, 5], out_dtype=\"int32\");
  %3 = qnn.requantize(nn.relu(%2), 0.0078125f, 0, 1f, 0, out_dtype=\"int8\");
  nn.conv2d(%3, meta[relay.Constant][2], channels=1, kernel_size=[1, 1], out_dtype=\"int32\")
}
";

#[test]
fn unusual_shapes_match() {
    let fixture = Fixture::new();
    let model = fixture.program("shapes.relay", SHAPES_PROGRAM, &[&[34, 1, 3, 3], &[6, 17, 5, 5], &[1, 6, 1, 1]]);
    let (regions, nodes) = explain(&byoc(fixture.args(&["explain", &model, "--json"])).ok());
    assert_eq!(
        (regions.len(), nodes.iter().filter(|node| node["placement"]["kind"] == "host").count()),
        (1, 0),
        "{nodes:?}"
    );
    let inputs = ["--input", "x=random:1"];
    let expected = fixture.expected(&model, &inputs);
    for device in [&[][..], &[("LOG_BATCH", 2), ("LOG_BLOCK", 3)], &[("LOG_BLOCK", 5)], SMALL_BUFFERS] {
        fixture.set_device(device);
        assert_eq!(fixture.run_on_device(&model, &inputs), expected, "{device:?}");
    }
}

#[test]
fn conforms_with_every_device() {
    for device in [&[][..], &[("LOG_BATCH", 2), ("LOG_BLOCK", 3)], &[("LOG_BLOCK", 5)], SMALL_BUFFERS] {
        let fixture = Fixture::new();
        fixture.set_device(device);
        let file = fixture.plugins.path().join("libbyoc_vta.so").display().to_string();
        let out = fixture.path("faults");
        let mut args = vec!["plugins", "test", &file, "--json", "--cases", "16", "--out", &out];
        if !device.is_empty() {
            // Single operators are tested only with the default parameters; most of them also occur in the patterns.
            args.extend(["--only", "pattern"]);
        }
        let test_output = byoc(args);
        let summary = test_output.json().last().unwrap()["summary"].clone();
        assert!(summary["passes"] == true && summary["passed"].as_u64() >= Some(80), "{device:?}: {}", test_output.out);
        test_output.ok();
    }
}

/// Full-size ResNet-18: `cargo xtask vta` prints the figures.
#[test]
#[ignore = "minutes of computation"]
#[expect(clippy::print_stdout, reason = "prints the measured figures")]
fn full_size_residual_network() {
    let fixture = Fixture::new();
    let model = fixture.path("resnet18.onnx");
    byoc(["zoo", "resnet18", "-o", &model]).ok();
    let output = fixture.path("int8.relay");
    let dir = fixture.plugins.path().display().to_string();
    let args = ["quantize", &model, "--calibrate", "random", "--samples", "64", "--json", "-o", &output];
    let report = byoc(args.iter().chain(&["--plugin-dir", &dir, "--backend", "vta"])).ok().json();
    let cosine = report.last().unwrap()["summary"]["cosine"].as_f64().unwrap();
    let (regions, nodes) = explain(&byoc(fixture.args(&["explain", &output, "--json"])).ok());
    for node in nodes.iter().filter(|node| node["placement"]["kind"] == "host") {
        let name = node["op"].as_str().unwrap();
        assert!(!["qnn.conv2d", "qnn.add", "qnn.dense"].contains(&name), "{node}");
    }
    let inputs = ["--input", "image=random:1"];
    let trace = fixture.path("trace.json");
    let tsim_args = ["--backend-option", "vta.profile=tsim", "--trace", &trace];
    assert_eq!(fixture.run_on_device(&output, &[&inputs[..], &tsim_args].concat()), fixture.expected(&output, &inputs));
    let row =
        byoc(fixture.args(&["bench", &output, "--runs", "3", "--json", "--backend-option", "vta.profile=tsim"])).ok();
    let metrics = row.json().remove(0)["metrics"].clone();
    let metric = |name: &str| metrics[name].as_f64().unwrap();
    println!(
        "{} regions, cosine {cosine:.5} over 64 inputs, {:.0} GEMM steps, {:.0} cycles in profile tsim",
        regions.len(),
        metric("vta.gemm_counter"),
        metric("vta.cycles"),
    );
    assert!(regions.len() <= 3 && cosine >= 0.95);
    assert_eq!(metric("vta.gemm_counter"), (6_623_232 + 63 * 32) as f64);
    assert!((7e6..8.5e6).contains(&metric("vta.cycles")));
    let schedule_args = [&inputs[..], &["--backend-option", "vta.simulator=schedules"]].concat();
    assert_eq!(fixture.run_on_device(&output, &schedule_args), fixture.expected(&output, &inputs));
    // `cargo xtask vta` later removes the tokens from the instruction streams of this artifact.
    if let Ok(artifact) = std::env::var("BYOC_VTA_ARTIFACT") {
        byoc(fixture.args(&["compile", &output, "-o", &artifact])).ok();
    }
}
