//! Layers of int8 networks as instruction streams of the Versatile Tensor Accelerator.
//!
//! A [`layer::Conv`] reads packed tensors from DRAM, a [`tile::Tile`] says how much of it the memories of the device hold
//! at a time, [`emit`] writes the instructions of a tiling, and [`search`] chooses one.

pub mod emit;
pub mod layer;
mod recorder;
pub mod search;
pub mod tile;
