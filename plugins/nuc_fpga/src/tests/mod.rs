//! Regions compiled, loaded and run, against naive loops.

mod calls;
mod cycles;
mod drivers;
mod harness;
mod refusals;
mod regions;
mod shipped;
