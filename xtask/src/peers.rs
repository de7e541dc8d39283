//! `cargo xtask bench peers`: the same models on ONNX Runtime, OpenVINO and byoc.
//!
//! Each runs in a process of its own with the same number of threads, one after the other, in rounds, so that a machine
//! whose speed drifts treats all alike. What is shown is the median over the rounds of each process's median latency,
//! and its ratio to the fastest peer.

use crate::process::{self, cargo, output, root, target_dir};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Options {
    models: Vec<String>,
    backends: Vec<String>,
    threads: u32,
    rounds: usize,
    runs: u32,
}

/// `cargo xtask bench peers MODEL...`.
pub fn run(args: &[&str]) -> Result<(), String> {
    let options = parse(args)?;
    process::run(&mut cargo(&["build", "--release", "--quiet", "--workspace"]))?;
    let python = environment()?;
    let byoc = target_dir().join("release").join("byoc");
    println!("threads {}, rounds {}, runs a round {}", options.threads, options.rounds, options.runs);
    println!("{:<28} {:<24} {:>12} {:>10}", "model", "runtime", "median ms", "ratio");
    for name in &options.models {
        let model = model_file(name, &byoc)?;
        let mut rows: Vec<(String, Vec<f64>)> = Vec::new();
        for round in 0..options.rounds {
            let mut lane = 0;
            let mut record = |label: String, median: f64| {
                if round == 0 {
                    rows.push((label, Vec::new()));
                }
                rows[lane].1.push(median);
                lane += 1;
            };
            for peer in ["onnxruntime", "openvino"] {
                let shown = time_peer(&python, peer, &model, &options)?;
                record(format!("{peer} {}", shown["version"].as_str().unwrap_or_default()), number(&shown)?);
            }
            for backend in &options.backends {
                let shown = time_byoc(&byoc, backend, &model, &options)?;
                record(format!("byoc {}", if backend.is_empty() { "host" } else { backend }), number(&shown)?);
            }
        }
        let medians: Vec<f64> = rows.iter().map(|(_, times)| median(times)).collect();
        let best_peer = medians[..2].iter().copied().fold(f64::INFINITY, f64::min);
        for ((label, _), median) in rows.iter().zip(&medians) {
            println!("{name:<28} {label:<24} {median:>12.3} {:>10.2}", median / best_peer);
        }
    }
    Ok(())
}

fn parse(args: &[&str]) -> Result<Options, String> {
    let mut options = Options {
        models: Vec::new(),
        backends: vec![String::new(), "ccompiler".into()],
        threads: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        rounds: 3,
        runs: 30,
    };
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        let mut value = || args.next().copied().ok_or_else(|| format!("{arg} needs a value"));
        match arg {
            "--backend" => options.backends = value()?.split(',').map(|b| b.replace("host", "")).collect(),
            "--threads" => options.threads = parse_number(value()?)?,
            "--rounds" => options.rounds = parse_number(value()?)?,
            "--runs" => options.runs = parse_number(value()?)?,
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            model => options.models.push(model.to_owned()),
        }
    }
    if options.models.is_empty() {
        options.models = ["resnet50", "mobilenet_v2", "bert_base"].map(String::from).to_vec();
    }
    Ok(options)
}

fn parse_number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

/// The Python of a private environment with the peers in it.
fn environment() -> Result<PathBuf, String> {
    let dir = target_dir().join("peers");
    let python = dir.join("bin").join("python");
    let ready = dir.join("ready");
    if !ready.is_file() {
        process::run(Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
        let mut install = Command::new(&python);
        process::run(install.args(["-m", "pip", "install", "--quiet", "numpy", "onnxruntime", "openvino"]))?;
        std::fs::write(&ready, "").map_err(|e| format!("{}: {e}", ready.display()))?;
    }
    Ok(python)
}

/// The file of a model: as given, or written by `byoc zoo`.
fn model_file(name: &str, byoc: &Path) -> Result<PathBuf, String> {
    if name.ends_with(".onnx") {
        return Ok(PathBuf::from(name));
    }
    let folder = Path::new(name).join("model.onnx");
    if folder.is_file() {
        return Ok(folder);
    }
    let file = target_dir().join("zoo").join(format!("{name}.onnx"));
    if !file.is_file() {
        std::fs::create_dir_all(target_dir().join("zoo")).map_err(|e| e.to_string())?;
        process::run(Command::new(byoc).args(["zoo", name, "-o"]).arg(&file))?;
    }
    Ok(file)
}

fn time_peer(python: &Path, peer: &str, model: &Path, options: &Options) -> Result<Value, String> {
    let script = root().join("xtask").join("src").join("peers.py");
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
    let line = text.lines().rev().find(|line| line.starts_with('{')).ok_or("no JSON object was printed")?;
    serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))
}

fn number(object: &Value) -> Result<f64, String> {
    object["median_ms"].as_f64().ok_or_else(|| format!("no median_ms in {object}"))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
