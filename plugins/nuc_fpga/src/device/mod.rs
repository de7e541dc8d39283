//! Software device: `nuc_fpga.h` computed on the CPU, with a model of the cycles on hardware of the configured size.

pub mod config;
pub mod cycles;
pub mod product;
