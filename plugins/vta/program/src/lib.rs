//! Instruction streams for int8 network layers on the Versatile Tensor Accelerator.
//!
//! A [`layer::Layer`] reads packed tensors from DRAM, a [`tile::Tile`] defines the part of a layer that the on-chip
//! memories hold at a time, [`search`] chooses a tile, and [`emit`] writes the instructions for a sequence of layers.

pub mod emit;
pub mod layer;
mod recorder;
pub mod relocate;
pub mod search;
pub mod tile;
