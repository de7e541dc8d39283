//! A device with separate memory: resident tensors, copies, asynchronous runs, and device failures.

use crate::{CommandOutput, byoc};
use byoc::{CompileOptions, Model, RunOptions, Session, Tensor};
use byoc_test_support::artifact::Entries;
use byoc_test_support::{copy, temporary_folder, test_plugin};
use serde_json::{Value, json};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Directory with the plugin of the test device and a model.
struct Fixture {
    temp_dir: TempDir,
    model: String,
}

impl Fixture {
    fn new(config: &Value, body: &str) -> Fixture {
        let dir = temporary_folder();
        copy(&test_plugin("device"), &dir.path().join("libbyoc_device.so"));
        std::fs::write(dir.path().join("libbyoc_device.json"), config.to_string()).unwrap();
        let model = dir.path().join("model.relay");
        std::fs::write(&model, format!("#[version = \"0.0.5\"]\n{body}\n")).unwrap();
        let model = model.display().to_string();
        Fixture { temp_dir: dir, model }
    }

    fn path(&self, name: &str) -> String {
        self.temp_dir.path().join(name).display().to_string()
    }

    /// Runs a command on the device.
    fn run_on_device(&self, args: &[&str]) -> CommandOutput {
        let dir = self.temp_dir.path().display().to_string();
        byoc([args, &["--backend", "device", "--plugin-dir", &dir, "--no-cache"]].concat())
    }

    fn run(&self, extra_args: &[&str]) -> CommandOutput {
        let output = self.path("out.npz");
        self.run_on_device(&[&["run", &self.model, "--input", "x=random:1", "--output", &output], extra_args].concat())
    }

    fn assert_output(&self, expected: &str) {
        let read = |path: &str| std::fs::read(path).unwrap();
        assert!(read(&self.path("out.npz")) == read(expected), "expected bit-identical results on host and device");
    }

    /// Returns the metrics of a run on the device, after checking that its results match the host's.
    fn metrics(&self) -> Value {
        let output = self.path("host.npz");
        byoc(["run", &self.model, "--input", "x=random:1", "--output", &output]).ok();
        self.run(&[]).ok();
        self.assert_output(&output);
        let bench = self.run_on_device(&["bench", &self.model, "--runs", "1", "--json"]).ok();
        bench.json().remove(0)["metrics"].clone()
    }
}

/// A contract limits what is copied to the device and back: a chain copies its input and its result.
#[test]
fn a_contract_limits_the_copies() {
    let fixture = Fixture::new(&json!({}), &chain(3));
    let contract = fixture.path("strict.toml");
    let explain = |bytes: usize| {
        std::fs::write(&contract, format!("[[contract]]\nmax_copied_bytes = {bytes}\n")).unwrap();
        fixture.run_on_device(&["explain", &fixture.model, "--contract", &contract])
    };
    let bytes = 2 * 4 * 8 * 16;
    explain(bytes).ok();
    let expected = format!("max_copied_bytes: expected at most {} bytes per run, found {bytes}", bytes - 1);
    explain(bytes - 1).fails_with("E0462").stderr_contains(&[&expected]);
}

/// Returns Relay text for a chain of `count + 1` regions, with a view between adjacent regions.
fn chain(count: usize) -> String {
    let mut text = "def @main(%x: Tensor[(8, 16), float32]) {\n".to_owned();
    let mut value = "%x".to_owned();
    for i in 0..count {
        let shape = if i % 2 == 0 { "[16, 8]" } else { "[8, 16]" };
        text += &format!(
            "  %{} = add({value}, {value});\n  %{} = reshape(%{}, newshape={shape});\n",
            2 * i,
            2 * i + 1,
            2 * i
        );
        value = format!("%{}", 2 * i + 1);
    }
    text + &format!("  nn.relu({value})\n}}")
}

