//! Compiler of byoc, except for the parts that depend on plugins, files or terminals.
//!
//! The modules are layers; each depends only on the modules above it:
//!
//! | module | contents |
//! |---|---|
//! | [`analysis`] | the verifier, and structural equality |
//! | [`pattern`] | the data-flow pattern language |
//! | [`pass`] | one file per pass, and the manager that runs, times and verifies the passes |

pub mod analysis;
pub mod pass;
pub mod pattern;
