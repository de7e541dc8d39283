//! Claims of precision: refused unless allowed, and the error budget of the conformance run.

use crate::{CommandOutput, byoc, command, to_command_output};
use byoc::{CompileOptions, ComputeFormat, Model, Session};
use byoc_test_support::artifact::Entries;
use byoc_test_support::{copy, temporary_folder, test_plugin};
use serde_json::{Value, json};
use std::path::PathBuf;
use tempfile::TempDir;

/// Directory with the plugin `bf16` and a model.
struct Fixture {
    temp_dir: TempDir,
    library: PathBuf,
    model: String,
}

impl Fixture {
    fn new(claims: &Value) -> Fixture {
        let temp_dir = temporary_folder();
        let library = temp_dir.path().join("libbyoc_bf16.so");
        copy(&test_plugin("bf16"), &library);
        std::fs::write(library.with_extension("json"), claims.to_string()).unwrap();
        let model = temp_dir.path().join("model.relay");
        let text = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(64, 64), float32], %w: Tensor[(64, 64), float32]) {\n  \
                    nn.relu(nn.dense(%x, %w))\n}\n";
        std::fs::write(&model, text).unwrap();
        Fixture { model: model.display().to_string(), library, temp_dir }
    }

    fn path(&self, name: &str) -> String {
        self.temp_dir.path().join(name).display().to_string()
    }

    fn on_backend(&self, args: &[&str]) -> CommandOutput {
        let dir = self.temp_dir.path().display().to_string();
        byoc([args, &["--backend", "bf16", "--plugin-dir", &dir]].concat())
    }

    fn explain(&self, extra_args: &[&str]) -> Value {
        self.on_backend(&[&["explain", &self.model, "--json"], extra_args].concat()).ok().json().remove(0)
    }

    fn test(&self) -> CommandOutput {
        byoc(["plugins", "test", &self.library.display().to_string(), "--cases", "16", "--out", &self.path("out")])
    }
}

fn claims() -> Value {
    json!({"nn.dense": {"computes": "bf16", "ulps": 1}})
}

#[test]
fn conformance_takes_the_budget_from_the_claim() {
    let output = Fixture::new(&claims()).test().ok();
    assert!(output.out.contains("no faults"), "{}", output.out);
    let output = Fixture::new(&json!({})).test().fails_with("E0441");
    assert!(output.out.contains("wrong-result"), "{}", output.out);
    // A claim that is too narrow is no excuse.
    let output = Fixture::new(&json!({"nn.dense": {"relative": 1e-4}})).test().fails_with("E0441");
    assert!(output.out.contains("wrong-result"), "{}", output.out);
}

