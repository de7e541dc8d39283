//! Merges equal expressions: calls to the same operator with equal operands and attributes, equal tuples, and equal
//! projections.
//!
//! An expression is evaluated in the innermost scope around its uses. It is replaced only by an equal expression that
//! is evaluated in the same scope or in an enclosing scope, so that no additional evaluation occurs: expressions in
//! different branches of an if never merge. Neither do expressions of different functions.
//!
//! Scopes are represented by intervals of numbers, and the scopes of equal expressions by a sorted list of disjoint
//! intervals, so that each lookup takes logarithmic time.

use crate::analysis::scope::{functions, rewritable_exprs};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Callee, Expr, ExprId, IndexVec, Module, OpId, OriginId, ScopeId, Scopes};
use byoc_ir::op;
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Rebuild;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};

/// Maximum size in bytes of constants that are compared by content. Larger constants count as equal only if they share
/// memory.
const MAX_COMPARED_BYTES: usize = 4096;

/// Key that is equal for equal expressions of one function.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Call(OpKey, Box<[ExprId]>),
    Tuple(Box<[ExprId]>),
    Project(ExprId, u32),
}

/// Operator, and attributes as text.
type OpKey = (OpId, String);

/// Interval of numbers that represents a scope and all scopes nested in it.
#[derive(Clone, Copy)]
struct Span {
    first: u32,
    end: u32,
}

/// Equal expressions with the spans of their scopes, which are disjoint and ascending.
type Places = SmallVec<[(Span, ExprId); 1]>;

/// Merges equal operator calls, projections and tuples.
///
/// # Errors
/// If the module is ill-typed.
pub fn eliminate_common_subexpr(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let is_rewritable = rewritable_exprs(module);
    let scopes = Scopes::of_module(module);
    let (spans, functions) = (spans(&scopes), functions(module, &scopes));
    let mut occurrences: HashMap<(ScopeId, Key), Places> = HashMap::new();
    let mut constants = Constants::default();
    let mut merged_origins: BTreeMap<ExprId, Vec<OriginId>> = BTreeMap::new();
    let mut result = Rebuild::run(module, |rebuild, id, expr| {
        let Some(scope) = scopes.scope_of[id].filter(|_| is_rewritable[id]) else { return Ok(None) };
        let mut map_ids = |ids: &[ExprId]| -> Box<[ExprId]> {
            ids.iter().map(|&i| constants.representative(&rebuild.new.module, rebuild.get(i))).collect()
        };
        let key = match expr {
            Expr::Call(call) => match call.callee {
                // Annotations are never merged: each marks a separate boundary of a region.
                Callee::Op(op) if op::get(op).properties.annotation => return Ok(None),
                Callee::Op(op) => {
                    let attrs = call.attrs.iter().map(|(k, v)| format!("{k}={v},")).collect();
                    Key::Call((op, attrs), map_ids(&call.args))
                }
                Callee::Expr(_) => return Ok(None),
            },
            Expr::Tuple(fields) => Key::Tuple(map_ids(fields)),
            Expr::Project { tuple, index } => Key::Project(rebuild.get(*tuple), *index),
            _ => return Ok(None),
        };
        let span = spans[scope];
        let places = occurrences.entry((functions[scope], key)).or_default();
        let at = places.partition_point(|(place, _)| place.first <= span.first);
        if let Some(&(place, first)) = at.checked_sub(1).and_then(|previous| places.get(previous))
            && span.first < place.end
        {
            merged_origins.entry(first).or_default().push(module.nodes[id].origin);
            return Ok(Some(first));
        }
        let copy = rebuild.copy(id)?;
        // From now on, `copy` replaces equal expressions in the scopes nested in its scope.
        let inner_count = places[at..].partition_point(|(place, _)| place.first < span.end);
        places.drain(at..at + inner_count);
        places.insert(at, (span, copy));
        Ok(Some(copy))
    })?;
    for (first, mut origins) in merged_origins {
        origins.push(result.nodes[first].origin);
        result.nodes[first].origin = result.origins.union_all(origins);
    }
    Ok(result)
}

/// Computes the span of each scope.
fn spans(scopes: &Scopes) -> IndexVec<ScopeId, Span> {
    let count = scopes.tree.len();
    let mut sizes: IndexVec<ScopeId, u32> = IndexVec::filled(1, count);
    // The parent of a scope has a smaller id.
    for (id, scope) in scopes.tree.iter().rev() {
        if id != Scopes::root() {
            let size = sizes[id];
            sizes[scope.parent] += size;
        }
    }
    let mut spans: IndexVec<ScopeId, Span> = IndexVec::with_capacity(count);
    // Scopes are created from the end of the module backward, so each scope takes the last free numbers in its parent's
    // span.
    let mut next_free: IndexVec<ScopeId, u32> = IndexVec::with_capacity(count);
    for (id, scope) in scopes.tree.iter() {
        let end = if id == Scopes::root() { count as u32 } else { next_free[scope.parent] };
        let first = end - sizes[id];
        if id != Scopes::root() {
            next_free[scope.parent] = first;
        }
        spans.push(Span { first, end });
        next_free.push(end);
    }
    spans
}

/// Representatives of equal constants.
#[derive(Default)]
struct Constants {
    small_constants: HashMap<(DType, Box<[usize]>, Box<[u8]>), ExprId>,
    large_constants: HashMap<(DType, Box<[usize]>, *const u8), ExprId>,
    representatives: HashMap<ExprId, ExprId>,
}

impl Constants {
    /// Returns the first constant equal to `id`; `id` itself if it is not a constant.
    fn representative(&mut self, module: &Module, id: ExprId) -> ExprId {
        let Expr::Constant(tensor) = module.expr(id) else { return id };
        let Constants { small_constants, large_constants, representatives } = self;
        *representatives.entry(id).or_insert_with(|| {
            let tensor: &Tensor = tensor;
            let (dtype, shape, bytes) = (tensor.dtype(), tensor.shape().into(), tensor.bytes());
            match bytes.len() <= MAX_COMPARED_BYTES {
                true => *small_constants.entry((dtype, shape, bytes.into())).or_insert(id),
                false => *large_constants.entry((dtype, shape, bytes.as_ptr())).or_insert(id),
            }
        })
    }
}
