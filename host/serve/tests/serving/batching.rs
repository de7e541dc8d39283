//! Tests of batching, queues, deadlines, and disconnecting clients.

use crate::client::{Client, call, input};
use crate::grpc::{request, tensor};
use crate::models::{RunningServer, model, serve, serve_repository};
use byoc_serve::proto::ModelInferResponse;
use serde_json::{Value, json};
use std::time::Duration;

fn row(value: usize, rows: usize) -> Value {
    json!([input("x", &[rows, 4], &vec![value as f32; rows * 4])])
}

pub fn stats(server: &RunningServer, model: &str) -> Value {
    server.client().get(&format!("/v2/models/{model}/stats")).ok().json()["model_stats"][0].clone()
}

/// Starts a server with one model and its configuration.
fn serve_configured(name: &str, config: &str, flags: &[&str]) -> RunningServer {
    let dir = tempfile::tempdir().unwrap();
    crate::models::write(&dir.path().join(format!("{name}/1/model.relay")), name);
    std::fs::write(dir.path().join(name).join("config.pbtxt"), config).unwrap();
    serve_repository(dir, flags)
}

/// Waits until a condition is true, for at most 10 s.
pub fn wait_until(description: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("expected {description} within 10 s");
}

pub fn pending_count(server: &RunningServer, model: &str) -> u64 {
    let text = String::from_utf8(server.client().get("/metrics").ok().body).unwrap();
    let name = format!("nv_inference_pending_request_count{{model=\"{model}\",version=\"1\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

/// Starts a run that continues until its client disconnects.
pub fn occupy(server: &RunningServer) -> Client {
    let mut client = server.client();
    let request = json!({"inputs": [{"name": "n", "datatype": "INT64", "shape": [], "data": [i64::MAX]}, input("x", &[4], &[0.0; 4])]});
    client.send("POST", "/v2/models/rounds/infer", &[], request.to_string().as_bytes());
    client
}

pub fn quick_request() -> Value {
    json!({"inputs": [{"name": "n", "datatype": "INT64", "shape": [], "data": [2]}, input("x", &[4], &[0.0; 4])]})
}

#[test]
fn requests_are_joined_and_their_results_split() {
    let server = serve(&["slow"], &["--max-batch-size", "8"]);
    let mut clients: Vec<Client> = (0..12).map(|_| server.client()).collect();
    for round in 0..2 {
        for (i, client) in clients.iter_mut().enumerate() {
            let request = json!({"id": format!("{i}"), "inputs": row(i + round, i % 3 + 1)});
            client.send("POST", "/v2/models/slow/infer", &[], request.to_string().as_bytes());
        }
        for (i, client) in clients.iter_mut().enumerate() {
            let response = client.receive().ok().json();
            assert_eq!(response["id"], format!("{i}"));
            assert_eq!(response["outputs"][0]["shape"], json!([i % 3 + 1, 4]));
            let data = response["outputs"][0]["data"].as_array().unwrap();
            assert!(
                data.len() == (i % 3 + 1) * 4 && data.iter().all(|value| *value == (i + round) as f64),
                "{response}"
            );
        }
    }
    let stats = stats(&server, "slow");
    assert_eq!((&stats["inference_count"], &stats["inference_stats"]["success"]["count"]), (&json!(48), &json!(24)));
    // The first request starts immediately; later requests wait and are batched, with at most 8 rows per batch.
    assert!(stats["execution_count"].as_u64().unwrap() < 24, "{stats}");
    let sizes = stats["batch_stats"].as_array().unwrap().iter().map(|batch| batch["batch_size"].as_u64().unwrap());
    assert!(sizes.clone().all(|size| size <= 8) && sizes.max() > Some(3), "{stats}");
}

#[test]
fn a_model_that_mixes_items_is_not_joined() {
    let server = serve(&["mixing"], &[]);
    let mut clients: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.send("POST", "/v2/models/mixing/infer", &[], json!({"inputs": row(i, 1)}).to_string().as_bytes());
    }
    for client in &mut clients {
        assert_eq!(client.receive().ok().json()["outputs"][0]["data"], json!([0.0, 0.0, 0.0, 0.0]));
    }
    assert_eq!(stats(&server, "mixing")["execution_count"], 4);
}

#[test]
fn a_full_queue_is_unavailable_with_a_hint() {
    let server = serve(&["rounds"], &["--max-queue-size", "2"]);
    let busy_client = occupy(&server);
    wait_until("the model to be busy", || {
        stats(&server, "rounds")["execution_count"] == 0 && pending_count(&server, "rounds") == 0
    });
    let mut waiting_clients: Vec<Client> = Vec::new();
    // The run may not have started when the first request arrives.
    wait_until("two requests in the queue", || {
        let mut client = server.client();
        client.send("POST", "/v2/models/rounds/infer", &[], quick_request().to_string().as_bytes());
        std::thread::sleep(Duration::from_millis(20));
        waiting_clients.push(client);
        pending_count(&server, "rounds") == 2
    });
    let reply = server.client().infer("rounds", &quick_request());
    assert_eq!(reply.headers["retry-after"], "1");
    let message = reply.error(503);
    assert!(message.contains("Exceeds maximum queue size") && message.contains("--max-queue-size"), "{message}");
    // The status UNAVAILABLE (14) permits clients to retry.
    let inputs = vec![tensor("n", "INT64", &[]), tensor("x", "FP32", &[4])];
    let batch_request = request("rounds", inputs, vec![2i64.to_le_bytes().to_vec(), vec![0; 16]]);
    let error = call::<_, ModelInferResponse>(server.grpc, "ModelInfer", &batch_request).unwrap_err();
    assert!(error.code == 14 && error.message.contains("retry later, or raise --max-queue-size"), "{error:?}");
    // The run ends when its client disconnects, and the waiting requests are served.
    drop(busy_client);
    for mut client in waiting_clients {
        let reply = client.receive();
        assert!([200, 503].contains(&reply.status), "{reply:?}");
    }
    wait_until("an empty queue", || pending_count(&server, "rounds") == 0);
    server.client().infer("rounds", &quick_request()).ok();
    let failures = String::from_utf8(server.client().get("/metrics").body).unwrap();
    assert!(failures.contains("reason=\"CANCELED\"} 1"), "{failures}");
}

#[test]
fn a_client_that_leaves_gives_up_its_place() {
    let server = serve(&["rounds"], &[]);
    let busy_client = occupy(&server);
    std::thread::sleep(Duration::from_millis(50));
    let waiting_clients: Vec<Client> = (0..3)
        .map(|_| {
            let mut client = server.client();
            client.send("POST", "/v2/models/rounds/infer", &[], quick_request().to_string().as_bytes());
            client
        })
        .collect();
    wait_until("three requests in the queue", || pending_count(&server, "rounds") == 3);
    drop(waiting_clients);
    wait_until("an empty queue", || pending_count(&server, "rounds") == 0);
    drop(busy_client);
    server.client().infer("rounds", &quick_request()).ok();
    assert_eq!(stats(&server, "rounds")["inference_stats"]["success"]["count"], 1);
    assert_eq!(stats(&server, "rounds")["inference_stats"]["fail"]["count"], 4);
}

#[test]
fn timeouts_of_the_queue_and_of_the_server() {
    let server = serve(&["rounds"], &["--timeout", "1"]);
    let mut busy_client = occupy(&server);
    std::thread::sleep(Duration::from_millis(50));
    let mut request = quick_request();
    request["parameters"] = json!({"timeout": 50_000});
    let message = server.client().infer("rounds", &request).error(503);
    assert!(message.contains("Request timeout expired"), "{message}");
    // The run ends at the server's time limit.
    let message = busy_client.receive().error(504);
    assert!(message.contains("deadline") || message.contains("time limit"), "{message}");
    server.client().infer("rounds", &quick_request()).ok();
}

#[test]
fn policies_of_the_configuration() {
    let config = "max_batch_size: 4\ndynamic_batching { priority_levels: 2 default_priority_level: 2 \
                  default_queue_policy { default_timeout_microseconds: 30000000 max_queue_size: 1 } }";
    let server = serve_configured("slow", config, &[]);
    let mut client = server.client();
    let message = client.infer("slow", &json!({"inputs": row(1, 1), "parameters": {"priority": 3}})).error(400);
    assert!(message.contains("expected a level from 1 to 2, found 3"), "{message}");
    for level in [0, 1, 2] {
        client.infer("slow", &json!({"inputs": row(1, 1), "parameters": {"priority": level}})).ok();
    }
    let config = client.get("/v2/models/slow/config").ok().json();
    assert_eq!(config["dynamic_batching"]["default_queue_policy"]["default_timeout_microseconds"], 30_000_000);
    // Requests are batched only with `dynamic_batching`, regardless of `max_batch_size`.
    let server = serve_configured("slow", "max_batch_size: 4", &[]);
    let mut clients: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send("POST", "/v2/models/slow/infer", &[], json!({"inputs": row(1, 1)}).to_string().as_bytes());
    }
    clients.iter_mut().for_each(|client| drop(client.receive().ok()));
    assert_eq!(stats(&server, "slow")["execution_count"], 4);
}

