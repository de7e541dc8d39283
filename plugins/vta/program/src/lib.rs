//! Layers of int8 networks as instruction streams of the Versatile Tensor Accelerator.
//!
//! A [`layer::Layer`] reads packed tensors from DRAM, a [`tile::Tile`] says how much of it the memories of the device hold
//! at a time, [`search`] chooses one, and [`emit`] writes the instructions of a sequence of layers.

pub mod emit;
pub mod layer;
mod recorder;
pub mod relocate;
pub mod search;
pub mod tile;
