//! Test models, and servers for them.

use crate::client::Client;
use byoc_serve::{Options, Server};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Test models: name and Relay definition.
const MODELS: [(&str, &str); 11] = [
    ("relu", "def @main(%x: Tensor[(n, 4), float32]) { nn.relu(%x) }"),
    // Tensors large enough to be used in place in shared memory.
    ("image", "def @main(%x: Tensor[(1, 32768), float32]) { (nn.relu(%x), sum(%x, axis=[1])) }"),
    ("fixed", "def @main(%x: Tensor[(1, 3), float32]) { add(%x, 1f) }"),
    // Three inputs, two outputs.
    (
        "sums",
        "def @main(%a: Tensor[(n, 2), float32], %b: Tensor[(n, 2), float32], %c: Tensor[(n, 2), float32]) {\n\
           (add(add(%a, %b), %c), multiply(%a, %b))\n\
         }",
    ),
    // The result of an item depends on the other items of its batch.
    ("mixing", "def @main(%x: Tensor[(n, 4), float32]) { subtract(%x, mean(%x, axis=[0], keepdims=True)) }"),
    ("softmax", "def @main(%x: Tensor[(n, 5), float32]) { nn.softmax(%x) }"),
    ("scalar", "def @main(%x: float32) { add(%x, 1f) }"),
    (
        "picked",
        "def @main(%table: Tensor[(3, 2), float32], %index: Tensor[(2), int64]) { take(%table, %index, axis=0) }",
    ),
    // The output has 4 MB per row.
    ("wide", "def @main(%x: Tensor[(n, 1), float32]) { multiply(%x, ones(shape=[1, 1000000], dtype=\"float32\")) }"),
    // The input `n` determines the number of iterations.
    (
        "rounds",
        "def @loop(%i: int64, %n: int64, %x: Tensor[(4), float32]) -> Tensor[(4), float32] {\n\
           if (%i < %n) { @loop(add(%i, 1i64), %n, add(%x, 1f)) } else { %x }\n\
         }\n\
         def @main(%n: int64, %x: Tensor[(4), float32]) -> Tensor[(4), float32] { @loop(0i64, %n, %x) }",
    ),
    // A batchable model that is slow enough for requests to wait.
    (
        "slow",
        "def @loop(%i: int64, %x: Tensor[(n, 4), float32]) -> Tensor[(n, 4), float32] {\n\
           if (%i < 20000i64) { @loop(add(%i, 1i64), negative(%x)) } else { %x }\n\
         }\n\
         def @main(%x: Tensor[(n, 4), float32]) -> Tensor[(n, 4), float32] { @loop(0i64, %x) }",
    ),
];

/// Datatypes: protocol name, Relay name, size in bytes.
pub const TYPES: [(&str, &str, usize); 13] = [
    ("BOOL", "bool", 1),
    ("UINT8", "uint8", 1),
    ("UINT16", "uint16", 2),
    ("UINT32", "uint32", 4),
    ("UINT64", "uint64", 8),
    ("INT8", "int8", 1),
    ("INT16", "int16", 2),
    ("INT32", "int32", 4),
    ("INT64", "int64", 8),
    ("FP16", "float16", 2),
    ("BF16", "bfloat16", 2),
    ("FP32", "float32", 4),
    ("FP64", "float64", 8),
];

/// Returns the Relay text of a test model.
pub fn model(name: &str) -> String {
    let body = match MODELS.iter().find(|model| model.0 == name) {
        Some(model) => model.1.to_owned(),
        None => {
            let dtype =
                TYPES.iter().find(|row| format!("copy_{}", row.0) == name).expect("the name belongs to a test model").1;
            // A concatenation, because no pass folds it away.
            format!("def @main(%x: Tensor[(n, 2), {dtype}]) {{ concatenate((%x, %x), axis=1) }}")
        }
    };
    format!("#[version = \"0.0.5\"]\n{body}\n")
}

/// Writes a test model to a file.
pub fn write(path: &Path, name: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, model(name)).unwrap();
}

/// Running server with its model files.
pub struct RunningServer {
    server: Option<Server>,
    pub temp_dir: TempDir,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub metrics: Option<SocketAddr>,
}

impl RunningServer {
    pub fn client(&self) -> Client {
        Client::connect(self.http)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp_dir.path().join(name)
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// Parses options, with test defaults: host kernels, free ports, and a short shutdown timeout.
pub fn options(flags: &[&str]) -> Options {
    let fixed_args = ["byoc serve", "--http", "0", "--grpc", "0", "--threads", "2", "--shutdown-timeout", "5"];
    let host_args: &[&str] = if flags.contains(&"--backend") { &[] } else { &["--backend", "none"] };
    byoc_serve::parse(fixed_args.iter().chain(host_args).chain(flags).map(OsString::from)).unwrap()
}

/// Starts a server with test models.
pub fn serve(models: &[&str], flags: &[&str]) -> RunningServer {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<String> = models
        .iter()
        .map(|name| {
            let path = dir.path().join(format!("{name}.relay"));
            write(&path, name);
            path.display().to_string()
        })
        .collect();
    let flags: Vec<&str> = flags.iter().copied().chain(files.iter().map(String::as_str)).collect();
    start(dir, &flags)
}

/// Starts a server whose repository is `dir`.
pub fn serve_repository(dir: TempDir, flags: &[&str]) -> RunningServer {
    let path = dir.path().display().to_string();
    let flags: Vec<&str> = flags.iter().copied().chain(["--repository", &path]).collect();
    start(dir, &flags)
}

fn start(dir: TempDir, flags: &[&str]) -> RunningServer {
    let server = Server::start(&options(flags)).unwrap();
    let (http, grpc, metrics) = (server.http.unwrap(), server.grpc.unwrap(), server.metrics);
    RunningServer { server: Some(server), temp_dir: dir, http, grpc, metrics }
}
