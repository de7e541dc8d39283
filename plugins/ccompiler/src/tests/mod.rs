//! Tests that compile, load and run regions, and compare the results with a naive evaluator that computes in binary64.

mod artifacts;
pub mod harness;
mod naive;
mod operators;
mod program;
