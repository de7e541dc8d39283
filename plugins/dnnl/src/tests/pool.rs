//! The library's threads: as many as the host says, and asleep soon after a run.

use super::artifacts::{Alone, Bytes};
use super::library;
use crate::runtime::Region;
use byoc_plugin_api::*;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Nanoseconds that the workers of this thread's pool have computed for, by worker. A worker has the name of the thread that
/// made it, so the threads of other tests are told apart.
fn workers() -> Vec<(PathBuf, u64)> {
    let own = std::fs::canonicalize("/proc/thread-self").unwrap();
    let name = std::fs::read_to_string(own.join("comm")).unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| {
            let task = task.ok()?.path();
            let mine = std::fs::read_to_string(task.join("comm")).ok()? == name && task.file_name() != own.file_name();
            let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
            mine.then_some((task, text.split_whitespace().next()?.parse().ok()?))
        })
        .collect()
}

#[test]
fn workers_sleep_within_a_millisecond_after_a_run() {
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
    let weight = Constant::new("w", DType::F32, &[N, N], Bytes(vec![0.25; N * N]));
    let region = Region::new(graph, &[weight], &Services::new(Alone(2))).unwrap();
    let prepared = region.prepare(&[&[N, N]]).unwrap();
    let lines = N * N / 16;
    let (input, mut output) = (vec![Line([0; 64]); lines], vec![Line([0; 64]); lines]);
    let mut workspace = vec![Line([0; 64]); prepared.workspace.div_ceil(64)];
    let (shape, mut out_shape) = ([N, N], [N, N]);
    // SAFETY: lines are plain bytes, that many of them.
    let (input, output, workspace) = unsafe {
        (
            std::slice::from_raw_parts(input.as_ptr().cast::<u8>(), N * N * 4),
            std::slice::from_raw_parts_mut(output.as_mut_ptr().cast::<u8>(), N * N * 4),
            std::slice::from_raw_parts_mut(workspace.as_mut_ptr().cast::<u8>(), prepared.workspace),
        )
    };
    let inputs = [TensorRef::new(DType::F32, &shape, input)];
    let mut outputs = [TensorMut::new(DType::F32, &mut out_shape, output)];
    for _ in 0..20 {
        let call = Call { inputs: &inputs, outputs: &mut outputs, workspace: &mut *workspace, plan: prepared.plan };
        region.run(call).unwrap();
    }
    let before = workers();
    assert_eq!(before.len(), 1, "two threads are the caller and a worker");
    std::thread::sleep(Duration::from_millis(60));
    for ((task, time), (_, later)) in before.iter().zip(&workers()) {
        let spun = Duration::from_nanos(later - time);
        assert!(spun < Duration::from_millis(1), "{} computed for {spun:?} after the run", task.display());
    }
}
