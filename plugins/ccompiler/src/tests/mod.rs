//! Regions compiled, loaded and run, against a naive evaluator with sums in binary64.

mod artifacts;
pub mod harness;
mod naive;
mod operators;
