//! Passes that simplify a module before partitioning, or normalize it for later passes.

mod canonicalize_ops;
mod convert_layout;
mod dead_code_elimination;
mod decompose_declared;
mod defuse_ops;
mod eliminate_common_subexpr;
mod fold_constant;
mod fold_scale_axis;
pub(crate) mod inline;
mod monomorphize;
mod simplify_inference;
mod to_a_normal_form;
mod widen_float16;

pub use canonicalize_ops::canonicalize_ops;
pub use convert_layout::{check_layouts, convert_layout};
pub use dead_code_elimination::dead_code_elimination;
pub use decompose_declared::{decompose_declared, without_reference};
pub use defuse_ops::defuse_ops;
pub use eliminate_common_subexpr::eliminate_common_subexpr;
pub use fold_constant::fold_constant;
pub use fold_scale_axis::fold_scale_axis;
pub use inline::inline;
pub use monomorphize::monomorphize;
pub use simplify_inference::simplify_inference;
pub use to_a_normal_form::to_a_normal_form;
pub use widen_float16::{leaves_float16_to_host, widen_float16};
