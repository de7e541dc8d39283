//! A backend that sees the whole module and claims sets of operators as regions.

use crate::{CommandOutput, byoc};
use byoc_test_support::{copy, plugin, temporary_folder, test_plugin};
use serde_json::Value;
use tempfile::TempDir;

/// `add_1` reads `relu` directly and through `sigmoid`.
const MODEL: &str = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(4, 6), float32]) {
  %0 = nn.relu(%x) /* ty=Tensor[(4, 6), float32] */;
  %1 = sigmoid(%0);
  %2 = add(%0, %1);
  %3 = abs(%2);
  %4 = multiply(%3, %3);
  exp(%4)
}
";

struct Fixture {
    temp_dir: TempDir,
    model: String,
}

impl Fixture {
    fn new() -> Fixture {
        let temp_dir = temporary_folder();
        copy(&test_plugin("whole_graph"), &temp_dir.path().join("libbyoc_whole_graph.so"));
        copy(&plugin("template"), &temp_dir.path().join("libbyoc_chip.so"));
        let template = r#"{"name": "chip", "operators": ["exp", "multiply"]}"#;
        std::fs::write(temp_dir.path().join("libbyoc_chip.json"), template).unwrap();
        let model = temp_dir.path().join("model.relay");
        std::fs::write(&model, MODEL).unwrap();
        Fixture { model: model.display().to_string(), temp_dir }
    }

    fn byoc(&self, args: &[&str], backends: &str, extra_args: &[&str]) -> CommandOutput {
        let dir = self.temp_dir.path().display().to_string();
        byoc([args, &["--backend", backends, "--plugin-dir", &dir], extra_args].concat())
    }

    /// Explains the model for the sets of the option; returns the rows by operator.
    fn explain(&self, backends: &str, sets: &str) -> (CommandOutput, Value) {
        let option = format!("whole_graph.sets={sets}");
        let output = self.byoc(&["explain", &self.model, "--json"], backends, &["--backend-option", &option]).ok();
        let json = output.json().remove(0);
        (output, json)
    }
}

fn row<'j>(json: &'j Value, op: &str) -> &'j Value {
    json["nodes"].as_array().unwrap().iter().find(|node| node["op"] == op).unwrap()
}

fn source(json: &Value, op: &str) -> String {
    row(json, op)["source"].as_str().unwrap().to_owned()
}

/// Three sets: a region, one that is not convex, and one that overlaps with another backend's.
#[test]
fn claims_become_regions_or_reasons_with_the_operators() {
    let fixture = Fixture::new();
    let (_, all) = fixture.explain("whole_graph", "none");
    let [relu, sigmoid, add, abs, multiply] =
        ["nn.relu", "sigmoid", "add", "abs", "multiply"].map(|op| source(&all, op));
    let (_, json) = fixture.explain("chip,whole_graph", &format!("{sigmoid};{relu},{add};{abs},{multiply}"));
    let refusal = |op: &str| {
        row(&json, op)["refusals"].as_array().unwrap().iter().find(|r| r["backend"] == "whole_graph").cloned()
    };
    assert_eq!(row(&json, "sigmoid")["placement"]["backend"], "whole_graph");
    for op in ["nn.relu", "add"] {
        let refusal = refusal(op).unwrap();
        assert_eq!(refusal["code"], "WouldCycle");
        let expected = format!(
            "set 1 of the answer is not convex: the result of nn.relu ({relu}) reaches add ({add}) through sigmoid \
             ({sigmoid}) outside the set"
        );
        assert_eq!(refusal["detail"], *expected);
    }
    let abs_refusal = refusal("abs").unwrap();
    assert_eq!(abs_refusal["code"], "LowerPriority");
    let expected = format!("set 2 of the answer: multiply ({multiply}): assigned to chip, which has higher priority");
    assert_eq!(abs_refusal["detail"], *expected);
    assert_eq!(row(&json, "exp")["placement"]["backend"], "chip");
    let (_, json) = fixture.explain("whole_graph", &sigmoid);
    let exp = &row(&json, "exp")["refusals"][0];
    assert_eq!(
        (exp["code"].as_str(), exp["detail"].as_str()),
        (Some("NotClaimed"), Some("not in the option \"sets\""))
    );
}

/// Without the option the backend claims each of its operators, and gives a reason for the others.
#[test]
fn regions_of_claims_compute_what_the_host_computes() {
    let fixture = Fixture::new();
    let path = |name: &str| fixture.temp_dir.path().join(name).display().to_string();
    let json = fixture.byoc(&["explain", &fixture.model, "--json"], "whole_graph", &[]).ok().json().remove(0);
    assert_eq!((&json["totals"]["regions"], &json["totals"]["on_host"]), (&5.into(), &1.into()));
    let exp = &row(&json, "exp")["refusals"][0]["detail"];
    assert_eq!(exp, "expected one of nn.relu, add, multiply, sigmoid, abs, found exp");
    // The kernels of the sigmoid differ in the last place, so it stays on the host.
    let [relu, add, abs, multiply] = ["nn.relu", "add", "abs", "multiply"].map(|op| source(&json, op));
    let sets = format!("whole_graph.sets={relu};{add},{abs},{multiply}");
    let (host, regions, artifact) = (path("host.npz"), path("regions.npz"), path("model.byoc"));
    byoc(["run", &fixture.model, "--input", "x=random:1", "--output", &host]).ok();
    fixture.byoc(&["compile", &fixture.model, "-o", &artifact], "whole_graph", &["--backend-option", &sets]).ok();
    let dir = fixture.temp_dir.path().display().to_string();
    byoc([
        "run",
        &artifact,
        "--plugin-dir",
        &dir,
        "--input",
        "x=random:1",
        "--output",
        &regions,
        "--require-offload=0.3",
    ])
    .ok();
    assert!(std::fs::read(&host).unwrap() == std::fs::read(&regions).unwrap(), "expected equal results");
}

#[test]
fn a_set_without_operators_is_reported() {
    let fixture = Fixture::new();
    let (output, json) = fixture.explain("whole_graph", "none");
    let warning = "byoc.claim.1: set 0 of the answer: expected nodes, found none";
    assert!(output.err.contains(warning), "{}", output.err);
    assert_eq!(json["totals"]["in_regions"], 0);
}

#[test]
fn a_backend_with_claims_passes_the_conformance_run() {
    let library = test_plugin("whole_graph").display().to_string();
    let dir = temporary_folder();
    let out = dir.path().display().to_string();
    let output = byoc(["plugins", "test", &library, "--cases", "4", "--out", &out]).ok();
    assert!(output.out.contains("no faults"), "{}", output.out);
}
