//! Which expressions a function pass may touch. A function that was given to a backend (`Compiler`), is external
//! (`Extern`) or asks for it (`SkipOptimization`) is opaque, as in Relay's pass manager. And which expressions live in
//! the same function and let body: only those can be computed together.

use crate::ir::{Expr, ExprId, Function, Id, IndexVec, Module};

/// Whether passes leave the function alone.
pub fn is_opaque(function: &Function) -> bool {
    ["Compiler", "Extern", "SkipOptimization"].iter().any(|key| function.attrs.get(key).is_some())
}

/// The live expressions outside opaque functions.
pub fn touchable(module: &Module) -> IndexVec<ExprId, bool> {
    let mut touch = IndexVec::filled(false, module.nodes.len());
    for &root in module.globals.values() {
        touch[root] = true;
    }
    for (id, node) in module.nodes.iter().rev() {
        if !touch[id] {
            continue;
        }
        if let Expr::Function(function) = &node.expr
            && is_opaque(function)
        {
            continue;
        }
        node.expr.for_each_operand(|operand| touch[operand] = true);
    }
    touch
}

/// The innermost function or let body that holds all uses of an expression.
///
/// A function literal and the body of a let open a scope. A walk up the nesting per use makes this quadratic only for
/// values that are used at many depths of one deep nest of lets.
pub struct Scopes {
    scope: IndexVec<ExprId, Option<ScopeId>>,
}

type ScopeId = u32;

impl Scopes {
    /// The scopes of a module.
    pub fn of(module: &Module) -> Scopes {
        let mut scope: IndexVec<ExprId, Option<ScopeId>> = IndexVec::filled(None, module.nodes.len());
        // Scope 0 is the outside; each has its parent and its depth.
        let mut scopes: Vec<(ScopeId, u32)> = vec![(0, 0)];
        for &root in module.globals.values() {
            scope[root] = Some(0);
        }
        for index in (0..module.nodes.len()).rev() {
            let id = ExprId::new(index);
            let Some(own) = scope[id] else { continue };
            let open = |scopes: &mut Vec<(ScopeId, u32)>| {
                let depth = scopes[own as usize].1 + 1;
                scopes.push((own, depth));
                (scopes.len() - 1) as ScopeId
            };
            let mut place = |scopes: &[(ScopeId, u32)], operand: ExprId, at: ScopeId| {
                scope[operand] = Some(match scope[operand] {
                    Some(other) => common(scopes, other, at),
                    None => at,
                });
            };
            match module.expr(id) {
                Expr::Function(function) => {
                    let inner = open(&mut scopes);
                    function.params.iter().for_each(|&param| place(&scopes, param, inner));
                    place(&scopes, function.body, inner);
                }
                Expr::Let { var, value, body } => {
                    let inner = open(&mut scopes);
                    place(&scopes, *var, inner);
                    place(&scopes, *value, own);
                    place(&scopes, *body, inner);
                }
                // A constant is visible everywhere, and counting its many uses would cost.
                expr => expr.for_each_operand(|operand| {
                    if !matches!(module.expr(operand), Expr::Constant(_)) {
                        place(&scopes, operand, own);
                    }
                }),
            }
        }
        Scopes { scope }
    }

    /// Whether two expressions live in the same scope.
    pub fn same(&self, a: ExprId, b: ExprId) -> bool {
        self.scope[a] == self.scope[b]
    }
}

fn common(scopes: &[(ScopeId, u32)], mut a: ScopeId, mut b: ScopeId) -> ScopeId {
    while a != b {
        if scopes[a as usize].1 >= scopes[b as usize].1 {
            a = scopes[a as usize].0;
        } else {
            b = scopes[b as usize].0;
        }
    }
    a
}
