//! Tests of well-behaved plugins, from loading the file to running a region.

use crate::common::{TestHost, add_relu, constant, single_op_graph};
use byoc_plugin_api::{
    Attr, Call, Candidate, CandidateKind, DType, Executable, Graph, LoadRequest, Region, Services, TensorMut,
    TensorRef, Verdict, host,
};
use serde_json::json;
use std::path::Path;
use tracing::Level;

fn load(path: &Path) -> (host::LoadedPlugin, TestHost, Services) {
    let test_host = TestHost::default();
    let services = Services::new(test_host.clone());
    let plugin = host::load(path, &services).unwrap_or_else(|rejection| panic!("{path:?}: {rejection}"));
    (plugin, test_host, services)
}

fn run(executable: &dyn Executable, shape: &[usize], input: &[f32]) -> Vec<f32> {
    let preparation = executable.prepare(&[shape]).unwrap();
    let mut dims = preparation.outputs[0].dims.to_vec();
    let count: usize = dims.iter().product();
    let mut memory = vec![f32::NAN; count];
    let mut workspace = vec![0; preparation.workspace];
    // SAFETY: `input` outlives the slice, and all bytes of a float are initialized.
    let bytes = unsafe { std::slice::from_raw_parts(input.as_ptr().cast(), size_of_val(input)) };
    // SAFETY: `memory` is accessed only through the slice while the slice is live, and every bit pattern is a valid
    // float.
    let out = unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), size_of_val(&memory[..])) };
    let inputs = [TensorRef::new(DType::F32, shape, bytes)];
    let mut outputs = [TensorMut::new(DType::F32, &mut dims, out)];
    executable
        .run(Call { inputs: &inputs, outputs: &mut outputs, workspace: &mut workspace, plan: preparation.plan })
        .unwrap();
    memory
}

#[test]
fn template_runs_a_region_by_the_hosts_reference() {
    let (plugin, test_host, services) = load(&byoc_test_support::plugin("template"));
    assert_eq!(plugin.name, "template");
    let names: Vec<&str> = plugin.registrations.iter().map(|registration| registration.name.as_str()).collect();
    assert_eq!(names, ["loadbinary_template", "relay.ext.template"]);

    let codegen = plugin.codegen("template").unwrap();
    let description = codegen.describe().unwrap();
    assert_eq!(description.version, 1);
    assert!(description.patterns.starts_with("conv2d_bias_relu: "), "{}", description.patterns);
    assert!(description.operators.iter().any(|name| name == "nn.relu"));
    let relu = Candidate::new(CandidateKind::Operator, "nn.relu", single_op_graph("x", "nn.relu", &[2]));
    assert_eq!(codegen.judge_batch(&[relu.clone(), relu]).unwrap(), [Verdict::Supported, Verdict::Supported]);
    assert_eq!(codegen.query("unknown.key", b"").unwrap(), None);

    let graph = add_relu("tvmgen_default_template_main_0", &[2, 2]);
    let (weight, is_dropped) = constant("weight", &[2, 2], &[1.0, -1.0, 1.0, -1.0]);
    let constants = [weight];
    let region = Region { graph: &graph, constants: &constants, options: &json!({"threads": 4}) };
    let compiled_region = codegen.compile(&region).unwrap();
    assert_eq!(compiled_region, codegen.compile(&region).unwrap(), "expected deterministic compilation");
    assert_eq!(compiled_region.loader, "template");
    assert_eq!(compiled_region.symbols[..], ["tvmgen_default_template_main_0"]);
    assert_eq!(Graph::from_json(std::str::from_utf8(&compiled_region.blob).unwrap()).unwrap(), graph);

    let loader = plugin.loader(&compiled_region.loader).unwrap();
    let request = LoadRequest {
        symbol: &graph.symbol,
        blob: &compiled_region.blob,
        constants: &constants,
        options: &json!({}),
        services: &services,
    };
    let executable = loader.load(&request).unwrap();
    assert_eq!(run(&*executable, &[2, 2], &[1.0, 2.0, -3.0, 0.5]), [2.0, 1.0, 0.0, 0.0]);

    let lines = std::mem::take(&mut test_host.recording.lock().unwrap().lines);
    let message = "tvmgen_default_template_main_0([Tensor[[2, 2], float32]]) -> [Tensor[[2, 2], float32]]";
    assert_eq!(lines, [(Level::INFO, "template".to_owned(), message.to_owned())]);

    drop(constants);
    assert!(!*is_dropped.lock().unwrap(), "the loaded region holds the constant");
    drop(executable);
    assert!(*is_dropped.lock().unwrap(), "dropping the last handle frees the constant");
}

