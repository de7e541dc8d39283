//! Blob round trips, rejection of invalid blobs, and refusals.

use super::library;
use crate::backend::{Dnnl, JsonLoader};
use crate::blob;
use byoc_plugin_api::*;
use byoc_test_support::plugin;
use serde_json::json;

fn constant(shape: &[usize]) -> Constant {
    plugin::floats(shape, &vec![0.5; shape.iter().product()])
}

/// Returns a dense layer with a ReLU, in a composite: input (2, 3), weight (4, 3).
fn layer() -> (Graph, Vec<Constant>) {
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let mut body = Graph::new("dnnl.dense_relu");
    let x = body.push_input("x", ty(&[2, 3]));
    let w = body.push_constant(0, ty(&[4, 3]));
    let dense = body.push_op("nn.dense", [ValueRef::of(x), ValueRef::of(w)], [], [ty(&[2, 4])]);
    let relu = body.push_op("nn.relu", [ValueRef::of(dense)], [], [ty(&[2, 4])]);
    body.outputs.push(ValueRef::of(relu));
    let mut graph = Graph::new("region_0");
    let x = graph.push_input("x", ty(&[2, 3]));
    let composite = graph.push(Node::composite("dnnl.dense_relu", body, [ValueRef::of(x)]));
    graph.outputs.push(ValueRef::of(composite));
    (graph, vec![constant(&[4, 3])])
}

#[test]
fn blob_round_trips() {
    let (graph, constants) = layer();
    let text = blob::write(&graph);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((json["version"].as_i64(), json["nodes"][1]["composite"].as_str()), (Some(1), Some("dnnl.dense_relu")));
    let read = blob::read(text.as_bytes(), &constants).unwrap();
    assert_eq!((read.nodes, read.inputs, read.outputs), (graph.nodes, graph.inputs, graph.outputs));
    assert_eq!(blob::write(&layer().0), text, "expected equal bytes from two serializations");
}

#[test]
fn rejects_invalid_blobs() {
    let (graph, constants) = layer();
    let text = blob::write(&graph);
    let assert_rejected = |bytes: &[u8], constants: &[Constant], expected: &str| {
        let error = blob::read(bytes, constants).expect_err(expected);
        assert!(error.message.contains(expected), "expected {expected:?}, found {error}");
    };
    for end in 0..text.len() {
        assert!(
            blob::read(&text.as_bytes()[..end], &constants).is_err(),
            "expected an error for the first {end} of {} bytes",
            text.len()
        );
    }
    let graph_version = "expected a graph of version 1, found 2";
    assert_rejected(text.replace("\"version\":1", "\"version\":2").as_bytes(), &constants, graph_version);
    assert_rejected(
        text.replace("\"dnnl_json\":1", "\"dnnl_json\":7").as_bytes(),
        &constants,
        "expected format 1, found 7",
    );
    assert_rejected(text.replace("nn.relu", "tanh").as_bytes(), &constants, "digest mismatch");
    assert_rejected(text.replace("[4,3]", "[8,3]").as_bytes(), &constants, "digest mismatch");
    assert_rejected(graph.to_json().as_bytes(), &constants, "missing attribute \"dnnl_json\"");
    assert_rejected(&[0xff, 0xfe], &constants, "invalid dnnl graph");
    assert_rejected(text.as_bytes(), &[], "constants supplied: 0");
    assert_rejected(text.as_bytes(), &[constant(&[3, 4])], "found Tensor[(3, 4), float32]");
}

#[test]
fn rejects_blob_of_another_region() {
    if library().is_none() {
        return;
    }
    let (graph, constants) = layer();
    let services = plugin::services(1);
    let region = Region { graph: &graph, constants: &constants, options: &json!({}) };
    let compiled_region = Dnnl.compile(&region).unwrap();
    let load = |symbol: &str| {
        let request = LoadRequest {
            symbol,
            blob: &compiled_region.blob,
            constants: &constants,
            options: &json!({}),
            services: &services,
        };
        JsonLoader.load(&request).map(|_| ())
    };
    load("region_0").unwrap();
    assert!(load("region_1").unwrap_err().message.contains("expected the graph of region region_1"));
}

