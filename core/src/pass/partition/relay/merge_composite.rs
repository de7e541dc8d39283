//! `merge_composite`: turns each match of a pattern table into a call to a composite function.
//!
//! The order of the table is the order of priority: each pattern is matched against the module as the preceding
//! patterns left it. All functions of the module are processed, and the module is rebuilt once at the end. Only a
//! pattern that looks into functions needs an earlier rebuild, which turns the composites into functions. All types
//! remain known, so no type inference is needed.

use super::super::grouping::Grouping;
use super::super::judge::{Judge, Refusal};
use crate::pattern::Entry;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{ExprId, Module};

/// Applies a pattern table.
///
/// `record_refusal` is called for each expression of a candidate that cannot be grouped or that the judge refuses. The
/// id refers to `module`, or to the last rebuild after a pattern that looks into functions.
///
/// # Errors
/// If the module is ill-typed.
pub fn merge_composite(
    module: &Module,
    table: &[Entry],
    judge: &mut dyn Judge,
    record_refusal: &mut dyn FnMut(ExprId, Refusal),
    warnings: &mut Vec<Diagnostic>,
) -> Result<Module, Box<Diagnostic>> {
    let mut remaining = table;
    let mut result: Option<Module> = None;
    loop {
        let current = result.as_ref().unwrap_or(module);
        let mut grouping = Grouping::new(current);
        while let Some((entry, remaining_entries)) = remaining.split_first() {
            if entry.pattern.looks_into_functions() && !grouping.groups.is_empty() {
                break;
            }
            remaining = remaining_entries;
            if let Some(warning) = entry.pattern.bare_function_warning(&entry.name) {
                warnings.push(warning);
                continue;
            }
            grouping.apply(entry, judge, record_refusal);
        }
        if grouping.groups.is_empty() && remaining.is_empty() && result.is_some() {
            break;
        }
        let rebuilt_module = grouping.rebuild()?;
        result = Some(rebuilt_module);
        if remaining.is_empty() {
            break;
        }
    }
    Ok(result.unwrap_or_else(|| module.clone()))
}
