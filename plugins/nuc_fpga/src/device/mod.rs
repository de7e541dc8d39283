//! The software device: what `nuc_fpga.h` defines, computed on the CPU, with a model of the cycles that hardware of the
//! configured size would take.

pub mod config;
pub mod cycles;
pub mod product;
