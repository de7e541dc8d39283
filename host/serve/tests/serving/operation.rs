//! Tests of startup, shutdown, and misbehaving clients.

use crate::client::{Client, input};
use crate::models::{options, serve, write};
use crate::process::{Process, wait_until_ready};
use byoc_serve::Server;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

#[test]
fn starts_that_fail_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("relu.relay");
    write(&file, "relu");
    let file = file.display().to_string();
    let other = serve(&["relu"], &[]);
    let used_port = other.http.to_string();
    for (flags, code, expected) in [
        (vec![], "E0801", "expected models or --repository DIR, found neither"),
        (vec![&*file, &*file], "E0801", "found 'relu' twice"),
        (vec!["a\n=a.onnx"], "E0801", "expected a model name without slashes"),
        (vec!["--repository", "/no/such/folder"], "E0801", "expected a directory, found /no/such/folder"),
        (vec!["--http", "none", "--grpc", "none", &*file], "E0801", "found none for both"),
        (vec!["--backend", "none,dnnl", &*file], "E0801", "expected only 'none'"),
        (vec!["--http", &*used_port, &*file], "E0802", "found a port in use by another process"),
        (vec!["--grpc", "nowhere", &*file], "E0802", "expected a port, a resolvable HOST:PORT or none"),
    ] {
        let error = Server::start(&options(&flags)).err().expect("expected a startup error, found a running server");
        assert!(error.code.to_string() == code && error.message.contains(expected), "{flags:?}: {error}");
    }
    // A directory without models is served, because models may be added later.
    let server = Server::start(&options(&["--repository", &dir.path().join("..").display().to_string()]));
    server.unwrap().stop();
}

#[test]
fn sigterm_under_load_loses_no_request() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slow.relay");
    write(&file, "slow");
    let mut process = Process::start(&[&file.display().to_string()]);
    wait_until_ready(process.http);
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(process.http)).collect();
    let request = json!({"inputs": [input("x", &[1, 4], &[3.0; 4])]}).to_string();
    for client in &mut clients {
        client.send("POST", "/v2/models/slow/infer", &[], request.as_bytes());
    }
    // Once one request is answered, all requests have arrived or are in socket buffers.
    clients[0].receive().ok();
    process.signal(rustix::process::Signal::TERM);
    for client in &mut clients[1..] {
        assert_eq!(client.receive().ok().json()["outputs"][0]["data"][0], 3.0);
    }
    assert!(process.child.wait().unwrap().success());
    assert!(TcpStream::connect(process.http).is_err());
}

#[test]
fn kill_and_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("relu.relay");
    write(&file, "relu");
    let file = file.display().to_string();
    let process = Process::start(&[&file]);
    wait_until_ready(process.http);
    let address = process.http.to_string();
    process.signal(rustix::process::Signal::KILL);
    drop(process);
    // The port is free again immediately.
    let process = Process::start(&[&file, "--http", &address]);
    assert_eq!(process.http.to_string(), address);
    wait_until_ready(process.http);
}

#[test]
fn help_and_wrong_flags() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_byoc-serve")).args(arguments).output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, out, _) = run(&["--help"]);
    assert!(code == 0 && out.contains("Usage: byoc serve") && out.contains("--max-queue-delay-microseconds"), "{out}");
    let (code, _, err) = run(&["--htpp", "1"]);
    assert!(code == 2 && err.contains("--http"), "{err}");
    let (code, _, err) = run(&[]);
    assert!(code == 1 && err.starts_with("error[E0801]: expected models"), "{err}");
    let (code, _, err) = run(&["--config", "/no/such/file"]);
    assert!(code == 2 && err.contains("/no/such/file"), "{err}");
}

#[test]
fn clients_that_misbehave_do_not_disturb_others() {
    let server = serve(&["relu"], &["--timeout", "2", "--max-connections", "64"]);
    let request = json!({"inputs": [input("x", &[1, 4], &[1.0; 4])]}).to_string();
    // Connections that send no data, a partial header, a partial body, or garbage.
    let mut held_connections: Vec<TcpStream> = Vec::new();
    for start in [
        "",
        "POST /v2/models/relu/in",
        "POST /v2/models/relu/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
    ] {
        for _ in 0..5 {
            let mut stream = TcpStream::connect(server.http).unwrap();
            stream.write_all(start.as_bytes()).unwrap();
            held_connections.push(stream);
        }
    }
    for garbage_bytes in [
        &b"\0\xff\x16\x03\x01"[..],
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\xff\xff\xff\xff",
        &[b'A'; 100_000],
    ] {
        let mut stream = TcpStream::connect(server.http).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let _ = stream.write_all(garbage_bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let mut client = server.client();
    client.request("POST", "/v2/models/relu/infer", &[], request.as_bytes()).ok();
    // A request with a missing body receives an error at the time limit.
    let mut last_client = Client(held_connections.pop().unwrap());
    last_client.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(last_client.receive().error(504).contains("within 2 s"));
    // Connections beyond the limit are closed, and existing connections remain usable.
    let more_connections: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(server.http).unwrap()).collect();
    client.request("POST", "/v2/models/relu/infer", &[], request.as_bytes()).ok();
    drop(more_connections);
    drop(held_connections);
    for _ in 0..2000 {
        let mut new_client = Client::connect(server.http);
        new_client.0.write_all(b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        if new_client.0.peek(&mut [0]).is_ok_and(|count| count > 0) {
            new_client.receive().ok();
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("expected an accepted connection within 10 s, found none");
}
