//! Servers of models whose dimensions differ from request to request: memory over many shapes, and shutdown while plans
//! are created and released.

use crate::client::Client;
use crate::process::{Process, wait_until_ready};
use rustix::process::Signal;
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Convolution with a fused ReLU, for which backends generate code.
const MODEL: &str = "#[version = \"0.0.5\"]\n\
                     def @main(%x: Tensor[(1, 8, h, w), float32]) {\n\
                       nn.relu(nn.conv2d(%x, ones(shape=[16, 8, 3, 3], dtype=\"float32\"), strides=[2, 2], \
                       padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]))\n\
                     }";

/// Server process for [`MODEL`] on a backend, with its files.
struct ShapeServer {
    process: Process,
    _dirs: [TempDir; 2],
}

impl ShapeServer {
    fn start(backend: &str) -> ShapeServer {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("conv.relay");
        std::fs::write(&file, MODEL).unwrap();
        let is_host = backend == "none";
        let plugins = byoc_test_support::plugin_dir(if is_host { &[] } else { std::slice::from_ref(&backend) });
        let paths = [&file, plugins.path()].map(|path: &std::path::Path| PathBuf::from(path).display().to_string());
        let process = Process::start(&["--backend", backend, "--plugin-dir", &paths[1], &paths[0]]);
        wait_until_ready(process.http);
        ShapeServer { process, _dirs: [dir, plugins] }
    }

    /// Returns the resident memory in KiB.
    fn resident_kib(&self) -> usize {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.process.child.id())).unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size() / 1024
    }
}

/// Runs the model on an image of this size. Returns false if the server has closed the connection or refuses the
/// request.
fn infer(client: &mut Client, [height, width]: [usize; 2]) -> bool {
    let size = 8 * height * width * 4;
    let input = json!({
        "name": "x", "datatype": "FP32", "shape": [1, 8, height, width], "parameters": { "binary_data_size": size },
    });
    let head = json!({ "inputs": [input], "parameters": { "binary_data_output": true } }).to_string();
    let body = [head.as_bytes(), &vec![0; size]].concat();
    let header = [("Inference-Header-Content-Length", &*head.len().to_string())];
    client.try_send("POST", "/v2/models/conv/infer", &header, &body).is_ok()
        && client.try_receive().is_ok_and(|reply| reply.status == 200)
}

/// Returns the image size with this number; the sizes of consecutive numbers differ in both dimensions.
fn size(number: usize) -> [usize; 2] {
    [9 + number % 37, 9 + number % 41]
}

/// Backends whose memory and shutdown are tested; oneDNN only if it is installed.
fn backends() -> impl Iterator<Item = &'static str> {
    ["none"].into_iter().chain(byoc_test_support::onednn().map(|_| "dnnl"))
}

#[test]
fn memory_does_not_grow_with_the_number_of_shapes() {
    for backend in backends() {
        let server = ShapeServer::start(backend);
        let mut client = Client::connect(server.process.http);
        let mut run = |numbers: std::ops::Range<usize>| {
            numbers.for_each(|number| assert!(infer(&mut client, size(number)), "{backend}: {:?}", size(number)));
        };
        run(0..300);
        let before = server.resident_kib();
        run(300..1500);
        let after = server.resident_kib();
        assert!(after <= before * 13 / 10, "{backend}: {before} KiB after 300 shapes, {after} KiB after 1,500");
    }
}

#[test]
fn sigterm_while_plans_are_created_ends_without_a_fault() {
    for round in 0..5 {
        for backend in backends() {
            let mut server = ShapeServer::start(backend);
            let (http, is_stopped, served_count) = (server.process.http, AtomicBool::new(false), AtomicUsize::new(0));
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let (is_stopped, served_count) = (&is_stopped, &served_count);
                    scope.spawn(move || send_until_stopped(http, thread * 500, is_stopped, served_count));
                }
                while served_count.load(Ordering::Relaxed) < 120 + 10 * round {
                    std::thread::sleep(Duration::from_millis(1));
                }
                server.process.signal(Signal::TERM);
                let status = server.process.child.wait().unwrap();
                is_stopped.store(true, Ordering::Relaxed);
                assert!(status.success(), "{backend}, round {round}: {status}");
            });
        }
    }
}

/// Sends requests of different shapes until the server is gone.
fn send_until_stopped(http: SocketAddr, first: usize, is_stopped: &AtomicBool, served_count: &AtomicUsize) {
    let mut client = Client::connect(http);
    for number in first.. {
        if is_stopped.load(Ordering::Relaxed) || !infer(&mut client, size(number)) {
            return;
        }
        served_count.fetch_add(1, Ordering::Relaxed);
    }
}
