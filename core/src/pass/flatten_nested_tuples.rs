//! `flatten_nested_tuples`: a region that ends in a tuple ends in the fields of it, so that a region with several
//! outputs never gives a tuple of tuples.

use super::annotation::{Annotations, Mark, attrs_of};
use crate::diag::Diagnostic;
use crate::ir::{Expr, ExprId, IndexVec, Module, Name};
use crate::typing::Rebuild;
use std::borrow::Cow;

/// `end((a, b))` becomes `(end(a), end(b))`, at any depth.
///
/// # Errors
/// None that a typed module can cause.
pub fn flatten_nested_tuples(module: &Module) -> Result<Module, Box<Diagnostic>> {
    flattened(module).map(Cow::into_owned)
}

/// As [`flatten_nested_tuples`], but a module without such tuples is not copied.
pub(super) fn flattened(module: &Module) -> Result<Cow<'_, Module>, Box<Diagnostic>> {
    let marks = Annotations::new();
    let live = module.live();
    // Whose end each tuple is to be taken apart for; users come first in a descending sweep.
    let mut ended: IndexVec<ExprId, Option<Name>> = IndexVec::filled(None, module.nodes.len());
    for (id, node) in module.nodes.iter().rev().filter(|(id, _)| live[*id]) {
        if let Some(Mark::End(value, compiler)) = marks.mark(module, id)
            && matches!(module.expr(value), Expr::Tuple(fields) if !fields.is_empty())
        {
            ended[value] = Some(compiler.into());
        } else if let (Expr::Tuple(fields), Some(compiler)) = (&node.expr, ended[id].clone()) {
            for &field in fields {
                if matches!(module.expr(field), Expr::Tuple(inner) if !inner.is_empty()) {
                    ended[field] = Some(compiler.clone());
                }
            }
        }
    }
    if ended.iter().all(|(_, whose)| whose.is_none()) {
        return Ok(Cow::Borrowed(module));
    }
    let mut flat: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, module.nodes.len());
    Rebuild::run(module, |rebuild, id, expr| {
        if let Some(Mark::End(value, _)) = marks.mark(module, id) {
            return Ok(flat[value]);
        }
        if let (Expr::Tuple(fields), Some(compiler)) = (expr, &ended[id]) {
            let attrs = attrs_of(compiler.clone());
            let mut outside = Vec::with_capacity(fields.len());
            for &field in fields {
                outside.push(match flat[field] {
                    Some(tuple) => tuple,
                    None => {
                        let inside = rebuild.get(field);
                        marks.end(rebuild, inside, &attrs)
                    }
                });
            }
            let node = &module.nodes[id];
            flat[id] = Some(rebuild.new.module.push_typed(Expr::Tuple(outside.into()), node.ty.clone(), node.origin));
        }
        Ok(None)
    })
    .map(Cow::Owned)
}
