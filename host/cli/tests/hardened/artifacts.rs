//! Inconsistent artifacts with valid digests, and the policies on artifact contents.

use crate::{CommandOutput, byoc, data, data_text};
use byoc_test_support::artifact::Entries;
use byoc_test_support::{copy, onednn, plugin_dir, sample};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

/// Creates a directory with the plugins that compile the artifacts of these tests.
fn plugins() -> TempDir {
    let dir = plugin_dir(&["ccompiler", "dnnl", "nuc_fpga", "template"]);
    copy(&sample("elementwise"), &dir.path().join("libbyoc_elementwise.so"));
    dir
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Compiles a small model for a backend; returns the artifact.
fn compiled(model: &str, backend: &str, plugins: &TempDir) -> Entries {
    let file = plugins.path().join(format!("{backend}.byoc"));
    let dir = text(plugins.path());
    let options = ["--backend", backend, "--require-offload", "--no-cache", "--plugin-dir", &dir];
    byoc(["compile", model, "-o", &text(&file)].iter().chain(&options)).ok();
    Entries::unpack(&std::fs::read(file).unwrap())
}

/// Creates a model whose values all have the same type, so that one replacement changes every type.
fn model(dir: &TempDir) -> String {
    let file = dir.path().join("model.relay");
    let program = "def @main(%x: Tensor[(64, 32), float32]) {\n  nn.relu(exp(%x))\n}\n";
    std::fs::write(&file, format!("#[version = \"0.0.5\"]\n{program}")).unwrap();
    text(&file)
}

struct EditedArtifact<'p> {
    plugins: &'p TempDir,
    file: TempDir,
}

