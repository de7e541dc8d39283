//! From a module to what an executor runs and an artifact holds.

pub mod compiled;

pub use compiled::{Compiled, CompiledRegion, PluginId, RegionSource};
