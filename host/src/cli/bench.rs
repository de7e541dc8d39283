//! `byoc bench`: the latency of a model, and what it took to get there.

use super::args::BenchArgs;
use super::ready;
use crate::error::Failure;
use crate::io;
use crate::trace::Trace;
use serde_json::json;
use std::process::ExitCode;
use std::time::Instant;

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    if let Some(path) = &args.trace {
        io::check_writable(path)?;
    }
    let session = ready::session(&args.build)?;
    let ready = ready::ready(&args.model, &args.build, &args.input, &session)?;
    let inputs = ready.given.resolve(&ready.model, Some(0))?;
    // Caches, pages and clocks settle in a few runs.
    for _ in 0..(args.runs / 5).max(3) {
        ready.model.run(&inputs)?;
    }
    let before = session.metrics.snapshot();
    let mut times = Vec::with_capacity(args.runs as usize);
    for _ in 0..args.runs {
        let start = Instant::now();
        ready.model.run(&inputs)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let metrics: serde_json::Map<_, _> = session
        .metrics
        .snapshot()
        .into_iter()
        .map(|(name, count)| {
            let counted = count - before.get(&name).copied().unwrap_or(0);
            (name, json!(counted as f64 / f64::from(args.runs)))
        })
        .collect();
    if let Some(path) = &args.trace {
        let trace = Trace::new(true);
        ready.model.run_observed(&inputs, &trace)?;
        trace.write(path)?;
    }
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    let host_steps = ready.model.host_steps();
    let row = json!({
        "model": ready::name_of(&args.model),
        "backend": args.build.backend.join(","),
        "threads": session.pool.threads(),
        "compile_s": ready.compile.as_secs_f64(),
        "load_s": ready.load.as_secs_f64(),
        "median_ms": at(0.5),
        "p90_ms": at(0.9),
        "min_ms": times[0],
        "runs": args.runs,
        "peak_rss_bytes": peak_rss_bytes(),
        "regions": ready.model.regions,
        "host_steps": host_steps,
        "offload_flops": ready.model.offload_share,
        "metrics": metrics,
    });
    if args.build.talk.json {
        println!("{row}");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}, {} threads, {} runs", ready::name_of(&args.model), session.pool.threads(), args.runs);
    println!("  median {:.3} ms   p90 {:.3} ms   min {:.3} ms", at(0.5), at(0.9), times[0]);
    println!("  compile {:.3} s   load {:.3} s", ready.compile.as_secs_f64(), ready.load.as_secs_f64());
    println!(
        "  {} regions with {:.1} % of the FLOPs, {host_steps} steps on the host",
        ready.model.regions,
        100.0 * ready.model.offload_share
    );
    if let Some(peak) = peak_rss_bytes() {
        println!("  peak memory {:.1} MiB", peak as f64 / f64::from(1 << 20));
    }
    for (name, count) in metrics {
        println!("  {name} {count} a run");
    }
    Ok(ExitCode::SUCCESS)
}

/// The most memory that the process has had resident, where the system says so.
fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
