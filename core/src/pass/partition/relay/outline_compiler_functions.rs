//! `outline_compiler_functions`: turns the function literals of a backend into global functions.
//!
//! A call to a literal with `Compiler` becomes a call to a global function named by the literal's `global_symbol`. So
//! does a call to a variable that a let binds to such a literal; the let is removed if its variable has no other use.
//! Equal literals with the same symbol become one function.

use crate::analysis::scope::rewritable_exprs;
use crate::analysis::structural_equal_exprs;
use crate::pass::splice::copy_into;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Call, Callee, Expr, ExprId, IndexVec, Module, Name, Origins};
use byoc_ir::typing::Rebuild;
use std::collections::{BTreeMap, HashSet};

/// Turns the function literals of the backend `compiler`, or of all backends if `compiler` is `None`, into global
/// functions.
///
/// # Errors
/// If a literal has no `global_symbol`, captures variables, or has the symbol of a different function.
pub fn outline_compiler_functions(module: &Module, compiler: Option<&str>) -> Result<Module, Box<Diagnostic>> {
    let is_rewritable = rewritable_exprs(module);
    let is_own = |id: ExprId| {
        let backend = module.expr(id).as_function().and_then(|function| function.attrs.str("Compiler"));
        backend.is_some() && compiler.is_none_or(|requested| backend == Some(requested))
    };
    // Literal to which each variable is bound.
    let mut binder_of: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, module.nodes.len());
    let nodes = || module.nodes.iter().filter(|(id, _)| is_rewritable[*id]);
    for (_, node) in nodes() {
        if let Expr::Let { var, value, .. } = node.expr
            && is_own(value)
        {
            binder_of[var] = Some(value);
        }
    }
    let literal = |call: &Call| match call.callee {
        Callee::Expr(callee) if is_own(callee) => Some(callee),
        Callee::Expr(callee) => binder_of[callee],
        Callee::Op(_) => None,
    };
    let mut is_used_as_value = IndexVec::filled(false, module.nodes.len());
    let mut definitions: BTreeMap<Name, ExprId> = BTreeMap::new();
    for (_, node) in nodes() {
        let mut symbol_called = None;
        if let Expr::Call(call) = &node.expr {
            symbol_called = Some(call.callee);
            if let Some(function) = literal(call) {
                define(module, &mut definitions, function)?;
            }
        }
        let binder = match node.expr {
            Expr::Let { var, .. } => Some(var),
            _ => None,
        };
        node.expr.for_each_operand(|operand| {
            if symbol_called != Some(Callee::Expr(operand)) && binder != Some(operand) {
                is_used_as_value[operand] = true;
            }
        });
    }
    let mut result = Rebuild::run(module, |rebuild, id, expr| match expr {
        Expr::Call(call) if is_rewritable[id] => {
            let Some(function) = literal(call) else { return Ok(None) };
            let symbol: Name = symbol_of(module, function)?.into();
            let global =
                rebuild.new.module.push_typed(Expr::Global(symbol), module.ty(function).clone(), Origins::none());
            let args = call.args.iter().map(|&arg| rebuild.get(arg)).collect();
            let call = Call { callee: Callee::Expr(global), args, attrs: call.attrs.clone() };
            let node = &module.nodes[id];
            Ok(Some(rebuild.new.module.push_typed(Expr::Call(Box::new(call)), node.ty.clone(), node.origin)))
        }
        Expr::Let { var, value, body } if is_rewritable[id] && is_own(*value) && !is_used_as_value[*var] => {
            Ok(Some(rebuild.get(*body)))
        }
        _ => Ok(None),
    })?;
    for (symbol, function) in definitions {
        let global = copy_into(&mut result, module, function);
        result.globals.insert(symbol, global);
    }
    Ok(result)
}

/// Records a function literal as the definition of its symbol. Checks that no different function has the symbol, and
/// that the literal captures no variables.
fn define(module: &Module, definitions: &mut BTreeMap<Name, ExprId>, function: ExprId) -> Result<(), Box<Diagnostic>> {
    let symbol = symbol_of(module, function)?;
    let existing = module.globals.get(symbol).or_else(|| definitions.get(symbol)).copied();
    match existing {
        Some(existing) if existing == function => return Ok(()),
        Some(existing) => {
            if let Err(difference) = structural_equal_exprs((module, existing), (module, function)) {
                let message = format!("two different functions have the global_symbol \"{symbol}\": {difference}");
                return Err(outline_error(message, "give each function of a backend a distinct global_symbol"));
            }
        }
        None => {
            definitions.insert(symbol.into(), function);
        }
    }
    // A variable that is used inside the function but not bound there is captured.
    let body_nodes = module.post_order(function, |_, _| true);
    let mut binders: HashSet<ExprId> = HashSet::new();
    for &id in &body_nodes {
        match module.expr(id) {
            Expr::Function(function) => binders.extend(&function.params),
            Expr::Let { var, .. } => {
                binders.insert(*var);
            }
            _ => {}
        }
    }
    for id in body_nodes {
        if let Expr::Var(var) = module.expr(id)
            && !binders.contains(&id)
        {
            let message = format!("function \"{symbol}\": expected no captured variables, found %{}", var.name);
            return Err(outline_error(message, "pass the captured variable as a parameter"));
        }
    }
    Ok(())
}

fn symbol_of(module: &Module, function: ExprId) -> Result<&str, Box<Diagnostic>> {
    let attrs = module.expr(function).as_function().map(|function| &function.attrs);
    attrs.and_then(|attrs| attrs.str("global_symbol")).ok_or_else(|| {
        let owner = attrs.and_then(|attrs| attrs.str("Compiler")).unwrap_or_default();
        let message = format!("function of \"{owner}\": expected the attribute global_symbol, found none");
        outline_error(message, "add global_symbol=\"...\" to the attributes of the function")
    })
}

fn outline_error(message: String, help: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::passes::BAD_OUTLINE, message).help(help))
}
