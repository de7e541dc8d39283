//! Runs compiled models: reads artifacts, loads plugins, and executes programs on the host's kernels and the plugins'
//! regions. A deployed application needs only this crate; the crate `byoc` reads and compiles models.
//!
//! The modules are layers; each module uses only modules above it:
//!
//! | module | contents |
//! |---|---|
//! | [`error`] | errors for the caller: diagnostics, with the text that they refer to |
//! | [`fork`] | detection of forks |
//! | [`cancel`], [`limits`] | cancellation and deadlines; the memory limit |
//! | [`invocation`] | command line of the current process, and the directory of its files |
//! | [`exec`] | programs and the executor |
//! | [`value`] | values of inputs and outputs that are no tensors of numbers |
//! | [`compiled`] | compiled models as data |
//! | [`artifact`] | compiled models as files |
//! | [`plugin`] | plugins: discovery, registry, services, and conversion to and from their graphs |
//! | [`linking`] | link step for the regions of a model |
//! | [`summary`] | one-line tensor summaries |
//! | [`session`] | state of a process: threads, plugins, services |
//! | [`model`] | compiled models, loaded and ready to run |

pub mod artifact;
pub mod cancel;
pub mod choices;
pub mod compiled;
pub mod error;
pub mod exec;
pub mod fork;
pub mod invocation;
pub mod limits;
pub mod linking;
mod loading;
pub mod model;
mod native;
pub mod plugin;
pub mod session;
pub mod summary;
pub mod value;

pub use byoc_ir::{diag, tensor};
pub use error::Failure;
pub use model::Model;
pub use session::{Session, SessionBuilder};
pub use tensor::Tensor;