/// Tests a residual network without weights, split into many regions by a limit on the region size: every second
/// addition reads a tensor of an earlier region.
#[test]
fn regions_split_by_size_pass_their_tensors_on_the_device() {
    let mut text = "def @main(%x: Tensor[(8, 16), float32]) {\n  %0 = nn.relu(%x);\n  %1 = add(%0, %x);\n".to_owned();
    for i in 2..68 {
        let other = if i % 2 == 0 { i - 2 } else { i - 1 };
        text += &format!("  %{i} = add(%{}, %{other});\n", i - 1);
    }
    let fixture = Fixture::new(&json!({"max_operators": 2}), &(text + "  %67\n}"));
    let explanation = fixture.run_on_device(&["explain", &fixture.model, "--json"]).ok().json().remove(0);
    assert_eq!(explanation["totals"]["regions"], 34, "{}", explanation["totals"]);
    let bytes = 8 * 16 * 4;
    let copies = json!([{
        "backend": "device", "to_device": 1, "to_device_bytes": bytes, "from_device": 1, "from_device_bytes": bytes
    }]);
    assert_eq!(explanation["copies"], copies);
    let metrics = fixture.metrics();
    let copied_bytes = ["to_device_bytes", "from_device_bytes"].map(|name| metrics[format!("copy.{name}")].as_f64());
    assert_eq!(copied_bytes, [Some(f64::from(bytes)); 2], "{metrics}");
}

#[test]
fn tensors_between_regions_stay_on_the_device() {
    let fixture = Fixture::new(&json!({}), &chain(34));
    let explanation = fixture.run_on_device(&["explain", &fixture.model, "--json"]).ok().json().remove(0);
    assert_eq!(explanation["totals"]["regions"], 35);
    let metrics = fixture.metrics();
    let bytes = 8 * 16 * 4;
    for (name, value) in
        [("to_device", 1), ("to_device_bytes", bytes), ("from_device", 1), ("from_device_bytes", bytes)]
    {
        assert_eq!(metrics[format!("copy.{name}")], json!(f64::from(value)), "{name}: {metrics}");
    }
}

/// Module with two independent regions.
const INDEPENDENT_REGIONS: &str = "def @main(%x: Tensor[(8, 16), float32]) {
  %0 = add(%x, %x);
  %1 = nn.relu(%x);
  %2 = reshape(%0, newshape=[16, 8]);
  %3 = reshape(%1, newshape=[16, 8]);
  subtract(%2, %3)
}";

#[test]
fn independent_regions_run_side_by_side() {
    let overlap = |one_run: bool| {
        let fixture = Fixture::new(&json!({"milliseconds": 500, "one_run": one_run}), INDEPENDENT_REGIONS);
        let trace = fixture.path("trace.json");
        fixture.metrics();
        fixture.run(&["--trace", &trace]).ok();
        let trace: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().clone();
        let events_named = |name: &str| {
            events.iter().filter(|e| e["name"].as_str().unwrap().starts_with(name)).cloned().collect::<Vec<_>>()
        };
        assert_eq!(
            (events_named("copy_to_device").len(), events_named("copy_from_device").len()),
            (1, 2),
            "{events:?}"
        );
        let kernels = events_named("kernel");
        assert!(kernels.len() == 2 && kernels.iter().all(|e| e["cat"] == "device" && e["ph"] == "X" && e["tid"] == 2));
        assert!(events.iter().any(|e| e["args"]["name"] == "queue of the test's device"), "{events:?}");
        let begin = |event: &Value| event["ts"].as_f64().unwrap();
        let end = |event: &Value| begin(event) + event["dur"].as_f64().unwrap();
        begin(&kernels[0]).max(begin(&kernels[1])) < end(&kernels[0]).min(end(&kernels[1]))
    };
    assert!(overlap(false), "expected concurrent runs");
    assert!(!overlap(true), "expected one run at a time");
}

