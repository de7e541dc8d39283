//! Plugins: finding and loading them, the registry of what they offer, and the bridge between the core's programs and
//! the boundary's graphs.

pub mod backend;
pub mod bridge;
pub mod cpu;
pub mod discover;
pub mod guard;
pub mod region;
pub mod registry;
pub mod services;
