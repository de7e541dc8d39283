//! Tests with many, slow, silent and disconnected clients, and with shutdown under load.

use crate::batching::{occupy, pending_count, quick_request, stats, wait_until};
use crate::client::{Client, GrpcClient, bytes, floats, frame, input};
use crate::grpc::{request, tensor};
use crate::models::{RunningServer, serve, write};
use crate::mutations::count;
use crate::process::{Process, wait_until_ready};
use byoc_serve::proto::{ModelInferRequest, ModelInferResponse};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Sends a request and checks the response.
fn check(client: &mut Client, value: f32) {
    let response = client.infer("relu", &json!({"inputs": [input("x", &[1, 4], &[value, -value, value, 0.0])]})).ok();
    let values = [value, -value, value, 0.0].map(|value| f64::from(value.max(0.0)));
    assert_eq!(response.json()["outputs"][0]["data"], json!(values));
}

fn metric(client: &mut Client, name: &str) -> f64 {
    let text = String::from_utf8(client.get("/metrics").ok().body).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap().parse().unwrap()
}

fn connections(server: &RunningServer) -> f64 {
    metric(&mut server.client(), "byoc_connections")
}

#[test]
fn a_thousand_idle_connections() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("relu.relay");
    write(&file, "relu");
    let process = Process::start(&[&file.display().to_string()]);
    wait_until_ready(process.http);
    let mut idle_clients: Vec<Client> = Vec::new();
    let mut silent_connections: Vec<TcpStream> = Vec::new();
    for i in 0..500 {
        // One connection that has completed a request, and one that has sent no data or only a partial header.
        let mut client = Client::connect(process.http);
        check(&mut client, i as f32);
        idle_clients.push(client);
        let mut stream = TcpStream::connect(process.http).unwrap();
        stream.write_all(if i % 2 == 0 { b"" } else { b"POST /v2/models/relu/inf" }).unwrap();
        silent_connections.push(stream);
    }
    let mut client = Client::connect(process.http);
    assert!(metric(&mut client, "byoc_connections") >= 1001.0);
    for i in 0..200 {
        check(&mut client, i as f32);
    }
    // Idle connections are still served.
    for (i, client) in idle_clients.iter_mut().enumerate() {
        check(client, -(i as f32));
    }
    drop((idle_clients, silent_connections));
    wait_until("the connections to be closed", || metric(&mut client, "byoc_connections") == 1.0);
}

/// Requests an output of 16 MB, which exceeds the socket buffers of an unread connection.
fn ask_wide(stream: &mut TcpStream) {
    let request = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [4, 1], "data": [1, 2, 3, 4]}],
                         "parameters": {"binary_data_output": true}})
    .to_string();
    let head = format!("POST /v2/models/wide/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", request.len());
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
}

#[test]
fn slow_readers_are_served_and_those_that_stall_are_closed() {
    let server = serve(&["wide", "relu"], &["--timeout", "2", "--idle-timeout", "2"]);
    let mut stalled_stream = TcpStream::connect(server.http).unwrap();
    ask_wide(&mut stalled_stream);
    let mut slow_client = Client::connect(server.http);
    ask_wide(&mut slow_client.0);
    let mut received_bytes: Vec<u8> = Vec::new();
    let mut chunk = vec![0; 512 << 10];
    let mut other_client = server.client();
    while received_bytes.len() < 16_000_000 {
        let count = slow_client.0.read(&mut chunk).unwrap();
        assert!(count > 0, "expected 16000000 bytes, found {}", received_bytes.len());
        received_bytes.extend_from_slice(&chunk[..count]);
        std::thread::sleep(Duration::from_millis(10));
        check(&mut other_client, received_bytes.len() as f32);
    }
    let data = floats(&received_bytes[received_bytes.len() - 16_000_000..]);
    assert!(data.chunks(1_000_000).zip(1..).all(|(row, value)| row.iter().all(|actual| *actual == value as f32)));
    drop((slow_client, other_client));
    wait_until("the stalled connection to be closed", || connections(&server) == 1.0);
    // The stalled client received only part of the response.
    stalled_stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut rest_of_response = Vec::new();
    let _ = stalled_stream.read_to_end(&mut rest_of_response);
    let size = rest_of_response.len();
    assert!(size < 16_000_000, "expected less than 16000000 bytes, found {size}");
}

