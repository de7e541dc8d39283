//! Analyses of whole modules: the verifier, structural equality, effects, and the expressions that passes may touch.

mod equal;
pub(crate) mod purity;
pub mod scope;
pub mod verifier;

pub use equal::{Difference, structural_equal, structural_equal_exprs};
pub use verifier::{Verified, verify};
