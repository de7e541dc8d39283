//! byoc as a library: reads models, compiles them for the installed backends, and runs them.
//!
//! This crate is a facade: [`frontend`] and [`build`] turn a model file into a compiled model. The modules that load
//! and run compiled models are re-exported from `byoc_runtime`; an application that only runs artifacts depends on that
//! crate alone.

pub mod build;
pub mod compare;
pub mod frontend;
pub mod io;
pub mod trace;

pub use byoc_runtime as runtime;
