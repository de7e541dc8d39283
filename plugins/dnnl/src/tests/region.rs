//! Helpers that run a float region without a host, and test data.

use byoc_plugin_api::*;
use byoc_test_support::plugin::{self, Memory};
use byoc_test_support::random::Random;

/// Runs a region with one output `times` times on the same memory, and returns the result.
pub fn run_inputs(region: &dyn Executable, inputs: &[(&[usize], &[f32])], times: usize) -> Vec<f32> {
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let shapes: Vec<&[usize]> = inputs.iter().map(|(shape, _)| *shape).collect();
    let output = ty(&region.prepare(&shapes).unwrap().outputs[0].dims);
    let inputs: Vec<_> = inputs.iter().map(|(shape, values)| (ty(shape), Memory::of_floats(values))).collect();
    plugin::run(region, &inputs, &[output], times)[0].floats()
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
