//! Computes what depends on constants alone.
//!
//! A folded expression becomes a constant that carries the origins of everything that went into it, so that the
//! operators of the model that vanished here can be said to live on in it.

use super::scope::touchable;
use crate::diag::Diagnostic;
use crate::ir::{Callee, Expr, ExprId, Module};
use crate::op::{self, Value};
use crate::typing::Rebuild;

/// An expression whose value is larger stays an expression: a program of a few bytes (`zeros`, `tile`) must not turn
/// into an artifact of gigabytes.
const LARGEST: usize = 256 << 20;

/// Folds calls of operators on constants, projections of constant tuples, and `if` on a constant condition.
///
/// # Errors
/// Types that no longer agree, which would be a defect of this pass.
pub fn fold_constant(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let touch = touchable(module);
    Rebuild::run(module, |rebuild, id, expr| {
        if !touch[id] {
            return Ok(None);
        }
        Ok(match expr {
            Expr::Call(call) => match call.callee {
                Callee::Op(_) => fold_call(rebuild, id)?,
                Callee::Expr(_) => None,
            },
            Expr::Project { tuple, index } => {
                let new = rebuild.get(*tuple);
                match rebuild.new.module.expr(new) {
                    Expr::Tuple(fields) => Some(fields[*index as usize]),
                    _ => None,
                }
            }
            Expr::If { cond, then, otherwise } => {
                let cond = rebuild.get(*cond);
                let known = rebuild.new.module.expr(cond).as_constant().map(|t| t.bytes().first() == Some(&1));
                known.map(|holds| rebuild.get(if holds { *then } else { *otherwise }))
            }
            _ => None,
        })
    })
}

fn fold_call(rebuild: &mut Rebuild<'_>, id: ExprId) -> Result<Option<ExprId>, Box<Diagnostic>> {
    let Some((operator, call)) = rebuild.old.expr(id).as_op_call() else { return Ok(None) };
    if op::get(operator).name.starts_with("annotation.") {
        return Ok(None);
    }
    let args: Vec<ExprId> = call.args.iter().map(|&a| rebuild.get(a)).collect();
    let module = &rebuild.new.module;
    let mut origin = rebuild.old.nodes[id].origin;
    let mut origins = Vec::new();
    let mut constant = |id: ExprId| {
        origins.push(module.nodes[id].origin);
        module.expr(id).as_constant().map(|t| (**t).clone())
    };
    let values: Option<Vec<Value>> = args
        .iter()
        .map(|&arg| match module.expr(arg) {
            Expr::Tuple(fields) => {
                let fields: Option<Vec<_>> = fields.iter().map(|&f| constant(f)).collect();
                fields.map(Value::Tuple)
            }
            _ => constant(arg).map(Value::Tensor),
        })
        .collect();
    let Some(values) = values else { return Ok(None) };
    // What cannot be computed (no reference, too large, an index out of bounds) stays for the run to report.
    let Ok(results) = op::evaluate(operator, &call.attrs, &values, LARGEST) else { return Ok(None) };
    for other in origins {
        origin = rebuild.new.module.origins.union(origin, other);
    }
    rebuild.new.origin = Some(origin);
    let is_tuple = rebuild.old.ty(id).as_tuple().is_some();
    let constants: Vec<ExprId> = results.into_iter().map(|tensor| rebuild.new.constant(tensor)).collect();
    Ok(Some(if is_tuple { rebuild.new.tuple(&constants)? } else { constants[0] }))
}
