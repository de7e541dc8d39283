//! Passes: one file each, named after the pass. A pass takes a typed module and gives a typed module.

mod canonicalize_ops;
mod dead_code_elimination;
mod eliminate_common_subexpr;
mod fold_constant;
mod fold_scale_axis;
mod infer_type;
mod judge;
pub mod manager;
mod options;
pub mod scope;
mod simplify_inference;

pub use canonicalize_ops::canonicalize_ops;
pub use dead_code_elimination::dead_code_elimination;
pub use eliminate_common_subexpr::eliminate_common_subexpr;
pub use fold_constant::fold_constant;
pub use fold_scale_axis::fold_scale_axis;
pub use infer_type::{infer_type, infer_type_in_place};
pub use judge::{AcceptAll, Candidate, Composite, Judge, Question, Refusal, RefusalCode, Verdict};
pub use options::{PassOptions, TargetRule};
pub use simplify_inference::simplify_inference;