/// Tests that a device reads a model input directly from host memory if it can, unless a region overwrites the input.
#[test]
fn inputs_of_the_model_are_shared_with_the_device() {
    let bytes = f64::from(8 * 16 * 4);
    let metrics = Fixture::new(&json!({"shares_memory": true}), &chain(3)).metrics();
    assert_eq!([&metrics["import.to_device"], &metrics["import.to_device_bytes"]], [&json!(1.0), &json!(bytes)]);
    assert_eq!([&metrics["copy.to_device"], &metrics["copy.from_device"]], [&Value::Null, &json!(1.0)], "{metrics}");
    let metrics = Fixture::new(&json!({"shares_memory": true, "in_place": true}), &chain(3)).metrics();
    assert_eq!([&metrics["import.to_device"], &metrics["copy.to_device"]], [&Value::Null, &json!(1.0)], "{metrics}");
}

#[test]
fn tensors_of_the_host_are_copied_from_page_locked_memory() {
    let body = "def @main(%x: Tensor[(8, 16), float32]) {
      %0 = exp(%x);
      %1 = nn.relu(%0);
      add(exp(%1), %0)
    }";
    let bytes = f64::from(8 * 16 * 4);
    let metrics = Fixture::new(&json!({"shares_memory": true}), body).metrics();
    assert!(metrics["device.page_locked_bytes"].as_f64() >= Some(bytes), "{metrics}");
    let metrics = Fixture::new(&json!({}), body).metrics();
    assert_eq!(metrics["device.page_locked_bytes"], 0.0, "{metrics}");
}

/// Tests that each run with a workspace in device memory has exclusive use of the workspace: the test device reports a
/// workspace whose contents change during a run.
#[test]
fn workspaces_in_device_memory_are_used_by_one_run_at_a_time() {
    for one_run in [false, true] {
        let fixture =
            Fixture::new(&json!({"milliseconds": 20, "one_run": one_run, "workspace": 1000}), INDEPENDENT_REGIONS);
        let metrics = fixture.metrics();
        assert_eq!(metrics["device.workspace_bytes"], 2000.0, "{metrics}");
    }
    let fixture =
        Fixture::new(&json!({"milliseconds": 200, "workspace": 1000, "fault": "unordered"}), INDEPENDENT_REGIONS);
    fixture.run(&[]).fails_with("E0406").stderr_contains(&["another run changed the workspace of this run"]);
}

/// Tests that a backend that executes branches gets an `if` as part of a region if it supports both branches, and
/// otherwise only the operators in the branches.
#[test]
fn branches_are_parts_of_regions() {
    let module = |inner: &str| {
        format!(
            "def @main(%x: Tensor[(8, 16), float32], %c: Tensor[(), bool], %d: Tensor[(), bool]) {{
  %0 = add(%x, %x);
  %1 = if (%c) {{
    %2 = if (%d) {{ {inner}(%0) }} else {{ add(%0, %x) }};
    nn.relu(%2)
  }} else {{
    nn.relu(%x)
  }};
  add(%1, %0)
}}"
        )
    };
    let control_flow = json!({"control_flow": true});
    for (config, inner, regions) in
        [(&control_flow, "nn.relu", 1), (&control_flow, "exp", 5), (&json!({}), "nn.relu", 6)]
    {
        let fixture = Fixture::new(config, &module(inner));
        let explanation = fixture.run_on_device(&["explain", &fixture.model, "--json"]).ok().json().remove(0);
        assert_eq!(explanation["totals"]["regions"], regions, "{inner}: {explanation}");
        for condition in ["c=ones", "c=zeros"] {
            for inner_condition in ["d=ones", "d=zeros"] {
                let (host, output) = (fixture.path("host.npz"), fixture.path("out.npz"));
                let inputs = ["--input", "x=random:1", "--input", condition, "--input", inner_condition];
                byoc([&["run", &fixture.model, "--output", &host][..], &inputs].concat()).ok();
                fixture.run_on_device(&[&["run", &fixture.model, "--output", &output][..], &inputs].concat()).ok();
                fixture.assert_output(&host);
            }
        }
    }
}

