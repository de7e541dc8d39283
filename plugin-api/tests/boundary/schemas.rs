//! Tests that the published JSON schemas match the JSON that is written and read.

use crate::common::add_relu;
use byoc_plugin_api::declare::{DeclaredAttribute, DeclaredInput, DeclaredOutput, OnnxName, OperatorDeclaration};
use byoc_plugin_api::{
    Attr, BackendOption, ComputeFormat, Cost, DType, Description, Dim, Graph, PrecisionClaim, Quantization, Signature,
    TensorType, host,
};
use byoc_test_support::schema::{check, schema};
use serde_json::{Value, json};

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn graphs_match_their_schema() {
    let schema = schema("graph");
    let mut graph = add_relu("f", &[2, 3]);
    graph.attrs.push(Attr::new("scale", f64::NAN));
    graph.attrs.push(Attr::new("list", vec![1i64, 2]));
    for dims in [vec![Dim::Unknown("".into()), Dim::Unknown("n".into())], vec![]] {
        graph.inputs[0].ty.dims = dims.into();
        graph.nodes[0].outputs[0] = graph.inputs[0].ty.clone();
        check(&schema, &value(&graph.to_json())).unwrap();
    }
    // The schema and the reader reject the same invalid documents.
    let document = value(&graph.to_json());
    for (pointer, invalid) in [
        ("/version", json!(2)),
        ("/outputs", json!([])),
        ("/outputs/0", json!([0])),
        ("/nodes/0", json!({})),
        ("/nodes/0/outputs/0/dtype", json!("float33")),
        ("/nodes/0/outputs/0/dims", json!([-1])),
        ("/attrs/scale", json!({"float": "many"})),
    ] {
        let mut changed_document = document.clone();
        *changed_document.pointer_mut(pointer).unwrap() = invalid;
        check(&schema, &changed_document).expect_err(pointer);
        Graph::from_json(&changed_document.to_string()).expect_err(pointer);
    }
}

/// Returns a declaration with every field.
fn declaration() -> OperatorDeclaration {
    let dims = vec!["...".to_owned(), "c".to_owned()];
    OperatorDeclaration {
        name: "vendor.swish".into(),
        about: "x * sigmoid(beta * x)".into(),
        onnx: Some(OnnxName { domain: "com.vendor".into(), name: "Swish".into(), version: 1 }),
        inputs: vec![DeclaredInput { name: "data".into(), dtypes: vec!["float32".into()], dims: Some(dims.clone()) }],
        outputs: vec![DeclaredOutput { dtype: "data".into(), dims }],
        attributes: vec![DeclaredAttribute {
            name: "beta".into(),
            kind: "float".into(),
            default: json!(1.0),
            about: "steepness".into(),
        }],
        ulps: Some(8.0),
        decomposition: Some("multiply(%data, sigmoid(multiply(%data, $beta)))".into()),
        sizes: [("c".to_owned(), vec![4])].into(),
    }
}

#[test]
fn descriptions_match_their_schema() {
    let schema = schema("description");
    let precision = [("true".to_owned(), ComputeFormat::F16)].into();
    let half = BackendOption { load: true, run: true, precision, ..BackendOption::default() };
    let description = Description {
        operators: vec!["nn.relu".into()],
        cost: Cost { min_region_flops: 3, min_region_operators: 1 },
        layouts: [("nn.conv2d".to_owned(), vec!["NHWC".to_owned()])].into(),
        quantization: Some(Quantization::default()),
        max_blob_bytes: Some(1),
        finite_math: true,
        flush_to_zero: true,
        device_memory: true,
        per_device: true,
        control_flow: true,
        loops: true,
        whole_graph: true,
        precision: [("nn.relu".to_owned(), PrecisionClaim::ulps(ComputeFormat::Bf16, 2.0))].into(),
        options: [("half".to_owned(), half)].into(),
        declares: vec![declaration().to_json()],
        ..Description::default()
    };
    let complete_document = value(&description.to_json());
    check(&schema, &complete_document).unwrap();
    check(&schema, &value(&Description::default().to_json())).unwrap();
    // The serialized description and the schema have the same fields.
    let field_names: Vec<&String> = complete_document.as_object().unwrap().keys().collect();
    let mut schema_fields: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    schema_fields.retain(|key| !field_names.contains(key));
    assert!(
        schema_fields.is_empty(),
        "expected the schema to list only fields that are written, found {schema_fields:?}"
    );
    assert!(field_names.iter().all(|key| schema["properties"].get(key.as_str()).is_some()), "{field_names:?}");
    check(&schema, &json!({"operators": "nn.relu"})).unwrap_err();
    check(&schema, &json!({"declares": [{"inputs": []}]})).unwrap_err();
}

#[test]
fn header_refers_to_existing_schemas() {
    for name in ["graph", "description", "options"] {
        assert!(host::C_HEADER.contains(&format!("{name}.json")), "{name}");
        check(&schema(name), &json!({})).unwrap_or_else(|_| assert_eq!(name, "graph"));
    }
    check(&schema("options"), &json!({"cache_dir": null, "cpu_features": ["avx2"], "threads": 2})).unwrap();
    check(&schema("options"), &json!({"backend_options": {"half": "true"}, "device": "1"})).unwrap();
    let signature = Signature { inputs: vec![TensorType::new(DType::F32, &[2, 3])], outputs: vec![] };
    check(&schema("options"), &json!({"region": signature.to_json()})).unwrap();
    check(&schema("options"), &json!({"region": {"inputs": [{"dtype": "int8"}], "outputs": []}})).unwrap_err();
    check(&schema("options"), &json!({"region": {"inputs": [], "outputs": [], "shared": 3}})).unwrap();
    check(&schema("options"), &json!({"region": {"inputs": [], "outputs": [], "shared": -1}})).unwrap_err();
    check(&schema("options"), &json!({"backend_options": {"half": true}})).unwrap_err();
}
