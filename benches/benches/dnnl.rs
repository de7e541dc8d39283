//! Benches of the dnnl backend by operator family, by pattern and by model. Also measures memory growth over many runs,
//! and the time until worker threads sleep. Throughput counts floating-point operations; families that the backend
//! refuses are marked.

#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use byoc::runtime::session::Session;
use byoc_benches::models::{PreparedModel, bench_families, bench_patterns, prepare};
use criterion::Criterion;
use std::time::Duration;

const MODELS: &[&str] = &["resnet18_w16", "mobilenet_v2_025", "bert_small", "vit_small", "densenet_small"];

/// Number of runs in the check for memory leaks.
const RUNS: usize = 10_000;
const MAX_GROWTH: u64 = 8 << 20;

/// Time after a run within which the workers of the library's thread pool must go to sleep.
const MAX_SPIN: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_millis(60);

fn main() {
    if byoc_test_support::onednn().is_none() {
        println!("skipped: oneDNN is not installed; fetch it with `cargo xtask fetch-onednn`");
        return;
    }
    let mut criterion = byoc_benches::criterion();
    let plugins = byoc_test_support::plugin_dir(&["dnnl"]);
    for threads in [1, 2] {
        let session = Session::new(&[plugins.path().to_owned()], threads).expect("cannot start threads");
        bench_families(&mut criterion, &format!("dnnl, {threads} threads"), &session, &["dnnl"]);
        bench_patterns(&mut criterion, &format!("patterns on dnnl, {threads} threads"), &session, "dnnl");
        models(&mut criterion, &session, threads);
        if threads == 2 {
            check_memory_growth(&session);
            measure_spin(&session);
        }
    }
    criterion.final_summary();
}

fn file(name: &str) -> std::path::PathBuf {
    byoc_test_support::workspace().join("tests/models").join(name).join("model.onnx")
}

fn models(criterion: &mut Criterion, session: &Session, threads: usize) {
    let mut group = criterion.benchmark_group(format!("models on dnnl, {threads} threads"));
    for name in MODELS {
        let PreparedModel { model, inputs } = prepare(session, &file(name), &["dnnl"]);
        group.bench_function(*name, |b| b.iter(|| model.run(&inputs).expect("the run failed")));
    }
    group.finish();
}

/// Checks the growth of resident memory over many runs of one model.
fn check_memory_growth(session: &Session) {
    let PreparedModel { model, inputs } = prepare(session, &file("resnet18_w16"), &["dnnl"]);
    let run = || drop(model.run(&inputs).expect("the run failed"));
    (0..RUNS / 10).for_each(|_| run());
    let initial_bytes = resident_bytes();
    (0..RUNS).for_each(|_| run());
    let final_bytes = resident_bytes();
    println!("resident memory before and after {RUNS} runs: {initial_bytes} and {final_bytes} bytes");
    assert!(
        final_bytes <= initial_bytes + MAX_GROWTH,
        "expected at most {MAX_GROWTH} bytes of growth in {RUNS} runs, found {}",
        final_bytes - initial_bytes
    );
}

/// Measures how long the workers of the library's thread pool spin after a run. Linux updates the CPU time of a running
/// thread only occasionally, so CPU times are read while the workers sleep. The result is the CPU time of a single run
/// and the pause after it, minus the CPU time per run in a series of runs.
fn measure_spin(session: &Session) {
    const SERIES: u32 = 10;
    let PreparedModel { model, inputs } = prepare(session, &file("resnet18_w16"), &["dnnl"]);
    let cost = |runs: u32| {
        let initial_time = worker_time();
        (0..runs).for_each(|_| drop(model.run(&inputs).expect("the run failed")));
        std::thread::sleep(PAUSE);
        worker_time().saturating_sub(initial_time)
    };
    cost(SERIES);
    let after_one = |_| {
        let single_cost = cost(1);
        single_cost.saturating_sub(cost(1 + SERIES).saturating_sub(single_cost) / SERIES)
    };
    let mut spin_times: Vec<Duration> = (0..20).map(after_one).collect();
    spin_times.sort_unstable();
    let (median, max) = (spin_times[spin_times.len() / 2], spin_times[spin_times.len() - 1]);
    println!("workers spin for {median:?} after a run (median of {}; maximum {max:?})", spin_times.len());
    assert!(median < MAX_SPIN, "expected workers to go to sleep within {MAX_SPIN:?} of a run, found {median:?}");
}

/// Returns the total CPU time of the workers, identified by the name that they inherit from the current thread, their
/// creator.
fn worker_time() -> Duration {
    let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
    let this_task = std::fs::canonicalize("/proc/thread-self").unwrap_or_default();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten().map(|task| task.path());
    let other_tasks = tasks.filter(|task| {
        task.file_name() != this_task.file_name()
            && std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm == name)
    });
    let times = other_tasks.map(|task| {
        let text = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        text.split_whitespace().next().and_then(|time| time.parse().ok()).unwrap_or(0)
    });
    Duration::from_nanos(times.sum())
}

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or_default() * 4096
}
