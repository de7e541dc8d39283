//! Layers of int8 networks as instruction streams of the Versatile Tensor Accelerator.
//!
//! A [`layer::Conv`] reads packed tensors from DRAM, [`tile`] chooses how much of it the memories of the device hold at a
//! time, and [`emit`] writes the instructions of a tiling.

pub mod emit;
pub mod layer;
mod recorder;
pub mod tile;
