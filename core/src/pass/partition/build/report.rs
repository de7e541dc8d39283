//! Report of partitioning: the assignment of each operator, with the refusals.

use super::super::judge::{Composite, Refusal, RefusalCode};
use super::near_miss::NearMiss;
use byoc_ir::ir::{ExprId, Module, Name};
use smallvec::SmallVec;
use std::sync::Arc;

/// List of expressions of a region. Stored inline if short: most regions are small, and there may be as many regions as
/// operators.
pub type ExprIds = SmallVec<[ExprId; 4]>;

/// Assignment of all operators of a module to backends, with the refusals.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Operator calls of the module before partitioning, sorted by function name; within a function, operands
    /// precede their users.
    pub operators: Vec<OperatorReport>,
    /// Regions, ordered by first expression.
    pub regions: Vec<RegionReport>,
    /// Entries that came nearest to operators without a match, by backend in priority order.
    pub near_misses: Vec<NearMissReport>,
}

/// Entry of a backend's pattern table that came nearest to an operator.
#[derive(Clone, Debug)]
pub struct NearMissReport {
    /// Name of the backend.
    pub backend: Name,
    /// Operator call, in the module before partitioning.
    pub expr: ExprId,
    /// Code of the refusal that the near miss is about.
    pub code: RefusalCode,
    /// Entry, and where it stopped.
    pub near_miss: Arc<NearMiss>,
}

impl Report {
    /// Adds the regions that a module had before partitioning: the global functions of backends. The operators of those
    /// that nobody compiles are on the host.
    pub fn add_regions_of(&mut self, module: &Module, is_compiled: impl Fn(&str) -> bool) {
        for (symbol, &root) in &module.globals {
            let Some(function) = module.expr(root).as_function() else { continue };
            let Some(backend) = function.attrs.str("Compiler") else { continue };
            let order = module.post_order(function.body, |_, _| true);
            let operators = order.into_iter().filter(|&id| module.expr(id).as_op_call().is_some());
            let nodes: ExprIds = operators.collect();
            let region = is_compiled(backend).then_some(self.regions.len());
            self.operators.extend(nodes.iter().map(|&expr| OperatorReport { expr, region, refusals: Arc::from([]) }));
            if region.is_none() {
                continue;
            }
            self.regions.push(RegionReport {
                symbol: symbol.clone(),
                backend: backend.into(),
                nodes,
                composites: Vec::new(),
                inputs: function.params.iter().copied().collect(),
                outputs: ExprIds::from_iter([function.body]),
            });
        }
    }
}

/// Assignment of one operator.
#[derive(Clone, Debug)]
pub struct OperatorReport {
    /// Operator call, in the module before partitioning.
    pub expr: ExprId,
    /// Index of the operator's region in [`Report::regions`]; `None` if the operator stays on the host.
    pub region: Option<usize>,
    /// Refusals of the operator, by backend in priority order. A backend may have several refusals.
    pub refusals: Arc<[(Name, Arc<Refusal>)]>,
}

/// Region for which a function was created.
#[derive(Clone, Debug)]
pub struct RegionReport {
    /// Name of the region's function.
    pub symbol: Name,
    /// Backend that compiles the region.
    pub backend: Name,
    /// Expressions inside the region, in the module before partitioning, producers before users.
    pub nodes: ExprIds,
    /// Composites inside the region.
    pub composites: Vec<Composite>,
    /// External values, in parameter order.
    pub inputs: ExprIds,
    /// Results, in the order of the outputs.
    pub outputs: ExprIds,
}
