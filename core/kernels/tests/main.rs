//! Tests of the operators and of the fast kernels.

mod neural_kernels;
mod operators;

use byoc_ir::tensor::Tensor;
use byoc_test_support::random::Random;

/// Returns pseudorandom numbers in [-1, 1).
fn random(shape: &[usize], seed: u64) -> Tensor {
    Tensor::from_slice(shape, &Random::new(seed).floats(shape.iter().product()))
}
