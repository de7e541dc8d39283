//! Soak test with clients of several kinds that check every response, misbehaving clients, and repeated model
//! replacement. The mean resident memory in the last quarter is compared with the mean in the second quarter.

use crate::client::{Grpc, Http, INFER, binary_request, frame, request};
use crate::models::{networks, work_dir};
use crate::numbers::verdict;
use crate::processes::{Server, grpc_request, start_byoc};
use crate::{Options, Result};
use byoc_ir::tensor::random::Random;
use byoc_serve::proto::ModelInferResponse;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Limit on the relative growth of resident memory from the second quarter to the last.
const MAX_GROWTH: f64 = 0.01;

/// Number of checked responses per client kind, and a flag that ends the run.
struct Counts {
    ended: AtomicBool,
    answers: [(&'static str, AtomicU64); 6],
}

impl Counts {
    fn add(&self, kind: &str) {
        if let Some((_, count)) = self.answers.iter().find(|row| row.0 == kind) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_running(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }
}

/// Runs the measurement.
pub fn run(options: &Options) -> Result<()> {
    let time = Duration::from_secs_f64(options.number("minutes", 20.0)? * 60.0);
    let repository = work_dir()?.join("soak");
    let _ = std::fs::remove_dir_all(&repository);
    write_model(&repository, "relu", "nn.relu(%x)")?;
    write_model(&repository, "changing", "add(%x, 0f)")?;
    let networks = networks()?;
    let digits =
        networks.iter().find(|model| model.name == "digits").ok_or("expected the digits network among the models")?;
    let model_arg = format!("digits={}", digits.file.display());
    let path = repository.display().to_string();
    let server = start_byoc(&[
        "--repository",
        &path,
        &model_arg,
        "--backend",
        "none",
        "--allow-control",
        "--allow-shared-memory",
        "--max-batch-size",
        "8",
        "--timeout",
        "20",
        "--idle-timeout",
        "20",
    ])?;
    let counts = Counts {
        ended: AtomicBool::new(false),
        answers: ["binary", "json", "gRPC", "digits", "reloads", "other"].map(|kind| (kind, AtomicU64::new(0))),
    };
    println!("7 clients for {:.1} minutes", time.as_secs_f64() / 60.0);
    let (samples, outcomes) = std::thread::scope(|scope| {
        let (server, counts, repository) = (&server, &counts, repository.as_path());
        let workloads: Vec<Box<dyn FnOnce() -> Result<()> + Send + '_>> = vec![
            Box::new(move || check_binary(server, counts, 1, 8)),
            Box::new(move || check_binary(server, counts, 2, 8)),
            Box::new(move || check_json(server, counts)),
            Box::new(move || check_grpc(server, counts)),
            Box::new(move || check_digits(server, counts, digits)),
            Box::new(move || reload(server, counts, repository)),
            Box::new(move || send_bad_requests(server, counts)),
        ];
        let threads: Vec<_> = workloads
            .into_iter()
            .map(|workload| {
                scope.spawn(move || {
                    let outcome = workload();
                    // The first failing client ends the run.
                    counts.ended.store(true, Ordering::Relaxed);
                    outcome
                })
            })
            .collect();
        let samples = sample(server, counts, time);
        counts.ended.store(true, Ordering::Relaxed);
        let outcomes: Vec<Result<()>> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a client panicked".into())))
            .collect();
        (samples, outcomes)
    });
    outcomes.into_iter().collect::<Result<Vec<()>>>()?;
    let samples = samples?;
    for (kind, count) in &counts.answers {
        println!("{kind:<8} {:>10}", count.load(Ordering::Relaxed));
    }
    report(&samples)
}

fn write_model(repository: &Path, name: &str, body: &str) -> Result<()> {
    let dir = repository.join(name).join("1");
    let text = format!("#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(n, 4), float32]) {{ {body} }}\n");
    std::fs::create_dir_all(&dir)
        .and_then(|()| std::fs::write(dir.join("new"), text))
        .and_then(|()| std::fs::rename(dir.join("new"), dir.join("model.relay")))
        .map_err(|e| e.to_string())
}

/// Samples the resident memory in bytes, once per second.
fn sample(server: &Server, counts: &Counts, time: Duration) -> Result<Vec<f64>> {
    let start = Instant::now();
    let mut samples = Vec::new();
    while start.elapsed() < time && counts.is_running() {
        samples.push(server.resident_bytes()? as f64);
        if samples.len() % 60 == 0 {
            println!("{:>4} s  {:.2} MB", samples.len(), server.resident_bytes()? as f64 / 1e6);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(samples)
}

fn report(samples: &[f64]) -> Result<()> {
    let quarter = samples.len() / 4;
    if quarter == 0 {
        return Err(format!("expected at least 4 samples, found {}", samples.len()));
    }
    println!("\n| quarter | resident memory, mean MB | lowest | highest |\n|---|---|---|---|");
    let mut averages = Vec::new();
    for (i, part) in samples.chunks_exact(quarter).take(4).enumerate() {
        let mean = part.iter().sum::<f64>() / part.len() as f64;
        let (low, high) = part.iter().fold((f64::INFINITY, 0.0f64), |(l, h), &v| (l.min(v), h.max(v)));
        println!("| {} | {:.2} | {:.2} | {:.2} |", i + 1, mean / 1e6, low / 1e6, high / 1e6);
        averages.push(mean);
    }
    let growth = averages[3] / averages[1] - 1.0;
    let is_met = growth.abs() <= MAX_GROWTH;
    println!(
        "growth from the second to the last quarter: {:+.2} %, at most {:.0} %: {}",
        100.0 * growth,
        100.0 * MAX_GROWTH,
        verdict(is_met)
    );
    if is_met {
        return Ok(());
    }
    let (limit, growth) = (100.0 * MAX_GROWTH, 100.0 * growth);
    Err(format!("resident memory: expected a change of at most {limit:.0} %, found {growth:+.2} %"))
}

fn values(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| (random.next_u64() % 2001) as f32 - 1000.0).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn positive(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.max(0.0).to_le_bytes()).collect()
}

fn io_error(error: std::io::Error) -> String {
    error.to_string()
}

fn check_binary(server: &Server, counts: &Counts, seed: u64, rows: u64) -> Result<()> {
    let mut random = Random::new(seed);
    while counts.is_running() {
        // Each connection is replaced after 200 requests.
        let mut client = Http::connect(server.http).map_err(io_error)?;
        for _ in 0..200 {
            let rows = 1 + random.next_u64() % rows;
            let values = values(&mut random, rows as usize * 4);
            let request = binary_request("relu", "x", &[rows as i64, 4], &bytes(&values));
            let reply = client.exchange(&request).map_err(io_error)?;
            if reply.status != 200 || client.data(reply) != positive(&values) {
                return Err(format!(
                    "binary: expected the positive part of the input, found {}",
                    String::from_utf8_lossy(client.body(reply))
                ));
            }
            counts.add("binary");
        }
    }
    Ok(())
}

fn check_json(server: &Server, counts: &Counts) -> Result<()> {
    let mut random = Random::new(3);
    let mut client = Http::connect(server.http).map_err(io_error)?;
    while counts.is_running() {
        let values = values(&mut random, 8);
        let body = json!({"id": "t", "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": values}]})
            .to_string();
        let reply =
            client.exchange(&request("POST", "/v2/models/relu/infer", &[], body.as_bytes())).map_err(io_error)?;
        let response: Value = serde_json::from_slice(client.body(reply)).map_err(|e| e.to_string())?;
        let expected: Vec<f32> = values.iter().map(|value| value.max(0.0)).collect();
        if response["outputs"][0]["data"] != json!(expected) {
            return Err(format!("json: expected {expected:?}, found {response}"));
        }
        counts.add("json");
    }
    Ok(())
}

fn check_grpc(server: &Server, counts: &Counts) -> Result<()> {
    let mut random = Random::new(4);
    while counts.is_running() {
        let mut client = Grpc::connect(server.grpc)?;
        for _ in 0..500 {
            let values = values(&mut random, 4);
            let response = client.exchange(INFER, frame(&grpc_request("relu", "x", &[1, 4], bytes(&values))))?;
            let response: ModelInferResponse =
                prost::Message::decode(response).map_err(|e: prost::DecodeError| e.to_string())?;
            if response.raw_output_contents.first().is_none_or(|actual| *actual != positive(&values)) {
                return Err(format!("gRPC: expected the positive part of {values:?}, found {response:?}"));
            }
            counts.add("gRPC");
        }
    }
    Ok(())
}

fn check_digits(server: &Server, counts: &Counts, model: &crate::models::Model) -> Result<()> {
    let session = byoc::Session::builder().threads(1).build().map_err(|e| format!("{e:?}"))?;
    let options = byoc::CompileOptions::new().open_unbound_dims();
    let local_model = byoc::Model::compile(&session, &model.file, &options).map_err(|e| e.to_string())?;
    let shape: Vec<usize> = model.shape.iter().map(|size| *size as usize).collect();
    let count = shape.iter().product();
    let mut random = Random::new(5);
    let mut client = Http::connect(server.http).map_err(io_error)?;
    while counts.is_running() {
        let values: Vec<f32> = (0..count).map(|_| (random.next_u64() % 256) as f32 / 255.0).collect();
        let input = byoc::Tensor::from_bytes(byoc::DType::F32, &shape, &bytes(&values))
            .ok_or("expected data of the input's size")?;
        let expected = local_model.run(vec![input]).map_err(|e| e.to_string())?.into_tensors();
        let reply = client
            .exchange(&binary_request("digits", &model.input, &model.shape, &bytes(&values)))
            .map_err(io_error)?;
        let actual = client.data(reply);
        let expected: Vec<f64> = expected.first().map(|tensor| tensor.view().to_f64s()).unwrap_or_default();
        let floats = actual.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap_or_default()));
        let agrees = actual.len() == expected.len() * 4
            && floats
                .zip(&expected)
                .all(|(actual, expected)| (f64::from(actual) - expected).abs() < 1e-3 * expected.abs().max(1.0));
        if !agrees {
            return Err(format!(
                "digits: expected {expected:?}, found {}",
                String::from_utf8_lossy(client.body(reply))
            ));
        }
        counts.add("digits");
    }
    Ok(())
}