/// Tests that a backend that executes loops gets a while loop as part of a region if it supports all operators in the
/// loop. The host executes any other loop and gives the backend the operators in it.
#[test]
fn loops_are_parts_of_regions() {
    const T: &str = "Tensor[(8, 16), float32]";
    let module = |operator: &str| {
        format!(
            "def @main(%x: {T}, %n: int32) {{
  %0 = add(%x, %x);
  let %r = (
    let %loop: fn (int32, {T}, {T}) -> ({T}, {T}) = fn (%i: int32, %a: {T}, %b: {T}) -> ({T}, {T}) {{
      if (less(%i, add(%n, add(%n, %n)))) {{
        %loop(add(%i, 1), {operator}(add(%b, %0)), add(%a, %x))
      }} else {{
        (nn.relu(%a), %b)
      }}
    }};
    %loop(0, %x, %0)
  );
  (nn.relu(%r.0), %r.1, %0)
}}"
        )
    };
    let loops = json!({"loops": true});
    for (config, operator, has_loop) in
        [(&loops, "nn.relu", true), (&loops, "exp", false), (&json!({}), "nn.relu", false)]
    {
        let fixture = Fixture::new(config, &module(operator));
        let explanation = fixture.run_on_device(&["explain", &fixture.model, "--json"]).ok().json().remove(0);
        let rows = explanation["nodes"].as_array().unwrap();
        let condition = rows.iter().find(|row| row["op"] == "less").unwrap();
        assert_eq!(condition["placement"]["kind"] == "region", has_loop, "{operator}: {explanation}");
        assert_eq!(explanation["totals"]["on_host"] == 0, has_loop, "{operator}: {explanation}");
        for iterations in ["n=zeros", "n=ones"] {
            let (host, output) = (fixture.path("host.npz"), fixture.path("out.npz"));
            let inputs = ["--input", "x=random:1", "--input", iterations];
            byoc([&["run", &fixture.model, "--output", &host][..], &inputs].concat()).ok();
            fixture.run_on_device(&[&["run", &fixture.model, "--output", &output][..], &inputs].concat()).ok();
            fixture.assert_output(&host);
        }
    }
}

#[test]
fn lost_device_is_reported_once_and_the_host_computes() {
    let fixture = Fixture::new(&json!({"fault": "lost"}), &chain(3));
    let expected = fixture.path("host.npz");
    byoc(["run", &fixture.model, "--input", "x=random:1", "--output", &expected]).ok();
    let output = fixture.run(&[]).ok();
    assert_eq!(output.err.matches("the device of device is lost").count(), 1, "{}", output.err);
    assert!(output.err.contains("the device does not respond"), "{}", output.err);
    fixture.assert_output(&expected);
    let bench = fixture.run_on_device(&["bench", &fixture.model, "--runs", "5", "--json"]).ok();
    assert_eq!(bench.err.matches("the device of device is lost").count(), 1, "{}", bench.err);
}

#[test]
fn run_on_a_device_that_hangs_ends_at_its_deadline() {
    let fixture = Fixture::new(&json!({"fault": "hang"}), &chain(3));
    let start = Instant::now();
    fixture.run(&["--timeout", "1"]).fails_with("E0618");
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(30), "expected less than 30 s, found {elapsed:?}");
}

#[test]
fn device_without_memory_is_an_error_with_a_remedy() {
    let fixture = Fixture::new(&json!({"fault": "full"}), &chain(3));
    fixture.run(&[]).fails_with("E0406").stderr_contains(&["bytes of device memory", "close other programs"]);
}

