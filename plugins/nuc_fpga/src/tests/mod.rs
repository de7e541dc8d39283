//! Tests that compile, load and run regions, and compare the results with naive implementations.

mod calls;
mod cycles;
mod drivers;
mod harness;
mod refusals;
mod regions;
mod shipped;
