//! Leaves behind what no result needs: unreachable expressions, and `let` bindings of pure values that nobody reads.

use super::scope::touchable;
use crate::diag::Diagnostic;
use crate::ir::{Callee, Expr, ExprId, IndexVec, Module};
use crate::typing::Rebuild;

/// Rebuilds the module without dead code.
///
/// # Errors
/// None that a typed module can cause.
pub fn dead_code_elimination(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let touch = touchable(module);
    let pure = purity(module);
    let mut dropped = IndexVec::filled(false, module.nodes.len());
    let mut reached = IndexVec::filled(false, module.nodes.len());
    for &root in module.globals.values() {
        reached[root] = true;
    }
    // A let is dropped when its variable is read nowhere but in bindings that are dropped too. Readers are counted,
    // and dropping one let releases the variables that its value reads.
    let lets: Vec<ExprId> = module
        .nodes
        .iter()
        .filter(|(id, node)| touch[*id] && matches!(node.expr, Expr::Let { .. }))
        .map(|(id, _)| id)
        .collect();
    let mut readers: IndexVec<ExprId, u32> = IndexVec::filled(0, module.nodes.len());
    for (id, node) in module.nodes.iter().rev() {
        if reached[id] {
            match &node.expr {
                Expr::Let { value, body, .. } => {
                    for operand in [*value, *body] {
                        reached[operand] = true;
                        readers[operand] += 1;
                    }
                }
                Expr::Function(function) => {
                    reached[function.body] = true;
                    readers[function.body] += 1;
                }
                expr => expr.for_each_operand(|operand| {
                    reached[operand] = true;
                    readers[operand] += 1;
                }),
            }
        }
    }
    let mut work = lets.clone();
    let binder: std::collections::HashMap<ExprId, ExprId> = lets
        .iter()
        .filter_map(|&id| match module.expr(id) {
            Expr::Let { var, .. } => Some((*var, id)),
            _ => None,
        })
        .collect();
    while let Some(id) = work.pop() {
        let Expr::Let { var, value, .. } = module.expr(id) else { continue };
        if dropped[id] || !reached[id] || readers[*var] > 0 || !pure[*value] {
            continue;
        }
        dropped[id] = true;
        let mut release = vec![*value];
        while let Some(expr) = release.pop() {
            readers[expr] -= 1;
            if readers[expr] > 0 {
                continue;
            }
            if let Some(&binding) = binder.get(&expr) {
                work.push(binding);
            }
            match module.expr(expr) {
                Expr::Let { value, body, .. } => release.extend([*value, *body]),
                Expr::Function(function) => release.push(function.body),
                other => other.for_each_operand(|operand| release.push(operand)),
            }
        }
    }
    Rebuild::run(module, |rebuild, id, expr| {
        Ok(match expr {
            Expr::Let { body, .. } if dropped[id] => Some(rebuild.get(*body)),
            _ => None,
        })
    })
    .and_then(|module| Rebuild::run(&module, |_, _, _| Ok(None)))
}

/// Whether evaluating an expression has no effect but its value. A call of anything but an operator may write to a
/// reference or not end; making a function never does.
fn purity(module: &Module) -> IndexVec<ExprId, bool> {
    let mut pure = IndexVec::filled(true, module.nodes.len());
    for (id, node) in module.nodes.iter() {
        let mut is_pure = match &node.expr {
            Expr::RefWrite { .. } => false,
            Expr::Function(_) => continue,
            Expr::Call(call) => match call.callee {
                Callee::Op(_) => true,
                Callee::Expr(callee) => module.expr(callee).as_function().is_some_and(|function| pure[function.body]),
            },
            _ => true,
        };
        node.expr.for_each_operand(|operand| is_pure &= pure[operand]);
        pure[id] = is_pure;
    }
    pure
}