#[test]
fn options_reach_every_entry_and_devices_can_be_chosen() {
    let program = "def @main(%x: Tensor[(8, 16), float32]) { sigmoid(multiply(nn.relu(%x), %x)) }";
    let fixture = Fixture::new(&json!({}), program);
    let dir = fixture.temp_dir.path().display().to_string();
    let region_operators = |extra_args: &[&str]| {
        let explanation = fixture.run_on_device(&[&["explain", &fixture.model, "--json"], extra_args].concat()).ok();
        explanation.json().remove(0)["totals"]["in_regions"].as_u64().unwrap()
    };
    assert_eq!(region_operators(&[]), 1);
    assert_eq!(region_operators(&["--backend-option", "device.wide=true"]), 3);
    let text = byoc(["plugins", "show", "device", "--plugin-dir", &dir]).ok().out;
    for line in [
        "devices, selected with --device device=ID:",
        "0: first, 1024 MiB, float32",
        "1: second, without memory",
        "device_memory: tensors may be in device memory\n",
        "fault (none or lost; none unless set; set at compilation or at load): ",
        "level (low or high; low unless set; set at compilation or per run): ",
    ] {
        assert!(text.contains(line), "expected {line} in\n{text}");
    }
    fixture.run(&["--device", "device=7"]).fails_with("E0427").stderr_contains(&[
        "device has no device \"7\"",
        "devices of the backend: 0, 1",
        "byoc plugins show device",
    ]);
    fixture.run(&["--device", "device=1"]).fails_with("E0406").stderr_contains(&["bytes of device memory"]);

    let artifact = fixture.path("model.byoc");
    fixture.run_on_device(&["compile", &fixture.model, "-o", &artifact]).ok();
    let run = |extra_args: &[&str]| {
        byoc([&["run", &artifact, "--plugin-dir", &dir, "--input", "x=random:1"], extra_args].concat())
    };
    let (device_run, host_run) = (run(&[]).ok(), run(&["--backend-option", "device.fault=lost"]).ok());
    assert!(
        !device_run.err.contains("lost") && host_run.err.contains("the device of device is lost"),
        "{}{}",
        device_run.err,
        host_run.err
    );
    assert_eq!(device_run.out, host_run.out);
    run(&["--device", "device=1"]).fails_with("E0406");
    run(&["--backend-option", "device.wide=true"])
        .fails_with("E0427")
        .stderr_contains(&["the option applies only to compilation"]);
}

#[test]
fn blobs_of_another_version_are_compiled_again() {
    let fixture = Fixture::new(&json!({"format": 1}), &chain(3));
    let (artifact, dir) = (fixture.path("model.byoc"), fixture.temp_dir.path().display().to_string());
    fixture.run_on_device(&["compile", &fixture.model, "-o", &artifact]).ok();
    let run = || byoc(["run", &artifact, "--plugin-dir", &dir, "--input", "x=random:1", "--require-offload"]).ok();
    let first_run = run();
    std::fs::write(fixture.temp_dir.path().join("libbyoc_device.json"), json!({"format": 2}).to_string()).unwrap();
    let second_run = run();
    assert!(!first_run.err.contains("E0428"), "{}", first_run.err);
    assert_eq!(second_run.err.matches("E0428").count(), 1, "{}", second_run.err);
    assert!(!second_run.err.contains("on the host"), "{}", second_run.err);
    assert_eq!(first_run.out, second_run.out);
}

/// Tests that a run option on the command line reaches each run of a region, with a model and with an artifact.
#[test]
fn options_of_a_run_reach_the_regions() {
    let fixture = Fixture::new(&json!({}), &chain(1));
    let (artifact, dir) = (fixture.path("model.byoc"), fixture.temp_dir.path().display().to_string());
    fixture.run_on_device(&["compile", &fixture.model, "-o", &artifact]).ok();
    let bench_model = |extra_args: &[&str]| {
        let args = ["bench", &fixture.model, "--runs", "3", "--json"];
        fixture.run_on_device(&[&args[..], extra_args].concat()).ok().json().remove(0)["metrics"].clone()
    };
    let bench_artifact = |extra_args: &[&str]| {
        let args = ["bench", &artifact, "--runs", "3", "--json", "--plugin-dir", &dir, "--no-cache"];
        byoc([&args[..], extra_args].concat())
    };
    assert!(bench_model(&[])["device.runs.none"].as_f64() > Some(0.0));
    for metrics in [
        bench_model(&["--backend-option", "device.level=high"]),
        bench_artifact(&["--backend-option", "device.level=high"]).ok().json().remove(0)["metrics"].clone(),
    ] {
        assert!(metrics["device.runs.high"].as_f64() > Some(0.0) && metrics["device.runs.none"].is_null(), "{metrics}");
    }
    bench_artifact(&["--backend-option", "device.level=3"])
        .fails_with("E0427")
        .stderr_contains(&["supported values: low, high"]);
}

