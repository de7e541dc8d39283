//! Grouping by a single pattern, for the pattern API.

use super::grouping::{FoundGroup, Grouping};
use crate::pattern::{Match, Pattern};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Attrs, ExprId, Module, Name};
use std::collections::BTreeMap;

/// Finds the groups of a pattern. Returns the expressions of each group, operands before their users, and its match,
/// keyed by the root of the group.
pub(crate) fn find(module: &Module, pattern: &Pattern, name: &Name) -> BTreeMap<ExprId, (Vec<ExprId>, Match)> {
    let groups = Grouping::new(module).find(pattern, name, &Attrs::none(), &mut |_, _| {});
    groups
        .into_iter()
        .map(|FoundGroup { group, matched }| (group.composite.root, (group.composite.nodes, matched)))
        .collect()
}

/// Moves the groups of a pattern for which `check` returns true into functions with the given attributes.
pub(crate) fn partition(
    module: &Module,
    pattern: &Pattern,
    attrs: &Attrs,
    check: &mut dyn FnMut(&Module, ExprId) -> bool,
) -> Result<Module, Box<Diagnostic>> {
    let mut grouping = Grouping::new(module);
    for FoundGroup { group, .. } in grouping.find(pattern, &Name::from("partition"), attrs, &mut |_, _| {}) {
        if check(module, group.composite.root) {
            grouping.accept(group);
        }
    }
    grouping.rebuild()
}
