//! Tests of a plugin that panics in each entry: the error contains the plugin, the entry, the file and the message, and
//! the process continues.

use crate::common::{TestHost, single_op_graph};
use byoc_plugin_api::{
    Call, Candidate, CandidateKind, DType, Error, LoadRequest, Region, Services, TensorMut, TensorRef, host,
};
use serde_json::json;

fn plugin() -> (host::LoadedPlugin, Services) {
    let services = Services::new(TestHost::default());
    (host::load(&byoc_test_support::test_plugin("entry_panics"), &services).unwrap(), services)
}

#[track_caller]
fn check(error: Error, entry: &str, message: &str) {
    assert!(error.panicked);
    assert_eq!((error.plugin.as_str(), error.entry.as_str(), error.message.as_str()), ("entry_panics", entry, message));
    assert!(error.location.starts_with("tests/plugins/examples/entry_panics.rs:"), "{}", error.location);
    let text = error.to_string();
    assert!(text.starts_with(&format!("plugin entry_panics: {entry}: panicked at tests/plugins/")), "{text}");
}

#[test]
fn reports_panics_at_compile_time() {
    let codegen = plugin().0.codegen("entry_panics").unwrap();
    check(codegen.describe().unwrap_err(), "describe", "deliberate panic in describe");
    let candidate = Candidate::new(CandidateKind::Operator, "nn.relu", single_op_graph("x", "nn.relu", &[1]));
    check(codegen.judge_batch(&[candidate]).unwrap_err(), "judge", "deliberate panic in judge of nn.relu");
    let graph = single_op_graph("compile", "nn.relu", &[1]);
    let region = Region { graph: &graph, constants: &[], options: &json!({}) };
    check(codegen.compile(&region).unwrap_err(), "compile", "deliberate panic in compile");
    check(codegen.query("panic", b"").unwrap_err(), "query", "deliberate panic in query");
    assert_eq!(codegen.query("other", b"").unwrap(), None);
}

#[test]
fn reports_panics_at_run_time() {
    let (plugin, services) = plugin();
    let loader = plugin.loader("entry_panics").unwrap();
    let load = |symbol| {
        loader.load(&LoadRequest { symbol, blob: b"", constants: &[], options: &json!({}), services: &services })
    };
    check(load("load").err().unwrap(), "load", "deliberate panic in load");
    check(load("prepare").unwrap().prepare(&[&[1]]).unwrap_err(), "prepare", "deliberate panic in prepare");
    for (symbol, message) in [("run", "deliberate panic in run"), ("task", "deliberate panic in task 3")] {
        let executable = load(symbol).unwrap();
        let mut dims = [4];
        let inputs = [TensorRef::new(DType::I8, &[4], &[1, 2, 3, 4])];
        let mut memory = [0; 4];
        let mut outputs = [TensorMut::new(DType::I8, &mut dims, &mut memory)];
        let call = Call { inputs: &inputs, outputs: &mut outputs, workspace: &mut [], plan: 0 };
        check(executable.run(call).unwrap_err(), "run", message);
    }
}

#[test]
fn catches_panic_in_destructor() {
    let (plugin, services) = plugin();
    let loader = plugin.loader("entry_panics").unwrap();
    let request = LoadRequest { symbol: "drop", blob: b"", constants: &[], options: &json!({}), services: &services };
    drop(loader.load(&request).unwrap());
}