#[test]
fn a_batch_of_one_keeps_the_batch_dimension() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("scores/1");
    std::fs::create_dir_all(&path).unwrap();
    let source = byoc_test_support::workspace().join("tests/open/squeeze_scores/model.onnx");
    std::fs::copy(source, path.join("model.onnx")).unwrap();
    let server = serve_repository(dir, &[]);
    for rows in [1, 2] {
        let request = json!({"inputs": [input("x", &[rows, 4], &vec![0.0; 4 * rows])]});
        let reply = server.client().post("/v2/models/scores/infer", &request).ok().json();
        assert_eq!(reply["outputs"][0]["shape"], json!([rows]));
        assert_eq!(reply["outputs"][0]["data"], json!(vec![0.5; rows]));
    }
}

#[test]
fn one_request_of_a_batch_cannot_fail_another() {
    // A division by zero fails its run; the loop delays the run, so that later requests form one batch.
    let text = "def @loop(%i: int64, %x: Tensor[(n, 1), int64]) -> Tensor[(n, 1), int64] {\n\
                  if (%i < 5000i64) { @loop(add(%i, 1i64), negative(%x)) } else { %x }\n}\n\
                def @main(%x: Tensor[(n, 1), int64]) -> Tensor[(n, 1), int64] { divide(100i64, @loop(0i64, %x)) }";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m/1");
    std::fs::create_dir_all(&path).unwrap();
    let header = model("relu").lines().next().unwrap().to_owned();
    std::fs::write(path.join("model.relay"), format!("{header}\n{text}\n")).unwrap();
    let server = serve_repository(dir, &[]);
    // The first request starts immediately; the later requests wait and form one batch.
    let values = [5, 4, 0, 2];
    let mut clients: Vec<Client> = values.iter().map(|_| server.client()).collect();
    for (value, client) in values.iter().zip(&mut clients) {
        let request = json!({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [value]}]});
        client.send("POST", "/v2/models/m/infer", &[], request.to_string().as_bytes());
    }
    let expected = [Some(20), Some(25), None, Some(50)];
    for (expected, client) in expected.iter().zip(&mut clients) {
        let reply = client.receive();
        match expected {
            Some(expected) => assert_eq!(reply.ok().json()["outputs"][0]["data"], json!([expected])),
            None => assert!(reply.error(400).contains("integer division by zero")),
        }
    }
}

#[test]
fn joined_results_are_those_of_requests_alone() {
    const CLIENTS: usize = 16;
    let server = serve(&["softmax"], &["--max-batch-size", "8", "--max-queue-delay-microseconds", "2000"]);
    let request = |i: usize| {
        let rows = i % 3 + 1;
        let values: Vec<f32> = (0..rows * 5).map(|index| ((i * 31 + index * 7) % 23) as f32 / 3.0 - 3.0).collect();
        json!({"inputs": [input("x", &[rows, 5], &values)]}).to_string()
    };
    let send = |client: &mut Client, i| client.send("POST", "/v2/models/softmax/infer", &[], request(i).as_bytes());
    let mut client = server.client();
    let mut run_alone = |i| {
        send(&mut client, i);
        client.receive().ok().body
    };
    let expected: Vec<Vec<u8>> = (0..CLIENTS).map(&mut run_alone).collect();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
    for _ in 0..20 {
        clients.iter_mut().enumerate().for_each(|(i, client)| send(client, i));
        for (client, expected) in clients.iter_mut().zip(&expected) {
            assert_eq!(client.receive().ok().body, *expected);
        }
    }
}
