//! Backends that store constants in their blobs, and whose regions share data after a link step.

use crate::{CommandOutput, byoc, command, to_command_output};
use byoc::{CompileOptions, Model, Session, Tensor};
use byoc_test_support::artifact::Entries;
use byoc_test_support::{copy, temporary_folder, test_plugin};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

/// Number of rows and columns of the weight that all regions read.
const WEIGHT: usize = 64;

/// Size of the weight in bytes.
const WEIGHT_BYTES: u64 = (WEIGHT * WEIGHT * 4) as u64;

/// Directory with the test plugin, and a model with three regions that share a weight.
struct Fixture {
    temp_dir: TempDir,
    model: String,
}

impl Fixture {
    fn new(config: &Value) -> Fixture {
        let dir = temporary_folder();
        copy(&test_plugin("packer"), &dir.path().join("libbyoc_packer.so"));
        let model = dir.path().join("model.relay");
        let dense = |input: &str| format!("nn.dense({input}, meta[relay.Constant][0], units={WEIGHT})");
        let text = format!(
            "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, {WEIGHT}), float32]) {{\n  %0 = {};\n  %1 = negative(%0);\n  \
             %2 = {};\n  %3 = negative(%2);\n  nn.relu({})\n}}\n",
            dense("%x"),
            dense("%1"),
            dense("%3")
        );
        std::fs::write(&model, text).unwrap();
        // The elements are small integers, so all sums are exact in any summation order.
        let values: Vec<u8> = (0..WEIGHT * WEIGHT).flat_map(|i| ((i * 37 % 5) as f32 - 2.0).to_le_bytes()).collect();
        write_weight(&dir.path().join("model.safetensors"), &values);
        let model = model.display().to_string();
        let fixture = Fixture { temp_dir: dir, model };
        fixture.configure(config);
        fixture
    }

    fn configure(&self, config: &Value) {
        std::fs::write(self.temp_dir.path().join("libbyoc_packer.json"), config.to_string()).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.temp_dir.path().join(name).display().to_string()
    }

    fn dir(&self) -> String {
        self.temp_dir.path().display().to_string()
    }

    /// Compiles the model to an artifact, and returns the output of the command and the artifact size in bytes.
    fn compile(&self) -> (CommandOutput, u64) {
        let artifact = self.path("model.byoc");
        let args = ["compile", &self.model, "-o", &artifact, "--backend", "packer", "--plugin-dir", &self.dir()];
        let output = byoc([&args[..], &["--no-cache"]].concat()).ok();
        let size = std::fs::metadata(&artifact).unwrap().len();
        (output, size)
    }

    /// Runs the artifact.
    fn run(&self, extra_args: &[&str]) -> CommandOutput {
        let args = ["run", &self.path("model.byoc"), "--plugin-dir", &self.dir(), "--input", "x=ones"];
        byoc([&args[..], extra_args].concat())
    }

    /// Returns the standard output of a run on the host.
    fn expected(&self) -> String {
        byoc(["run", &self.model, "--input", "x=ones"]).ok().out
    }
}

/// Writes a weights file with one matrix.
fn write_weight(path: &Path, values: &[u8]) {
    let header =
        json!({"0": {"dtype": "F32", "shape": [WEIGHT, WEIGHT], "data_offsets": [0, values.len()]}}).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), values].concat();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn linked_regions_share_their_data() {
    let fixture = Fixture::new(&json!({"packed": true}));
    let (_, unlinked) = fixture.compile();
    assert!(unlinked > 3 * WEIGHT_BYTES, "expected three copies of the weight in an artifact of {unlinked} bytes");
    assert_eq!(fixture.run(&["--require-offload=0.9"]).ok().out, fixture.expected());

    fixture.configure(&json!({"packed": true, "link": true}));
    let (_, output) = fixture.compile();
    assert!(
        (WEIGHT_BYTES..2 * WEIGHT_BYTES).contains(&output),
        "expected one copy of the weight in an artifact of {output} bytes"
    );
    assert_eq!(fixture.run(&["--require-offload=0.9", "--allow-native", "no"]).ok().out, fixture.expected());
    let artifact = fixture.path("model.byoc");
    let listing = byoc(["inspect", &artifact, "--plugin-dir", &fixture.dir()]).ok().out;
    for line in ["shared/packer", "regions of packer are linked and share 16384 bytes", "0 constants, 0 bytes"] {
        assert!(listing.contains(line), "expected {line} in\n{listing}");
    }
    let bench =
        byoc(["bench", &artifact, "--plugin-dir", &fixture.dir(), "--runs", "1", "--json"]).ok().json().remove(0);
    assert_eq!(bench["regions"], 3, "{bench}");
    let verbose_output = fixture.run(&["-v"]).ok();
    assert_eq!(verbose_output.err.matches("created an engine of 16384 bytes").count(), 1, "{}", verbose_output.err);
    // A run without an artifact produces the same output.
    let backend_args = ["--backend", "packer", "--plugin-dir", &fixture.dir(), "--require-offload=0.9"];
    let direct_run = byoc([&["run", &fixture.model, "--input", "x=ones"][..], &backend_args].concat()).ok();
    assert_eq!(direct_run.out, fixture.expected());
    let (_, second_output) = fixture.compile();
    assert_eq!(output, second_output);
}

