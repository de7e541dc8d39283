//! Tests of plugins written against `byoc_plugin.h`.

use crate::common::{TestHost, add_relu, constant, single_op_graph};
use byoc_plugin_api::link::{LINK_KEY, LinkRegion, LinkRequest, Linked};
use byoc_plugin_api::{
    AttrValue, Call, Candidate, CandidateKind, DType, Error, Executable, Graph, LoadRequest, Loader, OutputDims,
    RefusalCode, Region, Services, TensorMut, TensorRef, TensorType, ValueRef, Verdict, host,
};
use byoc_test_support::random::Random;
use host::{Rejection, code};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::Level;

fn load(path: &Path) -> (host::LoadedPlugin, TestHost, Services) {
    let test_host = TestHost::default();
    let services = Services::new(test_host.clone());
    let plugin = host::load(path, &services).unwrap_or_else(|rejection| panic!("{path:?}: {rejection}"));
    (plugin, test_host, services)
}

fn load_everything() -> (host::LoadedPlugin, TestHost, Services) {
    load(&byoc_test_support::c_plugin("everything"))
}

fn floats(bytes: &[f32]) -> Vec<u8> {
    bytes.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Buffer aligned to 64 bytes, like host memory.
#[repr(align(64))]
struct AlignedBytes([u8; 256]);

#[track_caller]
fn assert_error(error: Error, entry: &str, message: &str) {
    assert_eq!((error.plugin.as_str(), error.entry.as_str(), error.message.as_str()), ("everything", entry, message));
}

#[test]
fn c_plugin_registers_its_objects() {
    let (plugin, ..) = load_everything();
    assert_eq!((plugin.name.as_str(), plugin.version.as_str()), ("all", "3.1"));
    assert_eq!(plugin.api_version, "byoc_plugin.h 1");
    let names: Vec<&str> = plugin.registrations.iter().map(|registration| registration.name.as_str()).collect();
    assert_eq!(names, ["everything.facts", "loadbinary_everything", "relay.ext.all", "relay.ext.short"]);
}

#[test]
fn compile_time() {
    let (plugin, test_host, _) = load_everything();
    let codegen = plugin.codegen("all").unwrap();
    assert_eq!(codegen.describe().unwrap().operators, ["nn.relu"]);
    let short_codegen = plugin.codegen("short").unwrap();
    assert!(short_codegen.describe().unwrap().problems[0].contains("expected a JSON object, found \"no JSON\""));
    assert_eq!(short_codegen.query("echo", b"x").unwrap(), None, "the table ends before `query`");

    let candidate = |name: &str| Candidate::new(CandidateKind::Operator, name, single_op_graph("x", "nn.relu", &[2]));
    let mut region = Candidate::new(CandidateKind::Region, "all", single_op_graph("x", "nn.relu", &[2]));
    region.check = "expected at most 2 units, found 3".into();
    let verdicts = codegen.judge_batch(&[candidate("nn.relu"), region.clone()]).unwrap();
    assert_eq!(verdicts[0], Verdict::Supported);
    let Verdict::Refused(refusal) = &verdicts[1] else { panic!("expected the region to be refused") };
    let refusal_fields = (refusal.code.as_str(), refusal.detail.as_str(), refusal.hint.as_str());
    assert_eq!(refusal_fields, ("ResourceLimit", "expected at most 2 units, found 3", "smaller"));
    assert_eq!(codegen.accept_region(&region), verdicts[1]);
    let batch = [candidate("nn.relu"), candidate("silent")];
    assert_error(
        codegen.judge_batch(&batch).unwrap_err(),
        "judge",
        "expected a verdict on candidate 1 (silent), found none",
    );
    assert_error(
        codegen.judge_batch(&[candidate("outside")]).unwrap_err(),
        "judge",
        "support: candidate 1 is out of range 0..1",
    );
    assert_error(
        codegen.judge_batch(&[candidate("wordless")]).unwrap_err(),
        "judge",
        "expected a call to `fail` before status 7, found none",
    );
    assert_eq!(short_codegen.judge_batch(&batch).unwrap(), [Verdict::Supported, Verdict::Supported]);

    // Batches are judged on several threads; the verdicts are in the order of the candidates.
    let mut candidates: Vec<Candidate> =
        (0..1000).map(|i| if i % 7 == 3 { region.clone() } else { candidate("nn.relu") }).collect();
    let verdicts = codegen.judge_batch(&candidates).unwrap();
    let are_refused: Vec<bool> = verdicts.iter().map(|verdict| *verdict != Verdict::Supported).collect();
    assert_eq!(are_refused, (0..1000).map(|i| i % 7 == 3).collect::<Vec<_>>());
    (candidates[900], candidates[300]) = (candidate("wordless"), candidate("silent"));
    assert_error(
        codegen.judge_batch(&candidates).unwrap_err(),
        "judge",
        "expected a verdict on candidate 300 (silent), found none",
    );

    let options = json!({ "cache_dir": null });
    let compile = |symbol: &str| {
        let graph = single_op_graph(symbol, "nn.relu", &[2]);
        codegen.compile(&Region { graph: &graph, constants: &[], options: &options })
    };
    let compiled_region = compile("f").unwrap();
    assert_eq!(
        Graph::from_json(std::str::from_utf8(&compiled_region.blob).unwrap()).unwrap(),
        single_op_graph("f", "nn.relu", &[2])
    );
    assert_eq!(
        (compiled_region.loader.as_str(), &compiled_region.symbols[..]),
        ("everything", &["f".into(), "helper".into()][..])
    );
    assert_eq!(&compiled_region.notes[..], ["one", "two"]);
    let source = compiled_region.source.as_ref().into_option().unwrap();
    assert_eq!((source.language.as_str(), source.text.as_str()), ("txt", options.to_string().as_str()));
    assert_eq!(compiled_region.metadata[0].value, AttrValue::Int(12));
    assert_error(compile("nothing").unwrap_err(), "compile", "expected a call to `compiled`, found none");
    let error = compile("fails").unwrap_err();
    assert_eq!(error.hint, "change the model");
    assert_error(error, "compile", "the region is not supported");
    let error = compile("coded").unwrap_err();
    assert_eq!((error.code.as_str(), error.hint.as_str()), (RefusalCode::ResourceLimit.as_str(), "wait"));
    assert_error(error, "compile", "expected at most 1 queue, found 2");
    let error = compile("metadata").unwrap_err();
    assert!(error.message.starts_with("compiled: metadata: invalid JSON object: "), "{error}");
    test_host.cancelled.store(true, Ordering::Relaxed);
    let error = compile("f").unwrap_err();
    assert_eq!(error.code, Error::CANCELLED);
    assert_error(error, "compile", "compilation abandoned");
    assert_eq!(
        compile("coded").unwrap_err().code,
        RefusalCode::ResourceLimit.as_str(),
        "the plugin's own code remains"
    );

    assert_eq!(codegen.query("echo", b"a\0b").unwrap().unwrap(), b"a\0b");
    assert_eq!(codegen.query("other", b"").unwrap(), None);
}

#[test]
fn estimates_and_the_link_step_in_c() {
    let (plugin, ..) = load_everything();
    let codegen = plugin.codegen("all").unwrap();
    let costly_candidate = Candidate::new(CandidateKind::Operator, "costly", single_op_graph("x", "nn.relu", &[2]));
    let estimate = codegen.judge(&costly_candidate).estimate().unwrap();
    assert_eq!((estimate.nanoseconds, estimate.launches, &estimate.further["cycles"]), (Some(1500), None, &json!(9)));
    let region = LinkRegion {
        symbol: "f".into(),
        loader: "everything".into(),
        metadata: serde_json::Map::new(),
        blob: b"blob of f",
    };
    let request = LinkRequest { options: json!({}), regions: vec![region] };
    let response = Linked::parse(&codegen.query(LINK_KEY, &request.to_bytes()).unwrap().unwrap()).unwrap();
    assert_eq!(
        (response.shared.as_deref(), &response.notes[..]),
        (Some(&b"blob"[..]), &["linked in C".to_owned()][..])
    );
    assert!(response.blobs.is_empty());
}

fn load_executable(
    loader: &Arc<dyn Loader>,
    services: &Services,
    symbol: &str,
    constants: &[byoc_plugin_api::Constant],
    graph: &Graph,
) -> Result<Box<dyn Executable>, Error> {
    let blob = graph.to_json();
    loader.load(&LoadRequest { symbol, blob: blob.as_bytes(), constants, options: &json!({}), services })
}

#[test]
fn run_time() {
    let (plugin, test_host, services) = load_everything();
    let loader = plugin.loader("everything").unwrap();
    let (weights, is_dropped) = constant("wé.1", &[4], &[1.0, 2.0, 3.0, 4.0]);
    let graph = single_op_graph("f", "nn.relu", &[4]);
    let executable = load_executable(&loader, &services, "f", std::slice::from_ref(&weights), &graph).unwrap();
    drop(weights);
    assert!(!*is_dropped.lock().unwrap(), "the region has retained the constant");
    let preparation = executable.prepare(&[&[4]]).unwrap();
    assert_eq!(preparation.outputs[..], [OutputDims { dims: vec![4].into(), exact: false }]);
    assert_eq!((preparation.workspace, preparation.plan), (256, 42));

    let (input, mut output, mut dims) = (floats(&[1.0, 1.0, 2.0, 2.0]), vec![0; 16], [4]);
    let mut workspace = AlignedBytes([0; 256]);
    let mut run = |plan| {
        let inputs = [TensorRef::new(DType::F32, &[4], &input)];
        let mut outputs = [TensorMut::new(DType::F32, &mut dims, &mut output)];
        executable.run(Call { inputs: &inputs, outputs: &mut outputs, workspace: &mut workspace.0, plan })
    };
    assert_error(run(41).unwrap_err(), "run", "not as prepared");
    run(42).unwrap();
    assert_eq!((output, dims), (floats(&[1.0, 2.0, 6.0, 8.0]), [3]), "the result has three elements");
    let recording = test_host.recording.lock().unwrap();
    let digest = "[1.0, 2.0, 3.0, 4.0]";
    // The buffer holds three bytes and the NUL; a name is truncated at a character boundary.
    let event = json!({ "digest": digest.len(), "name": ["wé", 5], "calls": 4, "threads": 4 });
    assert_eq!(recording.events, [("ran".to_owned(), event)]);
    assert_eq!(recording.counters["runs"], 2);
    assert_eq!(
        recording.lines,
        [(Level::INFO, "everything".to_owned(), digest[..7].to_owned())],
        "the digest is truncated to the buffer size"
    );
    drop(recording);

    assert_eq!(executable.query("echo", b"y").unwrap().unwrap(), b"y");
    let release_count = |loader: &dyn Loader| loader.query("released", b"").unwrap().unwrap()[0];
    let initial_count = release_count(&*loader);
    drop(executable);
    assert!(*is_dropped.lock().unwrap());
    assert!(release_count(&*loader) > initial_count);
}

#[test]
fn reports_errors_at_run_time() {
    let (plugin, _, services) = load_everything();
    let loader = plugin.loader("everything").unwrap();
    let graph = single_op_graph("f", "nn.relu", &[4]);
    let load = |symbol: &str| load_executable(&loader, &services, symbol, &[], &graph);
    assert_error(load("nothing").err().unwrap(), "load", "expected a call to `loaded`, found none");
    assert_error(load("no_run").err().unwrap(), "load", "loaded: table: expected the function run, found NULL");
    let negative_error = load("negative").unwrap().prepare(&[&[1]]).unwrap_err();
    assert_error(negative_error, "prepare", "output: expected a dimension >= 0, found -3");
    let softmax = single_op_graph("reference", "nn.softmax", &[2]);
    let error = load_executable(&loader, &services, "reference", &[], &softmax).err().unwrap();
    assert_eq!(error.to_string(), "plugin everything: load: host: reference: this host has no nn.softmax");
}

#[test]
fn c_plugin_runs_a_region_with_the_hosts_reference() {
    let (plugin, _, services) = load_everything();
    let loader = plugin.loader("everything").unwrap();
    let (weight, is_dropped) = constant("w", &[2], &[1.0, -9.0]);
    let graph = add_relu("reference", &[2]);
    let executable = load_executable(&loader, &services, "reference", &[weight], &graph).unwrap();
    let preparation = executable.prepare(&[&[2]]).unwrap();
    assert_eq!(preparation.outputs[..], [OutputDims { dims: vec![2].into(), exact: true }]);
    let (input, mut output, mut dims) = (floats(&[1.0, 2.0]), vec![0; 8], [2]);
    let inputs = [TensorRef::new(DType::F32, &[2], &input)];
    let mut outputs = [TensorMut::new(DType::F32, &mut dims, &mut output)];
    executable
        .run(Call { inputs: &inputs, outputs: &mut outputs, workspace: &mut [], plan: preparation.plan })
        .unwrap();
    assert_eq!(output, floats(&[2.0, 0.0]));
    drop(executable);
    assert!(*is_dropped.lock().unwrap(), "releasing the reference frees the constant");
}

/// Builds a library from C or C++ and returns its rejection.
fn build_and_reject(language: &str, code: &str) -> Rejection {
    let dir = tempfile::tempdir().unwrap();
    let library = build(dir.path(), language, code);
    let rejection = host::load(&library, &Services::new(TestHost::default())).expect_err("expected a rejection");
    assert!(!rejection.reason.contains('\n'), "{}", rejection.reason);
    rejection
}

fn build(dir: &Path, language: &str, code: &str) -> PathBuf {
    let (source, library) = (dir.join(format!("a.{language}")), dir.join("a.so"));
    std::fs::write(&source, code).unwrap();
    let include = byoc_test_support::workspace().join("plugin-api/include");
    let compiler = if language == "c" { "cc" } else { "c++" };
    let output = Command::new(compiler)
        .args(["-shared", "-fPIC", "-I"])
        .arg(include)
        .arg(&source)
        .arg("-o")
        .arg(&library)
        .output()
        .expect("failed to run the compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// Returns the source of a plugin whose `byoc_plugin` is initialized with `table`, and whose function `init` has the
/// body `init`.
fn plugin(table: &str, init: &str) -> String {
    format!(
        "#include \"byoc_plugin.h\"
         static int32_t describe(void *self, byoc_call *call) {{ (void)self; (void)call; return BYOC_OK; }}
         static const byoc_codegen NO_COMPILE = {{sizeof NO_COMPILE, describe, NULL, NULL, NULL, NULL}};
         static int32_t init(byoc_call *call, const char *path, const char *options) {{
             (void)path; (void)options; (void)NO_COMPILE; {init}
         }}
         static const byoc_plugin TABLE = {{{table}}};
         const byoc_plugin *byoc_plugin_entry(uint32_t host) {{ (void)host; return &TABLE; }}"
    )
}

#[test]
fn rejects_unusable_c_plugins() {
    let arguments = "BYOC_ABI, sizeof(byoc_plugin), \"mine\", \"1\", init";
    for (code, table, init, reason) in [
        (
            code::VERSION,
            "9, 4, \"mine\", \"1\", init",
            "return 0;",
            "expected version 1 of byoc_plugin.h, found version 9",
        ),
        (
            code::VERSION,
            "0, sizeof(byoc_plugin), \"mine\", \"1\", init",
            "return 0;",
            "expected version 1 of byoc_plugin.h, found version 0",
        ),
        (
            code::LAYOUT,
            "BYOC_ABI, 7, \"mine\", \"1\", init",
            "return 0;",
            "byoc_plugin.struct_size: expected at least 8, found 7",
        ),
        (
            code::INIT,
            "BYOC_ABI, offsetof(byoc_plugin, init), \"mine\", \"1\", init",
            "return 0;",
            "byoc_plugin.init: expected a function, found NULL",
        ),
        (
            code::INIT,
            "BYOC_ABI, sizeof(byoc_plugin), \"mine\", \"1\", NULL",
            "return 0;",
            "byoc_plugin.init: expected a function, found NULL",
        ),
        (
            code::INIT,
            arguments,
            "return 5;",
            "plugin mine: init: expected a call to `fail` before status 5, found none",
        ),
        (
            code::INIT,
            arguments,
            "call->host->fail(call, \"no device\", \"plug it in\"); return BYOC_ERROR;",
            "plugin mine: init: no device",
        ),
        (
            code::INIT,
            arguments,
            "call->host->register_codegen(call, \"mine\", &NO_COMPILE, NULL); return 0;",
            "plugin mine: init: register_codegen: table: expected the function compile, found NULL",
        ),
        (
            code::INIT,
            arguments,
            "call->host->register_loader(call, \"mine\", NULL, NULL); return 0;",
            "plugin mine: init: register_loader: expected a table with a valid struct_size, found NULL or an invalid struct_size",
        ),
        (
            code::BAD_REGISTRATION,
            arguments,
            "call->host->register_data(call, \"a\", \"{}\"); call->host->register_data(call, \"a\", \"{}\"); return 0;",
            "a is registered twice",
        ),
    ] {
        let text = plugin(table, init);
        let unused_function = "static void *unused(void) { return (void *)init; }";
        let rejection = build_and_reject("c", &format!("{text}\n__attribute__((used)) {unused_function}"));
        assert_eq!((rejection.code, rejection.reason.as_str()), (code, reason));
    }
}

/// Tests that a table without strings, or longer than this version's table, is accepted.
#[test]
fn fills_in_what_a_table_lacks() {
    for (table, name, version) in [
        ("BYOC_ABI, sizeof(byoc_plugin), NULL, NULL, init", "a", "0"),
        ("BYOC_ABI, sizeof(byoc_plugin) + 64, \"mine\", \"2\", init", "mine", "2"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let library = build(dir.path(), "c", &plugin(table, "return call == NULL;"));
        let plugin = host::load(&library, &Services::new(TestHost::default())).unwrap();
        assert_eq!((plugin.name.as_str(), plugin.version.as_str()), (name, version), "{table}");
    }
}

/// Tests that the header, the guide and the loader state the same promise, word for word.
#[test]
fn promise_is_the_same_everywhere() {
    let promise = |path: &str| -> String {
        let text = std::fs::read_to_string(byoc_test_support::workspace().join(path)).unwrap();
        let lines = text.lines().map(|line| line.trim_start_matches(['/', '!', '*', ' ', '>']));
        lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ").replace('`', "")
    };
    let header = promise("plugin-api/include/byoc_plugin.h");
    let start = header.find("A host loads every plugin whose BYOC_ABI").unwrap();
    let end = start + header[start..].find("keeps working.").unwrap() + "keeps working.".len();
    for path in ["docs/writing-a-backend.md", "plugin-api/src/host/c/load.rs"] {
        assert!(promise(path).contains(&header[start..end]), "expected {path} to contain: {}", &header[start..end]);
    }
}

#[test]
fn rejects_plugin_for_another_version_only() {
    let text =
        "#include \"byoc_plugin.h\"\nconst byoc_plugin *byoc_plugin_entry(uint32_t host) { (void)host; return NULL; }";
    let rejection = build_and_reject("c", text);
    assert_eq!(rejection.code, code::VERSION);
    assert_eq!(rejection.reason, "byoc_plugin_entry returned NULL for version 1 of byoc_plugin.h");
}

#[test]
fn rejects_cpp_plugin_with_mangled_entry() {
    let rejection = build_and_reject("cpp", "const void *byoc_plugin_entry(unsigned) { return nullptr; }");
    assert_eq!(rejection.code, code::NO_ENTRY);
    let hint = rejection.hint.unwrap();
    assert!(hint.starts_with("include byoc_plugin.h, or declare byoc_plugin_entry as extern \"C\""), "{hint}");
}

#[test]
fn samples_compute() {
    let (plugin, _, services) = load(&byoc_test_support::sample("elementwise"));
    let codegen = plugin.codegen("elementwise").unwrap();
    // add(x, constant), then relu.
    let ty = TensorType::new(DType::F32, &[2, 2]);
    let mut graph = Graph::new("f");
    let (x, c) = (graph.push_input("x", ty.clone()), graph.push_constant(0, ty.clone()));
    let sum = graph.push_op("add", [ValueRef::of(x), ValueRef::of(c)], [], [ty.clone()]);
    let relu = graph.push_op("nn.relu", [ValueRef::of(sum)], [], [ty]);
    // The input is also an output, and the result is an output twice.
    graph.outputs = vec![ValueRef::of(relu), ValueRef::of(x), ValueRef::of(relu)].into();
    let (weight, _) = constant("w", &[2, 2], &[1.0, -1.0, f32::NAN, 0.5]);
    let constants = [weight];
    let compiled_region =
        codegen.compile(&Region { graph: &graph, constants: &constants, options: &json!({}) }).unwrap();
    let loader = plugin.loader(&compiled_region.loader).unwrap();
    let load_blob = |blob: &[u8]| {
        let request =
            LoadRequest { symbol: "f", blob, constants: &constants, options: &json!({}), services: &services };
        loader.load(&request)
    };
    let executable = load_blob(&compiled_region.blob).unwrap();
    let preparation = executable.prepare(&[&[2, 2]]).unwrap();
    let input = floats(&[1.0, -2.0, 3.0, -0.0]);
    let (mut a, mut b, mut c) = (vec![0; 16], vec![0; 16], vec![0; 16]);
    let (mut da, mut db, mut dc) = ([2, 2], [2, 2], [2, 2]);
    let inputs = [TensorRef::new(DType::F32, &[2, 2], &input)];
    let mut outputs = [
        TensorMut::new(DType::F32, &mut da, &mut a),
        TensorMut::new(DType::F32, &mut db, &mut b),
        TensorMut::new(DType::F32, &mut dc, &mut c),
    ];
    let mut workspace = vec![0; preparation.workspace];
    executable
        .run(Call { inputs: &inputs, outputs: &mut outputs, workspace: &mut workspace, plan: preparation.plan })
        .unwrap();
    assert_eq!(a[..8], floats(&[2.0, 0.0]));
    assert!(f32::from_ne_bytes([a[8], a[9], a[10], a[11]]).is_nan(), "expected relu(NaN) to be NaN");
    assert_eq!((b, c), (input, a));

    // A truncated or edited blob is an error, not a crash.
    let blob = &compiled_region.blob;
    for end in 0..blob.len() {
        assert!(load_blob(&blob[..end]).is_err(), "{end} bytes");
    }
    let mut random = Random::new(1);
    for _ in 0..2000 {
        let mut bytes = blob.to_vec();
        let index = random.below(bytes.len());
        bytes[index] = random.bits() as u8;
        if let Ok(executable) = load_blob(&bytes) {
            let _ = executable.prepare(&[&[2, 2]]);
        }
    }
}

/// Generates arbitrary JSON values, including strings with quotation marks, backslashes and multi-byte characters.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |value| value.is_finite()).prop_map(Value::from),
        "[a-z\\\\\"{}\\[\\],:é\n]{0,24}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z\"]{0,9}", inner, 0..4).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

/// Tests that strings arrive without escapes, and that a truncated one ends between characters.
#[test]
fn json_header_replaces_escapes() {
    let (plugin, ..) = load_everything();
    let codegen = plugin.codegen("all").unwrap();
    let read = |name: &str| {
        let text = format!("[{{\"name\": \"{name}\", \"dims\": []}}]");
        let bytes = codegen.query("names and dims", text.as_bytes()).unwrap().unwrap().to_vec();
        let text = String::from_utf8(bytes).unwrap();
        text.strip_suffix(":[];").unwrap_or_else(|| panic!("expected no dimensions, found {text}")).to_owned()
    };
    assert_eq!(read(r#"a\"b\\c\/d\n\t"#), "a\"b\\c/d\n\t");
    assert_eq!(read(r"\u0041\u00e9\u6f22\ud83d\ude00"), "Aé漢😀");
    // Half of a pair, and what is no escape.
    assert_eq!(read(r"\ud83dx \ude00 \ud83d\u0041"), "\u{fffd}x \u{fffd} \u{fffd}A");
    // The buffer has 32 bytes: 31 of the text, and 30 if the last character has two.
    assert_eq!(read(&"b".repeat(40)), "b".repeat(31));
    assert_eq!(read(&r"\u00e9".repeat(20)), "é".repeat(15));
    assert_eq!(read(&"é".repeat(20)), "é".repeat(15));
}

proptest! {
    /// Tests that `byoc_json.h` finds the fields of objects in a list, regardless of unrelated fields and whitespace.
    #[test]
    fn json_header_reads_fields(
        objects in prop::collection::vec(
            (prop::collection::vec((".{0,6}", any_json()), 0..4), "[a-z \"/\\\\\u{1}\u{8}\u{c}\n\r\té漢😀]{0,6}", prop::collection::vec(any::<i64>(), 0..6), any::<bool>()),
            0..4,
        ),
        pretty in any::<bool>(),
    ) {
        let mut expected = String::new();
        let mut list = Vec::new();
        for (other_fields, name, dims, name_first) in &objects {
            let mut object = serde_json::Map::new();
            let is_read = |key: &str| matches!(key, "name" | "dims");
            let other_fields = other_fields.iter().filter(|(key, _)| !is_read(key));
            let (leading, trailing): (Vec<_>, Vec<_>) = other_fields.enumerate().partition(|(i, _)| i % 2 == 0);
            object.extend(leading.into_iter().map(|(_, (key, value))| (key.clone(), value.clone())));
            let mut fields = vec![("name", Value::from(name.as_str())), ("dims", Value::from(dims.clone()))];
            if !name_first {
                fields.reverse();
            }
            object.extend(fields.into_iter().map(|(key, value)| (key.to_owned(), value)));
            object.extend(trailing.into_iter().map(|(_, (key, value))| (key.clone(), value.clone())));
            list.push(Value::from(object));
            expected += &format!("{name}:{dims:?};");
        }
        let text = if pretty { serde_json::to_string_pretty(&list) } else { serde_json::to_string(&list) }.unwrap();
        let (plugin, ..) = load_everything();
        let codegen = plugin.codegen("all").unwrap();
        let read = |key: &str, text: &[u8]| {
            String::from_utf8_lossy(&codegen.query(key, text).unwrap().unwrap()).into_owned()
        };
        for key in ["names and dims", "names and dims in one pass"] {
            prop_assert_eq!(read(key, text.as_bytes()), expected.as_str(), "{}", key);
            for end in (0..text.len()).step_by(7) {
                prop_assert_eq!(read(key, &text.as_bytes()[..end]), "");
            }
        }
        // Given truncated or corrupt text that was not validated, the reader returns the objects before the corruption
        // and terminates.
        for end in (0..text.len()).step_by(7) {
            let prefix = &text.as_bytes()[..end];
            let object_text = read("names and dims of anything", prefix);
            let object_text = object_text.rsplit_once(';').and_then(|(objects, _)| objects.rsplit_once(';')).map_or("", |(objects, _)| objects);
            prop_assert!(expected.starts_with(object_text), "expected a prefix of {:?}, found {:?}", expected, object_text);
            let mut damaged_text = text.clone().into_bytes();
            damaged_text[end] = b"[]{},:\"\\0"[end % 9];
            read("names and dims of anything", &damaged_text);
        }
    }
}