/// Tests that one program uses two devices of a plugin that requests a backend per device.
#[test]
fn each_device_is_a_backend_if_the_plugin_asks_for_it() {
    let program = "def @main(%x: Tensor[(8, 16), float32]) { add(nn.relu(add(%x, %x)), %x) }";
    let fixture = Fixture::new(&json!({"per_device": true}), program);
    let explanation = fixture.run_on_device(&["explain", &fixture.model, "--json"]).ok().json().remove(0);
    let backends: Vec<&str> =
        explanation["regions"].as_array().unwrap().iter().map(|region| region["backend"].as_str().unwrap()).collect();
    assert_eq!((backends, &explanation["totals"]["on_host"]), (vec!["device@0", "device@1", "device@0"], &json!(0)));
    let bytes = 8 * 16 * 4;
    let copies = |backend: &str, count: u64| {
        let bytes = count * bytes;
        json!({"backend": backend, "to_device": count, "to_device_bytes": bytes, "from_device": count, "from_device_bytes": bytes})
    };
    assert_eq!(explanation["copies"], json!([copies("device@0", 2), copies("device@1", 1)]));
    fixture.metrics();

    // The artifact records the device of each region.
    let (artifact, dir) = (fixture.path("model.byoc"), fixture.temp_dir.path().display().to_string());
    fixture.run_on_device(&["compile", &fixture.model, "-o", &artifact]).ok();
    let expected = byoc(["run", &fixture.model, "--input", "x=random:1"]).ok().out;
    let args = ["run", &artifact, "--plugin-dir", &dir, "--input", "x=random:1", "--require-offload"];
    assert_eq!(byoc(args).ok().out, expected);

    // The backend name or --device selects one device.
    let run_on = |args: &[&str]| {
        let args = [&["explain", &fixture.model, "--json", "--plugin-dir", &dir], args].concat();
        byoc(args).ok().json().remove(0)
    };
    for args in [&["--backend", "device@1"][..], &["--backend", "device", "--device", "device=1"]] {
        let totals = run_on(args)["totals"].clone();
        assert_eq!((&totals["in_regions"], &totals["on_host"]), (&json!(1), &json!(2)), "{args:?}");
    }
    let args = ["run", &fixture.model, "--backend", "device@7", "--plugin-dir", &dir];
    byoc(args).fails_with("E0427").stderr_contains(&["device has no device \"7\"", "devices of the backend: 0, 1"]);
}

#[test]
fn estimates_of_a_backend_are_explained() {
    let text = |estimates: &str, expected: &str| {
        let fixture = Fixture::new(&json!({"milliseconds": 2, "estimates": estimates}), &chain(2));
        let explanation = fixture.run_on_device(&["explain", &fixture.model]).ok().out;
        assert_eq!(explanation.matches(expected).count(), 3, "{explanation}");
        let json = fixture.run_on_device(&["explain", &fixture.model, "--json"]).ok().json().remove(0);
        assert_eq!(json["regions"][0]["estimate"], json!({"nanoseconds": 2_000_000, "launches": 1}), "{json}");
    };
    text("region", "2.0 ms, 1 launch");
    text("parts", "2.0 ms, 1 launch");
    let program = "def @main(%x: Tensor[(8, 16), float32]) { nn.relu(tanh(add(%x, %x))) }";
    let fixture = Fixture::new(&json!({"milliseconds": 2, "estimates": "parts"}), program);
    let explanation = fixture.run_on_device(&["explain", &fixture.model]).ok().out;
    assert!(explanation.contains("6.0 ms, 3 launches"), "{explanation}");
    let other_fixture = Fixture::new(&json!({}), program);
    assert!(!other_fixture.run_on_device(&["explain", &other_fixture.model]).ok().out.contains("estimate"));
}

