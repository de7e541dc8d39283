//! Tests with randomly mutated requests: each request receives a response, and each result is correct.

use crate::client::{Client, GrpcClient, bytes, floats, frame};
use crate::grpc::{request, tensor};
use crate::models::serve;
use byoc_ir::tensor::random::Random;
use byoc_serve::proto::{ModelInferRequest, ModelInferResponse};
use prost::Message;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Returns `min_count` in CI tests, and `max_count` in `cargo xtask test-serve`.
pub fn count(min_count: usize, max_count: usize) -> usize {
    if std::env::var_os("BYOC_SERVE_FULL").is_some() { max_count } else { min_count }
}

/// Applies one to three random changes to a request.
fn mutate(body: &mut Vec<u8>, random: &mut Random, insertion: &[u8]) {
    for _ in 0..1 + random.next_u64() % 3 {
        let position = (random.next_u64() as usize) % body.len().max(1);
        match random.next_u64() % 5 {
            _ if body.is_empty() => {}
            0 => body[position] = random.next_u64() as u8,
            1 => drop(body.remove(position)),
            2 => body.insert(position, insertion[random.next_u64() as usize % insertion.len()]),
            3 => body[position] ^= 1 << (random.next_u64() % 8),
            _ => body.truncate(position.max(1)),
        }
    }
}

const VALUES: [f32; 4] = [-1.0, 2.0, -3.0, 4.0];

fn relu(values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| if *value > 0.0 { *value } else { 0.0 }).collect()
}

/// Compares a result with the expected ReLU of the input; for a NaN input, any result is accepted.
fn is_relu(actual: &[f32], input: &[f32]) -> bool {
    actual.len() == input.len()
        && actual.iter().zip(input).zip(relu(input)).all(|((actual, input), relu)| *actual == relu || input.is_nan())
}

#[test]
fn mutated_requests_over_http() {
    let server = serve(&["relu"], &[]);
    let request = json!({
        "id": "a", "parameters": {"binary_data_output": true, "timeout": 0},
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}],
        "outputs": [{"name": "output_0", "parameters": {"binary_data": true}}],
    })
    .to_string();
    let length = request.len().to_string();
    let headers = [("Inference-Header-Content-Length", &*length)];
    let full_request = [request.as_bytes(), &bytes(&VALUES)].concat();
    let mut random = Random::new(7);
    let mut client = server.client();
    let (requests, mut served_count) = (count(2000, 10_000), 0);
    for _ in 0..requests {
        let mut body = full_request.clone();
        mutate(&mut body, &mut random, b"0[]{}\":,-e");
        let reply = client.request("POST", "/v2/models/relu/infer", &headers, &body);
        match reply.status {
            200 => {
                // The elements are the last 16 bytes, regardless of the changes to the JSON before them.
                let input = floats(&body[body.len() - 16..]);
                let actual = match reply.headers.get("inference-header-content-length") {
                    Some(length) => floats(&reply.body[length.parse().unwrap()..]),
                    None => {
                        // The response may contain Python's tokens, such as NaN, which are not valid JSON.
                        let Ok(fields) = serde_json::from_slice::<Value>(&reply.body) else { continue };
                        let data = fields["outputs"][0]["data"].as_array().cloned().unwrap_or_default();
                        data.iter().filter_map(|value| value.as_f64().map(|value| value as f32)).collect()
                    }
                };
                assert!(is_relu(&actual, &input), "{:?}: {actual:?}", String::from_utf8_lossy(&body));
                served_count += 1;
            }
            400 | 501 => drop(reply.error(reply.status)),
            // A mutated timeout may be only a few microseconds.
            503 => assert!(reply.error(503).contains("Request timeout expired")),
            other => {
                panic!("expected status 200, 400, 501 or 503, found {other} for {:?}", String::from_utf8_lossy(&body))
            }
        }
    }
    assert!(
        served_count > 0 && served_count < requests,
        "expected some, but not all, of {requests} requests to be served, found {served_count}"
    );
    let reply = client.request("POST", "/v2/models/relu/infer", &headers, &full_request).ok();
    assert_eq!(floats(&reply.body[reply.body.len() - 16..]), relu(&VALUES));
}

