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

/// Returns `few` in CI tests, and `many` in `cargo xtask test-serve`.
pub fn count(few: usize, many: usize) -> usize {
    if std::env::var_os("BYOC_SERVE_FULL").is_some() { many } else { few }
}

/// Applies one to three random changes to a request.
fn mutate(body: &mut Vec<u8>, random: &mut Random, inserted: &[u8]) {
    for _ in 0..1 + random.next_u64() % 3 {
        let at = (random.next_u64() as usize) % body.len().max(1);
        match random.next_u64() % 5 {
            _ if body.is_empty() => {}
            0 => body[at] = random.next_u64() as u8,
            1 => drop(body.remove(at)),
            2 => body.insert(at, inserted[random.next_u64() as usize % inserted.len()]),
            3 => body[at] ^= 1 << (random.next_u64() % 8),
            _ => body.truncate(at.max(1)),
        }
    }
}

const VALUES: [f32; 4] = [-1.0, 2.0, -3.0, 4.0];

fn relu(values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| if *value > 0.0 { *value } else { 0.0 }).collect()
}

/// Compares a result with the expected ReLU of the input; for a NaN input, any result is accepted.
fn agree(found: &[f32], input: &[f32]) -> bool {
    found.len() == input.len()
        && found.iter().zip(input).zip(relu(input)).all(|((found, input), relu)| *found == relu || input.is_nan())
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
    let whole = [request.as_bytes(), &bytes(&VALUES)].concat();
    let mut random = Random::new(7);
    let mut client = server.client();
    let (requests, mut served) = (count(2000, 10_000), 0);
    for _ in 0..requests {
        let mut body = whole.clone();
        mutate(&mut body, &mut random, b"0[]{}\":,-e");
        let reply = client.request("POST", "/v2/models/relu/infer", &headers, &body);
        match reply.status {
            200 => {
                // The elements are the last 16 bytes, regardless of the changes to the JSON before them.
                let input = floats(&body[body.len() - 16..]);
                let found = match reply.headers.get("inference-header-content-length") {
                    Some(length) => floats(&reply.body[length.parse().unwrap()..]),
                    None => {
                        // The response may contain Python's tokens, such as NaN, which are not valid JSON.
                        let Ok(fields) = serde_json::from_slice::<Value>(&reply.body) else { continue };
                        let data = fields["outputs"][0]["data"].as_array().cloned().unwrap_or_default();
                        data.iter().filter_map(|value| value.as_f64().map(|value| value as f32)).collect()
                    }
                };
                assert!(agree(&found, &input), "{:?}: {found:?}", String::from_utf8_lossy(&body));
                served += 1;
            }
            400 | 501 => drop(reply.error(reply.status)),
            // A mutated timeout may be only a few microseconds.
            503 => assert!(reply.error(503).contains("Request timeout expired")),
            other => {
                panic!("expected status 200, 400, 501 or 503, found {other} for {:?}", String::from_utf8_lossy(&body))
            }
        }
    }
    assert!(served > 0 && served < requests, "{served} of {requests}");
    let reply = client.request("POST", "/v2/models/relu/infer", &headers, &whole).ok();
    assert_eq!(floats(&reply.body[reply.body.len() - 16..]), relu(&VALUES));
}

#[test]
fn mutated_heads_over_http() {
    let server = serve(&["relu"], &["--timeout", "1", "--idle-timeout", "1"]);
    let body = json!({"inputs": [crate::client::input("x", &[1, 4], &VALUES)]}).to_string();
    let whole = format!(
        "POST /v2/models/relu/infer HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
         Accept-Encoding: gzip\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut random = Random::new(11);
    for _ in 0..count(300, 10_000) {
        let mut bytes = whole.clone().into_bytes();
        mutate(&mut bytes, &mut random, b"\r\n :/%0\0\xff");
        let mut stream = TcpStream::connect(server.http).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        let mut reply = Vec::new();
        let ended = stream.read_to_end(&mut reply);
        let is_timeout = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
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
    let mut whole = request("relu", vec![tensor("x", "FP32", &[1, 4])], vec![bytes(&VALUES)]);
    whole.id = "a".into();
    let whole = whole.encode_to_vec();
    let mut random = Random::new(13);
    let mut client = GrpcClient::connect(server.grpc);
    let (requests, mut served) = (count(2000, 10_000), 0);
    for _ in 0..requests {
        let mut body = whole.clone();
        mutate(&mut body, &mut random, b"\x00\x01\x08\x0a\x22\x2a\x3a\x7f\xff");
        match client.call(INFER, &[], frame(&body)) {
            Ok(answer) => {
                let sent = ModelInferRequest::decode(&*body).unwrap();
                let typed = || sent.inputs[0].contents.clone().unwrap_or_default().fp32_contents;
                let input = sent.raw_input_contents.first().map_or_else(typed, |raw| floats(raw));
                let answer = ModelInferResponse::decode(answer).unwrap();
                assert!(agree(&floats(&answer.raw_output_contents[0]), &input), "{sent:?} {answer:?}");
                served += 1;
            }
            // INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED; INTERNAL for malformed message bytes.
            Err(error) => {
                assert!([3, 5, 12, 13].contains(&error.code) && !error.message.is_empty(), "{body:?}: {error:?}");
                let is_message = ModelInferRequest::decode(&*body).is_ok();
                assert!(is_message != (error.code == 13), "{body:?}: {error:?}");
            }
        }
    }
    assert!(served > 0 && served < requests, "{served} of {requests}");
    let answer = ModelInferResponse::decode(client.call(INFER, &[], frame(&whole)).unwrap()).unwrap();
    assert_eq!(floats(&answer.raw_output_contents[0]), relu(&VALUES));
}

#[test]
fn mutated_frames_of_http_2() {
    let server = serve(&["relu"], &["--timeout", "1", "--idle-timeout", "1"]);
    // Preface, settings, window update, and stream header of an HTTP/2 client.
    let mut whole = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    whole.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 16, 0, 0]);
    whole.extend([0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 16, 0, 0]);
    // :method POST, :scheme http, :path and :authority as literals without an index.
    let mut head = vec![0x83, 0x86, 0x04, 45];
    head.extend(b"/inference.GRPCInferenceService/ServerMetadata");
    head[3] = (head.len() - 4) as u8;
    head.extend([0x01, 1, b'a']);
    whole.extend([0, 0, head.len() as u8, 1, 4, 0, 0, 0, 1]);
    whole.extend(&head);
    whole.extend([0, 0, 5, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    let mut random = Random::new(17);
    for _ in 0..count(300, 10_000) {
        let mut bytes = whole.clone();
        mutate(&mut bytes, &mut random, b"\x00\x01\x05\x7f\x80\xff");
        let mut stream = TcpStream::connect(server.grpc).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        let ended = stream.read_to_end(&mut Vec::new());
        let is_timeout = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!is_timeout, "expected a response or a close within 10 s: {bytes:?}");
    }
    let answer: ModelInferResponse = crate::client::call(
        server.grpc,
        "ModelInfer",
        &request("relu", vec![tensor("x", "FP32", &[1, 4])], vec![bytes(&VALUES)]),
    )
    .unwrap();
    assert_eq!(floats(&answer.raw_output_contents[0]), relu(&VALUES));
}
