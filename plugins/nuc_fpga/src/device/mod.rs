//! Software device: the functions of `nuc_fpga.h` on the CPU, with a model of the cycles that hardware of the
//! configured size takes.

pub mod config;
pub mod cycles;
pub mod product;
