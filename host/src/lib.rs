//! byoc as a library: reads models, compiles them for the backends that were dropped in, runs them.

pub mod artifact;
pub mod build;
pub mod cancel;
pub mod cli;
pub mod compare;
pub mod conformance;
pub mod error;
pub mod frontend;
pub mod io;
pub mod limits;
pub mod model;
mod native;
pub mod plugin;
pub mod quantize;
pub mod runtime;
pub mod session;
pub mod trace;
pub mod zoo;
