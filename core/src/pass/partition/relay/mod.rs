//! The passes of Relay BYOC, one step each, for `byoc opt` and for programs written for Relay.
//!
//! [`merge_composite`], [`annotate_target`], [`merge_compiler_regions`] and [`partition_graph`] give, one after the
//! other, the modules that Relay gives, with its names and its order of parameters. The annotations between the steps
//! are part of the module, and can be read and written as text. A build partitions in one step (`partition::build`),
//! which keeps a reason for each operator that stays on the host.

mod annotate_target;
mod annotation;
mod flatten_nested_tuples;
mod inline_compiler_functions;
mod merge_compiler_regions;
mod merge_composite;
mod outline_compiler_functions;
mod partition_graph;
mod regions;
mod remove_default_annotations;

pub use annotate_target::{annotate_target, annotate_target_by};
pub use flatten_nested_tuples::flatten_nested_tuples;
pub use inline_compiler_functions::{inline_compiler_functions_bound_to, mark_compiler_functions_extern};
pub use merge_compiler_regions::merge_compiler_regions;
pub use merge_composite::merge_composite;
pub use outline_compiler_functions::outline_compiler_functions;
pub use partition_graph::partition_graph;
pub use remove_default_annotations::remove_default_annotations;
