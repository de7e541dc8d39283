//! Benches of the boundary between host and plugin, through the Rust entry and through the C entry: loading a library,
//! judging candidates, preparing and running a trivial region, and a parallel loop on the host's threads.
//!
//! Targets: 2 ms per load, 10 ms for 10,000 candidates, 1 µs of overhead per region call.

use byoc::runtime::exec::Pool;
use byoc::runtime::exec::region::{Prepared, Region as _, RegionCall};
use byoc::runtime::plugin::region::PluginRegion;
use byoc::runtime::session::Session;
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};
use byoc_plugin_api::{
    Attr, Candidate, CandidateKind, Codegen, Graph, LoadRequest, Region, TensorType, ValueRef, Verdict,
};
use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, Criterion, Throughput};
use serde_json::json;
use std::hint::black_box;
use std::path::Path;

fn main() {
    let mut criterion = byoc_benches::criterion();
    bench_loading(&mut criterion);
    regions(&mut criterion);
    bench_convolutions(&mut criterion);
    bench_loops(&mut criterion);
    criterion.final_summary();
}

/// Returns the graph of `nn.relu` on `len` floats.
fn relu(len: usize) -> Graph {
    let ty = TensorType::new(byoc_plugin_api::DType::F32, &[len]);
    let mut graph = Graph::new("relu");
    let x = graph.push_input("x", ty.clone());
    let y = graph.push_op("nn.relu", [ValueRef::of(x)], [], [ty]);
    graph.outputs.push(ValueRef::of(y));
    graph
}

/// Returns `count` candidates of a model, with distinct dimensions and source names.
fn candidates(operator: &str, count: usize, graph: impl Fn(usize) -> Graph) -> Vec<Candidate> {
    let candidate = |number: usize| {
        let mut graph = graph(number);
        for node in &mut graph.nodes {
            node.sources.push(format!("/features/block.{number}/node").into());
        }
        Candidate::new(CandidateKind::Operator, operator, graph)
    };
    (0..count).map(candidate).collect()
}

/// Returns the graph of an int8 convolution with all attributes set and the weight as an input.
fn conv2d(number: usize) -> Graph {
    use byoc_plugin_api::DType;
    let (channels, size) = (16 + number % 100, 7 + number % 50);
    let mut graph = Graph::new("conv2d");
    let data = graph.push_input("data", TensorType::new(DType::I8, &[1, channels, size, size]));
    let weight = graph.push_input("weight", TensorType::new(DType::I8, &[64, channels, 3, 3]));
    let attrs = [
        Attr::new("strides", vec![1i64, 1]),
        Attr::new("padding", vec![1i64, 1, 1, 1]),
        Attr::new("dilation", vec![1i64, 1]),
        Attr::new("groups", 1i64),
        Attr::new("channels", 64i64),
        Attr::new("kernel_size", vec![3i64, 3]),
        Attr::new("data_layout", "NCHW"),
        Attr::new("kernel_layout", "OIHW"),
        Attr::new("out_layout", ""),
        Attr::new("out_dtype", "int32"),
    ];
    let result = TensorType::new(DType::I32, &[1, 64, size, size]);
    let y = graph.push_op("nn.conv2d", [ValueRef::of(data), ValueRef::of(weight)], attrs, [result]);
    graph.outputs.push(ValueRef::of(y));
    graph
}