#[test]
fn a_stream_that_is_not_read_is_closed() {
    let server = serve(&["wide"], &["--timeout", "1", "--idle-timeout", "1"]);
    let inputs = vec![tensor("x", "FP32", &[4, 1])];
    let message = frame(&request("wide", inputs, vec![bytes(&[1.0, 2.0, 3.0, 4.0])]).encode_to_vec());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let address = server.grpc;
    let connection_result = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(1000);
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        let message_count =
            hyper::Request::post(format!("http://{address}{INFER}")).header("content-type", "application/grpc");
        let response = sender.send_request(message_count.body(Full::new(Bytes::from(message))).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        // The body is not read, so that the flow-control window is exhausted.
        let connection_result = tokio::time::timeout(Duration::from_secs(20), connection).await;
        assert!(response.into_body().collect().await.is_err());
        connection_result
    });
    assert!(connection_result.is_ok(), "expected the server to close the connection, found it open");
    wait_until("the connection to be closed", || connections(&server) == 1.0);
}

#[test]
fn half_open_connections_are_closed() {
    let server = serve(&["relu", "rounds"], &["--timeout", "1", "--idle-timeout", "1"]);
    let mut held_connections: Vec<TcpStream> = Vec::new();
    let partial_requests: [&[u8]; 5] = [
        b"",
        b"GET /v2/health/li",
        b"POST /v2/models/relu/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{\"inputs\"",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v2/models/relu/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"inp\r\n",
    ];
    for (i, start) in partial_requests.iter().cycle().take(40).enumerate() {
        let mut stream = TcpStream::connect(if i % 2 == 0 { server.http } else { server.grpc }).unwrap();
        stream.write_all(start).unwrap();
        if i % 4 == 3 {
            // The client closes only its write half.
            stream.shutdown(Shutdown::Write).unwrap();
        }
        held_connections.push(stream);
    }
    check(&mut server.client(), 3.0);
    wait_until("all held connections to be closed", || connections(&server) == 1.0);
    for mut stream in held_connections {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let read_result = stream.read_to_end(&mut Vec::new());
        let is_open = read_result.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!is_open, "expected a closed connection, found an open connection");
    }
    check(&mut server.client(), 4.0);
}

#[test]
fn a_grpc_client_that_leaves_gives_up_its_run() {
    let server = serve(&["rounds"], &[]);
    let inputs = || vec![tensor("n", "INT64", &[]), tensor("x", "FP32", &[4])];
    let endless_request =
        request("rounds", inputs(), vec![i64::MAX.to_le_bytes().to_vec(), vec![0; 16]]).encode_to_vec();
    let mut client = GrpcClient::connect(server.grpc);
    client.abandon(INFER, frame(&endless_request), Duration::from_millis(200));
    let short_request = request("rounds", inputs(), vec![3i64.to_le_bytes().to_vec(), vec![0; 16]]).encode_to_vec();
    let response = ModelInferResponse::decode(client.call(INFER, &[], frame(&short_request)).unwrap()).unwrap();
    assert_eq!(floats(&response.raw_output_contents[0]), [3.0; 4]);
    let stats = stats(&server, "rounds");
    assert_eq!(
        (&stats["inference_stats"]["fail"]["count"], &stats["response_stats"]["0"]["cancel"]["count"]),
        (&json!(1), &json!(1))
    );
}

#[test]
fn no_client_waits_past_its_deadline() {
    let server = serve(&["rounds"], &["--timeout", "2", "--max-queue-size", "8"]);
    let busy_client = occupy(&server);
    std::thread::sleep(Duration::from_millis(50));
    // Some requests reach the server's time limit, some their own timeout, and some find the queue full.
    let mut clients: Vec<Client> = (0..24).map(|_| server.client()).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        let mut request = quick_request();
        if i % 2 == 0 {
            request["parameters"] = json!({"timeout": 300_000});
        }
        client.send("POST", "/v2/models/rounds/infer", &[], request.to_string().as_bytes());
    }
    let inputs = vec![tensor("n", "INT64", &[]), tensor("x", "FP32", &[4])];
    let message = request("rounds", inputs, vec![3i64.to_le_bytes().to_vec(), vec![0; 16]]);
    let late_error = GrpcClient::connect(server.grpc)
        .call(INFER, &[("grpc-timeout", "300m")], frame(&message.encode_to_vec()))
        .unwrap_err();
    assert!([4, 14].contains(&late_error.code), "{late_error:?}");
    let mut full_count = 0;
    for client in &mut clients {
        client.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let reply = client.receive();
        match reply.status {
            // Once the busy run has reached its time limit, requests that still wait are served.
            200 => {}
            503 => full_count += usize::from(reply.error(503).contains("Exceeds maximum queue size")),
            other => drop(reply.error(if other == 504 { 504 } else { 503 })),
        }
    }
    assert!(full_count > 0);
    drop(busy_client);
    wait_until("an empty queue", || pending_count(&server, "rounds") == 0);
}

