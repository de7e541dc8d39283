//! Copies of functions: their bodies in the place of a call, or whole functions in another module.

use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Call, Expr, ExprId, Module, OriginId, Origins};
use byoc_ir::typing::Rebuild;
use std::collections::HashMap;

/// Limits of inlining: it may add `GROWTH_SLACK` expressions plus `GROWTH_FACTOR` times the size of the original
/// module.
const GROWTH_SLACK: usize = 1 << 20;
const GROWTH_FACTOR: usize = 16;

/// Copies the body of a function of the new module, with the arguments of a call in place of its parameters.
///
/// # Errors
/// The module becomes too large: functions that call each other twice double at every level.
pub(super) fn splice(rebuild: &mut Rebuild<'_>, function: ExprId, call: &Call) -> Result<ExprId, Box<Diagnostic>> {
    splice_around(rebuild, function, call, &[])
}

/// Like [`splice`], for a literal that is called: the values it captures, in expressions of the old module, are not
/// copied.
///
/// # Errors
/// Errors of [`splice`].
pub(super) fn splice_around(
    rebuild: &mut Rebuild<'_>,
    function: ExprId,
    call: &Call,
    captured: &[ExprId],
) -> Result<ExprId, Box<Diagnostic>> {
    let args: Vec<ExprId> = call.args.iter().map(|&arg| rebuild.get(arg)).collect();
    let Expr::Function(function) = rebuild.new.module.expr(function).clone() else { return Ok(function) };
    let mut inner: HashMap<ExprId, ExprId> = captured.iter().map(|&old| rebuild.get(old)).map(|id| (id, id)).collect();
    inner.extend(function.params.iter().copied().zip(args));
    copy(rebuild, function.body, inner)
}

/// Copies a whole function of the new module.
///
/// # Errors
/// Errors of [`splice`].
pub(super) fn copy_function(rebuild: &mut Rebuild<'_>, function: ExprId) -> Result<ExprId, Box<Diagnostic>> {
    copy(rebuild, function, HashMap::new())
}

/// Copies a literal of the new module, with other expressions in place of its captured values.
///
/// # Errors
/// Errors of [`splice`].
pub(super) fn copy_literal(
    rebuild: &mut Rebuild<'_>,
    function: ExprId,
    captured: impl IntoIterator<Item = (ExprId, ExprId)>,
) -> Result<ExprId, Box<Diagnostic>> {
    copy(rebuild, function, captured.into_iter().collect())
}

fn copy(
    rebuild: &mut Rebuild<'_>,
    root: ExprId,
    mut inner: HashMap<ExprId, ExprId>,
) -> Result<ExprId, Box<Diagnostic>> {
    let limit = GROWTH_SLACK + GROWTH_FACTOR * rebuild.old.nodes.len();
    let module = &mut rebuild.new.module;
    for id in module.post_order(root, |id, _| !inner.contains_key(&id)) {
        if inner.contains_key(&id) {
            continue;
        }
        let node = module.nodes[id].clone();
        let new = match node.expr {
            expr if expr.is_closed_leaf() => id,
            mut expr => {
                expr.map_operands(|operand| inner[&operand]);
                module.push_typed(expr, node.ty, node.origin)
            }
        };
        inner.insert(id, new);
    }
    if module.nodes.len() > limit {
        let message = format!("inlining makes more than {limit} expressions out of {}", rebuild.old.nodes.len());
        return Err(Box::new(
            Diagnostic::error(codes::passes::INLINE_TOO_LARGE, message)
                .help("inline fewer functions: each call gets its own copy, with everything inlined into it"),
        ));
    }
    Ok(inner[&root])
}

/// Creates a module whose `main` is a function of another module, without its attributes.
pub(super) fn extract(module: &Module, function: ExprId) -> Module {
    let mut new = Module::new();
    new.origins = module.origins.clone();
    let mut inner: HashMap<ExprId, ExprId> = HashMap::new();
    for id in module.post_order(function, |_, _| true) {
        let mut node = module.nodes[id].clone();
        node.expr.map_operands(|operand| inner[&operand]);
        if id == function
            && let Expr::Function(function) = &mut node.expr
        {
            function.attrs = byoc_ir::ir::Attrs::none();
        }
        inner.insert(id, new.nodes.push(node));
    }
    new.globals.insert("main".into(), inner[&function]);
    new
}

/// Appends an expression of another module. Its calls get the origin `origin`, or keep theirs in a module with the
/// same sources.
pub(super) fn copy_into(into: &mut Module, from: &Module, root: ExprId, origin: Option<OriginId>) -> ExprId {
    let mut inner: HashMap<ExprId, ExprId> = HashMap::new();
    for id in from.post_order(root, |_, _| true) {
        let node = &from.nodes[id];
        let mut expr = node.expr.clone();
        expr.map_operands(|operand| inner[&operand]);
        let origin = match origin {
            None => node.origin,
            Some(origin) if expr.as_call().is_some() => origin,
            Some(_) => Origins::none(),
        };
        inner.insert(id, into.push_typed(expr, node.ty.clone(), origin));
    }
    inner[&root]
}
