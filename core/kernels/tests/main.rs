//! Tests of the operators and of the fast kernels.

mod neural_kernels;
mod operators;
