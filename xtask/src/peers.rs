//! `cargo xtask bench peers`: compares the latency of models on ONNX Runtime, OpenVINO and byoc.
//!
//! The runtimes run in separate processes with the same number of threads, one after the other in each of several
//! rounds, so drift in machine speed affects all runtimes equally. The ratio of a round is the median latency of a
//! runtime divided by that of the fastest peer in the same round; the table shows the median of the ratios and their
//! spread. A failure counts as [`FAILURE_RATIO`].

use crate::onednn;
use crate::process::{self, cargo, environment, output, root, target_dir};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Ratio that represents a failure.
const FAILURE_RATIO: f64 = 10.0;
const PEERS: [&str; 2] = ["onnxruntime", "openvino"];

struct Options {
    models: Vec<String>,
    backends: Vec<String>,
    threads: u32,
    rounds: usize,
    runs: u32,
    exported: bool,
}

/// Runs `cargo xtask bench peers MODEL...`.
pub fn run(args: &[&str]) -> Result<(), String> {
    let options = parse(args)?;
    onednn::fetch_if_possible();
    process::run(&mut cargo(&["build", "--release", "--quiet", "--workspace"]))?;
    let python = environment(&target_dir().join("python/peers"), &["numpy", "onnxruntime", "openvino"])?;
    let byoc = target_dir().join("release").join("byoc");
    println!("threads {}, rounds {}, runs per round {}", options.threads, options.rounds, options.runs);
    println!("{:<24} {:<24} {:>11} {:>8}  spread", "model", "runtime", "median ms", "ratio");
    let mut ratios = vec![Vec::new(); PEERS.len() + options.backends.len()];
    for (name, model) in models(&options, &byoc)? {
        let mut rows: Vec<Measurements> = Vec::new();
        for _ in 0..options.rounds {
            let peers = PEERS.map(|peer| {
                let report = time_peer(&python, peer, &model, &options);
                let version = report.as_ref().map_or("", |s| s["version"].as_str().unwrap_or_default());
                (format!("{peer} {version}"), report.and_then(|s| number(&s)))
            });
            let backends = options.backends.iter().map(|backend| {
                let label = format!("byoc {}", if backend.is_empty() { "host" } else { backend });
                (label, time_byoc(&byoc, backend, &model, &options).and_then(|s| number(&s)))
            });
            for (i, (label, time)) in peers.into_iter().chain(backends).enumerate() {
                if rows.len() == i {
                    rows.push(Measurements { label, times: Vec::new() });
                }
                rows[i].times.push(time);
            }
        }
        for (row, ratios) in rows.iter().zip(&mut ratios) {
            ratios.push(row.print_row(&name, &rows[..PEERS.len()]));
        }
    }
    if ratios[0].len() > 1 {
        let labels = PEERS.into_iter().map(str::to_owned);
        let labels =
            labels.chain(options.backends.iter().map(|b| format!("byoc {}", if b.is_empty() { "host" } else { b })));
        for (label, ratios) in labels.zip(&ratios) {
            let mean = (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp();
            println!("{:<24} {label:<24} {:>11} {mean:>8.3}", "geometric mean", "");
        }
    }
    Ok(())
}

/// Measurements of one runtime on one model: a median latency or an error for each round.
struct Measurements {
    label: String,
    times: Vec<Result<f64, String>>,
}

impl Measurements {
    /// Prints the runtime's row of the table, and returns the median of its ratios.
    fn print_row(&self, model: &str, peers: &[Measurements]) -> f64 {
        if let Some(Err(error)) = self.times.iter().find(|time| time.is_err()) {
            println!("{model:<24} {:<24} {:>11} {FAILURE_RATIO:>8.2}  {error}", self.label, "failed");
            return FAILURE_RATIO;
        }
        let times: Vec<f64> = self.times.iter().flatten().copied().collect();
        let fastest = |round: usize| {
            peers.iter().filter_map(|p| p.times[round].as_ref().ok()).copied().fold(f64::INFINITY, f64::min)
        };
        let ratios: Vec<f64> = times.iter().enumerate().map(|(round, time)| time / fastest(round)).collect();
        let (min, max) = ratios.iter().fold((f64::INFINITY, 0.0f64), |(l, m), &r| (l.min(r), m.max(r)));
        let (time, ratio) = (median(&times), median(&ratios));
        println!("{model:<24} {:<24} {time:>11.3} {ratio:>8.3}  {min:.3} to {max:.3}", self.label);
        ratio
    }
}

fn parse(args: &[&str]) -> Result<Options, String> {
    let mut options = Options {
        models: Vec::new(),
        backends: vec![String::new(), "ccompiler".into(), "dnnl".into()],
        threads: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        rounds: 3,
        runs: 30,
        exported: false,
    };
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        let mut value = || args.next().copied().ok_or_else(|| format!("{arg}: expected a value, found none"));
        match arg {
            "--backend" => options.backends = value()?.split(',').map(|b| b.replace("host", "")).collect(),
            "--threads" => options.threads = parse_number(value()?)?,
            "--rounds" => options.rounds = parse_number(value()?)?,
            "--runs" => options.runs = parse_number(value()?)?,
            "--exported" => options.exported = true,
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            model => options.models.push(model.to_owned()),
        }
    }
    if options.models.is_empty() && !options.exported {
        options.models = ["resnet50", "mobilenet_v2", "bert_base"].map(String::from).to_vec();
    }
    Ok(options)
}

