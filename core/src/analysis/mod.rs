//! Module analyses: verification, structural equality, purity, and scopes.

mod equal;
pub(crate) mod purity;
pub mod scope;
pub mod verifier;

pub use equal::{Difference, structural_equal, structural_equal_exprs};
pub use verifier::{VerifiedModule, verify};
