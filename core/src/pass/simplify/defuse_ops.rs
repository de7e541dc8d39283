//! `defuse_ops`: inlines fused functions.
//!
//! A call to a function literal with `Primitive=1` becomes the body of the function; captured values are not copied.
//! Functions of a backend are not fused functions and are left unchanged.

use crate::analysis::scope::{Captures, is_opaque, rewritable_exprs};
use crate::pass::splice::splice_around;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Callee, Expr, Function, Module};
use byoc_ir::typing::Rebuild;
use std::collections::BTreeSet;

/// Inlines fused functions.
///
/// # Errors
/// If a fused function has two parameters with the same name, which fusion does not create.
pub fn defuse_ops(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let is_rewritable = rewritable_exprs(module);
    let mut captures = Captures::of(module);
    Rebuild::run(module, |rebuild, id, expr| {
        let Expr::Call(call) = expr else { return Ok(None) };
        let Callee::Expr(callee) = call.callee else { return Ok(None) };
        let Expr::Function(function) = module.expr(callee) else { return Ok(None) };
        let is_primitive = function.attrs.get("Primitive").and_then(|v| v.as_int()).is_some_and(|v| v != 0);
        if !is_rewritable[id] || !is_primitive || is_opaque(function) {
            return Ok(None);
        }
        check_names(module, function)?;
        let captured = captures.of_literal(callee);
        let function = rebuild.get(callee);
        splice_around(rebuild, function, call, &captured).map(Some)
    })
}

fn check_names(module: &Module, function: &Function) -> Result<(), Box<Diagnostic>> {
    let mut names = BTreeSet::new();
    for &param in &function.params {
        if let Expr::Var(var) = module.expr(param)
            && !names.insert(&var.name)
        {
            let message =
                format!("fused function: expected distinct parameter names, found two parameters %{}", var.name);
            return Err(Box::new(
                Diagnostic::error(codes::passes::DUPLICATE_PARAMETER, message)
                    .help("give the parameters of a function with Primitive=1 distinct names"),
            ));
        }
    }
    Ok(())
}