fn parse_number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("expected a number, found {text}"))
}

/// Returns the names and files of the requested models: existing files, models written by `byoc zoo`, or exports from
/// torchvision and transformers.
fn models(options: &Options, byoc: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    if !options.exported {
        return options.models.iter().map(|name| Ok((name.clone(), model_file(name, byoc)?))).collect();
    }
    let packages = ["torch", "torchvision", "transformers", "onnx", "numpy"];
    let python = environment(&target_dir().join("python/exporter"), &packages)?;
    let dir = target_dir().join("exported");
    let script = root().join("xtask").join("peers").join("export.py");
    let listing = output(Command::new(&python).arg(&script).arg(&dir).args(&options.models))?;
    Ok(listing.lines().map(|name| (name.to_owned(), dir.join(name).join("model.onnx"))).collect())
}

/// Returns the file of a model: an existing file, or a file written by `byoc zoo`.
pub fn model_file(name: &str, byoc: &Path) -> Result<PathBuf, String> {
    if name.ends_with(".onnx") {
        return Ok(PathBuf::from(name));
    }
    let path = Path::new(name).join("model.onnx");
    if path.is_file() {
        return Ok(path);
    }
    let file = target_dir().join("zoo").join(format!("{name}.onnx"));
    if !file.is_file() {
        std::fs::create_dir_all(target_dir().join("zoo")).map_err(|e| e.to_string())?;
        process::run(Command::new(byoc).args(["zoo", name, "-o"]).arg(&file))?;
    }
    Ok(file)
}

fn time_peer(python: &Path, peer: &str, model: &Path, options: &Options) -> Result<Value, String> {
    let script = root().join("xtask").join("peers").join("time.py");
    let mut command = Command::new(python);
    command.arg(script).arg(peer).arg(model).arg(options.threads.to_string()).arg(options.runs.to_string());
    last_object(&output(&mut command)?)
}

fn time_byoc(byoc: &Path, backend: &str, model: &Path, options: &Options) -> Result<Value, String> {
    let mut command = Command::new(byoc);
    command.arg("bench").arg(model).arg("--json").arg("--plugin-dir").arg(target_dir().join("release"));
    command.args(["--runs", &options.runs.to_string(), "--threads", &options.threads.to_string()]);
    if !backend.is_empty() {
        command.args(["--backend", backend]);
    }
    last_object(&output(&mut command)?)
}

fn last_object(text: &str) -> Result<Value, String> {
    let line = text
        .lines()
        .rev()
        .find(|line| line.starts_with('{'))
        .ok_or("expected a JSON object in the output, found none")?;
    serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))
}

fn number(object: &Value) -> Result<f64, String> {
    object["median_ms"].as_f64().ok_or_else(|| format!("expected a number median_ms, found {object}"))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
