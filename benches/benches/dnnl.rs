//! The dnnl backend by operator family, whole models on it, and what many runs leave behind in memory. Elements in a throughput
//! are floating-point operations; families that the backend does not take are marked.

#![expect(clippy::print_stdout, reason = "a bench talks to whoever called it")]

use byoc::session::Session;
use byoc_benches::models::{Ready, bench_families, ready};
use criterion::Criterion;

const MODELS: &[&str] = &["resnet18_w16", "mobilenet_v2_025", "bert_small", "vit_small", "densenet_small"];

/// Runs that may leave nothing behind, and what the process may have grown by all the same, in bytes.
const RUNS: usize = 10_000;
const SLACK: u64 = 8 << 20;

fn main() {
    if byoc_test_support::onednn().is_none() {
        println!("left out: oneDNN is not on this machine (cargo xtask fetch-onednn)");
        return;
    }
    let mut criterion = byoc_benches::criterion();
    let plugins = byoc_test_support::plugin_dir(&["dnnl"]);
    for threads in [1, 2] {
        let session = Session::new(&[plugins.path().to_owned()], threads).expect("the threads start");
        bench_families(&mut criterion, &format!("dnnl, {threads} threads"), &session, &["dnnl"]);
        models(&mut criterion, &session, threads);
        if threads == 2 {
            memory(&session);
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
        let Ready { model, inputs } = ready(session, &file(name), &["dnnl"]);
        group.bench_function(*name, |b| b.iter(|| model.run(&inputs).expect("it runs")));
    }
    group.finish();
}

/// Resident memory before and after many runs of one model.
fn memory(session: &Session) {
    let Ready { model, inputs } = ready(session, &file("resnet18_w16"), &["dnnl"]);
    let run = || drop(model.run(&inputs).expect("it runs"));
    (0..RUNS / 10).for_each(|_| run());
    let before = resident();
    (0..RUNS).for_each(|_| run());
    let after = resident();
    println!("resident memory before and after {RUNS} runs: {before} and {after} bytes");
    assert!(after <= before + SLACK, "{RUNS} runs left {} bytes behind", after - before);
}

/// The resident memory of this process, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or_default() * 4096
}
