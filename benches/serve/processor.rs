//! CPU time of a request on one thread, compared with an in-process run and with the echo server; resident memory; time
//! to first response of a server with a warm cache.

use crate::client::binary_request;
use crate::load::{Connection, Exchange};
use crate::models::{Model, backend, networks, work_dir};
use crate::numbers::{format_range, median, micros, verdict};
use crate::processes::{Processors, Server, processor_time, start_byoc, start_byoc_early, start_echo};
use crate::{Options, Result};
use byoc::compare::{Tolerance, compare};
use byoc::{CompileOptions, Session, Tensor};
use std::time::{Duration, Instant};

/// Limits on the CPU time relative to the sum of those of the in-process run and the echo server: a ratio for
/// ResNet-50, a difference in microseconds for digits.
const MAX_RATIO: f64 = 1.05;
const MAX_ABOVE: f64 = 60.0;
/// Limit on the resident memory in excess of that of an in-process run of the model, in MB.
const MAX_MEMORY: f64 = 10.0;
/// Limit on the time to first response, in seconds.
const MAX_START: f64 = 0.5;

/// Runs the measurement.
pub fn run(options: &Options) -> Result<()> {
    let rounds = options.number("rounds", 9.0)? as usize;
    let models = networks()?;
    let processors = Processors::available()?;
    println!(
        "CPU time of a request in µs, one thread, dnnl, HTTP binary, client and servers each pinned to one CPU, median of {rounds} alternating rounds\n"
    );
    println!("| model | in-process | echo | byoc serve | excess | ratio | |");
    println!("|---|---|---|---|---|---|---|");
    let mut memory = Vec::new();
    for model in &models {
        memory.push(compare_costs(model, rounds, &processors)?);
    }
    println!("\n| model | in-process resident, MB | server resident, MB | excess | |");
    println!("|---|---|---|---|---|");
    for (model, (in_process, server_memory)) in models.iter().zip(memory) {
        let result = verdict(server_memory - in_process <= MAX_MEMORY);
        let growth = server_memory - in_process;
        println!(
            "| {} | {in_process:.1} | {server_memory:.1} | {growth:+.1} | at most {MAX_MEMORY}: {result} |",
            model.name
        );
    }
    measure_restart(models.iter().find(|model| model.name == "resnet50").ok_or("expected ResNet-50 among the models")?)
}

fn flags(model: &Model) -> Result<Vec<String>> {
    let cache = work_dir()?.join("cache");
    let mut flags = backend()?;
    flags.extend(["--threads", "1", "--cache-dir"].map(String::from));
    flags.extend([cache.display().to_string(), format!("{}={}", model.name, model.file.display())]);
    Ok(flags)
}

