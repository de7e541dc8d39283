//! What partitioning did with each operator, and why.

use super::judge::{Composite, Refusal};
use crate::ir::{ExprId, Name};
use smallvec::SmallVec;
use std::sync::Arc;

/// Expressions of a region: most regions are small, and there may be as many as operators.
pub type ExprIds = SmallVec<[ExprId; 4]>;

/// The answer to "which operators went to which backend, and why not the others?".
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every operator call of the module that was partitioned, functions by name, producers before users.
    pub operators: Vec<OperatorReport>,
    /// The regions, in the order of the program.
    pub regions: Vec<RegionReport>,
}

/// Where an operator went.
#[derive(Clone, Debug)]
pub struct OperatorReport {
    /// The operator, in the module that was partitioned.
    pub expr: ExprId,
    /// Its region, as an index into [`Report::regions`]; `None` when it stays on the host.
    pub region: Option<usize>,
    /// Why backends did not take it, in priority order; of one backend there may be several reasons.
    pub refusals: Arc<[(Name, Arc<Refusal>)]>,
}

/// A region that became a function.
#[derive(Clone, Debug)]
pub struct RegionReport {
    /// The name of its function.
    pub symbol: Name,
    /// Whose it is.
    pub backend: Name,
    /// Its expressions in the module that was partitioned, producers before users.
    pub nodes: ExprIds,
    /// The composites in it.
    pub composites: Vec<Composite>,
    /// What it takes, in the order of its parameters.
    pub inputs: ExprIds,
    /// What it gives, in the order of its outputs.
    pub outputs: ExprIds,
}
