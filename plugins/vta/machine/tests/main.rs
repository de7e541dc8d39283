//! Tests of the accelerator: instruction set, simulators, checker and cycle model.

mod bounds;
mod cycles;
mod edges;
mod streams;
mod vectors;
