//! Tests of inference over JSON.

use crate::client::input;
use crate::models::{TYPES, serve, serve_repository};
use serde_json::{Value, json};

#[test]
fn responses_have_the_protocol_fields() {
    let server = serve(&["sums"], &[]);
    let mut client = server.client();
    let inputs = json!([
        input("c", &[1, 2], &[100.0, 200.0]),
        input("a", &[1, 2], &[1.0, 2.0]),
        input("b", &[1, 2], &[3.0, 4.0])
    ]);
    // Unknown keys are ignored; KServe's client sends the model name.
    let reply = client.infer("sums", &json!({"id": "42", "model_name": "sums", "inputs": inputs})).ok();
    assert_eq!(reply.headers["content-type"], "application/json");
    assert!(!reply.headers.contains_key("inference-header-content-length"));
    let expected = json!({
        "id": "42", "model_name": "sums", "model_version": "1",
        "outputs": [
            {"name": "output_0", "datatype": "FP32", "shape": [1, 2], "data": [104.0, 206.0]},
            {"name": "output_1", "datatype": "FP32", "shape": [1, 2], "data": [3.0, 8.0]},
        ],
    });
    assert_eq!(String::from_utf8(reply.body).unwrap(), expected.to_string());
    let single_response = client
        .post("/v2/models/sums/versions/1/infer", &json!({"inputs": inputs, "outputs": [{"name": "output_1"}]}))
        .ok();
    let single_response = single_response.json();
    assert!(single_response.get("id").is_none());
    assert_eq!(single_response["outputs"].as_array().unwrap().len(), 1);
    assert_eq!(single_response["outputs"][0]["data"], json!([3.0, 8.0]));
}

#[test]
fn every_datatype_returns() {
    let names: Vec<String> = TYPES.iter().map(|row| format!("copy_{}", row.0)).collect();
    let server = serve(&names.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let mut client = server.client();
    for (datatype, _, size) in TYPES {
        let model = format!("copy_{datatype}");
        let binary: Vec<u8> = (0..4 * size).map(|i| if datatype == "BOOL" { i as u8 % 2 } else { i as u8 }).collect();
        let request = json!({
            "inputs": [{"name": "x", "datatype": datatype, "shape": [2, 2], "parameters": {"binary_data_size": 4 * size}}],
            "parameters": {"binary_data_output": true},
        });
        let reply = client.infer_binary(&model, &request, &binary).ok();
        let header: usize = reply.headers["inference-header-content-length"].parse().unwrap();
        let (json_part, data) = reply.body.split_at(header);
        let fields: Value = serde_json::from_slice(json_part).unwrap();
        assert_eq!(fields["outputs"][0]["datatype"], datatype);
        assert_eq!(fields["outputs"][0]["parameters"]["binary_data_size"], 8 * size);
        let row = 2 * size;
        assert_eq!(data, [&binary[..row], &binary[..row], &binary[row..], &binary[row..]].concat(), "{datatype}");
        let values = match datatype {
            "BOOL" => json!([true, false]),
            "FP32" | "FP64" => json!([1.5, -2.0]),
            name if name.starts_with('U') => json!([1, 2]),
            _ => json!([-1, 2]),
        };
        let request = json!({"inputs": [{"name": "x", "datatype": datatype, "shape": [1, 2], "data": values}]});
        let reply = client.infer(&model, &request);
        if ["FP16", "BF16"].contains(&datatype) {
            assert!(reply.error(400).contains("has no JSON representation"));
            let request = json!({"inputs": [{"name": "x", "datatype": datatype, "shape": [1, 2], "parameters": {"binary_data_size": 4}}]});
            assert!(client.infer_binary(&model, &request, &[0; 4]).error(400).contains("has no JSON representation"));
            continue;
        }
        let doubled_values = [values.as_array().unwrap().clone(), values.as_array().unwrap().clone()].concat();
        assert_eq!(reply.ok().json()["outputs"][0]["data"], Value::from(doubled_values), "{datatype}");
    }
    // A byte other than 0 and 1 is not a Boolean.
    let request =
        json!({"inputs": [{"name": "x", "datatype": "BOOL", "shape": [1, 2], "parameters": {"binary_data_size": 2}}]});
    assert!(client.infer_binary("copy_BOOL", &request, &[0, 2]).error(400).contains("of 0 or 1, found 2"));
    // 64-bit integers that are not exactly representable as a double.
    let request = json!({"inputs": [{"name": "x", "datatype": "UINT64", "shape": [1, 2], "data": [u64::MAX, 9_007_199_254_740_993u64]}]});
    let data = client.infer("copy_UINT64", &request).ok().json()["outputs"][0]["data"].clone();
    assert_eq!(data[0], json!(u64::MAX));
    assert_eq!(data[1], json!(9_007_199_254_740_993u64));
}

#[test]
fn tokens_for_nan_and_infinity() {
    let server = serve(&["copy_FP32"], &[]);
    let mut client = server.client();
    let body = br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[NaN,-Infinity]}]}"#;
    let reply = client.request("POST", "/v2/models/copy_FP32/infer", &[], body).ok();
    assert!(String::from_utf8(reply.body).unwrap().ends_with("\"data\":[NaN,-Infinity,NaN,-Infinity]}]}"));
}

