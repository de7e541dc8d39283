//! Library threads: as many as the host requests, and asleep soon after a run.

use super::library;
use super::region::run_times;
use crate::runtime::LoadedRegion;
use byoc_plugin_api::*;
use byoc_test_support::plugin;
use std::path::PathBuf;
use std::time::Duration;

/// Worker of this thread's pool.
struct Worker {
    task: PathBuf,
    is_asleep: bool,
    /// CPU time in nanoseconds; current only while the worker sleeps.
    cpu_time: u64,
}

/// Lists the workers of this thread's pool. A worker inherits the name of the thread that created it, which
/// distinguishes it from workers of other tests.
fn workers() -> Vec<Worker> {
    let own_thread = std::fs::canonicalize("/proc/thread-self").unwrap();
    let name = std::fs::read_to_string(own_thread.join("comm")).unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| {
            let task = task.ok()?.path();
            let is_worker =
                std::fs::read_to_string(task.join("comm")).ok()? == name && task.file_name() != own_thread.file_name();
            // The state is the first word after the name, which is in parentheses.
            let stat = std::fs::read_to_string(task.join("stat")).ok()?;
            let is_asleep = stat.rsplit_once(')')?.1.trim_start().starts_with('S');
            let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
            is_worker.then_some(Worker { task, is_asleep, cpu_time: text.split_whitespace().next()?.parse().ok()? })
        })
        .collect()
}

/// CPU time after a run, in nanoseconds, above which a worker counts as spinning: a thousand times the time that a
/// worker actually uses.
const MAX_CPU_TIME: u64 = 1_000_000_000;

/// Uses the CPU time of the workers instead of wall-clock time, which depends on the load of the machine. The benchmark
/// measures how soon the workers sleep.
#[test]
fn workers_sleep_after_a_run_and_stay_asleep() {
    if library().is_none() {
        return;
    }
    const N: usize = 512;
    let ty = TensorType::new(DType::F32, &[N, N]);
    let mut graph = Graph::new("region_0");
    let x = graph.push_input("x", ty.clone());
    let w = graph.push_constant(0, ty.clone());
    let y = graph.push_op("nn.dense", [ValueRef::of(x), ValueRef::of(w)], [], [ty]);
    graph.outputs.push(ValueRef::of(y));
    let weight = plugin::floats(&[N, N], &vec![0.25; N * N]);
    let region = LoadedRegion::new(graph, &[weight], &plugin::services(2)).unwrap();
    run_times(&region, &[N, N], &[0.0; N * N], 20);
    let initial_workers = workers();
    assert_eq!(initial_workers.len(), 1, "expected one worker besides the caller");
    loop {
        let earlier_workers = workers();
        std::thread::sleep(Duration::from_millis(20));
        let later_workers = workers();
        let is_idle = |(earlier_worker, later_worker): (&Worker, &Worker)| {
            earlier_worker.is_asleep && later_worker.is_asleep && earlier_worker.cpu_time == later_worker.cpu_time
        };
        if earlier_workers.iter().zip(&later_workers).all(is_idle) {
            break;
        }
        for (initial_worker, later_worker) in initial_workers.iter().zip(&later_workers) {
            let busy_time = later_worker.cpu_time - initial_worker.cpu_time;
            assert!(
                busy_time < MAX_CPU_TIME,
                "{}: expected less than {MAX_CPU_TIME} ns of CPU time since the run, found {busy_time}",
                later_worker.task.display()
            );
        }
    }
}
