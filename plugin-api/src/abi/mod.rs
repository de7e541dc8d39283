//! Objects of the stable ABI, which cross the boundary, and the adapters between them and the plain traits.
//!
//! The object of a loaded region and the guard of every entry are in `executable_object` and `guard`, because the host's
//! services hand out such objects too.

pub(crate) mod export;
#[cfg(feature = "host")]
pub(crate) mod import;
pub mod objects;
