//! Helpers that run a float region without a host, and test data.

use byoc_plugin_api::*;
use byoc_test_support::random::Random;

/// Cache line of floats: the alignment of the host's tensors.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([f32; 16]);

/// Allocates memory for `floats` floats, initialized to NaN to detect reads of unwritten memory.
fn cache_lines(floats: usize) -> Vec<CacheLine> {
    vec![CacheLine([f32::NAN; 16]); floats.div_ceil(16)]
}

fn bytes(cache_lines: &mut [CacheLine], floats: usize) -> &mut [u8] {
    assert!(floats <= cache_lines.len() * 16);
    // SAFETY: floats have no padding, and the slice is within the allocation.
    unsafe { std::slice::from_raw_parts_mut(cache_lines.as_mut_ptr().cast(), floats * 4) }
}

/// Runs a region with one output `times` times on the same memory, and returns the result.
pub fn run_inputs(region: &dyn Executable, inputs: &[(&[usize], &[f32])], times: usize) -> Vec<f32> {
    let shapes: Vec<&[usize]> = inputs.iter().map(|(shape, _)| *shape).collect();
    let preparation = region.prepare(&shapes).unwrap();
    let mut out_shape = preparation.outputs[0].dims.to_vec();
    let (elements, workspace_floats) = (out_shape.iter().product(), preparation.workspace.div_ceil(4));
    let (mut output, mut workspace) = (cache_lines(elements), cache_lines(workspace_floats));
    let mut input_lines: Vec<Vec<CacheLine>> = inputs.iter().map(|(_, values)| cache_lines(values.len())).collect();
    for (lines, (_, values)) in input_lines.iter_mut().zip(inputs) {
        lines.iter_mut().flat_map(|line| &mut line.0).zip(*values).for_each(|(element, &value)| *element = value);
    }
    let tensors = input_lines.iter_mut().zip(inputs);
    let tensors: Vec<TensorRef<'_>> =
        tensors.map(|(lines, (shape, x))| TensorRef::new(DType::F32, shape, bytes(lines, x.len()))).collect();
    let mut outputs = [TensorMut::new(DType::F32, &mut out_shape, bytes(&mut output, elements))];
    let workspace = &mut bytes(&mut workspace, workspace_floats)[..preparation.workspace];
    for _ in 0..times {
        let call = Call { inputs: &tensors, outputs: &mut outputs, workspace, plan: preparation.plan };
        region.run(call).unwrap();
    }
    output.iter().flat_map(|line| line.0).take(elements).collect()
}

/// Runs a region with one input and one output `times` times on the same memory, and returns the result.
pub fn run_times(region: &dyn Executable, shape: &[usize], x: &[f32], times: usize) -> Vec<f32> {
    run_inputs(region, &[(shape, x)], times)
}

/// Runs a region with one input and one output once, and returns the result.
pub fn run(region: &dyn Executable, shape: &[usize], x: &[f32]) -> Vec<f32> {
    run_times(region, shape, x, 1)
}

/// Returns pseudorandom numbers in [-1, 1), determined by the seed.
pub fn random_floats(count: usize, seed: u64) -> Vec<f32> {
    Random::new(seed).floats(count)
}
