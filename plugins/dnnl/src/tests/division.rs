//! Division by constants, which becomes multiplication where the results are equal.

use super::library;
use super::region::run;
use crate::runtime::LoadedRegion;
use byoc_plugin_api::*;
use byoc_test_support::plugin;

#[test]
fn keeps_division_if_reciprocal_is_not_normal() {
    if library().is_none() {
        return;
    }
    for (x, divisor, expected) in [(1e-30, 1e-40, 1e10), (6.0, 4.0, 1.5), (1.0, 0.0, f32::INFINITY)] {
        let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
        let mut graph = Graph::new("region_0");
        let inputs = [ValueRef::of(graph.push_input("x", ty(&[2]))), ValueRef::of(graph.push_constant(0, ty(&[])))];
        let y = graph.push_op("divide", inputs, [], [ty(&[2])]);
        graph.outputs.push(ValueRef::of(y));
        let divisor = plugin::floats(&[], &[divisor]);
        let region = LoadedRegion::new(graph, &[divisor], &plugin::services(1)).unwrap();
        for y in run(&region, &[2], &[x, x]) {
            assert!(y == expected || (y / expected - 1.0).abs() < 1e-4, "expected {expected}, found {y}");
        }
    }
}