#[test]
fn template_rejects_foreign_blobs() {
    let (plugin, _, services) = load(&byoc_test_support::plugin("template"));
    let loader = plugin.loader("template").unwrap();
    let blob = single_op_graph("f", "nn.relu", &[2]).to_json();
    let load = |symbol: &str, blob: &[u8]| {
        let request = LoadRequest { symbol, blob, constants: &[], options: &json!({}), services: &services };
        loader.load(&request).err().expect("expected an error, found a loaded region").to_string()
    };
    assert_eq!(load("g", blob.as_bytes()), "plugin template: load: expected the graph of region g, found that of f");
    assert!(load("f", &blob.as_bytes()[..40]).starts_with("plugin template: load: "));
    assert!(load("f", b"\xff").starts_with("plugin template: load: blob: invalid utf-8"));
    let constant = add_relu("f", &[2]).to_json();
    assert_eq!(
        load("f", constant.as_bytes()),
        "plugin template: load: graph f, node 1: constant 0 is out of range 0..0"
    );
    let mut graph_without_outputs = single_op_graph("f", "nn.relu", &[2]);
    graph_without_outputs.outputs.clear();
    let message = "plugin template: load: graph f: expected at least one output, found none";
    assert_eq!(load("f", graph_without_outputs.to_json().as_bytes()), message);
    let softmax = single_op_graph("f", "nn.softmax", &[2]).to_json();
    assert_eq!(load("f", softmax.as_bytes()), "plugin template: load: host: reference: this host has no nn.softmax");
}

