//! Latency of exported programs, compared with that of the backend `ccompiler`.

use crate::process::{self, cargo, output, root, target_dir};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of rounds. The smallest median is used, because interference only adds time.
const ROUNDS: usize = 3;

/// Runs `cargo xtask export --times [MODEL..]`, which prints a table of medians in milliseconds on one thread.
pub fn run(names: &[&str]) -> Result<(), String> {
    process::run(&mut cargo(&["build", "--package", "byoc-cli", "--package", "byoc-ccompiler"]))?;
    let target = machine();
    println!("| model | ccompiler | {target} | ratio | generic | ratio |\n|---|---|---|---|---|---|");
    let mut slow_models = Vec::new();
    for (name, model, dims) in models(names)? {
        let (mut region, mut native, mut generic) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
        let programs = [program(&name, &model, &dims, target)?, program(&name, &model, &dims, "generic")?];
        for _ in 0..ROUNDS {
            region = region.min(ccompiler(&model, &dims)?);
            native = native.min(median(&programs[0])?);
            generic = generic.min(median(&programs[1])?);
        }
        println!(
            "| {name} | {region:.3} | {native:.3} | {:.2} | {generic:.3} | {:.2} |",
            native / region,
            generic / region
        );
        if native > 1.25 * region {
            slow_models.push(name);
        }
    }
    let slow_models = if slow_models.is_empty() { "none".to_owned() } else { slow_models.join(", ") };
    println!("\nabove 1.25 times ccompiler on {target}: {slow_models}");
    Ok(())
}

/// Returns the export target that best fits the current CPU.
fn machine() -> &'static str {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    match () {
        () if cfg!(target_arch = "aarch64") => "aarch64",
        () if cpu.contains(" avx512vl ") => "x86-64-v4",
        () if cpu.contains(" avx2 ") => "x86-64-v3",
        () => "generic",
    }
}

/// Model name, path, and options that bind the model's dimensions.
type Row = (String, PathBuf, Vec<&'static str>);

/// Returns the models in `tests/models` and the digits model, limited to `names` unless `names` is empty.
fn models(names: &[&str]) -> Result<Vec<Row>, String> {
    let dir = root().join("tests").join("models");
    let entries = std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut rows: Vec<Row> = entries
        .filter_map(|entry| entry.ok())
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path(), Vec::new()))
        .collect();
    rows.sort();
    let digits = root().join("tests").join("digits").join("digits.onnx");
    rows.push(("digits".into(), digits, vec!["--dim", "batch=1"]));
    if let Some(unknown) = names.iter().find(|name| rows.iter().all(|row| row.0 != **name)) {
        return Err(format!("expected a model of tests/models or digits, found {unknown}"));
    }
    rows.retain(|row| names.is_empty() || names.contains(&row.0.as_str()));
    Ok(rows)
}

fn byoc(arguments: &[&str], model: &Path, dims: &[&str]) -> Command {
    let mut command = Command::new(target_dir().join("debug").join("byoc"));
    command.args(&arguments[..1]).arg(model).args(&arguments[1..]).args(dims);
    command
}

/// Returns the median latency of `ccompiler` on one thread, in milliseconds.
fn ccompiler(model: &Path, dims: &[&str]) -> Result<f64, String> {
    let plugins = target_dir().join("debug").display().to_string();
    let arguments =
        ["bench", "--backend", "ccompiler", "--threads", "1", "--runs", "300", "--json", "--plugin-dir", &plugins];
    let text = output(&mut byoc(&arguments, model, dims))?;
    let json: Value = serde_json::from_str(text.trim()).map_err(|e| format!("output of byoc bench: {e}"))?;
    json["median_ms"].as_f64().ok_or_else(|| "byoc bench: expected a number median_ms, found none".into())
}

/// Exports a model, and compiles it together with `tests/export/bench.c`, using the flags of its Makefile. Returns the
/// executable.
fn program(name: &str, model: &Path, dims: &[&str], target: &str) -> Result<PathBuf, String> {
    let dir = target_dir().join("export-times").join(format!("{name}-{target}"));
    let text = dir.display().to_string();
    output(&mut byoc(&["export", "--c", &text, "--target", target], model, dims))?;
    let makefile = std::fs::read_to_string(dir.join("Makefile")).map_err(|e| format!("{text}/Makefile: {e}"))?;
    let flags = makefile.lines().find_map(|line| line.strip_prefix("CFLAGS ?= ")).unwrap_or("-O2");
    let flags: Vec<&str> = flags.split_whitespace().chain(["-std=c99", "-I", "."]).collect();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let cc = || {
        let mut command = Command::new(&compiler);
        command.current_dir(&dir).args(&flags);
        command
    };
    let list = std::fs::read_dir(&dir).map_err(|e| format!("{text}: {e}"))?;
    let mut sources: Vec<String> = list
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".c"))
        .collect();
    sources.retain(|file| file != "main.c");
    sources.sort();
    let bench = root().join("tests").join("export").join("bench.c");
    process::run(cc().args(["-Dmodel_run=timed_run", "-c", "main.c", "-o", "main.o"]))?;
    process::run(cc().arg("-o").arg("timed").args(&sources).arg(bench).args(["main.o", "-lm"]))?;
    Ok(dir.join("timed"))
}

/// Runs an executable, and returns the median that it prints.
fn median(program: &Path) -> Result<f64, String> {
    let text = output(&mut Command::new(program))?;
    let line = text.lines().find_map(|line| line.strip_prefix("median_ms "));
    line.and_then(|number| number.parse().ok()).ok_or_else(|| format!("expected a number median_ms, found {text}"))
}
