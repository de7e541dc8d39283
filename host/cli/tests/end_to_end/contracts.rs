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
