//! Hook through which a backend optimizes the functions of its regions.

use crate::pass::splice::{copy_into, extract};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Expr, ExprId, Module, Name};
use byoc_ir::typing::Rebuild;
use std::collections::HashMap;

/// Applies the hook `optimize` to each function of a backend for which `is_selected` returns true.
///
/// # Errors
/// If `optimize` fails, the optimized module has no `main`, or its `main` refers to another global function or differs
/// from the original function in type.
pub(super) fn optimize_functions(
    module: &Module,
    is_selected: &dyn Fn(&Name) -> bool,
    optimize: &mut dyn FnMut(&str, &Module) -> Result<Option<Module>, Box<Diagnostic>>,
) -> Result<Module, Box<Diagnostic>> {
    let mut replacements: HashMap<ExprId, Module> = HashMap::new();
    for (name, &id) in &module.globals {
        let Some(function) = module.expr(id).as_function() else { continue };
        let Some(target) = function.attrs.str("Compiler").filter(|_| is_selected(name)) else { continue };
        let Some(optimized) = optimize(target, &extract(module, id))? else { continue };
        check(target, name, (module, id), &optimized)?;
        replacements.insert(id, optimized);
    }
    if replacements.is_empty() {
        return Ok(module.clone());
    }
    Rebuild::run(module, |rebuild, id, expr| {
        let (Some(optimized), Expr::Function(original)) = (replacements.get(&id), expr) else { return Ok(None) };
        let body_nodes = module.post_order(id, |_, _| true);
        let origins = body_nodes.into_iter().map(|node| module.nodes[node].origin);
        let origin = rebuild.new.module.origins.union_all(origins);
        let replacement = copy_into(&mut rebuild.new.module, optimized, optimized.globals["main"], Some(origin));
        if let Expr::Function(function) = &mut rebuild.new.module.nodes[replacement].expr {
            function.attrs = original.attrs.clone();
        }
        Ok(Some(replacement))
    })
}

fn check(target: &str, name: &str, original: (&Module, ExprId), optimized: &Module) -> Result<(), Box<Diagnostic>> {
    let invalid = |message: String| {
        Err(Box::new(
            Diagnostic::error(codes::passes::BAD_REGION_FUNCTION, message)
                .help("return a module whose main has the same type as before and refers to no other global function"),
        ))
    };
    let Some(&main) = optimized.globals.get("main") else {
        return invalid(format!("\"{target}\" optimized @{name}: the returned module has no main"));
    };
    if optimized.ty(main) != original.0.ty(original.1) {
        let (was, is) = (original.0.ty(original.1), optimized.ty(main));
        return invalid(format!("\"{target}\" changed the type of @{name}: expected {was}, found {is}"));
    }
    let calls = optimized.post_order(main, |_, _| true).into_iter().find_map(|id| match optimized.expr(id) {
        Expr::Global(callee) => Some(callee.clone()),
        _ => None,
    });
    match calls {
        Some(callee) => invalid(format!(
            "\"{target}\" optimized @{name}: expected a function without global references, \
             found a reference to @{callee}"
        )),
        None => Ok(()),
    }
}
