//! `decompose_declared`: replaces the operators that vendors declared by their decompositions, for the host.
//!
//! The functions of backends are rewritten too, as the host runs them where a backend fails: a program that knows no
//! declaration runs an artifact all the same. What has no decomposition stays.

use crate::analysis::scope::rewritable_exprs;
use byoc_ir::declared::Declared;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{ExprId, Module, OpId, Type};
use byoc_ir::op::{self, Params};
use byoc_ir::typing::Rebuild;
use std::collections::HashMap;

/// Replaces the declared operators that have a decomposition.
///
/// # Errors
/// If a decomposition is not well typed for the arguments of a call.
pub fn decompose_declared(module: &Module) -> Result<Module, Box<Diagnostic>> {
    Rebuild::run(module, |rebuild, _, expr| {
        let Some((operator, call)) = expr.as_op_call() else { return Ok(None) };
        let def = op::get(operator);
        let Some(declared) = Declared::of(def) else { return Ok(None) };
        let types: Vec<Type> = call.args.iter().map(|&arg| module.ty(arg).clone()).collect();
        let Some(decomposition) = declared.decompose(&Params::new(def, &call.attrs), &types) else { return Ok(None) };
        let args: Vec<ExprId> = call.args.iter().map(|&arg| rebuild.get(arg)).collect();
        copy_body(rebuild, &decomposition?, &args)
    })
}

/// Appends the body of the `@main` of a module, with `args` in place of its parameters.
fn copy_body(rebuild: &mut Rebuild<'_>, from: &Module, args: &[ExprId]) -> Result<Option<ExprId>, Box<Diagnostic>> {
    let Some(main) = from.main() else { return Ok(None) };
    let mut copies: HashMap<ExprId, ExprId> = main.params.iter().copied().zip(args.iter().copied()).collect();
    for id in from.post_order(main.body, |_, _| true) {
        if copies.contains_key(&id) {
            continue;
        }
        let mut expr = from.expr(id).clone();
        expr.map_operands(|operand| copies[&operand]);
        copies.insert(id, rebuild.new.push(expr)?);
    }
    Ok(copies.get(&main.body).copied())
}

/// Returns the declared operators outside the functions of backends that only a backend can compute, with a call of each,
/// in the order of the module.
pub fn without_reference(module: &Module) -> Vec<(OpId, ExprId)> {
    let is_rewritable = rewritable_exprs(module);
    let live = module.live();
    let mut found: Vec<(OpId, ExprId)> = Vec::new();
    for id in module.nodes.ids().filter(|&id| live[id] && is_rewritable[id]) {
        let Some((operator, _)) = module.expr(id).as_op_call() else { continue };
        let is_missing = Declared::of(op::get(operator)).is_some_and(|declared| !declared.has_reference());
        if is_missing && found.iter().all(|(other, _)| *other != operator) {
            found.push((operator, id));
        }
    }
    found
}