/// Replaces a model repeatedly, and sends requests to both versions.
fn reload(server: &Server, counts: &Counts, repository: &Path) -> Result<()> {
    let mut client = Http::connect(server.http).map_err(io_error)?;
    let mut value = 0;
    while counts.is_running() {
        value = (value + 1) % 1000;
        write_model(repository, "changing", &format!("add(%x, {value}f)"))?;
        let load = request("POST", "/v2/repository/models/changing/load", &[], b"{}");
        let reply = client.exchange(&load).map_err(io_error)?;
        if reply.status != 200 {
            let body = String::from_utf8_lossy(client.body(reply));
            return Err(format!("load: expected status 200, found {}: {body}", reply.status));
        }
        let request = binary_request("changing", "x", &[1, 4], &bytes(&[1.0; 4]));
        let reply = client.exchange(&request).map_err(io_error)?;
        if client.data(reply) != bytes(&[value as f32 + 1.0; 4]) {
            return Err(format!("changing: expected {}, found different data", value + 1));
        }
        counts.add("reloads");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Sends invalid requests, closes connections early, and calls the remaining endpoints.
fn send_bad_requests(server: &Server, counts: &Counts) -> Result<()> {
    let key = format!("byoc_soak_{}", std::process::id());
    let object = Path::new("/dev/shm").join(&key);
    std::fs::write(&object, vec![0; 4096]).map_err(io_error)?;
    let outcome = send_bad_request(server, counts, &key);
    let _ = std::fs::remove_file(object);
    outcome
}

fn send_bad_request(server: &Server, counts: &Counts, key: &str) -> Result<()> {
    let register = json!({"key": key, "offset": 0, "byte_size": 4096}).to_string();
    let region_at = |offset: usize| json!({"shared_memory_region": "soak", "shared_memory_offset": offset, "shared_memory_byte_size": 16});
    let shared_request = json!({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": region_at(0)}],
        "outputs": [{"name": "output_0", "parameters": region_at(64)}],
    });
    let requests: [(&str, &str, String, u16); 12] = [
        ("GET", "/v2", String::new(), 200),
        ("GET", "/metrics", String::new(), 200),
        ("GET", "/v2/models/stats", String::new(), 200),
        ("GET", "/v2/models/digits/config", String::new(), 200),
        ("GET", "/v2/models/nothing", String::new(), 404),
        ("POST", "/v2/repository/index", "{}".into(), 200),
        ("POST", "/v2/models/relu/infer", "{\"inputs\": [".into(), 400),
        ("POST", "/v2/models/relu/infer", json!({"inputs": []}).to_string(), 400),
        ("POST", "/v2/systemsharedmemory/region/soak/register", register, 200),
        ("POST", "/v2/models/relu/infer", shared_request.to_string(), 200),
        ("POST", "/v2/systemsharedmemory/region/soak/unregister", String::new(), 200),
        ("POST", "/v2/models/relu/infer", shared_request.to_string(), 404),
    ];
    while counts.is_running() {
        let mut client = Http::connect(server.http).map_err(io_error)?;
        for (method, path, body, expected) in &requests {
            let reply = client.exchange(&request(method, path, &[], body.as_bytes())).map_err(io_error)?;
            if reply.status != *expected {
                let body = String::from_utf8_lossy(client.body(reply)).into_owned();
                return Err(format!("{method} {path}: expected status {expected}, found {}: {body}", reply.status));
            }
            counts.add("other");
        }
        // An incomplete request, and a request whose response is not read.
        let request = binary_request("digits", "none", &[1], &[0; 4]);
        for part in [&request[..40], &request[..]] {
            TcpStream::connect(server.http).and_then(|mut stream| stream.write_all(part)).map_err(io_error)?;
        }
        let _ = Grpc::connect(server.grpc)?
            .exchange("/inference.GRPCInferenceService/TraceSetting", frame(&byoc_serve::proto::Empty {}));
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