#[test]
fn a_claim_below_the_model_is_refused_unless_allowed() {
    let fixture = Fixture::new(&claims());
    let refusal = &fixture.explain(&[])["nodes"][0]["refusals"][0];
    let expected = json!({
        "backend": "bf16", "code": "Precision",
        "detail": "nn.dense: expected float32 computed in f32, found bf16 of bf16 (bf16, 1 ulp)",
        "hint": "allow it with --precision bf16",
    });
    assert_eq!(*refusal, expected);
    for format in ["tf32", "f16"] {
        assert_eq!(fixture.explain(&["--precision", format])["totals"]["regions"], 0, "{format}");
    }
    let allowed = fixture.explain(&["--precision", "bf16"]);
    assert_eq!(allowed["nodes"][0]["placement"]["backend"], "bf16");
    assert_eq!(allowed["regions"][0]["precision"], json!(["nn.dense: bf16, 1 ulp"]));
    let table = fixture.on_backend(&["explain", &fixture.model, "--precision", "bf16"]).ok();
    assert!(table.out.contains("nn.dense: bf16, 1 ulp"), "{}", table.out);
    let inputs = ["--input", "x=random:1", "--input", "w=random:2"];
    let run = [&["run", &fixture.model, "--require-offload"][..], &inputs].concat();
    let offload = fixture.on_backend(&run).fails_with("E0404");
    assert!(offload.err.contains("--precision bf16"), "{}", offload.err);
    let wrong = fixture.on_backend(&["explain", &fixture.model, "--precision", "fp16"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("expected one of f32, tf32, bf16, f16, found \"fp16\""), "{}", wrong.err);
}

#[test]
fn a_contract_limits_the_precision() {
    let fixture = Fixture::new(&claims());
    let contract = fixture.path("strict.toml");
    let explain = |precision: &str| {
        std::fs::write(&contract, format!("[[contract]]\nprecision = \"{precision}\"\n")).unwrap();
        fixture.on_backend(&["explain", &fixture.model, "--precision", "bf16", "--contract", &contract])
    };
    explain("bf16").ok();
    explain("f32").fails_with("E0462").stderr_contains(&[
        "precision: expected f32 of every operator, found nn.dense: bf16, 1 ulp in tvmgen_default_bf16_main_0",
    ]);
}

#[test]
fn artifacts_record_the_precision() {
    let fixture = Fixture::new(&claims());
    let artifact = fixture.path("model.byoc");
    fixture.on_backend(&["compile", &fixture.model, "-o", &artifact, "--precision", "bf16"]).ok();
    let mut entries = Entries::unpack(&std::fs::read(&artifact).unwrap());
    let manifest: Value = serde_json::from_slice(entries.entry("manifest.json")).unwrap();
    assert_eq!(manifest["options"]["precision"], "bf16");
    assert_eq!(manifest["explain"]["regions"][0]["precision"], json!(["nn.dense: bf16, 1 ulp"]));
    let inputs = ["--input", "x=random:1", "--input", "w=random:2"];
    fixture.on_backend(&[&["run", &artifact, "--require-offload=0.5"][..], &inputs].concat()).ok();
}

#[test]
fn the_library_allows_a_precision() {
    let fixture = Fixture::new(&claims());
    let session = Session::builder().plugin_dir(fixture.temp_dir.path()).build().unwrap();
    let regions = |options: CompileOptions| {
        let model = Model::compile(&session, &*fixture.model, &options.backend("bf16")).unwrap();
        model.explanation().regions.len()
    };
    assert_eq!(regions(CompileOptions::new()), 0);
    assert_eq!(regions(CompileOptions::new().precision(ComputeFormat::Bf16)), 1);
}

#[test]
fn contradictory_claims_are_refused_at_load_and_by_check() {
    for (claims, fault) in [
        (
            json!({"nn.dense": {"computes": "bf16", "relative": null}}),
            "expected \"ulps\", \"relative\" or \"absolute\"",
        ),
        (
            json!({"nn.dense": {"ulps": -1}}),
            "\"precision.nn.dense\": \"ulps\": expected a finite number >= 0, found -1",
        ),
        (
            json!({"nn.dens": {"ulps": 1}}),
            "\"precision.nn.dens\": expected an operator, a pattern of the table or \"*\"",
        ),
        (json!({"nn.dense": {"computes": "fp8", "ulps": 1}}), "unknown variant `fp8`"),
    ] {
        let fixture = Fixture::new(&claims);
        let load = fixture.on_backend(&["explain", &fixture.model]).fails_with("E0408");
        load.stderr_contains(&[fault]);
        byoc(["plugins", "check", &fixture.library.display().to_string()])
            .fails_with("E0408")
            .stderr_contains(&[fault]);
    }
}

/// Tests that the option of the backend allows its own precision, and that nothing else does so by default.
#[test]
fn an_option_of_onednn_counts_for_it() {
    let plugins = byoc_test_support::plugin_dir(&["dnnl"]);
    let dir = plugins.path().display().to_string();
    let fixture = Fixture::new(&json!({}));
    let on = ["--backend", "dnnl", "--plugin-dir", &dir, "--no-cache"];
    let explain = |extra_args: &[&str]| {
        let mut command = command([&["explain", &fixture.model, "--json"], &on[..], extra_args].concat());
        to_command_output(command.output().unwrap()).ok().json().remove(0)
    };
    let plain = explain(&[]);
    let Some(region) = plain["regions"].get(0) else {
        // Without oneDNN every operator is refused as unavailable.
        assert_eq!(plain["nodes"][0]["refusals"][0]["code"], "Unavailable", "{plain}");
        return;
    };
    assert_eq!(region.get("precision"), None);
    let with_option = explain(&["--backend-option", "dnnl.bf16=true"]);
    assert_eq!(with_option["regions"][0]["precision"], json!(["nn.dense: bf16, 2 ulps"]));
}
