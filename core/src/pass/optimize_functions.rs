//! The hook with which a backend rewrites the functions that it was given (spec 1.9).

use super::splice::{copy_into, extract};
use crate::diag::{Diagnostic, codes};
use crate::ir::{Expr, ExprId, Module, Name};
use crate::typing::Rebuild;
use std::collections::HashMap;

/// Has each function that `chosen` names rewritten by the hook of its target.
///
/// # Errors
/// What the hook fails with; a `main` that is gone or has another type; a module whose functions need each other.
pub(super) fn optimize_functions(
    module: &Module,
    chosen: &dyn Fn(&Name) -> bool,
    optimize: &mut dyn FnMut(&str, &Module) -> Result<Option<Module>, Box<Diagnostic>>,
) -> Result<Module, Box<Diagnostic>> {
    let mut changed: HashMap<ExprId, Module> = HashMap::new();
    for (name, &id) in &module.globals {
        let Some(function) = module.expr(id).as_function() else { continue };
        let Some(target) = function.attrs.str("Compiler").filter(|_| chosen(name)) else { continue };
        let Some(optimized) = optimize(target, &extract(module, id))? else { continue };
        check(target, name, (module, id), &optimized)?;
        changed.insert(id, optimized);
    }
    if changed.is_empty() {
        return Ok(module.clone());
    }
    Rebuild::run(module, |rebuild, id, expr| {
        let (Some(optimized), Expr::Function(old)) = (changed.get(&id), expr) else { return Ok(None) };
        let inside = module.post_order(id, |_, _| true);
        let origins = inside.into_iter().map(|inside| module.nodes[inside].origin);
        let origin = rebuild.new.module.origins.union_all(origins);
        let new = copy_into(&mut rebuild.new.module, optimized, optimized.globals["main"], Some(origin));
        if let Expr::Function(function) = &mut rebuild.new.module.nodes[new].expr {
            function.attrs = old.attrs.clone();
        }
        Ok(Some(new))
    })
}

fn check(target: &str, name: &str, old: (&Module, ExprId), new: &Module) -> Result<(), Box<Diagnostic>> {
    let bad = |message: String| {
        Err(Box::new(
            Diagnostic::error(codes::passes::BAD_REGION_FUNCTION, message)
                .help("give a module whose main takes and gives what it did before, and calls no other function"),
        ))
    };
    let Some(&main) = new.globals.get("main") else {
        return bad(format!("what \"{target}\" made of @{name} has no main"));
    };
    if new.ty(main) != old.0.ty(old.1) {
        let (was, is) = (old.0.ty(old.1), new.ty(main));
        return bad(format!("what \"{target}\" made of @{name} is {is}; it was {was}"));
    }
    let calls = new.post_order(main, |_, _| true).into_iter().find_map(|id| match new.expr(id) {
        Expr::Global(callee) => Some(callee.clone()),
        _ => None,
    });
    match calls {
        Some(callee) => bad(format!("what \"{target}\" made of @{name} needs @{callee}")),
        None => Ok(()),
    }
}
