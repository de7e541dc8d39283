//! Cancellation: ends work early on request or at a deadline.
//!
//! All cancellation uses one mechanism: a build checks the [`Cancel`] of its [`Session`](crate::session::Session), a
//! run checks that of the session that loaded the model or one of its own
//! ([`Executor::run_under`](crate::exec::Executor::run_under)), and plugins see either as `cancelled`. Work in the
//! scope of a `Cancel` ([`Cancel::enter`]) checks it as well, including the reading of models.

pub use byoc_ir::cancel::{Cancel, CancelReason, Scope};

/// Maximum number of calls and loop iterations of a run, in total; a run that exceeds it is considered endless.
pub const MAX_CALLS: u64 = 1 << 31;
