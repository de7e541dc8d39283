//! Compiler of byoc: all of it that is independent of plugins, files and terminals.
//!
//! The modules are layers; each uses only those above it:
//!
//! | module | contents |
//! |---|---|
//! | [`analysis`] | the verifier, and structural equality |
//! | [`pattern`] | the data-flow pattern language |
//! | [`pass`] | one file per pass, and the manager that runs, times and verifies them |

pub mod analysis;
pub mod pass;
pub mod pattern;
