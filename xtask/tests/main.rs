//! Tests of the repository: its documents, its layers, its lists and its archives.

mod book;
mod dist;
mod layers;
mod packages;
mod unsafe_ceiling;
