//! Execution of programs. This layer depends on neither passes nor frontends.
//!
//! | file | contents |
//! |---|---|
//! | [`program`] | a planned program as plain data, and its JSON form |
//! | [`region`] | interface between the executor and a region that a backend runs |
//! | [`signature`] | types that a region was compiled for, and the checks against them |
//! | [`device`] | device memory, copies, unfinished runs |
//! | [`constants`] | constants that a run on the host reads |
//! | [`executor`] | runs a program; `inputs` checks its arguments |
//! | [`trace`] | static facts about the steps, and the observer of a run |
//! | [`pool`] | thread pool |
//! | `validate` | checks a program before it runs; `written` proves that it reads no memory that it has not written |
//! | `load` | prepares a program for execution: kernels, operands |
//! | `prepared` | prepared program, and the memory that is reused between runs |
//! | `interpreter` | loop over the instructions; `step` runs kernels, views and regions |
//! | `plans` | plans of regions for the dimensions of a run; `lru_cache` is the bounded cache for them |
//! | `frame` | memory of an activation; `value` is the contents of a register |
//! | `recycler` | reuse of memory for tensors of run-time dimensions; `append` lets such memory grow |
//! | `direct` | results that a step writes to caller-provided memory |

mod append;
pub mod constants;
pub mod device;
mod direct;
pub mod executor;
mod frame;
mod inputs;
mod interpreter;
mod load;
mod lock;
mod lru_cache;
pub(crate) mod memory;
mod plans;
pub mod pool;
mod prepared;
pub mod program;
mod recycler;
pub mod region;
pub mod signature;
mod step;
pub mod trace;
mod validate;
mod value;
pub mod wire;
mod written;

pub use executor::Executor;
pub use inputs::{check_inputs, check_type, order_inputs};
pub use pool::Pool;
pub use program::Program;
pub use region::{OutputDims, Prepared, Region, RegionCall};
pub use signature::Signature;
pub use trace::{Observer, StepEvent, StepInfo, StepKind};
pub use validate::validate;
