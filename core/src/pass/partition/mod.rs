//! Partitioning of a module into regions for backends: step by step as in Relay ([`relay`]), or in one step with reasons
//! for what stays on the host ([`build`]).

mod build;
pub(crate) mod group;
pub(crate) mod grouping;
mod judge;
mod merge_graph;
mod outline;
mod relay;

pub use build::{
    Backend, ControlFlow, ExprIds, NearMiss, NearMissReport, OperatorReport, RegionReport, Report, partition_for,
};
pub use judge::{
    AcceptAll, Body, Candidate, ClaimedSet, Claims, Composite, Judge, Question, Refusal, RefusalCode, Verdict,
};
pub use relay::{
    annotate_target, annotate_target_by, flatten_nested_tuples, inline_compiler_functions_bound_to,
    mark_compiler_functions_extern, merge_compiler_regions, merge_composite, outline_compiler_functions,
    partition_graph, remove_default_annotations,
};
