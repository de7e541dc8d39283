//! Shared backend code outside the [boundary](byoc_plugin_api), for plugins in this workspace and elsewhere.
//!
//! No type of this crate crosses the boundary: a plugin may use any version.

pub mod arena;
pub mod attributes;
#[cfg(feature = "cache")]
pub mod cache;
#[cfg(feature = "command")]
pub mod command;
pub mod dims;
pub mod int8;
pub mod isa;
#[cfg(feature = "library")]
pub mod library;
pub mod log;
pub mod operands;
pub mod refusal;
pub mod region;
pub mod view;
