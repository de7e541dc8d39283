//! Tests of tensors of strings, and of other values than tensors, over JSON, binary data and gRPC.

use crate::client::{call, input};
use crate::grpc::{request, tensor};
use crate::models::{RunningServer, serve_repository};
use byoc_serve::proto::{InferTensorContents, ModelInferResponse};
use bytes::Bytes;
use serde_json::{Value, json};

/// Serves models of the workspace's test data, each by its path and with its name.
fn serve_models(models: &[(&str, &str)]) -> RunningServer {
    let dir = tempfile::tempdir().unwrap();
    for (path, name) in models {
        let folder = dir.path().join(name).join("1");
        std::fs::create_dir_all(&folder).unwrap();
        let model = format!("{}/../../tests/{path}/model.onnx", env!("CARGO_MANIFEST_DIR"));
        std::fs::copy(model, folder.join("model.onnx")).unwrap();
    }
    serve_repository(dir, &[])
}

fn strings(shape: &[usize], data: &[&str]) -> Value {
    json!({"name": "x", "datatype": "BYTES", "shape": shape, "data": data})
}

#[test]
fn strings_are_bytes() {
    let server = serve_models(&[("operators/string_concat_axis", "joined")]);
    let mut client = server.client();
    let metadata = client.get("/v2/models/joined").ok().json();
    assert_eq!(metadata["inputs"], json!([{"name": "x", "datatype": "BYTES", "shape": [-1, 3]}]));
    assert_eq!(metadata["outputs"][0]["datatype"], "BYTES");

    let request_body = json!({"inputs": [strings(&[2, 3], &["a", "", "ü", "b", "c", "d"])]});
    let reply = client.infer("joined", &request_body).ok().json();
    let expected = json!({"name": "y", "datatype": "BYTES", "shape": [3, 3],
                          "data": ["a", "", "ü", "b", "c", "d", "u", "v", "w"]});
    assert_eq!(reply["outputs"][0], expected);

    let data = b"\x01\0\0\0a\0\0\0\0\x02\0\0\0\xc3\xbc";
    let body = json!({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, 3],
                                  "parameters": {"binary_data_size": data.len()}}],
                      "outputs": [{"name": "y", "parameters": {"binary_data": true}}]});
    let reply = client.infer_binary("joined", &body, data).ok();
    assert!(reply.body.ends_with(&[&data[..], b"\x01\0\0\0u\x01\0\0\0v\x01\0\0\0w"].concat()));

    let mut x = tensor("x", "BYTES", &[1, 3]);
    let bytes_contents = ["a", "b", "c"].map(|text| Bytes::from_static(text.as_bytes())).to_vec();
    x.contents = Some(InferTensorContents { bytes_contents, ..InferTensorContents::default() });
    let reply: ModelInferResponse = call(server.grpc, "ModelInfer", &request("joined", vec![x], vec![])).unwrap();
    let texts = "abcuvw".chars().flat_map(|c| [1, 0, 0, 0, c as u8]).collect::<Vec<u8>>();
    assert_eq!(reply.raw_output_contents, [Bytes::from(texts)]);

    let mut error = |inputs: Value| client.infer("joined", &json!({ "inputs": inputs })).error(400);
    assert!(error(json!([input("x", &[1, 3], &[1.0; 3])])).contains("'x' data-type is 'FP32'"));
    let numbers = json!([{"name": "x", "datatype": "BYTES", "shape": [1, 3], "data": [1, 2, 3]}]);
    assert!(error(numbers).contains("expected elements of datatype BYTES"));
    assert!(error(json!([strings(&[1, 4], &["a", "b", "c", "d"])])).contains("unexpected shape"));
    let invalid = json!({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, 3],
                                     "parameters": {"binary_data_size": 13}}]});
    let message = client.infer_binary("joined", &invalid, b"\x01\0\0\0\xff\0\0\0\0\0\0\0\0").error(400);
    assert!(message.contains("element 0: expected UTF-8"), "{message}");
}

#[test]
fn maps_are_values_and_keys() {
    let server = serve_models(&[("values/zip_map_strings", "named"), ("values/zip_map_ints", "numbered")]);
    let mut client = server.client();
    let body = json!({"inputs": [input("x", &[1, 2], &[3.0, -1.0])]});
    let reply = client.infer("named", &body).ok().json();
    let outputs = reply["outputs"].as_array().unwrap();
    assert_eq!(outputs[0], json!({"name": "label", "datatype": "BYTES", "shape": [1], "data": ["blue"]}));
    assert_eq!((&outputs[1]["name"], &outputs[1]["shape"]), (&json!("maps"), &json!([1, 3])));
    let keys = json!({"name": "maps.keys", "datatype": "BYTES", "shape": [3], "data": ["blue", "green", "red"]});
    assert_eq!(outputs[2], keys);
    let reply = client.infer("numbered", &body).ok().json();
    assert_eq!(reply["outputs"][2], json!({"name": "maps.keys", "datatype": "INT64", "shape": [3], "data": [3, 5, 7]}));
}