/// Sends requests until `is_ended` is set, reconnecting after connection failures, and checks every response.
fn load(address: SocketAddr, seed: usize, is_ended: &AtomicBool, response_counts: &AtomicUsize) {
    let mut value = seed as f32;
    while !is_ended.load(Ordering::Relaxed) {
        let Ok(stream) = TcpStream::connect(address) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        // A request without a response after this time counts as lost.
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = Client(stream);
        while !is_ended.load(Ordering::Relaxed) {
            value = (value + 1.0) % 1000.0;
            let body = json!({"inputs": [input("x", &[1, 4], &[value, -value, 1.0, 0.5])]}).to_string();
            let send_result = client.try_send("POST", "/v2/models/relu/infer", &[], body.as_bytes());
            let reply = match send_result.and_then(|()| client.try_receive()) {
                Ok(reply) => reply,
                Err(error) => {
                    assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "expected a response within 20 s");
                    break;
                }
            };
            // During startup, the server accepts connections before its models are loaded.
            if [404, 503].contains(&reply.status) {
                reply.error(reply.status);
                continue;
            }
            assert_eq!(reply.ok().json()["outputs"][0]["data"], json!([value, 0.0, 1.0, 0.5]));
            response_counts.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn kill_and_restart_under_load() {
    const CLIENTS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("relu.relay");
    write(&file, "relu");
    let file = file.display().to_string();
    let mut process = Process::start(&[&file]);
    wait_until_ready(process.http);
    let address = process.http;
    let is_ended = AtomicBool::new(false);
    let response_counts: [AtomicUsize; CLIENTS] = Default::default();
    std::thread::scope(|scope| {
        for (seed, response_counts) in response_counts.iter().enumerate() {
            let is_ended = &is_ended;
            scope.spawn(move || load(address, seed, is_ended, response_counts));
        }
        let counts = || {
            response_counts.iter().map(|response_counts| response_counts.load(Ordering::Relaxed)).collect::<Vec<_>>()
        };
        for round in 0..count(3, 20) {
            let counts_before = counts();
            wait_until("responses to each client", || {
                counts().iter().zip(&counts_before).all(|(later, counts_before)| *later > counts_before + 20)
            });
            let signal = if round % 2 == 0 { Signal::KILL } else { Signal::TERM };
            process.signal(signal);
            process.child.wait().unwrap();
            process = Process::start(&[&file, "--http", &address.to_string()]);
        }
        let counts_before = counts();
        wait_until("responses to each client", || {
            counts().iter().zip(&counts_before).all(|(later, counts_before)| *later > counts_before + 20)
        });
        is_ended.store(true, Ordering::Relaxed);
    });
}

#[test]
fn sigterm_loses_no_call_in_progress() {
    const CLIENTS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slow.relay");
    write(&file, "slow");
    let mut process = Process::start(&[&file.display().to_string(), "--max-batch-size", "0"]);
    wait_until_ready(process.http);
    let barrier = Barrier::new(CLIENTS + 1);
    let message: ModelInferRequest = request("slow", vec![tensor("x", "FP32", &[1, 4])], vec![bytes(&[3.0; 4])]);
    let message = message.encode_to_vec();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = GrpcClient::connect(process.grpc);
                    barrier.wait();
                    client.call(INFER, &[], frame(&message)).unwrap()
                })
            })
            .collect();
        barrier.wait();
        let mut client = Client::connect(process.http);
        let name = "nv_inference_pending_request_count{model=\"slow\",version=\"1\"}";
        wait_until("all calls to have arrived", || {
            let finished_count = metric(&mut client, "nv_inference_exec_count{model=\"slow\",version=\"1\"}");
            metric(&mut client, name) + finished_count >= CLIENTS as f64 - 1.0
        });
        drop(client);
        process.signal(Signal::TERM);
        for client in clients {
            let response = ModelInferResponse::decode(client.join().unwrap()).unwrap();
            assert_eq!(floats(&response.raw_output_contents[0]), [3.0; 4]);
        }
    });
    assert!(process.child.wait().unwrap().success());
}
