//! Dimensions that are known only at run time, concurrent runs, and edited graphs.

use super::check::{Bench, compare, run};
use crate::support;
use byoc::io::random;
use byoc_ir::ir::{AttrValue, Attrs, Dim, Module, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Builder;

/// Creates a transformer layer with the given batch and length: two matrix products with bias, GELU between them, a
/// residual and a layer normalization.
fn layer(batch: Dim, length: Dim) -> Module {
    let mut b = Builder::default();
    let x = b.var("x", Type::tensor_of(DType::F32, [batch, length, Dim::Fixed(24)]));
    let constant = |b: &mut Builder, shape: &[usize], seed| b.constant(random::tensor(DType::F32, shape, seed));
    let scalar = |b: &mut Builder, v: f32| b.constant(Tensor::scalar(v));
    let (w1, b1) = (constant(&mut b, &[40, 24], 1), constant(&mut b, &[40], 2));
    let (w2, gamma, beta) = (constant(&mut b, &[24, 40], 3), constant(&mut b, &[24], 4), constant(&mut b, &[24], 5));
    let unary = |b: &mut Builder, name: &str, args: &[_]| b.op(name, args, Attrs::none()).unwrap();
    let h = unary(&mut b, "nn.dense", &[x, w1]);
    let h = unary(&mut b, "add", &[b1, h]);
    let root = scalar(&mut b, std::f32::consts::SQRT_2);
    let d = unary(&mut b, "divide", &[h, root]);
    let e = unary(&mut b, "erf", &[d]);
    let one_value = scalar(&mut b, 1.0);
    let e = unary(&mut b, "add", &[e, one_value]);
    let m = unary(&mut b, "multiply", &[h, e]);
    let half_value = scalar(&mut b, 0.5);
    let m = unary(&mut b, "multiply", &[m, half_value]);
    let y = unary(&mut b, "nn.dense", &[m, w2]);
    let y = unary(&mut b, "add", &[y, x]);
    let y = b.op("nn.layer_norm", &[y, gamma, beta], Attrs::new([("epsilon", AttrValue::Float(1e-5))])).unwrap();
    b.define("main", &[x], y).unwrap();
    b.module
}

fn open_module() -> Module {
    layer(Dim::symbol("batch"), Dim::symbol("length"))
}

#[test]
fn runs_region_with_every_batch_and_length() {
    let Some(bench) = Bench::new() else { return };
    let (graph, constants) = bench.graph(&open_module()).unwrap();
    let executable = bench.load(&graph, &constants);
    for (batch, length) in [(1, 7), (3, 128), (8, 33), (1, 7), (5, 1)] {
        let input = random::tensor(DType::F32, &[batch, length, 24], 9);
        let fixed_layer = layer(Dim::Fixed(batch), Dim::Fixed(length));
        let expected = support::run(&fixed_layer, std::slice::from_ref(&input)).unwrap();
        compare(&format!("({batch}, {length})"), &run(&*executable, &[input]), &expected);
    }
    let prepare_error = executable.prepare(&[&[2, 3, 25]]).expect_err("expected an error for a different width");
    assert!(
        prepare_error.message.contains("input 0: expected")
            && prepare_error.message.contains("found dimensions [2, 3, 25]"),
        "{prepare_error}"
    );
}

#[test]
fn concurrent_runs_of_region_are_independent() {
    let Some(bench) = Bench::new() else { return };
    let (graph, constants) = bench.graph(&layer(Dim::Fixed(2), Dim::Fixed(9))).unwrap();
    let executable = bench.load(&graph, &constants);
    let module = layer(Dim::Fixed(2), Dim::Fixed(9));
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (executable, module) = (&executable, &module);
            scope.spawn(move || {
                let input = random::tensor(DType::F32, &[2, 9, 24], 100 + seed);
                let expected = support::run(module, std::slice::from_ref(&input)).unwrap();
                for _ in 0..20 {
                    compare("threads", &run(&**executable, std::slice::from_ref(&input)), &expected);
                }
            });
        }
    });
}

/// Compilation detects a graph whose types do not follow from its attributes, however the graph was edited.
#[test]
fn rejects_inconsistent_graph() {
    let Some(bench) = Bench::new() else { return };
    let (mut graph, constants) = bench.graph(&layer(Dim::Fixed(2), Dim::Fixed(9))).unwrap();
    let dense = graph.nodes.iter_mut().find(|node| node.op() == Some("nn.dense")).unwrap();
    dense.outputs[0] = byoc_plugin_api::TensorType::new(byoc_plugin_api::DType::F32, &[2, 9, 41]);
    let candidate = {
        let mut candidate =
            byoc_plugin_api::Candidate::new(byoc_plugin_api::CandidateKind::Pattern, "case", graph.clone());
        candidate.constants = constants.handles.clone().into();
        candidate
    };
    let verdict = bench.judge(&candidate);
    assert!(
        verdict.contains("result of nn.dense: expected") && verdict.contains("found dimensions [2, 9, 40]"),
        "{verdict}"
    );
}
