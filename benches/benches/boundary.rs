//! What the boundary between host and plugin costs: loading a library, judging a candidate, preparing and running a region
//! that does next to nothing, and a loop over the host's threads.

use byoc::runtime::Pool;
use byoc::session::Session;
use byoc_plugin_api::{
    Call, Candidate, CandidateKind, DType, Graph, LoadRequest, Region, TensorMut, TensorRef, TensorType, ValueRef,
};
use criterion::{BatchSize, Criterion, Throughput};
use serde_json::json;
use std::hint::black_box;

fn main() {
    let mut criterion = byoc_benches::criterion();
    loading(&mut criterion);
    regions(&mut criterion);
    loops(&mut criterion);
    criterion.final_summary();
}

/// `nn.relu` of so many numbers.
fn relu(len: usize) -> Graph {
    let ty = TensorType::new(DType::F32, &[len]);
    let mut graph = Graph::new("relu");
    let x = graph.push_input("x", ty.clone());
    let y = graph.push_op("nn.relu", [ValueRef::of(x)], [], [ty]);
    graph.outputs.push(ValueRef::of(y));
    graph
}

/// A library is mapped once in a process: each load is one of a fresh copy.
fn loading(criterion: &mut Criterion) {
    let session = Session::without_plugins(1).expect("the threads start");
    let mut group = criterion.benchmark_group("load");
    for (name, library) in [
        ("template", byoc_test_support::plugin("template")),
        ("ccompiler", byoc_test_support::plugin("ccompiler")),
        ("minimal", byoc_test_support::test_plugin("minimal")),
    ] {
        let folder = byoc_test_support::temporary_folder();
        let mut copies = 0;
        let mut copy = || {
            copies += 1;
            let path = folder.path().join(format!("{copies}.so"));
            byoc_test_support::copy(&library, &path);
            path
        };
        group.bench_function(name, |b| {
            b.iter_batched(
                &mut copy,
                |path| byoc_plugin_api::host::load(&path, &session.services).expect("it loads"),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn regions(criterion: &mut Criterion) {
    let session = Session::without_plugins(1).expect("the threads start");
    let library = byoc_test_support::test_plugin("minimal");
    let plugin = byoc_plugin_api::host::load(&library, &session.services).expect("it loads");
    let codegen = plugin.codegen("minimal").expect("its code generator");

    let mut group = criterion.benchmark_group("boundary");
    let candidate = Candidate::new(CandidateKind::Operator, "nn.relu", relu(16));
    let candidates = vec![candidate; 10_000];
    group.throughput(Throughput::Elements(10_000));
    group.bench_function("judge_batch, 10,000 candidates", |b| {
        b.iter(|| codegen.judge_batch(black_box(&candidates)).expect("it judges"));
    });
    group.throughput(Throughput::Elements(1));

    let graph = relu(1);
    let region = Region { graph: &graph, constants: &[], options: &json!({}) };
    group.bench_function("compile", |b| b.iter(|| codegen.compile(black_box(&region)).expect("it compiles")));
    let compiled = codegen.compile(&region).expect("it compiles");
    let request = LoadRequest {
        symbol: &graph.symbol,
        blob: &compiled.blob,
        constants: &[],
        options: &json!({}),
        services: &session.services,
    };
    let loader = plugin.loader(&compiled.loader).expect("its loader");
    group.bench_function("load a region", |b| b.iter(|| loader.load(black_box(&request)).expect("it loads")));
    let executable = loader.load(&request).expect("it loads");
    group.bench_function("prepare", |b| b.iter(|| executable.prepare(black_box(&[&[1]])).expect("it prepares")));
    let prepared = executable.prepare(&[&[1]]).expect("it prepares");
    let input = 1f32.to_ne_bytes();
    let (mut output, mut dims) = ([0u8; 4], [1usize]);
    let mut workspace = vec![0; prepared.workspace];
    group.bench_function("run", |b| {
        b.iter(|| {
            let inputs = [TensorRef::new(DType::F32, &[1], &input)];
            let mut outputs = [TensorMut::new(DType::F32, &mut dims, &mut output)];
            let call = Call { inputs: &inputs, outputs: &mut outputs, workspace: &mut workspace, plan: prepared.plan };
            executable.run(call).expect("it runs");
        });
    });
    group.finish();
}

fn loops(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parallel_for");
    for threads in [1, 2] {
        let pool = Pool::new(threads).expect("the threads start");
        for parts in [2, 64] {
            group.bench_function(format!("{parts} parts on {threads} threads"), |b| {
                b.iter(|| pool.parallel_for(parts, &|part| _ = black_box(part)));
            });
        }
    }
    group.finish();
}