fn start(model: &Model) -> Result<Server> {
    let flags = flags(model)?;
    start_byoc(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Prints the row of a model, and returns the resident memory of an in-process run and of the server, in MB.
fn compare_costs(model: &Model, rounds: usize, processors: &Processors) -> Result<(f64, f64)> {
    let count = if model.name == "resnet50" { 10 } else { 500 };
    let session = Session::builder().threads(1).search_default_dirs();
    let plugins = backend()?;
    let session = session.plugin_dir(&plugins[3]).build().map_err(|e| format!("{e:?}"))?;
    let options = CompileOptions::new().open_unbound_dims().backend("dnnl");
    let model_in_process = byoc::Model::compile(&session, &model.file, &options).map_err(|e| e.to_string())?;
    let shape: Vec<usize> = model.shape.iter().map(|size| *size as usize).collect();
    let data = model.data();
    let input = Tensor::from_bytes(byoc::DType::F32, &shape, &data).ok_or("expected data of the input's size")?;
    let exchange = Exchange::Http { request: binary_request(model.name, &model.input, &model.shape, &data).into() };
    processors.restrict(&processors.last())?;
    let (server, echo) = (start(model)?, start_echo()?);
    processors.restrict(&processors.first())?;
    let expected = model_in_process.run(vec![input.clone()]).map_err(|e| e.to_string())?.into_tensors();
    let response = Connection::open(&server, &exchange)?.answer()?;
    // The results need not be bitwise equal: the server has run other batch sizes, and dnnl uses weights in the form
    // that it packed first.
    let expected = expected.first().ok_or("expected a result of the in-process run, found none")?;
    let served_result = Tensor::from_bytes(expected.dtype(), expected.shape(), &response).ok_or_else(|| {
        format!("{}: expected {} bytes, found {}", model.name, expected.bytes().len(), response.len())
    })?;
    if let Some(difference) = compare(&served_result, expected, Tolerance::MaxRelative(5e-4)).difference {
        return Err(format!("{}: expected the result of the in-process run: {difference}", model.name));
    }
    let (mut runs, mut echoes, mut served) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let initial_time = processor_time("self");
        for _ in 0..count {
            model_in_process.run(vec![input.clone()]).map_err(|e| e.to_string())?;
        }
        runs.push(micros(processor_time("self") - initial_time) / count as f64);
        for (side, samples) in [(&echo, &mut echoes), (&server, &mut served)] {
            let mut connection = Connection::open(side, &exchange)?;
            connection.latencies(count / 10 + 1)?;
            let initial_time = side.processor_time();
            connection.latencies(count)?;
            samples.push(micros(side.processor_time() - initial_time) / count as f64);
        }
    }
    processors.restrict(&processors.all())?;
    let baseline: Vec<f64> = runs.iter().zip(&echoes).map(|(run, echo)| run + echo).collect();
    let excess: Vec<f64> = served.iter().zip(&baseline).map(|(served, baseline)| served - baseline).collect();
    let ratio: Vec<f64> = served.iter().zip(&baseline).map(|(served, baseline)| served / baseline).collect();
    let (limit, is_met) = match model.name {
        "resnet50" => (format!("{MAX_RATIO} times"), median(&ratio) <= MAX_RATIO),
        _ => (format!("{MAX_ABOVE} µs above"), median(&excess) <= MAX_ABOVE),
    };
    println!(
        "| {} | {} | {} | {} | {} | {} | at most {limit}: {} |",
        model.name,
        format_range(&runs, 0),
        format_range(&echoes, 0),
        format_range(&served, 0),
        format_range(&excess, 0),
        format_range(&ratio, 3),
        verdict(is_met)
    );
    Ok((standalone_resident(model)?, server.resident_bytes()? as f64 / 1e6))
}

/// Returns the resident memory, in MB, of a new process that has loaded the model and run it.
fn standalone_resident(model: &Model) -> Result<f64> {
    let executable = std::env::current_exe().map_err(|e| e.to_string())?;
    let output = std::process::Command::new(executable)
        .args(["resident", "--model", model.name])
        .output()
        .map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let bytes: f64 = text.parse().map_err(|_| format!("expected a number of bytes, found {text:?}"))?;
    Ok(bytes / 1e6)
}

/// Compiles a model to an artifact, and prints the resident memory of a new process after runs of the artifact's model.
pub fn print_resident_after_run(options: &Options) -> Result<()> {
    let name = options.text("model").ok_or("expected `--model NAME`, found none")?;
    let models = networks()?;
    let model = models
        .iter()
        .find(|model| model.name == name)
        .ok_or_else(|| format!("--model: expected resnet50 or digits, found {name}"))?;
    let plugins = backend()?;
    let session = Session::builder().threads(1).plugin_dir(&plugins[3]).build().map_err(|e| format!("{e:?}"))?;
    let artifact = work_dir()?.join(format!("{name}.byoc"));
    let options = CompileOptions::new().open_unbound_dims().backend("dnnl");
    byoc::Compilation::new(&session, &model.file, &options)
        .and_then(|compilation| compilation.save(&artifact))
        .map_err(|e| e.to_string())?;
    let executable = std::env::current_exe().map_err(|e| e.to_string())?;
    let shape: Vec<String> = model.shape.iter().map(i64::to_string).collect();
    let status = std::process::Command::new(executable)
        .args(["resident-of", "--artifact"])
        .arg(&artifact)
        .args(["--shape", &shape.join(",")])
        .status();
    if status.is_ok_and(|status| status.success()) { Ok(()) } else { Err("the run failed".into()) }
}

/// Prints the resident memory of this process in bytes, after three runs of the model in an artifact.
pub fn print_artifact_resident(options: &Options) -> Result<()> {
    let artifact = options.text("artifact").ok_or("expected `--artifact FILE`, found none")?;
    let plugins = backend()?;
    let session = Session::builder().threads(1).plugin_dir(&plugins[3]).build().map_err(|e| format!("{e:?}"))?;
    let model = byoc::Model::load(&session, artifact).map_err(|e| e.to_string())?;
    let shape: Vec<usize> =
        options.text("shape").unwrap_or_default().split(',').filter_map(|size| size.parse().ok()).collect();
    for _ in 0..3 {
        let input = byoc::io::random::tensor(byoc::DType::F32, &shape, 1);
        model.run(vec![input]).map_err(|e| e.to_string())?;
    }
    println!("{}", byoc_benches::process::resident_bytes());
    Ok(())
}

/// Measures the time from the start of a process to its first response, with the compiled model in the cache.
fn measure_restart(model: &Model) -> Result<()> {
    const STARTS: usize = 5;
    let data = model.data();
    let exchange = Exchange::Http { request: binary_request(model.name, &model.input, &model.shape, &data).into() };
    // The first start populates the cache.
    let start_time = Instant::now();
    drop(start(model)?);
    let first = start_time.elapsed().as_secs_f64();
    let flags = flags(model)?;
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let start_time = Instant::now();
        let server = start_byoc_early(&flags)?;
        // The port is open before the model is loaded; until then requests are rejected with a hint.
        while Connection::open(&server, &exchange)?.exchange().is_err() {
            if start_time.elapsed() > Duration::from_secs(60) {
                return Err("the server did not respond within 60 s".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        times.push(start_time.elapsed().as_secs_f64());
    }
    let result = verdict(median(&times) <= MAX_START);
    println!(
        "\n{}: time from process start to first response: {} s with a warm cache, at most {MAX_START} s: {result}; {first:.2} s on the first start",
        model.name,
        format_range(&times, 2)
    );
    Ok(())
}
