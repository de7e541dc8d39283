//! `byoc bench`: measures the latency of a model, and the time to compile and load it.

use super::args::BenchArgs;
use super::interrupt::cancel_on_interrupt;
use super::ready::{self, Request};
use super::{escape, output_file};
use byoc::runtime::error::Failure;
use byoc::trace::Trace;
use byoc_ir::diag::plural;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

/// Measures the latency of a model, and the time to compile and load it.
pub fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    if let Some(path) = &args.trace {
        output_file::check([path.as_path()])?;
    }
    let mut request = Request::new(&args.build)?;
    let model_run = request.prepare(&args.model, &args.input)?;
    let session = &request.session;
    let inputs = model_run.inputs.resolve(&model_run.model, Some(0))?;
    let _interruptible = cancel_on_interrupt(&session.cancel);
    // Warm-up: caches, page mappings and clock rates settle within a few runs.
    for _ in 0..(args.runs / 5).max(3) {
        model_run.model.run(&inputs)?;
    }
    let metrics_before = session.metrics.snapshot();
    let mut times = Vec::with_capacity(args.runs as usize);
    for _ in 0..args.runs {
        let start = Instant::now();
        model_run.model.run(&inputs)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let metrics = metrics(&metrics_before, &session.metrics.snapshot(), args.runs);
    if let Some(path) = &args.trace {
        let trace = Trace::new(true);
        session.metrics.record();
        model_run.model.run_observed(&inputs, &trace)?;
        trace.add_plugin_events(&session.metrics.take_recorded());
        output_file::write(path, |file| trace.write_to(file))?;
    }
    times.sort_by(f64::total_cmp);
    check_latency(args, times[(times.len() - 1) / 2])?;
    let percentile = |fraction: f64| times[((times.len() - 1) as f64 * fraction).round() as usize];
    let host_steps = model_run.model.host_steps();
    let row = json!({
        "model": ready::name_of(&args.model),
        "backend": args.build.backend.join(","),
        "threads": session.pool.threads(),
        "compile_s": model_run.compile_time.as_secs_f64(),
        "load_s": model_run.load_time.as_secs_f64(),
        "median_ms": percentile(0.5),
        "p90_ms": percentile(0.9),
        "min_ms": times[0],
        "runs": args.runs,
        "peak_rss_bytes": peak_rss_bytes(),
        "regions": model_run.model.regions,
        "host_steps": host_steps,
        "offload_flops": model_run.model.offload_share,
        "metrics": metrics,
    });
    if args.build.diagnostics.json {
        println!("{row}");
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{}, {}, {}",
        escape::line(&ready::name_of(&args.model)),
        plural(session.pool.threads(), "thread"),
        plural(args.runs as usize, "run")
    );
    println!("  median {:.3} ms   p90 {:.3} ms   min {:.3} ms", percentile(0.5), percentile(0.9), times[0]);
    println!(
        "  compile {:.3} s   load {:.3} s",
        model_run.compile_time.as_secs_f64(),
        model_run.load_time.as_secs_f64()
    );
    println!(
        "  {} with {:.1} % of the FLOPs, {} on the host",
        plural(model_run.model.regions, "region"),
        100.0 * model_run.model.offload_share,
        plural(host_steps, "step")
    );
    if let Some(peak) = peak_rss_bytes() {
        println!("  peak memory {:.1} MiB", peak as f64 / f64::from(1 << 20));
    }
    for (name, count) in metrics {
        println!("  {} {count}{}", escape::line(&name), if name.ends_with(".utilisation") { "" } else { " per run" });
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares the median with that of the host alone, if a contract limits their ratio.
fn check_latency(args: &BenchArgs, median: f64) -> Result<(), Failure> {
    let mut request = Request::new(&args.build)?;
    let Some(contract) = request.contract(&args.model)?.filter(|_| !ready::is_artifact(&args.model)) else {
        return Ok(());
    };
    let Some(limit) = contract.max_latency_ratio() else { return Ok(()) };
    (request.options.host_only, request.keeps_contract) = (true, false);
    request.options.backends.clear();
    request.options.backend_options.clear();
    let host = request.prepare(&args.model, &args.input)?;
    let inputs = host.inputs.resolve(&host.model, Some(0))?;
    let mut times = Vec::with_capacity(args.runs as usize);
    for _ in 0..args.runs.max(3) {
        let start = Instant::now();
        host.model.run(&inputs)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let ratio = median / times[(times.len() - 1) / 2];
    if ratio > limit { Err(contract.violation("max_latency_ratio", limit, ratio).into()) } else { Ok(()) }
}

/// Returns the plugin counters per run. A pair of counters `x.used` and `x.available` also yields `x.utilisation`, the
/// ratio of their sums, as ratios themselves cannot be summed.
fn metrics(
    metrics_before: &BTreeMap<String, u64>,
    metrics_after: &BTreeMap<String, u64>,
    runs: u32,
) -> Map<String, Value> {
    let difference = |name: &str| {
        metrics_after.get(name).map_or(0, |count| count - metrics_before.get(name).copied().unwrap_or(0)) as f64
            / f64::from(runs)
    };
    let mut metrics: Map<String, Value> =
        metrics_after.keys().map(|name| (name.clone(), json!(difference(name)))).collect();
    for name in metrics_after.keys().filter_map(|name| name.strip_suffix(".used")) {
        let available_count = difference(&format!("{name}.available"));
        if available_count > 0.0 {
            metrics.insert(format!("{name}.utilisation"), json!(difference(&format!("{name}.used")) / available_count));
        }
    }
    metrics
}

/// Returns the peak resident memory of the process in bytes; `None` if the system does not report it.
fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