#[test]
fn refuses_unsupported_operators_with_reason() {
    let candidate = |name: &str, dtype: DType| {
        let ty = TensorType::new(dtype, &[2, 3]);
        let mut graph = Graph::new(name);
        let x = graph.push_input("x", ty.clone());
        let y = graph.push_op(name, [ValueRef::of(x)], [], [ty]);
        graph.outputs.push(ValueRef::of(y));
        Candidate::new(CandidateKind::Operator, name, graph)
    };
    if library().is_none() {
        // Without the library, candidates are refused as unavailable, with the installation command as the hint.
        let Verdict::Refused(refusal) = Dnnl.judge(&candidate("nn.relu", DType::F32)) else {
            panic!("expected a refusal, found support")
        };
        assert_eq!(refusal.code.as_str(), "Unavailable");
        assert!(refusal.hint.contains("onednn-cpu-gomp==2023.2.0"), "{}", refusal.hint);
        return;
    }
    let refusal = |candidate: &Candidate| match Dnnl.judge(candidate) {
        Verdict::Supported => panic!("expected a refusal, found support"),
        Verdict::Refused(refusal) => (refusal.code.to_string(), refusal.detail.to_string()),
    };
    assert_eq!(Dnnl.judge(&candidate("nn.relu", DType::F32)), Verdict::Supported);
    let (code, detail) = refusal(&candidate("nn.relu", DType::I64));
    assert_eq!(
        (code.as_str(), detail.as_str()),
        ("UnsupportedDtype", "nn.relu: output 0: expected float32, found int64")
    );
    let (code, detail) = refusal(&candidate("erf", DType::F32));
    assert_eq!((code.as_str(), detail.as_str()), ("UnsupportedOp", "erf: supported only as part of GELU"));
    let (code, _) = refusal(&candidate("sin", DType::F32));
    assert_eq!(code, "UnsupportedOp");
}

/// Tests that operators for which the library has only slow code are left to others unless they are small, and that a
/// loop's results are not collected in the region of its body.
#[test]
fn refuses_unprofitable_operators_with_reason() {
    if library().is_none() {
        return;
    }
    let judge = |name: &str, types: [TensorType; 2], result: TensorType, attrs: &[Attr]| {
        let mut graph = Graph::new(name);
        let inputs = types.map(|ty| ValueRef::of(graph.push_input("x", ty)));
        let y = graph.push_op(name, inputs, attrs.iter().cloned(), [result]);
        graph.outputs.push(ValueRef::of(y));
        match Dnnl.judge(&Candidate::new(CandidateKind::Operator, name, graph)) {
            Verdict::Supported => String::new(),
            Verdict::Refused(refusal) => format!("{}: {}", refusal.code, refusal.detail),
        }
    };
    let add = |size: usize| {
        let [full, broadcast] = [[size; 4], [1, size, 1, size]].map(|shape| TensorType::new(DType::F32, &shape));
        judge("add", [full.clone(), broadcast], full, &[])
    };
    assert_eq!(add(4), "");
    assert_eq!(add(32), "NotProfitable: binary: oneDNN has only slow code for these dimensions and layouts: ref:any");
    let append = |open_axis: usize| {
        let ty = |open: bool| {
            let mut dims = vec![Dim::Known(4), Dim::Known(4)];
            if open {
                dims[open_axis] = Dim::Unknown("n".into());
            }
            TensorType { dtype: DType::F32, dims: dims.into() }
        };
        judge("concatenate", [ty(true), ty(false)], ty(true), &[Attr::new("axis", open_axis as i64)])
    };
    assert!(append(0).starts_with("NotProfitable: concatenate: the outermost dimension"), "{}", append(0));
    assert_eq!(append(1), "");
}