#[test]
fn mutated_heads_over_http() {
    let server = serve(&["relu"], &["--timeout", "1", "--idle-timeout", "1"]);
    let body = json!({"inputs": [crate::client::input("x", &[1, 4], &VALUES)]}).to_string();
    let full_request = format!(
        "POST /v2/models/relu/infer HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
         Accept-Encoding: gzip\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut random = Random::new(11);
    for _ in 0..count(300, 10_000) {
        let mut bytes = full_request.clone().into_bytes();
        mutate(&mut bytes, &mut random, b"\r\n :/%0\0\xff");
        let mut stream = TcpStream::connect(server.http).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        let mut reply = Vec::new();
        let read_result = stream.read_to_end(&mut reply);
        let is_timeout = read_result.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!is_timeout, "expected a response or a close within 10 s: {:?}", String::from_utf8_lossy(&bytes));
        assert!(reply.is_empty() || reply.starts_with(b"HTTP/1."), "{:?}", String::from_utf8_lossy(&reply));
    }
    let request = json!({"inputs": [crate::client::input("x", &[1, 4], &VALUES)]});
    Client::connect(server.http).infer("relu", &request).ok();
}

#[test]
fn mutated_messages_over_grpc() {
    const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
    let server = serve(&["relu"], &[]);
    let mut full_request = request("relu", vec![tensor("x", "FP32", &[1, 4])], vec![bytes(&VALUES)]);
    full_request.id = "a".into();
    let full_request = full_request.encode_to_vec();
    let mut random = Random::new(13);
    let mut client = GrpcClient::connect(server.grpc);
    let (requests, mut served_count) = (count(2000, 10_000), 0);
    for _ in 0..requests {
        let mut body = full_request.clone();
        mutate(&mut body, &mut random, b"\x00\x01\x08\x0a\x22\x2a\x3a\x7f\xff");
        match client.call(INFER, &[], frame(&body)) {
            Ok(response) => {
                let sent_request = ModelInferRequest::decode(&*body).unwrap();
                let typed_contents = || sent_request.inputs[0].contents.clone().unwrap_or_default().fp32_contents;
                let input = sent_request.raw_input_contents.first().map_or_else(typed_contents, |raw| floats(raw));
                let response = ModelInferResponse::decode(response).unwrap();
                assert!(is_relu(&floats(&response.raw_output_contents[0]), &input), "{sent_request:?} {response:?}");
                served_count += 1;
            }
            // INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED; INTERNAL for malformed message bytes.
            Err(error) => {
                assert!([3, 5, 12, 13].contains(&error.code) && !error.message.is_empty(), "{body:?}: {error:?}");
                let is_message = ModelInferRequest::decode(&*body).is_ok();
                assert!(is_message != (error.code == 13), "{body:?}: {error:?}");
            }
        }
    }
    assert!(
        served_count > 0 && served_count < requests,
        "expected some, but not all, of {requests} requests to be served, found {served_count}"
    );
    let response = ModelInferResponse::decode(client.call(INFER, &[], frame(&full_request)).unwrap()).unwrap();
    assert_eq!(floats(&response.raw_output_contents[0]), relu(&VALUES));
}

#[test]
fn mutated_frames_of_http_2() {
    let server = serve(&["relu"], &["--timeout", "1", "--idle-timeout", "1"]);
    // Preface, settings, window update, and stream header of an HTTP/2 client.
    let mut full_request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    full_request.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 16, 0, 0]);
    full_request.extend([0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 16, 0, 0]);
    // :method POST, :scheme http, :path and :authority as literals without an index.
    let mut head = vec![0x83, 0x86, 0x04, 45];
    head.extend(b"/inference.GRPCInferenceService/ServerMetadata");
    head[3] = (head.len() - 4) as u8;
    head.extend([0x01, 1, b'a']);
    full_request.extend([0, 0, head.len() as u8, 1, 4, 0, 0, 0, 1]);
    full_request.extend(&head);
    full_request.extend([0, 0, 5, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    let mut random = Random::new(17);
    for _ in 0..count(300, 10_000) {
        let mut bytes = full_request.clone();
        mutate(&mut bytes, &mut random, b"\x00\x01\x05\x7f\x80\xff");
        let mut stream = TcpStream::connect(server.grpc).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        let read_result = stream.read_to_end(&mut Vec::new());
        let is_timeout = read_result.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!is_timeout, "expected a response or a close within 10 s: {bytes:?}");
    }
    let response: ModelInferResponse = crate::client::call(
        server.grpc,
        "ModelInfer",
        &request("relu", vec![tensor("x", "FP32", &[1, 4])], vec![bytes(&VALUES)]),
    )
    .unwrap();
    assert_eq!(floats(&response.raw_output_contents[0]), relu(&VALUES));
}
