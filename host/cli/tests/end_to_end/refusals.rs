//! Near misses and suggestions for a corpus of refusals: what `byoc explain --suggest` says, as written down by hand
//! beside each program before it was implemented.

use crate::{CommandOutput, binary, byoc, command, isolated_command, to_command_output};
use byoc_test_support::filetest::{headers, read_cases};
use byoc_test_support::{copy, onednn, plugin, plugin_dir, test_plugin};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Program with a refusal, and what is expected to be said of it.
struct Case<'c> {
    text: &'c str,
    backend: &'c str,
}

impl<'c> Case<'c> {
    fn header(&self, key: &str) -> &'c str {
        headers(self.text, key).first().unwrap_or_else(|| panic!("expected a header {key}, found none:\n{}", self.text))
    }

    /// Creates the directory with the plugins of the case and its program.
    fn directory(&self) -> TempDir {
        let others = headers(self.text, "also");
        let dir = match self.backend {
            "npu" | "bf16" => plugin_dir(&others),
            name => plugin_dir(&[&[name], &others[..]].concat()),
        };
        let library = dir.path().join(format!("libbyoc_{}.so", self.backend));
        if self.backend == "npu" {
            copy(&plugin("template"), &library);
            let patterns = headers(self.text, "table").join("\n");
            let config = json!({"name": "npu", "patterns": patterns, "operators": []});
            std::fs::write(library.with_extension("json"), config.to_string()).unwrap();
        } else if self.backend == "bf16" {
            copy(&test_plugin("bf16"), &library);
            let config = json!({"nn.dense": {"computes": "bf16", "ulps": 1}});
            std::fs::write(library.with_extension("json"), config.to_string()).unwrap();
        }
        let program = format!("#[version = \"0.0.5\"]\n{}", self.text);
        std::fs::write(dir.path().join("model.relay"), program).unwrap();
        dir
    }

    /// Returns what is said of the operator, in the form of the headers: near miss and first suggestion.
    fn found(&self, dir: &Path) -> (String, Vec<String>) {
        let model = dir.join("model.relay").display().to_string();
        let plugins = dir.display().to_string();
        let mut args = vec!["explain", &model, "--suggest", "--json", "--backend", self.backend];
        args.extend(["--plugin-dir", &plugins, "--no-cache"]);
        let open = self.text.contains("(batch,");
        args.extend(if open { &["--dim", "batch=?"][..] } else { &[] });
        let json = without_devices(&mut command(args)).ok().json().remove(0);
        let operator = self.header("operator");
        let nodes = json["nodes"].as_array().unwrap();
        let node =
            nodes.iter().find(|node| node["op"] == operator).unwrap_or_else(|| panic!("no {operator} in {json}"));
        assert_eq!(node["placement"]["kind"], "host", "{}\n{json}", self.text);
        let refusals = node["refusals"].as_array().unwrap();
        let near = refusals.iter().map(|refusal| &refusal["near_miss"]).find(|near| near.is_object());
        let near = near.map_or("none".to_owned(), near_miss);
        let suggestions = refusals.iter().filter_map(|refusal| refusal["suggestions"].as_array()).flatten();
        (near, suggestions.map(|suggestion| suggestion["command"].as_str().unwrap().to_owned()).collect())
    }
}

/// Runs a command on a machine without OpenCL devices.
fn without_devices(command: &mut Command) -> CommandOutput {
    to_command_output(command.env("OCL_ICD_VENDORS", "/nonexistent").output().expect("cannot start the command"))
}

/// Runs a suggested command as a user would, and checks that the artifact has regions.
fn apply(command: &str, dir: &Path) {
    let path = binary().parent().unwrap().display();
    let mut shell = isolated_command("sh");
    shell.args(["-c", &format!("PATH={path}:$PATH; {command}")]).current_dir(dir);
    let output = without_devices(&mut shell);
    assert_eq!(output.code, 0, "{command}\n{}", output.err);
    let artifact = dir.join("model.byoc").display().to_string();
    let explanation = byoc(["explain", &artifact]).ok().json().remove(0);
    assert!(explanation["totals"]["in_regions"].as_u64() > Some(0), "{command}: {explanation}");
}

fn near_miss(near: &Value) -> String {
    let field = |name: &str| near[name].as_str().unwrap().to_owned();
    [field("entry"), field("position"), field("expected"), field("found")].join(" | ")
}

/// Returns the differences between what is said and what is written, one line each.
fn differences(file: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/end_to_end/refusals").join(file);
    let cases = read_cases(&path).unwrap();
    let mut differences = Vec::new();
    for (index, text) in cases.iter().enumerate() {
        let case = Case { text, backend: headers(text, "backend")[0] };
        if onednn().is_none() && text.contains("dnnl") {
            continue;
        }
        let dir = case.directory();
        let (near, commands) = case.found(dir.path());
        let mut check = |what: &str, expected: &str, found: &str, is_right: bool| {
            if !is_right {
                differences.push(format!("{file}, case {index}, {what}: expected {expected}, found {found}"));
            }
        };
        let expected = case.header("near");
        check("near", expected, &near, near == expected);
        let (expected, found) = (case.header("suggest"), commands.first().map_or("none", String::as_str));
        let is_right = if expected == "none" { found == "none" } else { found.contains(expected) };
        check("suggest", expected, found, is_right);
        if let (true, Some(command)) = (is_right, commands.first()) {
            apply(command, dir.path());
        }
    }
    differences
}

#[test]
fn near_misses_and_suggestions_are_as_written() {
    let differences = differences("seen.txt");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn those_set_aside_are_as_written() {
    let differences = differences("held.txt");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
