//! Type inference of one expression from its operands, and the two builders of modules whose types are always up to
//! date: [`Builder`] appends, [`Rebuild`] copies and transforms.

mod builder;
mod coverage;
mod infer;
mod rebuild;
mod solve;

pub use builder::Builder;
pub use infer::{function_type, infer_expr, signature_of_call};
pub use rebuild::Rebuild;
pub use solve::{Solver, map_params, merge, substitute, unify};
