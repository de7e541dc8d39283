//! Tests contracts: each rule once kept and once broken, for a network on ccompiler but for its last layer.

use crate::{CommandOutput, byoc, data_text};
use byoc_test_support::{plugin_dir, temporary_folder};

/// Explains the digits on ccompiler under a contract.
fn explain(contract: &str, arguments: &[&str]) -> CommandOutput {
    let temp_dir = temporary_folder();
    let model = temp_dir.path().join("model.onnx");
    std::fs::copy(data_text("digits/digits.onnx"), &model).unwrap();
    std::fs::write(temp_dir.path().join("byoc.toml"), contract).unwrap();
    let (model, plugins) = (model.display().to_string(), plugin_dir(&["ccompiler", "template"]));
    let plugins = plugins.path().display().to_string();
    let command = ["explain", &model, "--dim", "batch=1", "--plugin-dir", &plugins];
    byoc([&command[..], arguments].concat())
}

const ON_CCOMPILER: &[&str] = &["--backend", "ccompiler"];

#[test]
fn every_rule_can_be_kept_and_broken() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("op = \"Conv\"\nmust = \"ccompiler\"", ON_CCOMPILER, ""),
        ("op = \"Conv\"\nmust = \"ccompiler\"", &[], "expected every operator with op \"Conv\" on ccompiler, found"),
        ("source = \"/*/Conv\"\nmust_not = \"ccompiler\"", &[], ""),
        ("source = \"/*/Conv\"\nmust_not = \"ccompiler\"", ON_CCOMPILER, "not on ccompiler, found"),
        ("min_flops_share = 0.9", ON_CCOMPILER, ""),
        ("min_flops_share = 0.9", &[], "expected at least 0.9 of the FLOPs of every operator on backends, found 0.000"),
        ("kind = \"Conv\"\nmust = \"ccompiler\"\nmin_flops_share = 1.0", &[], "of every operator with kind \"Conv\""),
        ("max_regions = 1", ON_CCOMPILER, ""),
        ("max_regions = 0", ON_CCOMPILER, "max_regions: expected at most 0 regions, found 1"),
        ("max_cuts = 0", ON_CCOMPILER, ""),
        ("max_cuts = 0", &["--backend", "template"], "max_cuts: expected at most 0 cuts, found"),
        ("max_host_steps = 0", ON_CCOMPILER, ""),
        ("max_host_steps = 0", &[], "max_host_steps: expected at most 0 steps on the host, found"),
        ("max_copied_bytes = 0", ON_CCOMPILER, ""),
        ("max_memory_bytes = 100000000", &[], ""),
        ("max_memory_bytes = 1000", &[], "max_memory_bytes: expected at most 1000 bytes, found"),
    ];
    for (rule, arguments, expected) in cases {
        let output = explain(&format!("[[contract]]\n{rule}\n"), arguments);
        if expected.is_empty() {
            output.ok();
        } else {
            output.fails_with("E0462").stderr_contains(&["byoc.toml:1: ", expected]);
        }
    }
}

#[test]
fn faults_of_a_contract_are_errors() {
    explain("[[contract]]\nmax_region = 1\n", &[])
        .fails_with("E0461")
        .stderr_contains(&["byoc.toml:2:1: unknown field"]);
    explain("[[contract]]\nop = \"Cnov\"\nmust = \"ccompiler\"\n", &[])
        .fails_with("E0461")
        .stderr_contains(&["expected every operator with op \"Cnov\" in the model, found none"]);
    explain("", &["--contract", "nowhere.toml"]).fails_with("E0461").stderr_contains(&["nowhere.toml"]);
}

/// A broken contract leaves no artifact, and `verify` and `bench` measure what a build cannot know.
#[test]
fn commands_keep_contracts() {
    let temp_dir = temporary_folder();
    let contract = temp_dir.path().join("strict.toml").display().to_string();
    let artifact = temp_dir.path().join("model.byoc");
    let model = data_text("digits/digits.onnx");
    std::fs::write(&contract, "[[contract]]\nmin_flops_share = 0.5\n").unwrap();
    let output = artifact.display().to_string();
    byoc(["compile", &model, "--dim", "batch=1", "--contract", &contract, "-o", &output]).fails_with("E0462");
    assert!(!artifact.exists());

    std::fs::write(&contract, "[[contract]]\nmax_rel_err = 0\n").unwrap();
    let folder = data_text("models/vit_small");
    let verified = byoc(["verify", &folder, "--contract", &contract, "--json"]);
    assert_eq!(verified.code, 1, "{}", verified.err);
    assert_eq!(verified.json()[0]["code"], "E0462", "{}", verified.out);

    std::fs::write(&contract, "[[contract]]\nmax_latency_ratio = 0\n").unwrap();
    let bench = ["bench", &model, "--dim", "batch=1", "--input", "image=ones", "--runs", "1", "--contract", &contract];
    byoc(bench).fails_with("E0462").stderr_contains(&["max_latency_ratio: expected at most 0, found"]);
}

/// Writes the digits and a contract to a directory, and returns the arguments for them.
fn model_with(contract: &str) -> (tempfile::TempDir, String) {
    let temp_dir = temporary_folder();
    let model = temp_dir.path().join("model.onnx");
    std::fs::copy(data_text("digits/digits.onnx"), &model).unwrap();
    std::fs::write(temp_dir.path().join("byoc.toml"), contract).unwrap();
    (temp_dir, model.display().to_string())
}

