//! Server latency compared with that of an echo server: a model with a single ReLU, one client, persistent connections.

use crate::client::{Http, binary_request, frame, request};
use crate::load::{Connection, Exchange, clients};
use crate::models::{Model, model_flags, relus, work_dir};
use crate::numbers::{format_range, median, percentile, verdict};
use crate::processes::{Processors, Server, grpc_request, start_byoc, start_echo};
use crate::{Options, Result};
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Limits on the latency in excess of the echo server's latency, in microseconds.
const MAX_HTTP: f64 = 60.0;
const MAX_GRPC: f64 = 100.0;
/// Limit on the ratio of the server's latency to that of the echo server, for image-sized data.
const MAX_RATIO: f64 = 1.3;
/// Limit on the latency of a request with an image in shared memory, in excess of that of a 16-byte request, in
/// microseconds.
const MAX_SHARED: f64 = 50.0;

/// Exchange with one model, and its measured latencies.
struct Case {
    label: &'static str,
    exchange: Exchange,
    has_echo: bool,
    count: usize,
    echo: Vec<[f64; 2]>,
    byoc: Vec<[f64; 2]>,
}

/// Shared-memory object that holds an input and an output.
struct Shared(PathBuf);

impl Shared {
    fn create(name: &str, data: &[u8]) -> Result<Shared> {
        let path = PathBuf::from("/dev/shm").join(format!("byoc_bench_{}_{name}", std::process::id()));
        std::fs::write(&path, [data, &vec![0; data.len()]].concat()).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Shared(path))
    }

    /// Registers the object, which holds an input and an output of the given size.
    fn register(&self, server: &Server, name: &str, size: usize) -> Result<()> {
        let key = self.0.file_name().unwrap_or_default().to_string_lossy();
        let body = json!({"key": key, "offset": 0, "byte_size": 2 * size}).to_string();
        let path = format!("/v2/systemsharedmemory/region/{name}/register");
        let mut client = Http::connect(server.http).map_err(|e| e.to_string())?;
        let reply = client.exchange(&request("POST", &path, &[], body.as_bytes())).map_err(|e| e.to_string())?;
        if reply.status != 200 {
            let body = String::from_utf8_lossy(client.body(reply));
            return Err(format!("shared memory {name}: expected status 200, found {}: {body}", reply.status));
        }
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn shared_request(model: &Model, size: usize) -> Vec<u8> {
    let region_at = |offset: usize| json!({"shared_memory_region": model.name, "shared_memory_offset": offset, "shared_memory_byte_size": size});
    let input = json!({"name": model.input, "shape": model.shape, "datatype": "FP32", "parameters": region_at(0)});
    let output = json!({"name": "output_0", "parameters": region_at(size)});
    let body = json!({"inputs": [input], "outputs": [output]}).to_string();
    request("POST", &format!("/v2/models/{}/infer", model.name), &[], body.as_bytes())
}

fn relu(data: &[u8]) -> Vec<u8> {
    let relu_bytes = |chunk: &[u8]| {
        let value = f32::from_le_bytes(chunk.try_into().unwrap_or_default());
        value.max(0.0).to_le_bytes()
    };
    data.chunks_exact(4).flat_map(relu_bytes).collect()
}

/// Runs the measurement.
pub fn run(options: &Options) -> Result<()> {
    let rounds = options.number("rounds", 9.0)? as usize;
    let models = relus()?;
    let mut flags: Vec<String> =
        ["--threads", "1", "--backend", "none", "--allow-shared-memory"].map(String::from).to_vec();
    flags.extend(model_flags(&models));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    // Client and servers are pinned to fixed CPUs, because scheduler placement can double the latency of either
    // server, depending on whether a thread is woken on the same CPU or on another one.
    let processors = Processors::available()?;
    processors.restrict(&processors.last())?;
    let (server, echo) = (start_byoc(&flags)?, start_echo()?);
    processors.restrict(&processors.first())?;
    let mut cases = Vec::new();
    let mut objects = Vec::new();
    for (model, labels) in models.iter().zip([
        ["HTTP binary, 16 B", "gRPC, 16 B", "shared memory, 16 B"],
        ["HTTP binary, 602 kB", "gRPC, 602 kB", "shared memory, 602 kB"],
    ]) {
        let data = model.data();
        let object = Shared::create(model.name, &data)?;
        object.register(&server, model.name, data.len())?;
        objects.push(object);
        let count = if data.len() < 1000 { 3000 } else { 300 };
        let http = Exchange::Http { request: binary_request(model.name, &model.input, &model.shape, &data).into() };
        let message = frame(&grpc_request(model.name, &model.input, &model.shape, data.clone()));
        let shared_exchange = Exchange::Http { request: shared_request(model, data.len()).into() };
        for (label, exchange) in labels.into_iter().zip([http, Exchange::Grpc { message }, shared_exchange]) {
            let has_echo = !label.starts_with("shared");
            let response = Connection::open(&server, &exchange)?.answer()?;
            if has_echo && response != relu(&data) {
                return Err(format!("{label}: expected the positive part of the input, found different data"));
            }
            cases.push(Case { label, exchange, has_echo, count, echo: Vec::new(), byoc: Vec::new() });
        }
        let result = std::fs::read(&objects[objects.len() - 1].0).map_err(|e| e.to_string())?;
        if result[data.len()..] != relu(&data)[..] {
            return Err("shared memory: expected the positive part of the input, found different data".into());
        }
    }
    for round in 0..rounds {
        for case in &mut cases {
            let sides: [(&Server, &mut Vec<[f64; 2]>); 2] = [(&echo, &mut case.echo), (&server, &mut case.byoc)];
            let mut sides: Vec<_> = sides.into_iter().skip(usize::from(!case.has_echo)).collect();
            if round % 2 == 1 {
                sides.reverse();
            }
            for (side, samples) in sides {
                let mut connection = Connection::open(side, &case.exchange)?;
                connection.latencies(case.count / 10)?;
                let latencies = connection.latencies(case.count)?;
                samples.push([median(&latencies), percentile(&latencies, 0.99)]);
            }
        }
    }
    print_table(&cases, rounds);
    drop((server, echo));
    processors.restrict(&processors.all())?;
    let (server, echo) = (start_byoc(&flags)?, start_echo()?);
    for (model, object) in models.iter().zip(&objects) {
        object.register(&server, model.name, model.data().len())?;
    }
    measure_at_load(&server, &echo, &cases, rounds.min(5))?;
    drop(echo);
    println!("\nresident memory {:.1} MB (model and executable)", server.resident_bytes()? as f64 / 1e6);
    tritonclient(&server, &models)
}

fn column(values: &[[f64; 2]], index: usize) -> Vec<f64> {
    values.iter().map(|pair| pair[index]).collect()
}

fn print_table(cases: &[Case], rounds: usize) {
    println!("latency in µs, client and servers each pinned to one CPU, --threads 1");
    println!("median of {rounds} alternating rounds (lowest to highest)\n");
    println!("| | echo p50 | echo p99 | byoc p50 | byoc p99 | p50 over echo | |");
    println!("|---|---|---|---|---|---|---|");
    let mut shared_differences = Vec::new();
    for case in cases {
        let byoc = column(&case.byoc, 0);
        let cells = |values: &[[f64; 2]]| [format_range(&column(values, 0), 0), format_range(&column(values, 1), 0)];
        let [byoc50, byoc99] = cells(&case.byoc);
        if !case.has_echo {
            println!("| {} | | | {byoc50} | {byoc99} | | |", case.label);
            shared_differences.push(byoc);
            continue;
        }
        let [echo50, echo99] = cells(&case.echo);
        let echo = column(&case.echo, 0);
        let excess: Vec<f64> = byoc.iter().zip(&echo).map(|(byoc, echo)| byoc - echo).collect();
        let ratio: Vec<f64> = byoc.iter().zip(&echo).map(|(byoc, echo)| byoc / echo).collect();
        let (excess, ratio) = (median(&excess), median(&ratio));
        let (limit, is_met) = match case.label {
            label if label.contains("602") => (format!("{MAX_RATIO} times"), ratio <= MAX_RATIO),
            label if label.starts_with("HTTP") => (format!("{MAX_HTTP} µs"), excess <= MAX_HTTP),
            _ => (format!("{MAX_GRPC} µs"), excess <= MAX_GRPC),
        };
        let result = verdict(is_met);
        println!(
            "| {} | {echo50} | {echo99} | {byoc50} | {byoc99} | {excess:+.0} µs, {ratio:.2} times | at most {limit}: {result} |",
            case.label
        );
    }
    if let [small_differences, large_differences] = &shared_differences[..] {
        let growth: Vec<f64> =
            large_differences.iter().zip(small_differences).map(|(large, small)| large - small).collect();
        let result = verdict(median(&growth) <= MAX_SHARED);
        println!("\nshared memory: 602 kB over 16 B {} µs, at most {MAX_SHARED}: {result}", format_range(&growth, 0));
    }
}

/// Measures the p99 latency of the server and of the echo server, each at 70 % of its highest rate, with one client and
/// with four.
fn measure_at_load(server: &Server, echo: &Server, cases: &[Case], rounds: usize) -> Result<()> {
    println!(
        "\n70 % of the highest rate, median of {rounds} rounds; times in µs: from sending a request, and from its"
    );
    println!("scheduled time, which includes the wait for a late response to the previous request\n");
    println!(
        "| clients | | highest rate, 1/s | p50 | p99 | p99 over p50 | | p99 over p50, scheduled | echo p50 | p99 | p99 over p50 | p99 over p50, scheduled |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for count in [1, 4] {
        for case in cases {
            let (mut byoc_load, mut echo_load) = (LoadRounds::default(), LoadRounds::default());
            for _ in 0..rounds {
                byoc_load.run_round(server, &case.exchange, count)?;
                if case.has_echo {
                    echo_load.run_round(echo, &case.exchange, count)?;
                }
            }
            let result = verdict(median(&byoc_load.sent.ratios) <= 2.0);
            let (label, rate, scheduled) = (case.label, median(&byoc_load.rates), byoc_load.scheduled.ratio_cell());
            print!(
                "| {count} | {label} | {rate:.0} | {} | at most 2: {result} | {scheduled} |",
                byoc_load.sent.cells()
            );
            match case.has_echo {
                true => println!(" {} | {} |", echo_load.sent.cells(), echo_load.scheduled.ratio_cell()),
                false => println!(" | | | |"),
            }
        }
    }
    Ok(())
}

/// Measurements of a server under load.
#[derive(Default)]
struct LoadRounds {
    /// Highest rate of each round, in requests per second.
    rates: Vec<f64>,
    sent: Percentiles,
    scheduled: Percentiles,
}

impl LoadRounds {
    fn run_round(&mut self, server: &Server, exchange: &Exchange, count: usize) -> Result<()> {
        let highest = clients(server, exchange, count, Duration::from_secs(1), None)?.rate;
        let interval = Duration::from_secs_f64(count as f64 / (0.7 * highest));
        let measurement = clients(server, exchange, count, Duration::from_secs(2), Some(interval))?;
        self.rates.push(highest);
        self.sent.push(&measurement.response_times);
        self.scheduled.push(&measurement.latencies);
        Ok(())
    }
}

/// Percentiles of latencies, with one value per round in each field.
#[derive(Default)]
struct Percentiles {
    p50: Vec<f64>,
    p99: Vec<f64>,
    ratios: Vec<f64>,
}

impl Percentiles {
    fn push(&mut self, latencies: &[f64]) {
        let (median_latency, p99_latency) = (median(latencies), percentile(latencies, 0.99));
        self.p50.push(median_latency);
        self.p99.push(p99_latency);
        self.ratios.push(p99_latency / median_latency);
    }

    fn cells(&self) -> String {
        format!("{:.0} | {} | {}", median(&self.p50), format_range(&self.p99, 0), self.ratio_cell())
    }

    fn ratio_cell(&self) -> String {
        format_range(&self.ratios, 2)
    }
}

/// Prints the latencies that tritonclient measures, if the tests of byoc-serve have installed it.
fn tritonclient(server: &Server, models: &[Model]) -> Result<()> {
    let packages = work_dir()?.join("../python/tritonclient");
    if !packages.join("ready").is_file() {
        println!("\nskipped: tritonclient is not installed; the tests of byoc-serve fetch it");
        return Ok(());
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/serve/peers/triton_latency.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(server.http.to_string()).arg(server.grpc.to_string()).env("PYTHONPATH", packages);
    for model in models {
        let shape: Vec<String> = model.shape.iter().map(i64::to_string).collect();
        python.arg(format!("{}:{}:{}", model.name, model.input, shape.join(",")));
    }
    println!("\ntritonclient, median of 5 rounds, µs\n");
    let status = python.env("PYTHONDONTWRITEBYTECODE", "1").status().map_err(|e| e.to_string())?;
    if status.success() { Ok(()) } else { Err("tritonclient failed".into()) }
}
