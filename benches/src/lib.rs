//! Shared code of the benches: synthetic programs, backends that support their operators, and process measurements.
//!
//! `cargo xtask bench` runs all benches; `cargo bench -p byoc-benches --bench passes` runs one bench. Benches print
//! measurements next to their targets.

pub mod backends;
pub mod families;
pub mod models;
pub mod patterns;
pub mod process;
pub mod programs;

use criterion::Criterion;
use std::time::Duration;

/// Returns the Criterion settings of all benches. The sample count is low, so that each file runs for no more than a
/// minute or two.
pub fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args()
}
