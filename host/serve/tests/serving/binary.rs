//! Tests of binary tensors, requests without JSON, and compression.

use crate::client::{Client, bytes, floats, input};
use crate::models::serve;
use flate2::Compression;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::{Value, json};
use std::io::{Read, Write};

fn binary(shape: &[usize], size: usize) -> Value {
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": size}}]})
}

/// Splits a response into JSON and binary data.
fn split_reply(reply: &crate::client::Reply) -> (Value, &[u8]) {
    assert_eq!(reply.headers["content-type"], "application/octet-stream");
    let (json, data) = reply.body.split_at(reply.headers["inference-header-content-length"].parse().unwrap());
    (serde_json::from_slice(json).unwrap(), data)
}

#[test]
fn an_output_chooses_its_form() {
    let server = serve(&["relu", "sums"], &[]);
    let mut client = server.client();
    let values = bytes(&[-1.0, 2.0, -3.0, 4.0]);
    // Binary input, JSON output: the request does not select binary outputs.
    let reply = client.infer_binary("relu", &binary(&[1, 4], 16), &values).ok();
    assert_eq!(reply.json()["outputs"][0]["data"], json!([0.0, 2.0, 0.0, 4.0]));
    // JSON input, binary output, as requested by tritonclient.
    let request =
        json!({"inputs": [input("x", &[1, 4], &[-1.0, 2.0, -3.0, 4.0])], "parameters": {"binary_data_output": true}});
    let reply = client.infer("relu", &request).ok();
    let (fields, data) = split_reply(&reply);
    assert_eq!(fields["outputs"][0]["parameters"]["binary_data_size"], 16);
    assert!(fields["outputs"][0].get("data").is_none());
    assert_eq!(floats(data), [0.0, 2.0, 0.0, 4.0]);
    // One JSON output and one binary output.
    let names = ["a", "b", "c"];
    let request = json!({
        "inputs": names.map(|name| input(name, &[1, 2], &[1.0, 2.0])),
        "outputs": [{"name": "output_1", "parameters": {"binary_data": false}}, {"name": "output_0"}],
        "parameters": {"binary_data_output": true},
    });
    let reply = client.infer("sums", &request).ok();
    let (fields, data) = split_reply(&reply);
    assert_eq!(fields["outputs"][0]["data"], json!([1.0, 4.0]));
    assert_eq!(floats(data), [3.0, 6.0]);
}

