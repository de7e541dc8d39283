//! Cancellation: ends work early on request or at a deadline.
//!
//! All cancellation uses one mechanism. A build checks the [`Cancel`] of its [`Session`](crate::session::Session). A
//! run checks the `Cancel` of the session that loaded the model, or a `Cancel` passed for this run
//! ([`Executor::run_under`](crate::exec::Executor::run_under)). Plugins query either through the service `cancelled`.
//! All work in the scope of a `Cancel` ([`Cancel::enter`]), including reading models, checks that `Cancel`.

pub use byoc_ir::cancel::{Cancel, CancelReason, Scope};

/// Maximum number of calls and loop iterations of a run, in total; a run that exceeds it is treated as an infinite
/// loop.
pub const MAX_CALLS: u64 = 1 << 31;
