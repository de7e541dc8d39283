//! Batch normalisation as one operator: models arrive with it folded away, other programs need not.

use super::artifacts::{Alone, Bytes};
use super::library;
use crate::runtime::Region;
use byoc_plugin_api::*;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

#[test]
fn batch_norm_is_its_formula() {
    if library().is_none() {
        return;
    }
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let parameters = [[1.5, -0.5], [0.25, 2.0], [0.75, -1.0], [4.0, 0.5]];
    let constants: Vec<Constant> = parameters
        .iter()
        .map(|values| Constant::new("p", DType::F32, &[2], Bytes(values.iter().map(|&v| v as f32).collect())))
        .collect();
    let mut graph = Graph::new("region_0");
    let x = graph.push_input("x", ty(&[1, 2, 2, 2]));
    let mut inputs = vec![ValueRef::of(x)];
    inputs.extend((0..4).map(|i| ValueRef::of(graph.push_constant(i, ty(&[2])))));
    let attrs =
        [Attr::new("axis", 1i64), Attr::new("epsilon", 0.01), Attr::new("center", true), Attr::new("scale", true)];
    let y = graph.push_op("nn.batch_norm", inputs, attrs, [ty(&[1, 2, 2, 2]), ty(&[2]), ty(&[2])]);
    graph.outputs.push(ValueRef::of(y));
    let region = Region::new(graph, &constants, &Services::new(Alone(1))).unwrap();
    let shape = [1, 2, 2, 2];
    let prepared = region.prepare(&[&shape]).unwrap();
    let values: Vec<f32> = (0..16).map(|i| i as f32 * 0.5 - 1.0).collect();
    let input = [Line(values.clone().try_into().unwrap())];
    let (mut output, mut out_shape) = ([Line([f32::NAN; 16])], shape);
    let mut workspace = vec![Line([f32::NAN; 16]); prepared.workspace.div_ceil(64)];
    // SAFETY: floats are plain bytes, and the slices are within the lines.
    let (input, output_bytes, workspace) = unsafe {
        (
            std::slice::from_raw_parts(input.as_ptr().cast::<u8>(), 32),
            std::slice::from_raw_parts_mut(output.as_mut_ptr().cast::<u8>(), 32),
            std::slice::from_raw_parts_mut(workspace.as_mut_ptr().cast::<u8>(), prepared.workspace),
        )
    };
    let inputs = [TensorRef::new(DType::F32, &shape, input)];
    let mut outputs = [TensorMut::new(DType::F32, &mut out_shape, output_bytes)];
    region.run(Call { inputs: &inputs, outputs: &mut outputs, workspace, plan: prepared.plan }).unwrap();
    for i in 0..8 {
        let [gamma, beta, mean, variance] = parameters.map(|p: [f64; 2]| p[i / 4]);
        let wanted = (f64::from(values[i]) - mean) / (variance + 0.01).sqrt() * gamma + beta;
        let got = f64::from(output[0].0[i]);
        assert!((got - wanted).abs() < 1e-5, "element {i}: {got}, not {wanted}");
    }
}
