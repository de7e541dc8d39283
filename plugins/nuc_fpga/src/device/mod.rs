//! Software device: implements `nuc_fpga.h` on the CPU, and models the cycles that hardware of the configured size
//! would take.

pub mod config;
pub mod cycles;
pub mod product;
