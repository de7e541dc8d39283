//! `inline_compiler_functions_bound_to`: inlines functions of backends, and the composites in them.
//! `mark_compiler_functions_extern`: marks functions of backends as external.

use crate::analysis::scope::Captures;
use crate::pass::simplify::inline::references;
use crate::pass::splice::{splice, splice_around};
use byoc_ir::diag::{Diagnostic, codes, nearest};
use byoc_ir::ir::{AttrValue, Attrs, Callee, Expr, ExprId, IndexVec, Module};
use byoc_ir::typing::Rebuild;
use std::collections::BTreeSet;

/// Inlines the global functions `names`, given with or without `@`, and removes them.
///
/// # Errors
/// If a name denotes no global function or a function without a backend, or the module becomes too large.
pub fn inline_compiler_functions_bound_to(module: &Module, names: &[String]) -> Result<Module, Box<Diagnostic>> {
    let mut selected_names = BTreeSet::new();
    for name in names {
        let name = name.trim_start_matches('@');
        if !module.globals.contains_key(name) {
            let message = format!("unknown global function \"@{name}\"");
            let diagnostic = Diagnostic::error(codes::passes::UNKNOWN_GLOBAL, message);
            return Err(Box::new(match nearest(name, module.globals.keys().map(|name_of_global| &**name_of_global)) {
                Some(suggestion) => diagnostic.help(format!("did you mean \"@{suggestion}\"?")),
                None => diagnostic,
            }));
        }
        if module.function(name).is_some_and(|function| function.attrs.get("Compiler").is_none()) {
            let message = format!("@{name}: expected the attribute Compiler, found none");
            return Err(Box::new(
                Diagnostic::error(codes::passes::NOT_OF_A_BACKEND, message).help(
                    "name functions created by partition_graph; for functions with Inline=1, use the pass inline",
                ),
            ));
        }
        selected_names.insert(name);
    }
    if selected_names.is_empty() {
        return Ok(module.clone());
    }
    // Composites inside inlined functions are inlined, too.
    let mut is_inlined = IndexVec::<ExprId, bool>::filled(false, module.nodes.len());
    for &name in &selected_names {
        is_inlined[module.globals[name]] = true;
    }
    for (id, node) in module.nodes.iter().rev() {
        if is_inlined[id] {
            node.expr.for_each_operand(|operand| is_inlined[operand] = true);
        }
    }
    // A callee is rebuilt before its callers, so that calls inside inlined functions are inlined, too.
    let order = callees_first(module, &selected_names);
    let mut captures = Captures::of(module);
    let mut result = Rebuild::run_in_order(module, order, |rebuild, id, expr| {
        let Expr::Call(call) = expr else { return Ok(None) };
        let Callee::Expr(callee) = call.callee else { return Ok(None) };
        let function = match module.expr(callee) {
            // A call to a function that is still being rebuilt is recursive and remains a call.
            Expr::Global(name) if selected_names.contains(&**name) => match rebuild.visited(module.globals[name]) {
                Some(function) => function,
                None => return Ok(None),
            },
            Expr::Function(f) if is_inlined[id] && f.attrs.get("Composite").is_some() => {
                let captured_vars = captures.of_literal(callee);
                let function = rebuild.get(callee);
                return splice_around(rebuild, function, call, &captured_vars).map(Some);
            }
            _ => return Ok(None),
        };
        splice(rebuild, function, call).map(Some)
    })?;
    // A recursive function, or a function used as a value, is still needed.
    let referenced_names = references(&result);
    for name in selected_names {
        if !referenced_names.contains(name) {
            result.globals.remove(name);
        }
    }
    Ok(result)
}

/// Returns the live expressions, each after its operands; a reference to a selected function also follows that
/// function, unless the function is recursive.
fn callees_first(module: &Module, selected_names: &BTreeSet<&str>) -> Vec<ExprId> {
    let mut is_entered = IndexVec::<ExprId, bool>::filled(false, module.nodes.len());
    let mut order = Vec::new();
    let mut stack: Vec<(ExprId, bool)> = module.globals.values().rev().map(|&root| (root, false)).collect();
    while let Some((id, is_exit)) = stack.pop() {
        if is_exit {
            order.push(id);
        } else if !std::mem::replace(&mut is_entered[id], true) {
            stack.push((id, true));
            let first = stack.len();
            let expr = module.expr(id);
            expr.for_each_operand(|operand| stack.push((operand, false)));
            if let Expr::Global(name) = expr
                && selected_names.contains(&**name)
            {
                stack.push((module.globals[name], false));
            }
            stack[first..].reverse();
        }
    }
    order
}

/// Replaces the attributes of the functions of the backend `compiler` (of all backends if `compiler` is `None`) with
/// `Extern=1`.
///
/// # Errors
/// If the module is ill-typed.
pub fn mark_compiler_functions_extern(module: &Module, compiler: Option<&str>) -> Result<Module, Box<Diagnostic>> {
    let globals: BTreeSet<ExprId> = module.globals.values().copied().collect();
    Rebuild::run(module, |rebuild, id, expr| {
        let Expr::Function(function) = expr else { return Ok(None) };
        let backend = function.attrs.str("Compiler");
        if !globals.contains(&id) || backend.is_none() || compiler.is_some_and(|requested| backend != Some(requested)) {
            return Ok(None);
        }
        let copy = rebuild.copy(id)?;
        if let Expr::Function(function) = &mut rebuild.new.module.nodes[copy].expr {
            function.attrs = Attrs::new([("Extern", AttrValue::Int(1))]);
        }
        Ok(Some(copy))
    })
}
