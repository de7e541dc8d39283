//! From a module to what an executor runs and an artifact holds.

pub mod compiled;
pub mod explanation;
pub mod export;
pub mod plan;

pub use compiled::{Compiled, CompiledRegion, PluginId, RegionSource};
pub use plan::{Planned, plan};
