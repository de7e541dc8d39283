//! `inline`: inlines functions with `Inline=1`.
//!
//! A global function with `Inline=1` is inlined if it refers only to global functions that are inlined, too; so a
//! recursive function is never inlined. A call to a host function is replaced by the body of the function, a call to a
//! backend function by a call to the function as a literal. Where the name of an inlined function is used as a value,
//! the literal replaces the name. An inlined function without remaining uses is removed, unless nothing referred to it
//! before: such a function is an entry point, and is kept.

use crate::pass::splice::{copy_function, splice};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Call, Callee, Expr, ExprId, IndexVec, Module, Name};
use byoc_ir::typing::Rebuild;
use std::collections::{BTreeMap, BTreeSet};

/// Inlines functions with `Inline=1`.
///
/// # Errors
/// If the module becomes too large.
pub fn inline(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let plan = Plan::of(module);
    if plan.inlined.is_empty() {
        return Ok(module.clone());
    }
    let mut result = Rebuild::run_in_order(module, plan.order, |rebuild, id, expr| match expr {
        Expr::Call(call) => {
            let Callee::Expr(callee) = call.callee else { return Ok(None) };
            let Expr::Global(name) = module.expr(callee) else { return Ok(None) };
            if !plan.inlined.contains(name) {
                return Ok(None);
            }
            let Some(function) = rebuild.visited(module.globals[name]) else { return Ok(None) };
            if module.function(name).is_some_and(|f| f.attrs.get("Compiler").is_none()) {
                return splice(rebuild, function, call).map(Some);
            }
            let literal = copy_function(rebuild, function)?;
            let args = call.args.iter().map(|&arg| rebuild.get(arg)).collect();
            let call = Call { callee: Callee::Expr(literal), args, attrs: call.attrs.clone() };
            let node = &module.nodes[id];
            Ok(Some(rebuild.new.module.push_typed(Expr::Call(Box::new(call)), node.ty.clone(), node.origin)))
        }
        Expr::Global(name) if plan.inlined.contains(name) && plan.values[id] => {
            match rebuild.visited(module.globals[name]) {
                Some(function) => copy_function(rebuild, function).map(Some),
                None => Ok(None),
            }
        }
        _ => Ok(None),
    })?;
    let referenced_names = references(&result);
    for name in plan.inlined {
        if plan.call_targets.contains(&name) && !referenced_names.contains(&name) {
            result.globals.remove(&name);
        }
    }
    Ok(result)
}

/// Returns the global functions that live expressions refer to.
pub(crate) fn references(module: &Module) -> BTreeSet<Name> {
    let live = module.live();
    let names = module.nodes.iter().filter(|(id, _)| live[*id]).filter_map(|(_, node)| match &node.expr {
        Expr::Global(name) => Some(name.clone()),
        _ => None,
    });
    names.collect()
}

struct Plan {
    inlined: BTreeSet<Name>,
    /// Functions that some expression refers to before inlining.
    call_targets: BTreeSet<Name>,
    /// True for each reference to a global function that is used as a value, and in one function only.
    values: IndexVec<ExprId, bool>,
    /// Expressions in rebuild order: each function's expressions before those of its callers.
    order: Vec<ExprId>,
}

impl Plan {
    fn of(module: &Module) -> Plan {
        let mut bodies: BTreeMap<&Name, Vec<ExprId>> = BTreeMap::new();
        let mut values = IndexVec::filled(false, module.nodes.len());
        let mut owner: IndexVec<ExprId, Option<&Name>> = IndexVec::filled(None, module.nodes.len());
        let mut callees: BTreeMap<&Name, BTreeSet<&Name>> = BTreeMap::new();
        for (name, &root) in &module.globals {
            let body = module.post_order(root, |_, _| true);
            let callees = callees.entry(name).or_default();
            for &id in &body {
                let expr = module.expr(id);
                if let Expr::Global(callee) = expr {
                    callees.insert(callee);
                }
                let callee = expr.as_call().map(|call| call.callee);
                expr.for_each_operand(|operand| {
                    if matches!(module.expr(operand), Expr::Global(_)) && callee != Some(Callee::Expr(operand)) {
                        let is_sole_owner = owner[operand].is_none_or(|other| other == name);
                        owner[operand] = Some(name);
                        values[operand] = is_sole_owner;
                    }
                });
            }
            bodies.insert(name, body);
        }
        let call_targets = callees.values().flatten().map(|&name| name.clone()).collect();
        let mut inlined: BTreeSet<&Name> = BTreeSet::new();
        let mut order = Vec::with_capacity(module.nodes.len());
        let mut is_placed = IndexVec::filled(false, module.nodes.len());
        for name in callees_first(&callees) {
            // Each callee is either in `inlined` by now, or will never be inlined.
            let is_leaf = callees[name].iter().all(|callee| inlined.contains(callee));
            let inline_attr = module.function(name).and_then(|f| f.attrs.get("Inline")).and_then(|v| v.as_int());
            if is_leaf && inline_attr.is_some_and(|v| v != 0) {
                inlined.insert(name);
            }
            for &id in &bodies[name] {
                if !std::mem::replace(&mut is_placed[id], true) {
                    order.push(id);
                }
            }
        }
        Plan { inlined: inlined.into_iter().cloned().collect(), call_targets, values, order }
    }
}

/// Returns the functions, each after its callees unless they are mutually recursive.
fn callees_first<'n>(callees: &BTreeMap<&'n Name, BTreeSet<&'n Name>>) -> Vec<&'n Name> {
    let mut visited: BTreeSet<&Name> = BTreeSet::new();
    let mut order = Vec::with_capacity(callees.len());
    let mut stack: Vec<(&Name, bool)> = callees.keys().rev().map(|&name| (name, false)).collect();
    while let Some((name, is_exit)) = stack.pop() {
        if is_exit {
            order.push(name);
        } else if visited.insert(name) {
            stack.push((name, true));
            stack.extend(callees.get(name).into_iter().flatten().rev().map(|&callee| (callee, false)));
        }
    }
    order
}
