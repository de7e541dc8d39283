//! Batch normalization as a single operator: frontends fold it in imported models, but other modules may contain it.

use super::library;
use super::region::run;
use crate::runtime::LoadedRegion;
use byoc_plugin_api::*;
use byoc_test_support::plugin;

#[test]
fn batch_norm_matches_reference() {
    if library().is_none() {
        return;
    }
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let parameters = [[1.5, -0.5], [0.25, 2.0], [0.75, -1.0], [4.0, 0.5]];
    let constants: Vec<Constant> =
        parameters.iter().map(|values| plugin::floats(&[2], &values.map(|v| v as f32))).collect();
    let mut graph = Graph::new("region_0");
    let x = graph.push_input("x", ty(&[1, 2, 2, 2]));
    let mut inputs = vec![ValueRef::of(x)];
    inputs.extend((0..4).map(|i| ValueRef::of(graph.push_constant(i, ty(&[2])))));
    let attrs =
        [Attr::new("axis", 1i64), Attr::new("epsilon", 0.01), Attr::new("center", true), Attr::new("scale", true)];
    let y = graph.push_op("nn.batch_norm", inputs, attrs, [ty(&[1, 2, 2, 2]), ty(&[2]), ty(&[2])]);
    graph.outputs.push(ValueRef::of(y));
    let region = LoadedRegion::new(graph, &constants, &plugin::services(1)).unwrap();
    let values: Vec<f32> = (0..8).map(|i| i as f32 * 0.5 - 1.0).collect();
    let output = run(&region, &[1, 2, 2, 2], &values);
    for i in 0..8 {
        let [gamma, beta, mean, variance] = parameters.map(|p: [f64; 2]| p[i / 4]);
        let expected = (f64::from(values[i]) - mean) / (variance + 0.01).sqrt() * gamma + beta;
        let actual = f64::from(output[i]);
        assert!((actual - expected).abs() < 1e-5, "element {i}: expected {expected}, found {actual}");
    }
}
