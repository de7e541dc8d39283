//! Requests that grow when they are decoded, to every path and method of the server, and models whose load does not
//! end. The memory of the process stays in proportion to its limit, and other clients are served.

use crate::client::{Client, GrpcClient, frame, input};
use crate::models::{model, write};
use crate::mutations::count;
use crate::process::{Process, wait_until_ready};
use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::process::Signal;
use serde_json::json;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Memory limit of the server, and maximum of its resident memory beyond that of an idle server.
const MAX_MEMORY: &str = "64M";
const MAX_RESIDENT: usize = 4 * (64 << 20);

/// Starts a server of `relu` with the memory limit.
fn limited_server(dir: &Path, flags: &[&str]) -> Process {
    let file = dir.join("relu.relay");
    write(&file, "relu");
    let file = file.display().to_string();
    let flags: Vec<&str> = flags.iter().copied().chain(["--max-memory", MAX_MEMORY, &file]).collect();
    let process = Process::start(&flags);
    wait_until_ready(process.http);
    process
}

/// Returns the peak of the resident memory of a process in bytes.
fn peak_resident(process: &Process) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Checks that the server has stayed within its memory and still serves.
#[track_caller]
fn check(process: &Process, idle: usize, what: &str) {
    let resident = peak_resident(process).saturating_sub(idle);
    assert!(resident <= MAX_RESIDENT, "{what}: expected at most {MAX_RESIDENT} bytes, found {resident}");
    let request = json!({"inputs": [input("x", &[1, 4], &[-1.0, 2.0, -3.0, 4.0])]});
    let response = Client::connect(process.http).infer("relu", &request).ok().json();
    assert_eq!(response["outputs"][0]["data"], json!([0.0, 2.0, 0.0, 4.0]), "{what}");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns JSON texts of about `size` bytes that become much larger, and texts with one large number.
fn json_texts(size: usize) -> Vec<(String, String)> {
    let repeated = |head: &str, item: &str, tail: &str| {
        (format!("{head}{item}.."), format!("{head}{}{tail}", item.repeat(size / item.len())))
    };
    let data = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":["#;
    let text = |text: &str| (text.to_owned(), text.to_owned());
    vec![
        repeated("[", "[],", "0]"),
        repeated("[", r#"{"":0},"#, "0]"),
        repeated(
            r#"{"inputs":["#,
            r#"{"name":"","shape":[],"datatype":""},"#,
            r#"{"name":"","shape":[],"datatype":""}]}"#,
        ),
        repeated(r#"{"inputs":[],"outputs":["#, r#"{"name":"","parameters":{"":0}},"#, r#"{"name":""}]}"#),
        repeated(r#"{"inputs":[],"parameters":{"#, r#""":0,"#, r#""a":0}}"#),
        repeated(data, "0,", "0]}]}"),
        repeated(data, r#""","#, "0]}]}"),
        repeated(data, "[],", "[]]}]}"),
        repeated(r#"{"parameters":{"a":["#, r#"{"":0},"#, "0]}}"),
        repeated(r#"{"parameters":{"a":["#, "[],", "0]}}"),
        repeated(r#"{"parameters":{"config":""#, "a", r#""}}"#),
        repeated(r#"{"parameters":{"config":"{\"a\":["#, "{},", r#"0]}"}}"#),
        text(r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[4611686018427387904,4],"data":[]}]}"#),
        text(
            r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":9223372036854775807}}]}"#,
        ),
        text(r#"{"key":"/a","offset":18446744073709551615,"byte_size":18446744073709551615}"#),
    ]
}

/// Returns the quoted texts in the lines of a source file that contain `marker`.
fn quoted(source: &str, marker: &str) -> Vec<String> {
    let lines = source.lines().filter(|line| line.contains(marker));
    let found: Vec<String> = lines.filter_map(|line| line.split('"').nth(1).map(str::to_owned)).collect();
    assert!(found.len() > 5, "expected more than five lines with {marker}, found {found:?}");
    found
}

#[test]
fn requests_that_grow_over_http() {
    let dir = tempfile::tempdir().unwrap();
    let process =
        limited_server(dir.path(), &["--allow-control", "--allow-shared-memory", "--max-request-size", "16M"]);
    let idle = peak_resident(&process);
    let texts = json_texts(count(2 << 20, 12 << 20));
    for path in quoted(include_str!("../../src/http.rs"), "(POST, \"") {
        let model = if path.ends_with("/unload") { "other" } else { "relu" };
        let path = path.replace("{model}", model).replace("{version}", "1").replace("{region}", "r");
        let path = path.replace("{repository}", "none");
        for (name, text) in &texts {
            for (headers, body) in
                [(&[][..], text.as_bytes()), (&[("Content-Encoding", "gzip")][..], &gzip(text.as_bytes()))]
            {
                // A server that refuses a request early closes the connection before the body is sent.
                let mut client = Client::connect(process.http);
                let sent = client.try_send("POST", &path, headers, body);
                match client.try_receive() {
                    // Only paths that do not read a body have a response without an error.
                    Ok(reply) if reply.status == 200 => assert!(!path.ends_with("/infer"), "{path} {name}"),
                    Ok(reply) => assert!(!reply.error(reply.status).is_empty(), "{path} {name}"),
                    Err(error) => assert!(sent.is_err(), "{path} {name}: {error}"),
                }
            }
            check(&process, idle, &format!("{path} {name}"));
        }
    }
    let lengths = [("Inference-Header-Content-Length", "18446744073709551615")];
    let mut client = Client::connect(process.http);
    client.request("POST", "/v2/models/relu/infer", &lengths, b"{}").error(400);
    for length in ["9223372036854775807", "99999999999999999999", "-1"] {
        let mut stream = TcpStream::connect(process.http).unwrap();
        write!(stream, "POST /v2/models/relu/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n").unwrap();
        let status = Client(stream).receive().status;
        assert!((400..500).contains(&status), "{length}: {status}");
    }
    check(&process, idle, "lengths");
}

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut message = vec![number << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut message);
    message.extend_from_slice(content);
    message
}

#[test]
fn messages_that_grow_over_grpc() {
    let dir = tempfile::tempdir().unwrap();
    let process =
        limited_server(dir.path(), &["--allow-control", "--allow-shared-memory", "--max-request-size", "16M"]);
    let idle = peak_resident(&process);
    let size = count(2 << 20, 12 << 20);
    let methods = quoted(include_str!("../../src/grpc.rs"), " => unary(");
    for method in methods.iter().map(String::as_str) {
        let (service, method) = match method.contains('.') {
            true => ("grpc.health.v1.Health", "Check"),
            false => ("inference.GRPCInferenceService", method),
        };
        let path = format!("/{service}/{method}");
        for number in 1..=7 {
            let model: &[u8] = if method.ends_with("Unload") { b"other" } else { b"relu" };
            let name = [field(1, model), field(2, b"")].concat();
            // Empty fields, fields with an empty field, entries of a map with a value, and one large length.
            let empty_entry = field(number, &[field(1, b"a"), field(2, b"")].concat());
            for (kind, item) in [
                ("empty", field(number, b"")),
                ("nested", field(number, &field(5, b""))),
                ("entries", empty_entry),
                ("length", vec![number << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            ] {
                let message = [name.clone(), item.repeat(size / item.len())].concat();
                let mut compressed = vec![1];
                let zipped = gzip(&message);
                compressed.extend_from_slice(&(zipped.len() as u32).to_be_bytes());
                compressed.extend_from_slice(&zipped);
                let encoding = [("grpc-encoding", "gzip")];
                let plain = (&[][..], frame(&message));
                let zipped = (kind == "empty").then_some((&encoding[..], compressed));
                for (headers, body) in std::iter::once(plain).chain(zipped) {
                    let _answer = GrpcClient::connect(process.grpc).call(&path, headers, body);
                    check(&process, idle, &format!("{method}, field {number}, {kind}"));
                }
            }
        }
    }
}

#[test]
fn responses_that_nobody_reads() {
    let dir = tempfile::tempdir().unwrap();
    let wide = dir.path().join("wide.relay");
    write(&wide, "wide");
    let process = limited_server(dir.path(), &[&wide.display().to_string(), "--timeout", "20"]);
    let idle = peak_resident(&process);
    let body = json!({"inputs": [input("x", &[1, 1], &[1.5])]}).to_string();
    let head = format!("POST /v2/models/wide/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
    let streams: Vec<TcpStream> = (0..count(40, 80))
        .map(|_| {
            let mut stream = TcpStream::connect(process.http).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(body.as_bytes()).unwrap();
            // The response has begun when its first byte can be seen.
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let _ = stream.peek(&mut [0]);
            stream
        })
        .collect();
    let resident = peak_resident(&process).saturating_sub(idle);
    assert!(resident <= MAX_RESIDENT, "expected at most {MAX_RESIDENT} bytes, found {resident}");
    drop(streams);
}

/// A model whose run does not end.
fn endless() -> String {
    let header = model("relu").lines().next().unwrap().to_owned();
    let tensor = "Tensor[(4), float32]";
    format!(
        "{header}\ndef @loop(%x: {tensor}) -> {tensor} {{ @loop(add(%x, 1f)) }}\n\
         def @main(%x: {tensor}) -> {tensor} {{ @loop(%x) }}\n"
    )
}

/// Writes a repository of `relu` models and of one whose warm-up does not end, first by name.
fn repository_with_an_endless_warm_up(dir: &Path) {
    for name in ["b", "c", "d", "e", "f"] {
        write(&dir.join(name).join("1/model.relay"), "relu");
    }
    std::fs::create_dir_all(dir.join("a/1")).unwrap();
    std::fs::write(dir.join("a/1/model.relay"), endless()).unwrap();
    let warm_up = r#"model_warmup [ { name: "w" batch_size: 1
        inputs { key: "x" value: { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } } ]"#;
    std::fs::write(dir.join("a/config.pbtxt"), warm_up).unwrap();
}

/// Returns the state of a model, and its reason.
fn state(client: &mut Client, name: &str) -> (String, String) {
    let index = client.post("/v2/repository/index", &json!({})).ok().json();
    let entry = index.as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap().clone();
    let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    (text("state"), text("reason"))
}

fn wait_for_state(client: &mut Client, name: &str, expected: &str) -> String {
    let start = Instant::now();
    loop {
        let (state, reason) = state(client, name);
        if state == expected {
            return reason;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{name}: expected {expected}, found {state}: {reason}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_load_that_does_not_end_holds_up_no_other() {
    let dir = tempfile::tempdir().unwrap();
    repository_with_an_endless_warm_up(dir.path());
    let repository = dir.path().display().to_string();
    let process = Process::start(&["--repository", &repository, "--allow-control", "--load-timeout", "3"]);
    let mut client = Client::connect(process.http);
    for name in ["b", "c", "d", "e", "f"] {
        wait_for_state(&mut client, name, "READY");
    }
    assert_eq!(state(&mut client, "a").0, "LOADING");
    client.post("/v2/repository/models/b/load", &json!({})).ok();
    assert_eq!(client.get("/v2/health/ready").status, 400);
    let reason = wait_for_state(&mut client, "a", "UNAVAILABLE");
    assert!(reason.contains("within 3 s") && reason.contains("--load-timeout"), "{reason}");
    // An unload ends the load of the model.
    let mut other_client = Client::connect(process.http);
    other_client.send("POST", "/v2/repository/models/a/load", &[], b"");
    wait_for_state(&mut client, "a", "LOADING");
    client.post("/v2/repository/models/a/unload", &json!({})).ok();
    let message = other_client.receive().error(400);
    assert!(message.contains("unload"), "{message}");
    client.get("/v2/health/ready").ok();
}

#[test]
fn a_signal_ends_a_load() {
    let dir = tempfile::tempdir().unwrap();
    repository_with_an_endless_warm_up(dir.path());
    let mut process = Process::start(&["--repository", &dir.path().display().to_string()]);
    wait_for_state(&mut Client::connect(process.http), "b", "READY");
    process.signal(Signal::TERM);
    assert_eq!(process.child.wait().unwrap().code(), Some(0));
}
