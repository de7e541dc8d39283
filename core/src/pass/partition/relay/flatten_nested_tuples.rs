//! `flatten_nested_tuples`: moves the output boundary of a region from a tuple to its fields, so that a multi-output
//! region never returns a nested tuple.

use super::annotation::{Annotations, Mark, attrs_of};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Attrs, Expr, ExprId, IndexVec, Module};
use byoc_ir::typing::Rebuild;
use std::borrow::Cow;
use std::collections::HashMap;

/// Rewrites `end((a, b))` as `(end(a), end(b))`, also in nested tuples.
///
/// # Errors
/// If the module is ill-typed.
pub fn flatten_nested_tuples(module: &Module) -> Result<Module, Box<Diagnostic>> {
    flatten_if_needed(module).map(Cow::into_owned)
}

/// Variant of [`flatten_nested_tuples`] that borrows the module if no end surrounds a tuple.
pub(super) fn flatten_if_needed(module: &Module) -> Result<Cow<'_, Module>, Box<Diagnostic>> {
    let annotations = Annotations::new();
    let live = module.live();
    let ended_tuple = |id: ExprId| match annotations.annotation_of(module, id) {
        Some(Mark::End(value, compiler)) if live[id] && is_filled_tuple(module, value) => Some((value, compiler)),
        _ => None,
    };
    if !module.nodes.ids().any(|id| ended_tuple(id).is_some()) {
        return Ok(Cow::Borrowed(module));
    }
    // Each end becomes a separate tuple, as each end was a separate expression. With many ends around a tuple with many
    // fields, the module would grow by the product of the two counts, so beyond `budget` new expressions the ends share
    // one tuple.
    let mut budget = (1 << 16) + 16 * module.nodes.len();
    let mut flattened_ids: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, module.nodes.len());
    Rebuild::run(module, |rebuild, id, _| {
        let Some((tuple, compiler)) = ended_tuple(id) else { return Ok(None) };
        if budget == 0 && flattened_ids[tuple].is_some() {
            return Ok(flattened_ids[tuple]);
        }
        let node_count = rebuild.new.module.nodes.len();
        flattened_ids[tuple] = Some(end_fields(rebuild, &annotations, tuple, &attrs_of(compiler.into())));
        budget = budget.saturating_sub(rebuild.new.module.nodes.len() - node_count);
        Ok(flattened_ids[tuple])
    })
    .map(Cow::Owned)
}

fn is_filled_tuple(module: &Module, id: ExprId) -> bool {
    matches!(module.expr(id), Expr::Tuple(fields) if !fields.is_empty())
}

/// Appends a tuple with an end around each field, and likewise for nested tuples.
fn end_fields(rebuild: &mut Rebuild<'_>, annotations: &Annotations, root: ExprId, attrs: &Attrs) -> ExprId {
    let module = rebuild.old;
    let mut replacements: HashMap<ExprId, ExprId> = HashMap::new();
    let mut result = root;
    let mut stack = vec![(root, false)];
    while let Some((id, is_exit)) = stack.pop() {
        let Expr::Tuple(fields) = module.expr(id) else { continue };
        if replacements.contains_key(&id) {
            continue;
        }
        if !is_exit {
            stack.push((id, true));
            stack.extend(fields.iter().rev().filter(|&&f| is_filled_tuple(module, f)).map(|&f| (f, false)));
            continue;
        }
        let mut new_fields = Vec::with_capacity(fields.len());
        for &field in fields {
            new_fields.push(match replacements.get(&field) {
                Some(&tuple) => tuple,
                None => {
                    let field_value = rebuild.get(field);
                    annotations.end(rebuild, field_value, attrs)
                }
            });
        }
        let node = &module.nodes[id];
        result = rebuild.new.module.push_typed(Expr::Tuple(new_fields.into()), node.ty.clone(), node.origin);
        replacements.insert(id, result);
    }
    result
}
