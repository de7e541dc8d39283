//! What the benches share: synthetic programs, backends that take their operators, and the figures of one process.
//!
//! `cargo xtask bench` runs them all; `cargo bench -p byoc-benches --bench passes` runs one. A bench never judges: it
//! prints what it measured beside what is wanted of it.

pub mod backends;
pub mod process;
pub mod programs;
