//! Plugins: discovery and loading, the registry of their code generators and loaders, and the bridge between the core's
//! programs and the boundary's graphs.

pub mod backend;
pub mod bridge;
pub mod cpu;
pub mod discover;
pub mod guard;
pub mod region;
pub mod registry;
pub mod services;
