//! Types: the local rule that types one expression from its operands, and the two ways to make modules whose types
//! are up to date at every moment: [`Builder`] appends, [`Rebuild`] copies and changes.

mod builder;
mod infer;
mod rebuild;
mod solve;

pub use builder::Builder;
pub use infer::{function_type, infer_expr, signature_of_call};
pub use rebuild::Rebuild;
pub use solve::{Solver, map_params, substitute, unify};
