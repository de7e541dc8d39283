//! What the benches share: synthetic programs, backends that take their operators, and the figures of one process.
//!
//! `cargo xtask bench` runs them all; `cargo bench -p byoc-benches --bench passes` runs one. A bench never judges: it
//! prints what it measured beside what is wanted of it.

pub mod backends;
pub mod families;
pub mod models;
pub mod patterns;
pub mod process;
pub mod programs;

use criterion::Criterion;
use std::time::Duration;

/// The settings of all benches: few samples, so that each file takes a minute or two.
pub fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args()
}