#[test]
fn sizes_that_contradict_are_errors() {
    let server = serve(&["relu"], &["--max-request-size", "1MiB"]);
    let mut client = server.client();
    for (size, declared_size, expected) in [
        (16, 12, "expected 16 bytes of binary data after the JSON, found 12"),
        (16, 20, "expected 16 bytes of binary data for all inputs, found 20"),
        (12, 12, "input 'x' got unexpected byte size 12, expected 16"),
        (usize::MAX, 16, "bytes of binary data after the JSON, found 16"),
    ] {
        let message = client.infer_binary("relu", &binary(&[1, 4], size), &vec![0; declared_size]).error(400);
        assert!(message.contains(expected), "{message}");
    }
    for length in ["-1", "x", "99999999999999999999", "1e3", ""] {
        let reply =
            client.request("POST", "/v2/models/relu/infer", &[("Inference-Header-Content-Length", length)], b"{}");
        assert!(reply.error(400).contains("expected a number of bytes"), "{length}");
    }
    let reply = client.request("POST", "/v2/models/relu/infer", &[("Inference-Header-Content-Length", "3")], b"{}");
    assert!(reply.error(400).contains("expected at most the 2 bytes of the body, found 3"));
    // The Content-Length header exceeds the limit, and no body is sent.
    let mut other = server.client();
    other.0.write_all(b"POST /v2/models/relu/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n").unwrap();
    assert!(other.receive().error(413).contains("expected a request of at most 1048576 bytes"));
    // The chunks exceed the limit.
    let mut other = server.client();
    other.0.write_all(b"POST /v2/models/relu/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    let chunk = [b"40000\r\n".to_vec(), vec![b' '; 0x40000], b"\r\n".to_vec()].concat();
    for _ in 0..5 {
        if other.0.write_all(&chunk).is_err() {
            break;
        }
    }
    assert!(other.receive().error(413).contains("--max-request-size"));
    // A chunked request within the limit is served.
    let mut other = server.client();
    other.0.write_all(b"POST /v2/models/relu/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    let body = json!({"inputs": [input("x", &[1, 4], &[1.0; 4])]}).to_string();
    let (a, b) = body.split_at(10);
    other.0.write_all(format!("{:x}\r\n{a}\r\n{:x}\r\n{b}\r\n0\r\n\r\n", a.len(), b.len()).as_bytes()).unwrap();
    other.receive().ok();
}

#[test]
fn a_request_without_json_is_the_only_input() {
    let server = serve(&["relu", "sums", "fixed"], &[]);
    let mut client = server.client();
    let header = [("Inference-Header-Content-Length", "0")];
    let reply = client.request("POST", "/v2/models/relu/infer", &header, &bytes(&[-1.0, 2.0, -3.0, 4.0])).ok();
    let (fields, data) = split_reply(&reply);
    assert_eq!(fields["outputs"][0]["shape"], json!([1, 4]));
    assert_eq!(floats(data), [0.0, 2.0, 0.0, 4.0]);
    client.request("POST", "/v2/models/fixed/infer", &header, &[0; 12]).ok();
    for (model, size, expected) in [
        ("relu", 12, "found 12 bytes"),
        ("relu", 17, "found 17 bytes"),
        ("fixed", 24, "found 24 bytes"),
        ("sums", 8, "found 3 inputs of 'sums'"),
    ] {
        let message = client.request("POST", &format!("/v2/models/{model}/infer"), &header, &vec![0; size]).error(400);
        assert!(message.contains(expected), "{message}");
    }
}

fn compress(coding: &str, data: &[u8]) -> Vec<u8> {
    if coding == "gzip" {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    } else {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }
}

#[test]
fn compression_of_requests_and_of_answers() {
    let server = serve(&["relu"], &["--max-request-size", "1MiB"]);
    let mut client = server.client();
    let mut json = binary(&[1, 4], 16);
    json["parameters"] = json!({"binary_data_output": true});
    let json = json.to_string();
    let uncompressed = [json.as_bytes(), &bytes(&[-1.0, 2.0, -3.0, 4.0])].concat();
    // `Inference-Header-Content-Length` counts decompressed bytes.
    let length = json.len().to_string();
    for coding in ["gzip", "deflate"] {
        let headers =
            [("Inference-Header-Content-Length", &*length), ("Content-Encoding", coding), ("Accept-Encoding", coding)];
        let mut reply =
            client.request("POST", "/v2/models/relu/infer", &headers, &compress(coding, &uncompressed)).ok();
        assert_eq!(reply.headers["content-encoding"], coding);
        let mut body = Vec::new();
        if coding == "gzip" {
            GzDecoder::new(&*reply.body).read_to_end(&mut body).unwrap();
        } else {
            ZlibDecoder::new(&*reply.body).read_to_end(&mut body).unwrap();
        }
        reply.body = body;
        assert_eq!(floats(split_reply(&reply).1), [0.0, 2.0, 0.0, 4.0]);
        let message = client.request("POST", "/v2/models/relu/infer", &headers, b"nonsense").error(400);
        assert!(message.contains(&format!("cannot decompress the {coding} body")), "{message}");
        // A small compressed body that decompresses to a large body.
        let decompression_bomb = compress(coding, &vec![b' '; 64 << 20]);
        assert!(decompression_bomb.len() < 1 << 20);
        let message = client.request("POST", "/v2/models/relu/infer", &headers, &decompression_bomb).error(413);
        assert!(message.contains("--max-request-size"), "{message}");
    }
    let reply = client.request("POST", "/v2/models/relu/infer", &[("Content-Encoding", "br")], b"");
    assert_eq!(reply.headers["accept-encoding"], "gzip, deflate");
    assert!(reply.error(501).contains("expected gzip or deflate, found \"br\""));
    // Clients that list several formats receive uncompressed responses, and metadata is never compressed.
    let all_headers = [("Accept-Encoding", "gzip, deflate, br"), ("Inference-Header-Content-Length", &length)];
    let reply = client.request("POST", "/v2/models/relu/infer", &all_headers, &uncompressed).ok();
    assert!(!reply.headers.contains_key("content-encoding"));
    let reply = client.request("GET", "/v2/models/relu", &[("Accept-Encoding", "gzip")], b"").ok();
    assert!(!reply.headers.contains_key("content-encoding"));
}

#[test]
fn large_tensors_in_one_connection() {
    let server = serve(&["relu"], &["--max-batch-size", "65536"]);
    let mut client = Client::connect(server.http);
    for rows in [1, 40_000, 3] {
        let values: Vec<f32> = (0..rows * 4).map(|i| i as f32 - 7.0).collect();
        let mut request = binary(&[rows, 4], rows * 16);
        request["parameters"] = json!({"binary_data_output": true});
        let reply = client.infer_binary("relu", &request, &bytes(&values)).ok();
        let (fields, data) = split_reply(&reply);
        assert_eq!(fields["outputs"][0]["shape"], json!([rows, 4]));
        assert!(floats(data).iter().zip(&values).all(|(actual, value)| *actual == value.max(0.0)));
    }
}