#[test]
fn constants_in_blobs_are_left_out_of_an_artifact() {
    let fixture = Fixture::new(&json!({}));
    let (output, other_output) = fixture.compile();
    assert!((WEIGHT_BYTES..2 * WEIGHT_BYTES).contains(&other_output), "{other_output}");
    assert!(!output.err.contains("E0712"), "{}", output.err);
    assert_eq!(fixture.run(&["--backend", "none"]).ok().out, fixture.expected());
    // An artifact must contain each constant that the host may read.
    let artifact = fixture.path("model.byoc");
    let mut entries = Entries::unpack(&std::fs::read(&artifact).unwrap());
    entries.edit("manifest.json", |manifest| manifest["tensors"][0]["in_blobs"] = true.into());
    std::fs::write(&artifact, entries.pack()).unwrap();
    fixture.run(&[]).fails_with("E0704").stderr_contains(&["expected the value of constant 0, found none"]);

    fixture.configure(&json!({"packed": true, "link": true}));
    let (output, _) = fixture.compile();
    assert!(
        output.err.contains("warning[E0712]: 1 constant (16384 bytes) stored only in the blobs of packer"),
        "{}",
        output.err
    );
    let listing = byoc(["inspect", &fixture.path("model.byoc"), "--plugin-dir", &fixture.dir()]).ok().out;
    assert!(listing.contains("1 further constant (16384 bytes) stored only in blobs"), "{listing}");
}

/// Tests that no region falls back to the host without its constants: each attempt fails with an error that states the
/// reason.
#[test]
fn regions_without_constants_do_not_run_on_the_host() {
    let config = json!({"packed": true, "link": true});
    let fixture = Fixture::new(&config);
    fixture.compile();
    let reason = "packer stores them in its blobs and declared that the region needs no host fallback";
    fixture
        .run(&["--backend", "none"])
        .fails_with("E0712")
        .stderr_contains(&["1 of the constants is stored only in blobs", reason]);
    let other_dir = temporary_folder();
    let dir = other_dir.path().display().to_string();
    let args = ["run", &fixture.path("model.byoc"), "--plugin-dir", &dir, "--input", "x=ones"];
    byoc(args).fails_with("E0712").stderr_contains(&[reason, "no plugin registers the loader", "loadbinary_packer"]);
    let run_faulty = |fault: &str| {
        fixture.configure(&json!({"packed": true, "link": true, "fault": fault}));
        fixture.run(&[])
    };
    run_faulty("load").fails_with("E0712").stderr_contains(&[reason, "the device is busy"]);
    run_faulty("prepare").fails_with("E0616");
    fixture.configure(&config);
    assert_eq!(fixture.run(&[]).ok().out, fixture.expected());
    // When the model is compiled and run in one process, the host still has the constants.
    fixture.configure(&json!({"packed": true, "link": true, "fault": "load"}));
    let backend_args = ["--backend", "packer", "--plugin-dir", &fixture.dir()];
    let direct_run = byoc([&["run", &fixture.model, "--input", "x=ones"][..], &backend_args].concat()).ok();
    assert_eq!(direct_run.out, fixture.expected());
    assert!(direct_run.err.contains("the device is busy"), "{}", direct_run.err);
}

#[test]
fn link_step_that_fails_leaves_the_regions_to_the_host() {
    for (fault, reason) in [("link", "expected at most 1 region, found "), ("symbol", "found a blob for elsewhere")] {
        let fixture = Fixture::new(&json!({"packed": true, "link": true, "fault": fault}));
        let (compiled, _) = fixture.compile();
        assert_eq!(compiled.err.matches("E0423").count(), 1, "{}", compiled.err);
        for fragment in
            [reason, "the regions of packer could not be linked, so they run on the host", "0 regions with 0.0 %"]
        {
            assert!(compiled.err.contains(fragment), "expected {fragment} in {}", compiled.err);
        }
        assert_eq!(fixture.run(&[]).ok().out, fixture.expected());
    }
}

