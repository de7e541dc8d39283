//! Copies functions: inlines the body in place of a call, or copies an entire function, possibly into another module.

use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Call, Expr, ExprId, Module};
use byoc_ir::typing::Rebuild;
use std::collections::HashMap;

/// After inlining, a module may have at most [`GROWTH_FACTOR`] times the original number of expressions plus
/// [`GROWTH_SLACK`].
const GROWTH_SLACK: usize = 1 << 20;
const GROWTH_FACTOR: usize = 16;

/// Copies the body of a function of the new module, with the arguments of `call` in place of the parameters.
///
/// # Errors
/// If the module becomes too large: in a chain of functions that each call the next function twice, the size doubles at
/// every level.
pub(super) fn splice(rebuild: &mut Rebuild<'_>, function: ExprId, call: &Call) -> Result<ExprId, Box<Diagnostic>> {
    splice_around(rebuild, function, call, &[])
}

/// Variant of [`splice`] for a call to a function literal. The values that the literal captures, given as expressions
/// of the old module, are not copied.
///
/// # Errors
/// See [`splice`].
pub(super) fn splice_around(
    rebuild: &mut Rebuild<'_>,
    function: ExprId,
    call: &Call,
    captured: &[ExprId],
) -> Result<ExprId, Box<Diagnostic>> {
    let args: Vec<ExprId> = call.args.iter().map(|&arg| rebuild.get(arg)).collect();
    let Expr::Function(function) = rebuild.new.module.expr(function).clone() else { return Ok(function) };
    let mut replacements: HashMap<ExprId, ExprId> =
        captured.iter().map(|&old| rebuild.get(old)).map(|id| (id, id)).collect();
    replacements.extend(function.params.iter().copied().zip(args));
    copy(rebuild, function.body, replacements)
}

/// Copies an entire function of the new module.
///
/// # Errors
/// See [`splice`].
pub(super) fn copy_function(rebuild: &mut Rebuild<'_>, function: ExprId) -> Result<ExprId, Box<Diagnostic>> {
    copy(rebuild, function, HashMap::new())
}

/// Copies a function literal of the new module, replacing its captured values.
///
/// # Errors
/// See [`splice`].
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
    mut replacements: HashMap<ExprId, ExprId>,
) -> Result<ExprId, Box<Diagnostic>> {
    let limit = GROWTH_SLACK + GROWTH_FACTOR * rebuild.old.nodes.len();
    let module = &mut rebuild.new.module;
    for id in module.post_order(root, |id, _| !replacements.contains_key(&id)) {
        if replacements.contains_key(&id) {
            continue;
        }
        let node = module.nodes[id].clone();
        let copied = match node.expr {
            expr if expr.is_closed_leaf() => id,
            mut expr => {
                expr.map_operands(|operand| replacements[&operand]);
                module.push_typed(expr, node.ty, node.origin)
            }
        };
        replacements.insert(id, copied);
    }
    if module.nodes.len() > limit {
        let count = rebuild.old.nodes.len();
        let message = format!("inlining expands the module from {count} to more than {limit} expressions");
        return Err(Box::new(
            Diagnostic::error(codes::passes::INLINE_TOO_LARGE, message)
                .help("inline fewer functions: each call becomes a copy of the body, including inlined calls"),
        ));
    }
    Ok(replacements[&root])
}

/// Appends a copy of an expression of another module that has the same sources.
pub(super) fn copy_into(target: &mut Module, source: &Module, root: ExprId) -> ExprId {
    let mut replacements: HashMap<ExprId, ExprId> = HashMap::new();
    for id in source.post_order(root, |_, _| true) {
        let mut node = source.nodes[id].clone();
        node.expr.map_operands(|operand| replacements[&operand]);
        replacements.insert(id, target.nodes.push(node));
    }
    replacements[&root]
}