/// The outcome goes to both files whether the contract is kept or not; a rule that a build cannot check is skipped.
#[test]
fn outcomes_are_written_for_code_review() {
    let plugins = plugin_dir(&["ccompiler"]);
    let plugins = plugins.path().display().to_string();
    let contract = "[[contract]]\nop = \"Conv\"\nmust = \"ccompiler\"\n[[contract]]\nmax_regions = 0\n[[contract]]\n\
                    max_rel_err = 1e-3\n";
    let (temp_dir, model) = model_with(contract);
    let file = |name: &str| temp_dir.path().join(name).display().to_string();
    let (sarif, junit) = (file("byoc.sarif"), file("byoc.xml"));
    let command = ["explain", &model, "--dim", "batch=1", "--plugin-dir", &plugins, "--backend", "ccompiler"];
    let output = byoc([&command[..], &["--sarif", &sarif, "--junit", &junit]].concat());
    output.fails_with("E0462").stderr_contains(&["byoc.toml:4: max_regions: expected at most 0 regions, found 1"]);
    let log: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&sarif).unwrap()).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let rules: Vec<&str> =
        run["tool"]["driver"]["rules"].as_array().unwrap().iter().map(|rule| rule["id"].as_str().unwrap()).collect();
    assert_eq!(rules, ["byoc.toml/1", "byoc.toml/4", "byoc.toml/6"]);
    let [result] = &run["results"].as_array().unwrap()[..] else { panic!("expected one result, found {run}") };
    assert_eq!((&result["ruleId"], &result["ruleIndex"]), (&"byoc.toml/4".into(), &1.into()));
    assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 4);
    let text = result["message"]["text"].as_str().unwrap();
    assert!(text.contains("max_regions: expected at most 0 regions, found 1"), "{text}");
    let xml = std::fs::read_to_string(&junit).unwrap();
    assert!(xml.contains("tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\""), "{xml}");
    assert!(xml.contains("every operator with op &quot;Conv&quot;: must = &quot;ccompiler&quot;\"/>"), "{xml}");
    assert!(xml.contains("<failure type=\"E0462\""), "{xml}");

    std::fs::write(temp_dir.path().join("byoc.toml"), "[[contract]]\nmax_regions = 1\n").unwrap();
    let output = byoc([&command[..], &["--sarif", &sarif, "--junit", "-"]].concat()).ok();
    assert!(output.out.contains("failures=\"0\""), "{}", output.out);
    let log: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&sarif).unwrap()).unwrap();
    assert_eq!(log["runs"][0]["results"], serde_json::json!([]));

    std::fs::remove_file(temp_dir.path().join("byoc.toml")).unwrap();
    byoc([&command[..], &["--sarif", &sarif]].concat())
        .fails_with("E0461")
        .stderr_contains(&["expected a contract of", "--contract FILE"]);
}

/// An earlier state is a model, an artifact or a saved explanation; the reasons are those of the backend that lost or took
/// an operator.
#[test]
fn differences_name_what_moved_and_why() {
    let plugins = plugin_dir(&["ccompiler"]);
    let plugins = plugins.path().display().to_string();
    let (temp_dir, model) = model_with("");
    let file = |name: &str| temp_dir.path().join(name).display().to_string();
    let build = ["--dim", "batch=1", "--plugin-dir", &plugins, "--backend", "ccompiler"];
    let saved = file("old.json");
    std::fs::write(&saved, byoc(["explain", &model, "--dim", "batch=1", "--json"]).ok().out).unwrap();
    let markdown = file("moved.md");
    let explain = |old: &str, more: &[&str]| byoc([&["explain", &model, "--diff", old], more, &build[..]].concat());
    let output = explain(&saved, &["--markdown", &markdown]).ok();
    assert!(output.out.contains("FLOPs on backends: 100.0 %, before 0.0 %"), "{}", output.out);
    assert!(output.out.contains("ccompiler: plugin ccompiler"), "{}", output.out);
    let text = std::fs::read_to_string(&markdown).unwrap();
    assert!(text.starts_with("### Placement of model.onnx, compared with old.json\n"), "{text}");
    assert!(text.contains("| host | ccompiler |"), "{text}");
    let artifact = file("old.byoc");
    byoc([&["compile", &model, "-o", &artifact], &build[..]].concat()).ok();
    for old in [&artifact, &model] {
        let json = explain(old, &["--json"]).ok().json().remove(0);
        assert_eq!((&json["moved"], &json["builds"]), (&serde_json::json!([]), &serde_json::json!([])), "{json}");
    }
    // An operator that moves back has the reason of the backend.
    let json = byoc([
        "explain",
        &model,
        "--diff",
        &artifact,
        "--dim",
        "batch=?",
        "--plugin-dir",
        &plugins,
        "--backend",
        "ccompiler",
        "--json",
    ])
    .ok()
    .json()
    .remove(0);
    let why = json["moved"][0]["why"][0].as_str().unwrap();
    assert!(why.starts_with("ccompiler: DynamicDim: "), "{json}");
    std::fs::write(&saved, "{").unwrap();
    explain(&saved, &[]).fails_with("E0704").stderr_contains(&["--diff: ", "byoc explain --json"]);
    explain(&file("none.json"), &[]).fails_with("E0501").stderr_contains(&["--diff: cannot read"]);
}
