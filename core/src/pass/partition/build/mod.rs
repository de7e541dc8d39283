//! The partitioner of a build: from a module and its backends to regions in one step.
//!
//! A build asks more than the passes of Relay (`partition::relay`) can answer: several backends in priority order that
//! are asked about patterns, operators and whole regions, control flow that moves into a region, and a [`Report`] with
//! the place of each operator or the reasons of every backend. Grouping by patterns, verdicts, merging without cycles
//! and naming are shared with the passes.

mod claims;
mod control_flow;
mod near_miss;
mod partition_for;
mod refusals;
mod report;

pub use control_flow::ControlFlow;
pub use near_miss::NearMiss;
pub use partition_for::{Backend, partition_for};
pub use report::{ExprIds, NearMissReport, OperatorReport, RegionReport, Report};
