//! Versatile Tensor Accelerator (VTA): device parameters, instruction set, hardware simulators, and a checker of
//! instruction streams.
//!
//! The accelerator has a matrix unit, a vector unit, on-chip memories and three modules that run concurrently: LOAD,
//! COMPUTE and STORE. Each module executes its instructions in order; tokens in queues between neighbors order
//! instructions of different modules.
//!
//! | module | content |
//! |---|---|
//! | [`config`] | parameters of a device, read from VTA's own JSON keys |
//! | [`isa`] | instructions: encoding, decoding, assembly text |
//! | [`sim`] | functional simulation, bit-exact with VTA's simulator, and a strict mode with the hardware rules |
//! | [`cycles`] | cycle model of a stream |
//! | [`check`] | proof that a stream stays in bounds, terminates, and has no race |

pub mod check;
pub mod config;
pub mod cycles;
pub mod isa;
mod memory;
pub mod sim;
mod tokens;
