//! Running programs. This layer knows artifacts and loaders, never passes or frontends.
//!
//! | file | what it is |
//! |---|---|
//! | [`program`] | a planned program as plain data, and its JSON form |
//! | [`region`] | what the executor wants of a region that a backend runs |
//! | [`signature`] | the types that a region was compiled for, and every comparison with them |
//! | [`needs`] | which constants a run on the host reads |
//! | [`executor`] | runs a program; `inputs` says whether what it is given fits |
//! | [`trace`] | what is known of the steps, and who listens to a run |
//! | [`pool`] | the threads |
//! | `validate` | checks a program before it runs |
//! | `load` | makes it ready: kernels, operands |
//! | `ready` | a program made ready, and the memory that runs leave to the next |
//! | `machine` | the loop over instructions; `step` runs those that compute |
//! | `plans` | plans of regions for the dimensions of a run; `kept` limits what is kept by dimensions |
//! | `frame` | the memory of an activation; `value` what a register holds |

pub mod executor;
mod frame;
mod inputs;
mod kept;
mod load;
mod lock;
mod machine;
pub(crate) mod memory;
pub mod needs;
mod plans;
pub mod pool;
pub mod program;
mod ready;
pub mod region;
pub mod signature;
mod step;
pub mod trace;
mod validate;
mod value;
pub mod wire;

pub use executor::Executor;
pub use inputs::{bind, check_inputs, check_type};
pub use pool::Pool;
pub use program::Program;
pub use region::{OutputDims, Prepared, Region, RegionCall};
pub use signature::Signature;
pub use trace::{Observer, StepEvent, StepInfo, StepKind};
pub use validate::validate;
