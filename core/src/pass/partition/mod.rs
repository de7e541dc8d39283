//! Passes that partition a module into regions for backends: step by step as in Relay, or in one step
//! ([`partition_for`]).

mod annotate_target;
mod annotation;
mod control_flow;
mod flatten_nested_tuples;
pub(crate) mod group;
pub(crate) mod grouping;
mod inline_compiler_functions;
mod judge;
mod merge_compiler_regions;
mod merge_composite;
mod optimize_functions;
mod outline;
mod outline_compiler_functions;
mod partition_for;
mod partition_graph;
mod refusals;
mod region_graph;
mod regions;
mod remove_default_annotations;
mod report;

pub use annotate_target::{annotate_target, annotate_target_by};
pub use control_flow::ControlFlow;
pub use flatten_nested_tuples::flatten_nested_tuples;
pub use inline_compiler_functions::{inline_compiler_functions_bound_to, mark_compiler_functions_extern};
pub use judge::{AcceptAll, Candidate, Composite, Judge, Question, Refusal, RefusalCode, Verdict};
pub use merge_compiler_regions::merge_compiler_regions;
pub use merge_composite::merge_composite;
pub use outline_compiler_functions::outline_compiler_functions;
pub use partition_for::{Backend, partition_for};
pub use partition_graph::{partition_graph, partition_graph_with};
pub use remove_default_annotations::remove_default_annotations;
pub use report::{ExprIds, OperatorReport, RegionReport, Report};
