//! Computes equal things once: two calls of one operator with the same operands and attributes become one.
//!
//! Sharing is safe within one scope. A branch of an `if`, a function body and a loop are scopes of their own, so
//! expressions are only merged when both stand in the same one.

use super::scope::touchable;
use crate::diag::Diagnostic;
use crate::ir::{AttrValue, Callee, Expr, ExprId, IndexVec, Module, OpId};
use crate::typing::Rebuild;
use std::collections::HashMap;

/// What makes two expressions of one scope equal.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Call(OpId, Box<[ExprId]>, String),
    Tuple(Box<[ExprId]>),
    Project(ExprId, u32),
}

/// Merges equal calls of operators, projections and tuples.
///
/// # Errors
/// None that a typed module can cause.
pub fn eliminate_common_subexpr(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let touch = touchable(module);
    let scope = scopes(module);
    let mut seen: HashMap<(Option<ExprId>, Key), ExprId> = HashMap::new();
    Rebuild::run(module, |rebuild, id, expr| {
        if !touch[id] {
            return Ok(None);
        }
        let mapped = |ids: &[ExprId]| ids.iter().map(|&i| rebuild.get(i)).collect::<Box<[ExprId]>>();
        let key = match expr {
            Expr::Call(call) => match call.callee {
                Callee::Op(op) => Key::Call(op, mapped(&call.args), attrs_key(call.attrs.iter())),
                Callee::Expr(_) => return Ok(None),
            },
            Expr::Tuple(fields) => Key::Tuple(mapped(fields)),
            Expr::Project { tuple, index } => Key::Project(rebuild.get(*tuple), *index),
            _ => return Ok(None),
        };
        let key = (scope[id], key);
        if let Some(&first) = seen.get(&key) {
            rebuild.inherit(first, id);
            return Ok(Some(first));
        }
        let new = rebuild.copy(id)?;
        seen.insert(key, new);
        Ok(Some(new))
    })
}

fn attrs_key<'a>(attrs: impl Iterator<Item = (&'a crate::ir::Name, &'a AttrValue)>) -> String {
    attrs.map(|(k, v)| format!("{k}={v},")).collect()
}

/// The innermost scope that every use of an expression lies in: the function, branch or let that owns it.
/// `None` for what several scopes share.
fn scopes(module: &Module) -> IndexVec<ExprId, Option<ExprId>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Owner {
        Unseen,
        One(ExprId),
        Many,
    }
    let mut owner = IndexVec::filled(Owner::Unseen, module.nodes.len());
    let join = |slot: &mut Owner, by: Owner| {
        *slot = match (*slot, by) {
            (Owner::Unseen, by) => by,
            (slot, by) if slot == by => slot,
            _ => Owner::Many,
        }
    };
    for &root in module.globals.values() {
        owner[root] = Owner::One(root);
    }
    for (id, node) in module.nodes.iter().rev() {
        let mine = owner[id];
        if mine == Owner::Unseen {
            continue;
        }
        match &node.expr {
            Expr::Function(function) => {
                join(&mut owner[function.body], Owner::One(id));
                function.params.iter().for_each(|&p| join(&mut owner[p], Owner::One(id)));
            }
            // Each branch is named by its own root; two branches that are one expression share its scope.
            Expr::If { cond, then, otherwise } => {
                join(&mut owner[*cond], mine);
                join(&mut owner[*then], Owner::One(*then));
                join(&mut owner[*otherwise], Owner::One(*otherwise));
            }
            Expr::Let { var, value, body } => {
                join(&mut owner[*var], mine);
                join(&mut owner[*value], mine);
                // What the body computes may read the variable: it stays behind the binding.
                join(&mut owner[*body], Owner::One(id));
            }
            expr => expr.for_each_operand(|operand| join(&mut owner[operand], mine)),
        }
    }
    let mut scopes = IndexVec::filled(None, module.nodes.len());
    for (id, owner) in owner.iter() {
        scopes[id] = match owner {
            Owner::One(scope) => Some(*scope),
            _ => None,
        };
    }
    scopes
}