#[test]
fn template_reads_name_and_patterns_from_its_config_file() {
    let dir = byoc_test_support::plugin_dir(&["template"]);
    let config = r#"{"name": "student", "patterns": ["a: nn.relu(*)", "b: add(*, *)"], "operators": ["tanh"]}"#;
    let file = dir.path().join("libbyoc_template.json");
    std::fs::write(&file, config).unwrap();
    let (plugin, ..) = load(&dir.path().join("libbyoc_template.so"));
    assert_eq!(plugin.name, "student");
    let description = plugin.codegen("student").unwrap().describe().unwrap();
    assert_eq!(description.patterns, "a: nn.relu(*)\nb: add(*, *)");
    assert_eq!(description.operators, ["tanh"]);
    assert!(plugin.loader("student").is_some());

    std::fs::write(&file, r#"{"nmae": "student"}"#).unwrap();
    let services = Services::new(TestHost::default());
    let rejection = host::load(&dir.path().join("libbyoc_template.so"), &services).unwrap_err();
    assert_eq!(rejection.code, host::code::INIT);
    assert!(rejection.reason.contains("libbyoc_template.json: unknown key \"nmae\""), "{rejection}");
}

#[test]
fn rejects_backend_names_with_other_characters() {
    let dir = byoc_test_support::plugin_dir(&["template"]);
    let services = Services::new(TestHost::default());
    let load = |name: &str| {
        let config = json!({ "name": name }).to_string();
        std::fs::write(dir.path().join("libbyoc_template.json"), config).unwrap();
        host::load(&dir.path().join("libbyoc_template.so"), &services)
    };
    for name in ["", "my chip", "../chip", "chip.relu"] {
        let rejection = load(name).unwrap_err();
        assert_eq!(rejection.code, host::code::INIT, "{name:?}: {rejection}");
        assert!(rejection.reason.contains(&format!("found \"{name}\"")), "{rejection}");
    }
    assert_eq!(load("my-chip").unwrap().name, "my-chip");
}

#[test]
fn minimal_runs_relu_and_refuses_int8() {
    let (plugin, _, services) = load(&byoc_test_support::test_plugin("minimal"));
    let codegen = plugin.codegen("minimal").unwrap();
    assert_eq!(codegen.describe().unwrap().operators, ["nn.relu"]);
    let valid_candidate = Candidate::new(CandidateKind::Operator, "nn.relu", single_op_graph("x", "nn.relu", &[2]));
    let mut invalid_candidate = valid_candidate.clone();
    invalid_candidate.graph.inputs[0].ty.dtype = DType::I8;
    let verdicts = codegen.judge_batch(&[valid_candidate, invalid_candidate]).unwrap();
    assert_eq!(verdicts[0], Verdict::Supported);
    let Verdict::Refused(refusal) = &verdicts[1] else { panic!("expected int8 to be refused") };
    assert_eq!(
        (refusal.code.as_str(), refusal.detail.as_str()),
        ("UnsupportedDtype", "input 0: expected float32, found int8")
    );

    let graph = single_op_graph("f", "nn.relu", &[3]);
    let compiled_region = codegen.compile(&Region { graph: &graph, constants: &[], options: &json!({}) }).unwrap();
    let request = LoadRequest {
        symbol: "f",
        blob: &compiled_region.blob,
        constants: &[],
        options: &json!({}),
        services: &services,
    };
    let executable = plugin.loader("minimal").unwrap().load(&request).unwrap();
    assert_eq!(run(&*executable, &[3], &[-1.0, 0.0, 4.0]), [0.0, 0.0, 4.0]);
    // An empty tensor is valid as well.
    assert_eq!(run(&*executable, &[0, 3], &[]), [0.0; 0]);
}

#[test]
fn guide_quotes_the_backends_in_rust() {
    let read = |path: &str| std::fs::read_to_string(byoc_test_support::workspace().join(path)).unwrap();
    let code = read("tests/plugins/examples/minimal.rs");
    assert!(code.lines().count() < 80, "expected a minimal backend of fewer than 80 lines");
    for code in [code, read("tests/plugins/examples/dense.rs")] {
        assert!(read("docs/writing-a-backend.md").contains(&format!("```rust,ignore\n{code}```\n")), "{code}");
    }
}

#[test]
fn guide_quotes_c_json_and_build_commands() {
    let read = |path: &str| std::fs::read_to_string(byoc_test_support::workspace().join(path)).unwrap();
    let (guide, sample, readme) =
        (read("docs/writing-a-backend.md"), read("plugins/samples/elementwise.c"), read("README.md"));
    let blocks = |language: &str| -> Vec<String> {
        let marker = format!("```{language}\n");
        let blocks = guide.split(&marker).skip(1);
        blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
    };
    // Every C block is quoted from the sample, which is built and run.
    assert!(blocks("c").len() >= 4);
    for block in blocks("c") {
        assert!(sample.contains(&block), "expected the sample to contain:\n{block}");
    }
    let description = byoc_test_support::schema::schema("description");
    assert!(!blocks("json").is_empty());
    for block in blocks("json") {
        let value: serde_json::Value = serde_json::from_str(&block).unwrap();
        if value.get("version").is_some() {
            byoc_test_support::schema::check(&description, &value).unwrap();
        }
    }
    // The commands that build the samples are quoted from the README; another test runs the commands in the README.
    for line in blocks("sh").iter().flat_map(|block| block.lines()).filter(|line| line.contains("plugins/samples/")) {
        assert!(readme.lines().any(|text| text == line), "expected the README to contain: {line}");
    }
}

#[test]
fn entries_read_the_options_of_the_user() {
    let graph = single_op_graph("f", "nn.relu", &[3]);
    let choices = json!({"backend_options": {"half": "true"}, "device": "1"});
    let mut candidate = Candidate::new(CandidateKind::Operator, "nn.relu", graph.clone());
    assert_eq!((candidate.option("half"), candidate.options()), (None, serde_json::Value::Null));
    candidate.attrs.push(Attr::new("options", choices.to_string()));
    assert_eq!((candidate.option("half").as_deref(), candidate.option("fast")), (Some("true"), None));
    assert_eq!(candidate.options()["device"], "1");
    let region = Region { graph: &graph, constants: &[], options: &choices };
    assert_eq!((region.option("half"), region.option("fast")), (Some("true"), None));
}

#[test]
fn each_file_is_loaded_separately() {
    // A loader that caches one module per type would return the first plugin for every file.
    let (template, ..) = load(&byoc_test_support::plugin("template"));
    let (minimal, ..) = load(&byoc_test_support::test_plugin("minimal"));
    let dir = byoc_test_support::plugin_dir(&["template"]);
    let (copy, ..) = load(&dir.path().join("libbyoc_template.so"));
    assert_eq!([template.name, minimal.name, copy.name], ["template", "minimal", "template"]);
}
