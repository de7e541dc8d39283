//! What backends do alike, beside the [boundary](byoc_plugin_api): for plugins in this workspace and outside it.
//!
//! Nothing here crosses the boundary. A plugin may use any of it, in any version.

pub mod attributes;
#[cfg(feature = "cache")]
pub mod cache;
pub mod dims;
#[cfg(feature = "library")]
pub mod library;
pub mod operands;
pub mod refusal;
pub mod region;
pub mod view;
