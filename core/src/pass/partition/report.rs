//! Report of what partitioning did with each operator, and why.

use super::judge::{Composite, Refusal};
use byoc_ir::ir::{ExprId, Name};
use smallvec::SmallVec;
use std::sync::Arc;

/// Expressions of a region: most regions are small, and there may be as many of them as operators.
pub type ExprIds = SmallVec<[ExprId; 4]>;

/// Assignment of operators to backends, with the reasons for every refusal.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every operator call of the partitioned module, functions by name, producers before users.
    pub operators: Vec<OperatorReport>,
    /// Regions, in program order.
    pub regions: Vec<RegionReport>,
}

/// Assignment of one operator.
#[derive(Clone, Debug)]
pub struct OperatorReport {
    /// Operator, in the partitioned module.
    pub expr: ExprId,
    /// Index of its region in [`Report::regions`]; `None` if it stays on the host.
    pub region: Option<usize>,
    /// Reasons of the backends that refused it, in priority order; one backend may give several.
    pub refusals: Arc<[(Name, Arc<Refusal>)]>,
}

/// Region that became a function.
#[derive(Clone, Debug)]
pub struct RegionReport {
    /// Name of its function.
    pub symbol: Name,
    /// Backend that compiles it.
    pub backend: Name,
    /// Expressions of the partitioned module inside, producers before users.
    pub nodes: ExprIds,
    /// Composites inside.
    pub composites: Vec<Composite>,
    /// Values from outside, in the order of the parameters.
    pub inputs: ExprIds,
    /// Results, in the order of the outputs.
    pub outputs: ExprIds,
}
