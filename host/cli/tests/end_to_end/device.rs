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
    folder: TempDir,
    model: String,
}

impl Fixture {
    fn new(config: &Value, body: &str) -> Fixture {
        let folder = temporary_folder();
        copy(&test_plugin("device"), &folder.path().join("libbyoc_device.so"));
        std::fs::write(folder.path().join("libbyoc_device.json"), config.to_string()).unwrap();
        let model = folder.path().join("model.relay");
        std::fs::write(&model, format!("#[version = \"0.0.5\"]\n{body}\n")).unwrap();
        let model = model.display().to_string();
        Fixture { folder, model }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Runs a command on the device.
    fn on_device(&self, words: &[&str]) -> CommandOutput {
        let dir = self.folder.path().display().to_string();
        byoc([words, &["--backend", "device", "--plugin-dir", &dir, "--no-cache"]].concat())
    }

    fn run(&self, further: &[&str]) -> CommandOutput {
        let output = self.path("out.npz");
        self.on_device(&[&["run", &self.model, "--input", "x=random:1", "--output", &output], further].concat())
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
        let bench = self.on_device(&["bench", &self.model, "--runs", "1", "--json"]).ok();
        bench.json().remove(0)["metrics"].clone()
    }
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

/// Tests a residual network without weights that a limit on the region size splits: every second addition reads a
/// tensor of an earlier region.
#[test]
fn regions_split_by_size_pass_their_tensors_on_the_device() {
    let mut text = "def @main(%x: Tensor[(8, 16), float32]) {\n  %0 = nn.relu(%x);\n  %1 = add(%0, %x);\n".to_owned();
    for i in 2..68 {
        let other = if i % 2 == 0 { i - 2 } else { i - 1 };
        text += &format!("  %{i} = add(%{}, %{other});\n", i - 1);
    }
    let fixture = Fixture::new(&json!({"max_operators": 2}), &(text + "  %67\n}"));
    let explained = fixture.on_device(&["explain", &fixture.model, "--json"]).ok().json().remove(0);
    assert_eq!(explained["totals"]["regions"], 34, "{}", explained["totals"]);
    let bytes = 8 * 16 * 4;
    let copies = json!([{
        "backend": "device", "to_device": 1, "to_device_bytes": bytes, "from_device": 1, "from_device_bytes": bytes
    }]);
    assert_eq!(explained["copies"], copies);
    let metrics = fixture.metrics();
    let copied = ["to_device_bytes", "from_device_bytes"].map(|name| metrics[format!("copy.{name}")].as_f64());
    assert_eq!(copied, [Some(f64::from(bytes)); 2], "{metrics}");
}

#[test]
fn tensors_between_regions_stay_on_the_device() {
    let fixture = Fixture::new(&json!({}), &chain(34));
    let explained = fixture.on_device(&["explain", &fixture.model, "--json"]).ok().json().remove(0);
    assert_eq!(explained["totals"]["regions"], 35);
    let metrics = fixture.metrics();
    let bytes = 8 * 16 * 4;
    for (name, value) in
        [("to_device", 1), ("to_device_bytes", bytes), ("from_device", 1), ("from_device_bytes", bytes)]
    {
        assert_eq!(metrics[format!("copy.{name}")], json!(f64::from(value)), "{name}: {metrics}");
    }
}

/// Module with two independent regions.
const INDEPENDENT: &str = "def @main(%x: Tensor[(8, 16), float32]) {
  %0 = add(%x, %x);
  %1 = nn.relu(%x);
  %2 = reshape(%0, newshape=[16, 8]);
  %3 = reshape(%1, newshape=[16, 8]);
  subtract(%2, %3)
}";

#[test]
fn independent_regions_run_side_by_side() {
    let overlap = |one_run: bool| {
        let fixture = Fixture::new(&json!({"milliseconds": 500, "one_run": one_run}), INDEPENDENT);
        let trace = fixture.path("trace.json");
        fixture.metrics();
        fixture.run(&["--trace", &trace]).ok();
        let trace: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().clone();
        let of = |name: &str| {
            events.iter().filter(|e| e["name"].as_str().unwrap().starts_with(name)).cloned().collect::<Vec<_>>()
        };
        assert_eq!((of("copy_to_device").len(), of("copy_from_device").len()), (1, 2), "{events:?}");
        let kernels = of("kernel");
        assert!(kernels.len() == 2 && kernels.iter().all(|e| e["cat"] == "device" && e["ph"] == "X" && e["tid"] == 2));
        assert!(events.iter().any(|e| e["args"]["name"] == "queue of the test's device"), "{events:?}");
        let begin = |event: &Value| event["ts"].as_f64().unwrap();
        let end = |event: &Value| begin(event) + event["dur"].as_f64().unwrap();
        begin(&kernels[0]).max(begin(&kernels[1])) < end(&kernels[0]).min(end(&kernels[1]))
    };
    assert!(overlap(false), "expected concurrent runs");
    assert!(!overlap(true), "expected one run at a time");
}

#[test]
fn lost_device_is_reported_once_and_the_host_computes() {
    let fixture = Fixture::new(&json!({"fault": "lost"}), &chain(3));
    let expected = fixture.path("host.npz");
    byoc(["run", &fixture.model, "--input", "x=random:1", "--output", &expected]).ok();
    let ran = fixture.run(&[]).ok();
    assert_eq!(ran.err.matches("the device of device is lost").count(), 1, "{}", ran.err);
    assert!(ran.err.contains("the device does not answer"), "{}", ran.err);
    fixture.assert_output(&expected);
    let bench = fixture.on_device(&["bench", &fixture.model, "--runs", "5", "--json"]).ok();
    assert_eq!(bench.err.matches("the device of device is lost").count(), 1, "{}", bench.err);
}

#[test]
fn run_on_a_device_that_hangs_ends_at_its_deadline() {
    let fixture = Fixture::new(&json!({"fault": "hang"}), &chain(3));
    let start = Instant::now();
    fixture.run(&["--timeout", "1"]).fails_with("E0618");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn device_without_memory_is_an_error_with_a_remedy() {
    let fixture = Fixture::new(&json!({"fault": "full"}), &chain(3));
    fixture.run(&[]).fails_with("E0406").stderr_contains(&["bytes of memory, found none", "close other programs"]);
}

#[test]
fn options_reach_every_entry_and_devices_can_be_chosen() {
    let program = "def @main(%x: Tensor[(8, 16), float32]) { sigmoid(multiply(nn.relu(%x), %x)) }";
    let fixture = Fixture::new(&json!({}), program);
    let dir = fixture.folder.path().display().to_string();
    let offloaded = |further: &[&str]| {
        let explained = fixture.on_device(&[&["explain", &fixture.model, "--json"], further].concat()).ok();
        explained.json().remove(0)["totals"]["in_regions"].as_u64().unwrap()
    };
    assert_eq!(offloaded(&[]), 1);
    assert_eq!(offloaded(&["--backend-option", "device.wide=true"]), 3);
    let shown = byoc(["plugins", "show", "device", "--plugin-dir", &dir]).ok().out;
    for line in
        ["devices, selected with --device device=ID:", "0: first, 1024 MiB, float32", "1: second, without memory"]
    {
        assert!(shown.contains(line), "expected {line} in\n{shown}");
    }
    fixture.run(&["--device", "device=7"]).fails_with("E0427").stderr_contains(&[
        "device has no device \"7\"",
        "devices of the backend: 0, 1",
        "byoc plugins show device",
    ]);
    fixture.run(&["--device", "device=1"]).fails_with("E0406").stderr_contains(&["bytes of memory, found none"]);

    let artifact = fixture.path("model.byoc");
    fixture.on_device(&["compile", &fixture.model, "-o", &artifact]).ok();
    let run =
        |further: &[&str]| byoc([&["run", &artifact, "--plugin-dir", &dir, "--input", "x=random:1"], further].concat());
    let (plain, lost) = (run(&[]).ok(), run(&["--backend-option", "device.fault=lost"]).ok());
    assert!(
        !plain.err.contains("lost") && lost.err.contains("the device of device is lost"),
        "{}{}",
        plain.err,
        lost.err
    );
    assert_eq!(plain.out, lost.out);
    run(&["--device", "device=1"]).fails_with("E0406");
    run(&["--backend-option", "device.wide=true"])
        .fails_with("E0427")
        .stderr_contains(&["the option applies only to compilation"]);
}

#[test]
fn blobs_of_another_version_are_compiled_again() {
    let fixture = Fixture::new(&json!({"format": 1}), &chain(3));
    let (artifact, dir) = (fixture.path("model.byoc"), fixture.folder.path().display().to_string());
    fixture.on_device(&["compile", &fixture.model, "-o", &artifact]).ok();
    let run = || byoc(["run", &artifact, "--plugin-dir", &dir, "--input", "x=random:1", "--require-offload"]).ok();
    let same = run();
    std::fs::write(fixture.folder.path().join("libbyoc_device.json"), json!({"format": 2}).to_string()).unwrap();
    let other = run();
    assert!(!same.err.contains("E0428"), "{}", same.err);
    assert_eq!(other.err.matches("E0428").count(), 1, "{}", other.err);
    assert!(!other.err.contains("on the host"), "{}", other.err);
    assert_eq!(same.out, other.out);
}

/// Tests that a run option on the command line reaches each run of a region, with a model and with an artifact.
#[test]
fn options_of_a_run_reach_the_regions() {
    let fixture = Fixture::new(&json!({}), &chain(1));
    let (artifact, dir) = (fixture.path("model.byoc"), fixture.folder.path().display().to_string());
    fixture.on_device(&["compile", &fixture.model, "-o", &artifact]).ok();
    let with_model = |further: &[&str]| {
        let words = ["bench", &fixture.model, "--runs", "3", "--json"];
        fixture.on_device(&[&words[..], further].concat()).ok().json().remove(0)["metrics"].clone()
    };
    let with_artifact = |further: &[&str]| {
        let words = ["bench", &artifact, "--runs", "3", "--json", "--plugin-dir", &dir, "--no-cache"];
        byoc([&words[..], further].concat())
    };
    assert!(with_model(&[])["device.runs.none"].as_f64() > Some(0.0));
    for metrics in [
        with_model(&["--backend-option", "device.level=high"]),
        with_artifact(&["--backend-option", "device.level=high"]).ok().json().remove(0)["metrics"].clone(),
    ] {
        assert!(metrics["device.runs.high"].as_f64() > Some(0.0) && metrics["device.runs.none"].is_null(), "{metrics}");
    }
    with_artifact(&["--backend-option", "device.level=3"])
        .fails_with("E0427")
        .stderr_contains(&["supported values: low, high"]);
}

/// Tests that one program uses two devices of a plugin that requests a backend per device.
#[test]
fn each_device_is_a_backend_if_the_plugin_asks_for_it() {
    let program = "def @main(%x: Tensor[(8, 16), float32]) { add(nn.relu(add(%x, %x)), %x) }";
    let fixture = Fixture::new(&json!({"per_device": true}), program);
    let explained = fixture.on_device(&["explain", &fixture.model, "--json"]).ok().json().remove(0);
    let backends: Vec<&str> =
        explained["regions"].as_array().unwrap().iter().map(|region| region["backend"].as_str().unwrap()).collect();
    assert_eq!((backends, &explained["totals"]["on_host"]), (vec!["device@0", "device@1", "device@0"], &json!(0)));
    let bytes = 8 * 16 * 4;
    let copies = |backend: &str, count: u64| {
        let bytes = count * bytes;
        json!({"backend": backend, "to_device": count, "to_device_bytes": bytes, "from_device": count, "from_device_bytes": bytes})
    };
    assert_eq!(explained["copies"], json!([copies("device@0", 2), copies("device@1", 1)]));
    fixture.metrics();

    // The artifact records the device of each region.
    let (artifact, dir) = (fixture.path("model.byoc"), fixture.folder.path().display().to_string());
    fixture.on_device(&["compile", &fixture.model, "-o", &artifact]).ok();
    let expected = byoc(["run", &fixture.model, "--input", "x=random:1"]).ok().out;
    let words = ["run", &artifact, "--plugin-dir", &dir, "--input", "x=random:1", "--require-offload"];
    assert_eq!(byoc(words).ok().out, expected);

    // The backend name or --device selects one device.
    let on = |words: &[&str]| {
        let words = [&["explain", &fixture.model, "--json", "--plugin-dir", &dir], words].concat();
        byoc(words).ok().json().remove(0)
    };
    for words in [&["--backend", "device@1"][..], &["--backend", "device", "--device", "device=1"]] {
        let totals = on(words)["totals"].clone();
        assert_eq!((&totals["in_regions"], &totals["on_host"]), (&json!(1), &json!(2)), "{words:?}");
    }
    let words = ["run", &fixture.model, "--backend", "device@7", "--plugin-dir", &dir];
    byoc(words).fails_with("E0427").stderr_contains(&["device has no device \"7\"", "devices of the backend: 0, 1"]);
}

#[test]
fn estimates_of_a_backend_are_explained() {
    let text = |estimates: &str, expected: &str| {
        let fixture = Fixture::new(&json!({"milliseconds": 2, "estimates": estimates}), &chain(2));
        let explained = fixture.on_device(&["explain", &fixture.model]).ok().out;
        assert_eq!(explained.matches(expected).count(), 3, "{explained}");
        let json = fixture.on_device(&["explain", &fixture.model, "--json"]).ok().json().remove(0);
        assert_eq!(json["regions"][0]["estimate"], json!({"nanoseconds": 2_000_000, "launches": 1}), "{json}");
    };
    text("region", "2.0 ms, 1 launch");
    text("parts", "2.0 ms, 1 launch");
    let program = "def @main(%x: Tensor[(8, 16), float32]) { nn.relu(tanh(add(%x, %x))) }";
    let fixture = Fixture::new(&json!({"milliseconds": 2, "estimates": "parts"}), program);
    let explained = fixture.on_device(&["explain", &fixture.model]).ok().out;
    assert!(explained.contains("6.0 ms, 3 launches"), "{explained}");
    let without = Fixture::new(&json!({}), program);
    assert!(!without.on_device(&["explain", &without.model]).ok().out.contains("estimate"));
}

/// Tests that regions compute in place on the device if the input has no later reader, and that results stay correct.
#[test]
fn regions_compute_in_place_on_the_device() {
    let arena = |fixture: &Fixture| {
        let artifact = fixture.path("model.byoc");
        fixture.on_device(&["compile", &fixture.model, "-o", &artifact]).ok();
        let mut entries = Entries::unpack(&std::fs::read(&artifact).unwrap());
        let program: Value = serde_json::from_slice(entries.entry("program.json")).unwrap();
        let entry = program["entry"].as_u64().unwrap() as usize;
        program["functions"][entry]["device_arenas"][0].as_u64().unwrap()
    };
    let (apart, in_place) = (Fixture::new(&json!({}), &chain(4)), Fixture::new(&json!({"in_place": true}), &chain(4)));
    assert_eq!((arena(&apart), arena(&in_place)), (2 * 8 * 16 * 4, 8 * 16 * 4));
    let runs = |metrics: &Value| metrics["device.runs.none"].as_f64().unwrap();
    let metrics = in_place.metrics();
    assert_eq!(metrics["device.in_place"], json!(runs(&metrics)), "{metrics}");
    assert!(apart.metrics()["device.in_place"].is_null());

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
    let dir = in_place.folder.path().display().to_string();
    let words = ["run", &artifact, "--plugin-dir", &dir, "--input", "x=random:1"];
    byoc(words).fails_with("E0704").stderr_contains(&["expected an in-place input of the region"]);
}

/// Tests that the library sets a backend option for only one run, synchronous or asynchronous.
#[test]
fn library_sets_options_for_one_run() {
    let fixture = Fixture::new(&json!({}), &chain(1));
    let session =
        Session::builder().plugin_dir(fixture.folder.path()).run_option("device", "level", "low").build().unwrap();
    let model = Model::compile(&session, &*fixture.model, &CompileOptions::new().backend("device")).unwrap();
    let input = Tensor::from_slice(&[8, 16], &[0.5f32; 128]);
    let counted = || {
        let counters = session.metrics.snapshot();
        ["low", "high"].map(|level| counters.get(&format!("device.runs.{level}")).copied().unwrap_or(0))
    };
    model.run([&input]).unwrap();
    let [per_run, none] = counted();
    assert!(
        per_run > 0 && none == 0,
        "expected the session's option, found {per_run} runs with low and {none} with high"
    );
    let high = RunOptions::default().backend_option(&session, "device", "level", "high").unwrap();
    model.run_with([&input], &high).unwrap();
    let mut future = std::pin::pin!(model.run_async([&input], &high).unwrap());
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
    assert_eq!(counted(), [per_run, 2 * per_run]);
    model.run([&input]).unwrap();
    assert_eq!(counted(), [2 * per_run, 2 * per_run]);
    for (option, value) in [("wide", "true"), ("level", "middle"), ("nothing", "1")] {
        RunOptions::default().backend_option(&session, "device", option, value).expect_err(option);
    }
}
