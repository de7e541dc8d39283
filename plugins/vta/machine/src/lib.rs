//! The Versatile Tensor Accelerator (VTA): its parameters, its instruction set, simulators of its hardware, and a checker
//! of instruction streams.
//!
//! The accelerator has a matrix unit, a vector unit, on-chip memories and three modules that run concurrently: LOAD,
//! COMPUTE and STORE. Each module executes its instructions in order; tokens in queues between neighbors order
//! instructions of different modules.
//!
//! | module | content |
//! |---|---|
//! | [`config`] | parameters of a device, read from VTA's own JSON keys |
//! | [`isa`] | instructions: encoding, decoding, assembly text |
//! | [`sim`] | functional simulation, bit for bit that of VTA's own simulator, and a strict mode with the rules of the hardware |
//! | [`cycles`] | time of a stream in cycles |
//! | [`check`] | proof that a stream stays in range, ends, and has no race |

pub mod check;
pub mod config;
pub mod cycles;
pub mod isa;
mod memory;
pub mod sim;
mod tokens;
