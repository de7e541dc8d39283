//! byoc as a library: reads models, compiles them for the backends that were dropped in, runs them.
//!
//! A facade: [`frontend`] and [`build`] turn a model file into a compiled model; what loads and runs compiled models is
//! re-exported from `byoc_runtime`, which a program that only runs artifacts links by itself.

pub mod build;
pub mod compare;
pub mod frontend;
pub mod io;
pub mod trace;

pub use byoc_runtime::{artifact, cancel, error, exec, limits, model, plugin, session};