impl<'p> EditedArtifact<'p> {
    fn new(plugins: &'p TempDir, entries: Entries) -> EditedArtifact<'p> {
        let file = tempfile::tempdir().unwrap();
        std::fs::write(file.path().join("edited.byoc"), entries.pack()).unwrap();
        EditedArtifact { plugins, file }
    }

    fn run(&self, options: &[&str]) -> CommandOutput {
        let (file, dir) = (text(&self.file.path().join("edited.byoc")), text(self.plugins.path()));
        byoc(["run", &file, "--input", "x=random:7", "--json", "--plugin-dir", &dir].iter().chain(options))
    }
}

#[test]
fn rejects_recorded_attacks() {
    let plugins = plugins();
    let dir = text(plugins.path());
    for name in ["conf_dnnl", "conf_ccompiler", "conf_elementwise"] {
        let file = data_text(&format!("hardened/{name}.byoc"));
        let output = byoc(["run", &file, "--input", "x=ones", "--plugin-dir", &dir]).fails_with("E0704");
        output.stderr_contains(&["expected Tensor[(4096, ", "float32]", "found Tensor[(4096, ", "int8]"]);
    }
    let file = data_text("hardened/bad_cc_1_24.byoc");
    let run = |options: &[&str]| byoc(["run", &file, "--input", "image=ones", "--json"].iter().chain(options)).ok();
    let output = run(&["--plugin-dir", &dir]).stderr_contains(&["E0406", "constants in place", "runs on the host"]);
    assert_eq!(output.out, run(&["--backend", "none"]).out);
}

/// Artifact edit: description, function, and true if the edited artifact cannot run.
type Edit = (&'static str, fn(&mut Entries), bool);

/// Replaces every float32 with int32, which has the same size.
fn replace_dtypes(value: &mut Value) {
    let text = value.to_string().replace("\"float32\"", "\"int32\"");
    *value = serde_json::from_str(&text).unwrap();
}

fn graph_of(manifest: &mut Value) -> &mut Value {
    &mut manifest["regions"][0]["graph"]
}

const EDITS: [Edit; 8] = [
    ("types of the program", |e| e.edit("program.json", replace_dtypes), true),
    ("the record", |e| e.edit("manifest.json", |m| replace_dtypes(graph_of(m))), true),
    (
        "a dimension in the record",
        |e| e.edit("manifest.json", |m| graph_of(m)["inputs"][0]["type"]["dims"] = json!([64, 33])),
        true,
    ),
    ("no graph in the record", |e| e.edit("manifest.json", |m| *graph_of(m) = json!({})), true),
    ("a different loader", |e| e.edit("program.json", |p| p["regions"][0]["loader"] = json!("other")), true),
    (
        "an input of the region",
        |e| e.edit("program.json", |p| p["regions"][0]["inputs"][0] = json!(["float32", 64, 31])),
        true,
    ),
    (
        "a register of the call",
        |e| e.edit("program.json", |p| p["functions"][0]["registers"][0]["type"] = json!(["float32", 32, 32])),
        true,
    ),
    (
        "both program and record",
        |e| {
            e.edit("program.json", |program| {
                replace_dtypes(program);
                // Replaces exp with relu, which the host also executes on int32.
                for function in program["functions"].as_array_mut().unwrap() {
                    for instr in function["code"].as_array_mut().unwrap() {
                        if instr["kernel"]["op"] == "exp" {
                            instr["kernel"]["op"] = json!("nn.relu");
                        }
                    }
                }
            });
            e.edit("manifest.json", |m| replace_dtypes(graph_of(m)));
        },
        false,
    ),
];

#[test]
fn region_rejects_tensors_of_other_types() {
    let plugins = plugins();
    let model = model(&plugins);
    for backend in ["ccompiler", "elementwise", "template"] {
        let config = json!({"operators": ["exp", "nn.relu"], "patterns": []});
        std::fs::write(plugins.path().join("libbyoc_template.json"), config.to_string()).unwrap();
        let original_entries = compiled(&model, backend, &plugins);
        for (edit_name, apply_edit, is_refused) in EDITS {
            let mut entries = original_entries.clone();
            apply_edit(&mut entries);
            let output = EditedArtifact::new(&plugins, entries.clone()).run(&[]);
            if is_refused {
                assert!(
                    output.code == 1 && output.err.contains("error[E0704]"),
                    "{backend}, {edit_name}: {}",
                    output.err
                );
            } else {
                let output = output.ok().stderr_contains(&[
                    "E0406",
                    "the tensor types differ from the compiled region",
                    "runs on the host",
                ]);
                assert_eq!(
                    output.out,
                    EditedArtifact::new(&plugins, entries).run(&["--backend", "none"]).ok().out,
                    "{backend}"
                );
            }
        }
    }
}

/// Updates the digest in an edited dnnl blob.
fn resign_graph(blob: &mut Vec<u8>) {
    let mut graph = byoc_plugin_api::Graph::from_json(std::str::from_utf8(blob).unwrap()).unwrap();
    graph.attrs.retain(|attr| attr.key != "digest");
    let digest = blake3::hash(graph.to_json().as_bytes()).to_hex().to_string();
    graph.attrs.push(byoc_plugin_api::Attr::new("digest", digest));
    *blob = graph.to_json().into_bytes();
}

#[test]
fn rejects_inconsistent_blob() {
    if onednn().is_none() {
        return;
    }
    let plugins = plugins();
    let file = plugins.path().join("dense.relay");
    let program =
        "def @main(%x: Tensor[(8, 64), float32], %w: Tensor[(32, 64), float32]) {\n  nn.relu(nn.dense(%x, %w))\n}\n";
    std::fs::write(&file, format!("#[version = \"0.0.5\"]\n{program}")).unwrap();
    let original_entries = compiled(&text(&file), "dnnl", &plugins);
    let edits: [(&str, &str, &str); 4] = [
        ("every type", "\"float32\"", "\"int32\""),
        ("a dimension", "\"dims\": [8, 64]", "\"dims\": [8, 640]"),
        ("only a dimension of a result", "\"dims\": [8, 32]", "\"dims\": [8, 3200]"),
        ("an attribute", "\"units\": null", "\"units\": 3200"),
    ];
    for (edit_name, pattern, replacement) in edits {
        let mut entries = original_entries.clone();
        // The blob is rewritten as compact JSON, so the text to replace must not contain spaces either.
        let remove_spaces = |text: &str| text.replace(": ", ":").replace(", ", ",");
        let blob = entries.entry("/dnnl_json");
        let graph: Value = serde_json::from_slice(blob).unwrap();
        *blob = graph.to_string().into_bytes();
        entries.replace("/dnnl_json", &remove_spaces(pattern), &remove_spaces(replacement));
        resign_graph(entries.entry("/dnnl_json"));
        let edited_artifact = EditedArtifact::new(&plugins, entries);
        let input_args = ["--input", "w=random:8"];
        let output = edited_artifact.run(&input_args).ok().stderr_contains(&["E0406", "runs on the host"]);
        assert_eq!(
            output.out,
            edited_artifact.run(&["--input", "w=random:8", "--backend", "none"]).ok().out,
            "{edit_name}"
        );
    }
}

#[test]
fn backend_none_loads_no_plugin() {
    let plugins = plugins();
    let file = data_text("compat/digits_ccompiler.byoc");
    // With `--backend none`, plugins in the directory are not loaded, and the log mentions no plugin.
    for dir in [text(plugins.path()), text(&data("models"))] {
        let options = ["--backend", "none", "--input", "image=ones", "-v", "--plugin-dir", &dir];
        let output = byoc(["run", &file].iter().chain(&options)).ok();
        assert!(!output.err.contains("E04") && !output.err.contains("plugin"), "{}", output.err);
        let model = data_text("digits/digits.onnx");
        byoc(["run", &model, "--dim", "batch=1"].iter().chain(&options)).ok();
    }
    let both_backends = ["run", &file, "--backend", "none,ccompiler"];
    byoc(both_backends).fails_with("E0403").stderr_contains(&["expected --backend none alone"]);
}

#[test]
fn rejects_native_code_in_artifacts() {
    let plugins = plugins();
    let dir = text(plugins.path());
    let run = |file: &str, options: &[&str]| {
        byoc(["run", file, "--input", "image=ones", "--plugin-dir", &dir].iter().chain(options))
    };
    let native_artifact = data_text("compat/digits_ccompiler.byoc");
    run(&native_artifact, &[]).ok();
    run(&native_artifact, &["--allow-native", "no"]).fails_with("E0707").stderr_contains(&["--backend none"]);
    run(&native_artifact, &["--allow-native", "no", "--backend", "none"]).ok();
    run(&data_text("compat/digits_template.byoc"), &["--allow-native", "no", "--require-offload"]).ok();
    // The manifest denies the native code that the blob contains.
    let mut entries = Entries::unpack(&std::fs::read(&native_artifact).unwrap());
    entries.edit("manifest.json", |m| m["regions"][0]["cpu_features"] = json!([]));
    let file = plugins.path().join("denied.byoc");
    std::fs::write(&file, entries.pack()).unwrap();
    run(&text(&file), &["--allow-native", "no"]).fails_with("E0707").stderr_contains(&["ELF"]);
    // Code compiled in this process is permitted, as the policy applies only to artifacts.
    let model = data_text("digits/digits.onnx");
    let options = ["--dim", "batch=1", "--backend", "ccompiler", "--no-cache", "--allow-native", "no"];
    run(&model, &options).ok();
    assert_eq!(run(&native_artifact, &["--allow-native", "perhaps"]).code, 2);
}
