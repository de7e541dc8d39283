//! GEMV with a matrix that several matrix products read.

use super::library;
use super::region::{random_floats, run};
use crate::ir::RegionIr;
use crate::lower::{Packs, lower};
use crate::plan::Operation;
use crate::runtime::LoadedRegion;
use byoc_plugin_api::*;
use byoc_test_support::plugin;

/// Returns a chain of `times` dense layers that share the weight `w` of shape (n, n) and, if `has_bias` is set, a bias.
/// The input has the shape (rows, n).
fn chain(rows: usize, n: usize, times: usize, has_bias: bool) -> (Graph, Vec<Constant>) {
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let mut graph = Graph::new("region_0");
    let mut y = ValueRef::of(graph.push_input("x", ty(&[rows, n])));
    let w = ValueRef::of(graph.push_constant(0, ty(&[n, n])));
    let b = ValueRef::of(graph.push_constant(1, ty(&[n])));
    for _ in 0..times {
        y = ValueRef::of(graph.push_op("nn.dense", [y, w], [], [ty(&[rows, n])]));
        if has_bias {
            y = ValueRef::of(graph.push_op("nn.bias_add", [y, b], [Attr::new("axis", 1i64)], [ty(&[rows, n])]));
        }
    }
    graph.outputs.push(y);
    let w: Vec<f32> = random_floats(n * n, 1).iter().map(|w| w / (n as f32).sqrt()).collect();
    let w = plugin::floats(&[n, n], &w);
    (graph, vec![w, plugin::floats(&[n], &random_floats(n, 2))])
}

#[test]
fn matches_reference_for_every_width_and_direction() {
    if library().is_none() {
        return;
    }
    for (n, threads) in [(1, 1), (7, 2), (64, 2), (65, 1), (130, 2), (257, 3), (320, 2)] {
        for bias in [false, true] {
            let (mut graph, constants) = chain(1, n, 3, bias);
            crate::options::store(&mut graph, &serde_json::json!({"backend_options": {"serial": "false"}}));
            let region = LoadedRegion::new(graph, &constants, &plugin::services(threads)).unwrap();
            let x = random_floats(n, 3);
            let result = run(&region, &[1, n], &x);
            let w = constants[0].tensor();
            let (w, b) = (w.as_slice::<f32>(), random_floats(n, 2));
            let mut expected: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            for _ in 0..3 {
                let dot = |row: &[f32]| row.iter().zip(&expected).map(|(&w, x)| f64::from(w) * x).sum::<f64>();
                let sum = |(i, row)| dot(row) + if bias { f64::from(b[i]) } else { 0.0 };
                expected = w.chunks(n).enumerate().map(sum).collect();
            }
            let magnitude = expected.iter().fold(0f64, |max, y| max.max(y.abs()));
            for (i, (&actual, expected)) in result.iter().zip(expected).enumerate() {
                assert!(
                    (f64::from(actual) - expected).abs() <= 1e-5 * magnitude,
                    "n {n}, threads {threads}, element {i}: expected {expected}, found {actual}"
                );
            }
        }
    }
}

#[test]
fn alternates_direction_for_shared_matrix() {
    let Some(library) = library() else { return };
    let directions = |rows, times| {
        let (graph, constants) = chain(rows, 96, times, true);
        let ir = RegionIr::of(&graph, &constants, &[vec![rows as i64, 96]]).unwrap();
        let plan = lower(library, &ir, &mut Packs::default()).unwrap();
        let direction =
            |operation: &Operation| if let Operation::Gemv(gemv) = operation { Some(gemv.is_backwards) } else { None };
        plan.steps.iter().filter_map(|step| direction(&step.operation)).collect::<Vec<bool>>()
    };
    assert_eq!(directions(1, 4), [false, true, false, true]);
    assert!(directions(1, 1).is_empty(), "expected no GEMV for a matrix that is read once");
    assert!(directions(2, 4).is_empty(), "expected no GEMV for two rows, which share each read of the matrix");
}