/// Tests that regions compute in place on the device if the input has no later reader, and that results stay correct.
#[test]
fn regions_compute_in_place_on_the_device() {
    let arena = |fixture: &Fixture| {
        let artifact = fixture.path("model.byoc");
        fixture.run_on_device(&["compile", &fixture.model, "-o", &artifact]).ok();
        let mut entries = Entries::unpack(&std::fs::read(&artifact).unwrap());
        let program: Value = serde_json::from_slice(entries.entry("program.json")).unwrap();
        let entry = program["entry"].as_u64().unwrap() as usize;
        program["functions"][entry]["device_arenas"][0].as_u64().unwrap()
    };
    let (separate, in_place) =
        (Fixture::new(&json!({}), &chain(4)), Fixture::new(&json!({"in_place": true}), &chain(4)));
    // Tensors are aligned to pages.
    assert_eq!((arena(&separate), arena(&in_place)), (2 * 4096, 4096));
    let runs = |metrics: &Value| metrics["device.runs.none"].as_f64().unwrap();
    let metrics = in_place.metrics();
    assert_eq!(metrics["device.in_place"], json!(runs(&metrics)), "{metrics}");
    assert!(separate.metrics()["device.in_place"].is_null());

    // A tensor with a later reader is not overwritten.
    let program = "def @main(%x: Tensor[(8, 16), float32]) {
  %0 = add(%x, %x);
  %1 = sigmoid(%0);
  %2 = nn.relu(%0);
  %3 = sigmoid(%2);
  add(%3, add(%1, nn.relu(%0)))
}";
    let fixture = Fixture::new(&json!({"in_place": true}), program);
    fixture.metrics();

    // A program that names an invalid in-place pair is rejected.
    let artifact = in_place.path("model.byoc");
    let mut entries = Entries::unpack(&std::fs::read(&artifact).unwrap());
    entries.replace("program.json", "\"in_place\":[[0,0]]", "\"in_place\":[[0,1]]");
    std::fs::write(&artifact, entries.pack()).unwrap();
    let dir = in_place.temp_dir.path().display().to_string();
    let args = ["run", &artifact, "--plugin-dir", &dir, "--input", "x=random:1"];
    byoc(args).fails_with("E0704").stderr_contains(&["expected an in-place input of the region"]);
}

/// Tests that the library sets a backend option for only one run, synchronous or asynchronous.
#[test]
fn library_sets_options_for_one_run() {
    let fixture = Fixture::new(&json!({}), &chain(1));
    let session =
        Session::builder().plugin_dir(fixture.temp_dir.path()).run_option("device", "level", "low").build().unwrap();
    let model = Model::compile(&session, &*fixture.model, &CompileOptions::new().backend("device")).unwrap();
    let input = Tensor::from_slice(&[8, 16], &[0.5f32; 128]);
    let values = || {
        let counters = session.metrics.snapshot();
        ["low", "high"].map(|level| counters.get(&format!("device.runs.{level}")).copied().unwrap_or(0))
    };
    model.run([&input]).unwrap();
    let [low_runs, high_runs] = values();
    assert!(
        low_runs > 0 && high_runs == 0,
        "expected runs only with the session's option low, found {low_runs} runs with low and {high_runs} with high"
    );
    let high_level = RunOptions::default().backend_option(&session, "device", "level", "high").unwrap();
    model.run_with([&input], &high_level).unwrap();
    let mut future = std::pin::pin!(model.run_async([&input], &high_level).unwrap());
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Pending => std::thread::yield_now(),
            Poll::Ready(outputs) => {
                outputs.unwrap();
                break;
            }
        }
    }
    assert_eq!(values(), [low_runs, 2 * low_runs]);
    model.run([&input]).unwrap();
    assert_eq!(values(), [2 * low_runs, 2 * low_runs]);
    for (option, value) in [("wide", "true"), ("level", "middle"), ("nothing", "1")] {
        RunOptions::default().backend_option(&session, "device", option, value).expect_err(option);
    }
}
