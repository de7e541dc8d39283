//! Removes dead code: unreachable expressions, and `let` bindings of unused values without effects.
//!
//! Marking starts from the results. The body of a needed `let` is needed; the value is needed only if its evaluation
//! has an effect, or if a needed expression reads the variable. A chain of bindings that are used only by each other is
//! thus removed in one sweep, and so is a recursive function that is called only by itself.

use crate::analysis::purity::{Purities, Purity};
use crate::analysis::scope::rewritable_exprs;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Expr, ExprId, IndexVec, Module};
use byoc_ir::typing::Rebuild;

/// Rebuilds the module without dead code.
///
/// # Errors
/// If the module is ill-typed.
pub fn dead_code_elimination(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let is_rewritable = rewritable_exprs(module);
    let purity = Purities::of_module(module);
    let mut is_needed = IndexVec::filled(false, module.nodes.len());
    // For each variable, the value to mark when the variable is first read.
    let mut pending: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, module.nodes.len());
    let mut read = IndexVec::filled(false, module.nodes.len());
    let mut work: Vec<ExprId> = module.globals.values().copied().collect();
    while let Some(id) = work.pop() {
        if std::mem::replace(&mut is_needed[id], true) {
            continue;
        }
        match module.expr(id) {
            Expr::Var(_) => {
                read[id] = true;
                work.extend(pending[id].take());
            }
            &Expr::Let { var, value, body } => {
                if !is_rewritable[id] || purity[value] == Purity::Effect || read[var] {
                    work.extend([value, var]);
                } else {
                    pending[var] = Some(value);
                }
                work.push(body);
            }
            other => other.for_each_operand(|operand| work.push(operand)),
        }
    }
    let order: Vec<ExprId> = module.nodes.ids().filter(|&id| is_needed[id]).collect();
    Rebuild::run_in_order(module, order, |rebuild, _, expr| {
        Ok(match expr {
            Expr::Let { var, body, .. } if !is_needed[*var] => Some(rebuild.get(*body)),
            _ => None,
        })
    })
}
