//! Running programs. This layer knows artifacts and loaders, never passes or frontends.
//!
//! | file | what it is |
//! |---|---|
//! | [`program`] | a planned program as plain data, and its JSON form |
//! | [`region`] | what the executor wants of a region that a backend runs |
//! | [`needs`] | which constants a run on the host reads |
//! | [`executor`] | runs a program |
//! | [`trace`] | what is known of the steps, and who listens to a run |
//! | [`pool`] | the threads |
//! | `validate` | checks a program before it runs |
//! | `load` | makes it ready: kernels, operands |
//! | `machine` | the loop over instructions; `step` runs those that compute |
//! | `frame` | the memory of an activation; `value` what a register holds |

pub mod executor;
mod frame;
mod load;
mod machine;
pub(crate) mod memory;
pub mod needs;
pub mod pool;
pub mod program;
pub mod region;
mod step;
pub mod trace;
mod validate;
mod value;
pub mod wire;

pub use executor::{Executor, bind, check_inputs};
pub use pool::Pool;
pub use program::Program;
pub use region::{OutputDims, Prepared, Region, RegionCall};
pub use trace::{Observer, StepEvent, StepInfo, StepKind};
pub use validate::validate;