#[test]
fn zero_elements_and_scalars() {
    let server = serve(&["relu", "scalar"], &[]);
    let mut client = server.client();
    let reply = client.infer("relu", &json!({"inputs": [input("x", &[0, 4], &[])]})).ok().json();
    assert_eq!((&reply["outputs"][0]["shape"], &reply["outputs"][0]["data"]), (&json!([0, 4]), &json!([])));
    let empty_request = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [0, 4], "parameters": {"binary_data_size": 0}}],
                       "parameters": {"binary_data_output": true}});
    let reply = client.infer_binary("relu", &empty_request, &[]).ok();
    assert_eq!(reply.headers["inference-header-content-length"], reply.body.len().to_string());
    let reply =
        client.infer("scalar", &json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [], "data": [2]}]})).ok();
    assert_eq!(reply.json()["outputs"][0], json!({"name": "output_0", "datatype": "FP32", "shape": [], "data": [3.0]}));
}

#[test]
fn wrong_requests_get_a_status_a_code_and_a_reason() {
    let server = serve(&["relu", "sums", "picked", "fixed"], &[]);
    let mut client = server.client();
    let x = |shape: &[i64], count: usize| json!({"name": "x", "datatype": "FP32", "shape": shape, "data": vec![0.5; count]});
    let typed_request = |datatype: &str| json!({"inputs": [{"name": "x", "datatype": datatype, "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    let [a, b] = ["a", "b"].map(|name| input(name, &[1, 2], &[0.0; 2]));
    let cases: Vec<(&str, Value, &str)> = vec![
        (
            "relu",
            json!({"inputs": [x(&[1, 5], 5)]}),
            "unexpected shape for input 'x' for model 'relu'. Expected [-1,4], got [1,5]. NOTE",
        ),
        (
            "fixed",
            json!({"inputs": [x(&[2, 3], 6)]}),
            "unexpected shape for input 'x' for model 'fixed'. Expected [1,3], got [2,3].",
        ),
        ("relu", json!({"inputs": [x(&[4], 4)]}), "unexpected shape"),
        (
            "relu",
            json!({"inputs": [x(&[-1, -4], 4)]}),
            "unexpected shape for input 'x' for model 'relu'. Expected [-1,4], got [-1,-4]",
        ),
        ("relu", json!({"inputs": [x(&[1, 4], 3)]}), "expected 4 elements for shape [1, 4]"),
        ("relu", json!({"inputs": [x(&[5, 4], 20)]}), "inference request batch-size must be <= 4 for 'relu', found 5"),
        ("relu", json!({"inputs": [x(&[i64::MAX, i64::MAX], 1)]}), "2^63 or more"),
        ("relu", typed_request("FP64"), "inference input 'x' data-type is 'FP64', but model 'relu' expects 'FP32'"),
        ("relu", typed_request("float32"), "expected a datatype such as FP32, found \"float32\""),
        ("relu", typed_request("BYTES"), "expected elements of datatype BYTES, found 1"),
        (
            "relu",
            json!({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, 4], "data": ["", "a", "\u{0}", "ü"]}]}),
            "data-type is 'BYTES'",
        ),
        (
            "relu",
            json!({"inputs": [input("y", &[1, 4], &[0.0; 4])]}),
            "unexpected inference input 'y' for model 'relu': missing required input(s) ['x']",
        ),
        (
            "sums",
            json!({"inputs": [a, b]}),
            "expected 3 inputs but got 2 inputs for model 'sums'. Got input(s) ['a','b'], but missing required input(s) ['c'].",
        ),
        ("relu", json!({"inputs": [x(&[1, 4], 4), x(&[1, 4], 4)]}), "expected each input once, found 'x' twice"),
        (
            "relu",
            json!({"inputs": [x(&[1, 4], 4)], "outputs": [{"name": "z"}]}),
            "unexpected inference output 'z' for model 'relu'",
        ),
        (
            "relu",
            json!({"inputs": [x(&[1, 4], 4)], "outputs": [{"name": "output_0"}, {"name": "output_0"}]}),
            "'output_0' twice",
        ),
        ("sums", json!({"inputs": [a, b, input("c", &[2, 2], &[0.0; 4])]}), "batch size does not match"),
        ("relu", json!({"inputs": [x(&[1, 4], 4)], "parameters": {"triton_x": 1}}), "'triton_'"),
        (
            "relu",
            json!({"inputs": [x(&[1, 4], 4)], "parameters": {"priority": "high"}}),
            "'priority': expected an integer >= 0, found \"high\"",
        ),
        (
            "relu",
            json!({"inputs": [x(&[1, 4], 4)], "parameters": {"timeout": -1}}),
            "'timeout': expected an integer >= 0, found -1",
        ),
        (
            "relu",
            json!({"inputs": [x(&[1, 4], 4)], "parameters": {"binary_data_output": 1}}),
            "'binary_data_output': expected true or false, found 1",
        ),
        (
            "relu",
            json!({"inputs": [x(&[1, 4], 4)], "outputs": [{"name": "output_0", "parameters": {"classification": -1}}]}),
            "'classification'",
        ),
        ("relu", json!({"inputs": {}}), "failed to parse the request JSON buffer"),
        ("relu", json!([]), "failed to parse the request JSON buffer"),
        (
            "picked",
            json!({"inputs": [input("table", &[3, 2], &[0.0; 6]), {"name": "index", "datatype": "INT64", "shape": [2], "data": [0, 1e3]}]}),
            "expected elements of datatype INT64, found 1000",
        ),
    ];
    for (model, request, expected) in cases {
        let message = client.infer(model, &request).error(400);
        assert!(message.contains(expected), "{request}\nexpected {expected}\nfound {message}");
    }
    let request = json!({"id": "r7", "inputs": [x(&[1, 5], 5)]});
    assert!(client.infer("relu", &request).error(400).starts_with("[request id: r7] unexpected shape"));
    for (name, value) in [
        ("sequence_id", json!(3)),
        ("sequence_id", json!("s")),
        ("sequence_start", json!(true)),
        ("sequence_end", json!(true)),
    ] {
        let message = client.infer("relu", &json!({"inputs": [x(&[1, 4], 4)], "parameters": {name: value}})).error(501);
        assert!(message.contains(name), "{message}");
    }
    // Default values of parameters are accepted.
    let zero_parameters = json!({"sequence_id": 0, "sequence_start": false, "sequence_end": false, "priority": 0, "timeout": 0, "mine": "x"});
    client.infer("relu", &json!({"inputs": [x(&[1, 4], 4)], "parameters": zero_parameters})).ok();
    client.infer("relu", &json!({"inputs": [x(&[1, 4], 4)], "outputs": []})).ok();
}

#[test]
fn classification_returns_the_largest_values() {
    let server = serve(&["copy_FP32"], &[]);
    let mut client = server.client();
    let request = json!({
        "inputs": [input("x", &[2, 2], &[1.0, 3.0, 9.0, -4.0])],
        "outputs": [{"name": "output_0", "parameters": {"classification": 2}}],
    });
    let reply = client.infer("copy_FP32", &request).ok().json();
    let expected = json!({"name": "output_0", "datatype": "BYTES", "shape": [2, 2],
                          "data": ["3.000000:1", "3.000000:3", "9.000000:0", "9.000000:2"]});
    assert_eq!(reply["outputs"][0], expected);
}

#[test]
fn inputs_with_a_default_value_may_be_given() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("affine/1");
    std::fs::create_dir_all(&folder).unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/operators/reads_overridden_initializer/model.onnx");
    std::fs::copy(model, folder.join("model.onnx")).unwrap();
    let server = serve_repository(dir, &[]);
    let mut client = server.client();
    let metadata = client.get("/v2/models/affine").ok().json();
    assert_eq!(metadata["inputs"].as_array().unwrap().len(), 1);
    // The weights are the identity, and the bias is zero.
    let x = input("x", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let mut infer = |inputs: Value| client.infer("affine", &json!({ "inputs": inputs }));
    let data = |reply: Value| reply["outputs"][0]["data"].clone();
    assert_eq!(data(infer(json!([x])).ok().json()), json!([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let bias = input("b", &[3], &[10.0, 20.0, 30.0]);
    assert_eq!(data(infer(json!([bias, x])).ok().json()), json!([11.0, 22.0, 33.0, 14.0, 25.0, 36.0]));
    assert_eq!(data(infer(json!([x])).ok().json()), json!([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let message = infer(json!([x, {"name": "b", "datatype": "INT64", "shape": [3], "data": [1, 2, 3]}])).error(400);
    assert!(message.contains("'b' data-type is 'INT64'"), "{message}");
    let message = infer(json!([x, input("b", &[4], &[0.0; 4])])).error(400);
    assert!(message.contains("unexpected shape for input 'b'"), "{message}");
    assert!(infer(json!([bias])).error(400).contains("missing required input(s)"));
}
