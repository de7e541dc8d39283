//! Analyses of whole modules: the verifier, and structural equality.

mod equal;
pub mod verifier;

pub use equal::{Difference, structural_equal, structural_equal_exprs};
pub use verifier::{Verified, verify};