/// Measures plugin loading. Each iteration loads a fresh copy of the library, because a process maps a library only
/// once.
fn bench_loading(criterion: &mut Criterion) {
    let session = Session::without_plugins(1).expect("cannot start threads");
    let mut group = criterion.benchmark_group("load");
    for (name, library) in [
        ("template", byoc_test_support::plugin("template")),
        ("ccompiler", byoc_test_support::plugin("ccompiler")),
        ("minimal", byoc_test_support::test_plugin("minimal")),
        ("elementwise (C)", byoc_test_support::sample("elementwise")),
        ("conv_int8 (C++)", byoc_test_support::sample("conv_int8")),
    ] {
        let dir = byoc_test_support::temporary_folder();
        let mut copies = 0;
        let mut copy = || {
            copies += 1;
            let path = dir.path().join(format!("{copies}.so"));
            byoc_test_support::copy(&library, &path);
            path
        };
        group.bench_function(name, |b| {
            b.iter_batched(
                &mut copy,
                |path| byoc_plugin_api::host::load(&path, &session.services).expect("cannot load the plugin"),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// Measures identical calls to a Rust plugin and to a C plugin, both of which support `nn.relu`.
fn regions(criterion: &mut Criterion) {
    bench_region_calls(criterion, "rust", "minimal", &byoc_test_support::test_plugin("minimal"));
    bench_region_calls(criterion, "c", "elementwise", &byoc_test_support::sample("elementwise"));
}

/// Measures `judge` with supported candidates only, since the cost of a refusal depends on the plugin's message.
fn bench_judging(
    group: &mut BenchmarkGroup<'_, WallTime>,
    codegen: &dyn Codegen,
    operator: &str,
    candidates: Vec<Candidate>,
) {
    group.throughput(Throughput::Elements(candidates.len() as u64));
    let verdicts = codegen.judge_batch(&candidates).expect("expected verdicts");
    assert!(
        verdicts.iter().all(|verdict| *verdict == Verdict::Supported),
        "{operator}: expected supported candidates, found {:?}",
        verdicts[0]
    );
    group.bench_function(format!("judge {} candidates, {operator}", candidates.len()), |b| {
        b.iter(|| codegen.judge_batch(black_box(&candidates)).expect("expected verdicts"));
    });
    group.throughput(Throughput::Elements(1));
}

/// Measures `judge` of the C++ sample on convolutions, whose candidates are larger than those of `nn.relu`. Batches are
/// judged on the host's threads.
fn bench_convolutions(criterion: &mut Criterion) {
    for threads in [1, 2] {
        let session = Session::without_plugins(threads).expect("cannot start threads");
        let mut group = criterion.benchmark_group(format!("c++, {threads} threads"));
        let plugin = byoc_plugin_api::host::load(&byoc_test_support::sample("conv_int8"), &session.services);
        let codegen = plugin.expect("cannot load the plugin").codegen("conv_int8").expect("expected a code generator");
        bench_judging(&mut group, &*codegen, "nn.conv2d", candidates("nn.conv2d", 10_000, conv2d));
        group.finish();
    }
}

fn bench_region_calls(criterion: &mut Criterion, group: &str, name: &str, library: &Path) {
    let session = Session::without_plugins(1).expect("cannot start threads");
    let plugin = byoc_plugin_api::host::load(library, &session.services).expect("cannot load the plugin");
    let codegen = plugin.codegen(name).expect("expected a code generator");

    let mut group = criterion.benchmark_group(group);
    bench_judging(&mut group, &*codegen, "nn.relu", candidates("nn.relu", 10_000, |number| relu(16 + number)));

    let graph = relu(1);
    let region = Region { graph: &graph, constants: &[], options: &json!({}) };
    group.bench_function("compile", |b| {
        b.iter(|| codegen.compile(black_box(&region)).expect("cannot compile the region"))
    });
    let compiled = codegen.compile(&region).expect("cannot compile the region");
    let request = LoadRequest {
        symbol: &graph.symbol,
        blob: &compiled.blob,
        constants: &[],
        options: &json!({}),
        services: &session.services,
    };
    let loader = plugin.loader(&compiled.loader).expect("expected a loader");
    group.bench_function("load a region", |b| {
        b.iter(|| loader.load(black_box(&request)).expect("cannot load the region"))
    });

    // Calls the region as the executor does.
    let loaded = PluginRegion::new(loader.load(&request).expect("cannot load the region"), "region", "bench");
    let input = 1f32.to_ne_bytes();
    let mut output = [0u8; 4];
    let mut run = |prepared: &Prepared| {
        let inputs = [TensorView { dtype: DType::F32, shape: &[1], data: &input }];
        let mut outputs = [TensorViewMut { dtype: DType::F32, shape: &[1], data: &mut output }];
        let call = RegionCall {
            inputs: &inputs,
            outputs: &mut outputs,
            shapes: &mut [],
            workspace: &mut [],
            plan: prepared.plan,
            in_place: &[],
            device: None,
        };
        loaded.run(call).expect("the run failed");
    };
    let prepared = loaded.prepare(&[&[1]]).expect("cannot prepare a plan");
    group.bench_function("run, prepared in advance", |b| b.iter(|| run(black_box(&prepared))));
    group.bench_function("run, with prepare", |b| {
        b.iter(|| run(&loaded.prepare(black_box(&[&[1]])).expect("cannot prepare a plan")));
    });
    group.finish();
}

fn bench_loops(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parallel_for");
    for threads in [1, 2] {
        let pool = Pool::new(threads).expect("cannot start threads");
        for parts in [2, 64] {
            group.bench_function(format!("{parts} parts on {threads} threads"), |b| {
                b.iter(|| pool.parallel_for(parts, &|part| _ = black_box(part)));
            });
        }
    }
    group.finish();
}
