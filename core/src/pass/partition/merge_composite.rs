//! `merge_composite`: each match of a pattern table becomes a call of a composite function (spec 1.3).
//!
//! The order of the table is the order of priority: a pattern sees the program as the preceding patterns left it.
//! Every function of the module is processed, and the module is rebuilt once at the end; only a pattern that looks
//! into functions needs an earlier rebuild, so that it sees the composites as functions. Types stay known throughout
//! and are never inferred again.

use super::grouping::Grouping;
use super::judge::{Judge, Refusal};
use crate::pattern::Entry;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{ExprId, Module};

/// Applies a pattern table.
///
/// `refused` is called for candidates that could not be grouped or were refused by the judge, in expressions of
/// `module` (or of its last rebuild, after a pattern that looks into functions).
///
/// # Errors
/// None that a typed module can cause.
pub fn merge_composite(
    module: &Module,
    table: &[Entry],
    judge: &mut dyn Judge,
    refused: &mut dyn FnMut(ExprId, Refusal),
    warnings: &mut Vec<Diagnostic>,
) -> Result<Module, Box<Diagnostic>> {
    let mut rest = table;
    let mut rebuilt: Option<Module> = None;
    loop {
        let current = rebuilt.as_ref().unwrap_or(module);
        let mut grouping = Grouping::new(current);
        while let Some((entry, later)) = rest.split_first() {
            if entry.pattern.looks_into_functions() && !grouping.groups.is_empty() {
                break;
            }
            rest = later;
            if let Some(warning) = entry.pattern.is_bare_function(&entry.name) {
                warnings.push(warning);
                continue;
            }
            grouping.apply(entry, judge, refused);
        }
        if grouping.groups.is_empty() && rest.is_empty() && rebuilt.is_some() {
            break;
        }
        let next = grouping.rebuild()?;
        rebuilt = Some(next);
        if rest.is_empty() {
            break;
        }
    }
    Ok(rebuilt.unwrap_or_else(|| module.clone()))
}