#[test]
fn linked_regions_of_another_version_are_compiled_and_linked_again() {
    let fixture = Fixture::new(&json!({"link": true, "format": 1}));
    fixture.compile();
    fixture.configure(&json!({"link": true, "format": 2}));
    let output = fixture.run(&["--require-offload=0.9"]).ok();
    assert_eq!(output.err.matches("E0428").count(), 1, "{}", output.err);
    assert_eq!(output.out, fixture.expected());

    // If only the blobs contain the constants, the regions cannot be recompiled.
    fixture.configure(&json!({"packed": true, "link": true, "format": 1}));
    fixture.compile();
    fixture.configure(&json!({"packed": true, "link": true, "format": 2}));
    fixture
        .run(&[])
        .fails_with("E0712")
        .stderr_contains(&["cannot recompile region", "its constants are stored only in its blob"]);
}

#[test]
fn packed_and_linked_regions_conform() {
    let fixture = Fixture::new(&json!({"packed": true, "link": true}));
    let library = fixture.path("libbyoc_packer.so");
    let output = byoc(["plugins", "test", &library, "--cases", "8", "--only", "nn.dense"]);
    assert_eq!(output.code, 0, "{}\n{}", output.out, output.err);
}

impl Fixture {
    /// Loads the model through the library.
    fn model(&self, session: &Session) -> Model {
        Model::compile(session, &*self.model, &CompileOptions::new().backend("packer")).unwrap()
    }

    fn session(&self) -> Session {
        Session::builder().plugin_dir(self.temp_dir.path()).threads(2).build().unwrap()
    }
}

fn first_output(model: &Model) -> Vec<f32> {
    let input = Tensor::from_slice(&[2, WEIGHT], &vec![0.25f32; 2 * WEIGHT]);
    model.run([input]).unwrap()[0].as_slice::<f32>().to_vec()
}

/// Tests that the state of a region belongs to a loaded model, and is reset on request.
#[test]
fn states_of_regions_belong_to_a_loaded_model() {
    let fixture = Fixture::new(&json!({"state": true}));
    let session = fixture.session();
    let model = fixture.model(&session);
    let first_result = first_output(&model);
    let second_result = first_output(&model);
    assert_ne!(first_result, second_result, "expected the second run to start from the state of the first");
    let clone = model.clone();
    let other = fixture.model(&session);
    assert_eq!(first_output(&other), first_result, "expected a separate state in a second model");
    assert_ne!(first_output(&clone), first_result, "expected a clone to share the state");
    model.reset_state().unwrap();
    assert_eq!(first_output(&clone), first_result);
    assert_eq!(
        first_output(&other),
        second_result,
        "expected a reset of the first model to keep the state of the second"
    );
}

/// Tests that the declared concurrency of a backend is not exceeded; the plugin fails if it is.
#[test]
fn declared_concurrency_is_kept() {
    for config in [json!({"concurrency": 2}), json!({"state": true})] {
        let fixture = Fixture::new(&config);
        let session = fixture.session();
        let models = [fixture.model(&session), fixture.model(&session)];
        // The states of two models are independent, so only runs of the same model compete.
        let used_models = if config["state"] == true { &models[..1] } else { &models[..] };
        std::thread::scope(|scope| {
            for model in used_models.iter().cycle().take(4) {
                scope.spawn(move || (0..3).for_each(|_| drop(first_output(model))));
            }
        });
    }
}

/// Tests that a region computes in place in host memory if its input has no later reader; the model input and the
/// memory of the model output are never used in place.
#[test]
fn regions_compute_in_place_in_memory_of_the_host() {
    let fixture = Fixture::new(&json!({"in_place": true}));
    fixture.compile();
    let artifact = fixture.path("model.byoc");
    let program = Entries::unpack(&std::fs::read(&artifact).unwrap()).entry("program.json").clone();
    assert_eq!(String::from_utf8(program).unwrap().matches("\"in_place\":[[0,0]]").count(), 1);
    assert_eq!(fixture.run(&["--require-offload=0.9"]).ok().out, fixture.expected());
    let args = ["run", &artifact, "--plugin-dir", &fixture.dir(), "--input", "x=ones"];
    let output = to_command_output(command(args).env("BYOC_CHECK_REGIONS", "1").output().unwrap()).ok();
    assert_eq!(output.out, fixture.expected());
}
