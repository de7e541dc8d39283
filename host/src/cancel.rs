//! Ending what is under way, because somebody asks for it or because it takes too long.
//!
//! One mechanism for all of it: a build looks at the [`Cancel`] of its [`Session`](crate::session::Session), a run at that of the
//! session that loaded the model or at one of its own ([`Executor::run_under`](crate::runtime::Executor::run_under)), plugins see
//! either as `cancelled`. Whatever is done in the scope of one ([`Cancel::enter`]) looks at it as well, reading models included.

pub use byoc_core::stop::{Cancel, Reason, Scope};

/// Calls and iterations of loops in a run, all together, before it is taken for one that does not end.
pub const MAX_CALLS: u64 = 1 << 31;
