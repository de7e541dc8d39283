//! Tests `--on-failure`: what happens to a region that its backend fails to compile.

use crate::{CommandOutput, byoc};
use byoc_test_support::{copy, plugin_dir, temporary_folder, test_plugin};
use serde_json::Value;

const PROGRAM: &str = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(3, 3), float32]) {
  %0 = nn.relu(%x);
  %1 = add(%0, %0);
  %2 = nn.softmax(%1);
  %3 = nn.relu(%2);
  add(%3, %3)
}
";

/// Explains the program on a plugin with a mistake. Returns the output and the backend of each operator, which is empty
/// for the host.
fn explain(mistake: &str, arguments: &[&str]) -> (CommandOutput, Vec<String>) {
    let temp_dir = temporary_folder();
    copy(&test_plugin("faulty"), &temp_dir.path().join(format!("faulty_{mistake}.so")));
    let model = temp_dir.path().join("model.relay");
    std::fs::write(&model, PROGRAM).unwrap();
    let (dir, model) = (temp_dir.path().display().to_string(), model.display().to_string());
    let plugins = plugin_dir(&["ccompiler"]);
    let plugins = plugins.path().display().to_string();
    let command = ["explain", &model, "--plugin-dir", &dir, "--plugin-dir", &plugins, "--no-cache", "--json"];
    let output = byoc([&command[..], arguments].concat());
    let rows = output.out.lines().next().map(|line| serde_json::from_str::<Value>(line).unwrap_or_default());
    let nodes = rows.and_then(|rows| rows["nodes"].as_array().cloned()).unwrap_or_default();
    let backends =
        nodes.iter().map(|node| node["placement"]["backend"].as_str().unwrap_or_default().to_owned()).collect();
    (output, backends)
}

#[test]
fn a_region_is_split_around_the_operator_that_fails() {
    for mistake in ["no_softmax", "names_softmax"] {
        for policy in ["next", "split"] {
            let (output, backends) = explain(mistake, &["--backend", "faulty", "--on-failure", policy]);
            let output = output.ok().stderr_contains(&[
                "warning[E0423]",
                "region tvmgen_default_faulty_main_0 could not be compiled: 4 operators of it run on faulty and 1 on the host",
            ]);
            assert_eq!(backends, ["faulty", "faulty", "", "faulty", "faulty"], "{mistake} {policy}: {}", output.err);
            assert_eq!(output.err.matches("could not be compiled").count(), 1, "{}", output.err);
            let nodes = &output.json()[0]["nodes"];
            assert_eq!(nodes[2]["refusals"][0]["code"], "CompileFailed", "{nodes}");
            assert_eq!(nodes[1]["refusals"], serde_json::json!([]), "{nodes}");
        }
    }
}

#[test]
fn the_next_backend_gets_the_region() {
    let (output, backends) = explain("no_softmax", &["--backend", "faulty,ccompiler"]);
    let output = output.ok();
    assert_eq!(backends, ["ccompiler"; 5], "{}", output.err);
    output.stderr_contains(&["could not be compiled, so it runs on ccompiler"]);
}

#[test]
fn the_host_gets_the_region_or_the_command_fails() {
    let (output, backends) = explain("no_softmax", &["--backend", "faulty,ccompiler", "--on-failure", "host"]);
    output.ok().stderr_contains(&["could not be compiled, so it runs on the host"]);
    assert_eq!(backends, [""; 5]);
    let (output, _) = explain("no_softmax", &["--backend", "faulty", "--on-failure", "error"]);
    output.fails_with("E0423").stderr_contains(&["region tvmgen_default_faulty_main_0 could not be compiled"]);
    let (output, _) = explain("none", &["--backend", "faulty", "--on-failure", "retry"]);
    output.stderr_contains(&["expected next, split, host or error, found \"retry\""]);
}

/// A backend that compiles nothing is not tried on every operator.
#[test]
fn a_backend_that_always_fails_is_given_up() {
    let (output, backends) = explain("panic_compile", &["--backend", "faulty"]);
    let output = output.ok();
    assert_eq!(backends, [""; 5], "{}", output.err);
    assert_eq!(output.err.matches("could not be compiled").count(), 1, "{}", output.err);
}
