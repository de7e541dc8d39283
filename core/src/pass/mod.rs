//! Passes: one file per pass, named after the pass. A pass maps a typed module to a typed module.
//!
//! | module | contents |
//! |---|---|
//! | `infer_type` | type inference |
//! | `splice` | inlining and copying of functions, shared by several passes |
//! | `simplify` | simplification |
//! | `quantize` | passes on quantized modules |
//! | `partition` | partitioning into regions for backends |
//! | [`rewrite()`] | matching, partitioning and rewriting by pattern, as an API |
//! | [`manager`] | pass table; runs, times and verifies passes by name |

mod infer_type;
pub mod manager;
mod options;
mod partition;
mod quantize;
mod rewrite;
mod simplify;
mod splice;

pub use infer_type::{infer_type, infer_type_in_place};
pub use options::{DesiredLayout, PassOptions, TargetRule};
pub use partition::{
    AcceptAll, Backend, Body, Candidate, ClaimedSet, Claims, Composite, ControlFlow, ExprIds, Judge, NearMiss,
    NearMissReport, OperatorReport, Question, Refusal, RefusalCode, RegionReport, Report, Verdict, annotate_target,
    annotate_target_by, flatten_nested_tuples, inline_compiler_functions_bound_to, mark_compiler_functions_extern,
    merge_compiler_regions, merge_composite, outline_compiler_functions, partition_for, partition_graph,
    remove_default_annotations,
};
pub use quantize::{fake_quantization_to_integer, fuse_requantize, qnn_canonicalize, tabulate};
pub use rewrite::{Callback, MAX_ROUNDS, Site, find_matches, rewrite};
pub use simplify::{
    canonicalize_ops, check_layouts, convert_layout, dead_code_elimination, decompose_declared, defuse_ops,
    eliminate_common_subexpr, fold_constant, fold_scale_axis, inline, leaves_float16_to_host, monomorphize,
    simplify_inference, to_a_normal_form, widen_float16, without_reference,
};
