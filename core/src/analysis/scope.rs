//! Scope analyses for function passes: the expressions that a pass may change, captured values, and the function or let
//! body that evaluates each expression. A function with one of the attributes `Compiler`, `Extern` and
//! `SkipOptimization` is opaque to passes, as in Relay's pass manager. Only expressions of the same body can be merged.

use byoc_ir::ir::{Expr, ExprId, Function, IndexVec, Module, ScopeId, Scopes};
use std::cell::OnceCell;
use std::collections::BinaryHeap;

/// Returns true if passes must not change the function.
pub fn is_opaque(function: &Function) -> bool {
    ["Compiler", "Extern", "SkipOptimization"].iter().any(|key| function.attrs.get(key).is_some())
}

/// Returns the live expressions outside opaque functions.
pub fn rewritable_exprs(module: &Module) -> IndexVec<ExprId, bool> {
    let mut is_rewritable = IndexVec::filled(false, module.nodes.len());
    for &root in module.globals.values() {
        is_rewritable[root] = true;
    }
    for (id, node) in module.nodes.iter().rev() {
        if !is_rewritable[id] {
            continue;
        }
        if let Expr::Function(function) = &node.expr
            && is_opaque(function)
        {
            continue;
        }
        node.expr.for_each_operand(|operand| is_rewritable[operand] = true);
    }
    is_rewritable
}

/// Returns, for each scope, the innermost enclosing scope that is a function body, possibly the scope itself.
pub(crate) fn functions(module: &Module, scopes: &Scopes) -> IndexVec<ScopeId, ScopeId> {
    let mut functions: IndexVec<ScopeId, ScopeId> = IndexVec::with_capacity(scopes.tree.len());
    for (id, scope) in scopes.tree.iter() {
        let is_function = scope.opener.is_none_or(|opener| matches!(module.expr(opener), Expr::Function(_)));
        // The parent of a scope has a smaller id.
        functions.push(if is_function { id } else { functions[scope.parent] });
    }
    functions
}

/// Values that function literals capture. For most literals the use counts of the expressions in the literal already
/// prove that nothing is captured; scopes are computed only if the counts do not suffice. The buffers are shared by all
/// literals.
pub(crate) struct Captures<'m> {
    module: &'m Module,
    scopes: OnceCell<Scopes>,
    /// Number of uses of each expression as an operand of live expressions.
    uses: IndexVec<ExprId, u32>,
    /// 1-based number of the last walk that reached each expression, and the number of times that walk reached it.
    use_counts: IndexVec<ExprId, (u32, u32)>,
    /// Number of the last walk that reached the binder of each variable.
    binding_walks: IndexVec<ExprId, u32>,
    walks: u32,
}

impl<'m> Captures<'m> {
    /// Creates the capture analysis of a module.
    pub fn of(module: &'m Module) -> Captures<'m> {
        let count = module.nodes.len();
        let mut uses = IndexVec::filled(0u32, count);
        let live = module.live();
        for (id, node) in module.nodes.iter() {
            if live[id] {
                node.expr.for_each_operand(|operand| uses[operand] += 1);
            }
        }
        Captures {
            module,
            scopes: OnceCell::new(),
            uses,
            use_counts: IndexVec::filled((0, 0), count),
            binding_walks: IndexVec::filled(0, count),
            walks: 0,
        }
    }

    /// Returns the number of uses of an expression.
    pub fn uses(&self, id: ExprId) -> u32 {
        self.uses[id]
    }

    /// Returns the captured values of a literal: variables bound outside the literal, and expressions evaluated outside
    /// because they are also used there.
    pub fn of_literal(&mut self, function: ExprId) -> Vec<ExprId> {
        if self.is_closed(function) { Vec::new() } else { self.find_captures(function) }
    }

    /// Returns true if everything that a literal reaches is used only inside the literal. Each expression is visited
    /// after all of its users.
    fn is_closed(&mut self, function: ExprId) -> bool {
        self.walks += 1;
        let walk = self.walks;
        let mut heap = BinaryHeap::from([function]);
        while let Some(id) = heap.pop() {
            let expr = self.module.expr(id);
            let is_inside = match expr {
                Expr::Var(_) => self.binding_walks[id] == walk,
                _ => id == function || expr.is_closed_leaf() || self.use_counts[id].1 == self.uses[id],
            };
            if !is_inside {
                return false;
            }
            let Captures { use_counts, binding_walks, .. } = self;
            expr.for_each_binder(|var| binding_walks[var] = walk);
            expr.for_each_operand(|operand| {
                if use_counts[operand].0 != walk {
                    use_counts[operand] = (walk, 0);
                    heap.push(operand);
                }
                use_counts[operand].1 += 1;
            });
        }
        true
    }

    fn find_captures(&mut self, function: ExprId) -> Vec<ExprId> {
        let module = self.module;
        let scopes = self.scopes.get_or_init(|| Scopes::of_module(module));
        let Some(body) = scopes.opened[function] else { return Vec::new() };
        self.walks += 1;
        let walk = self.walks;
        let mut variables = Vec::new();
        let mut captured = Vec::new();
        let mut stack = vec![function];
        while let Some(id) = stack.pop() {
            let expr = module.expr(id);
            let is_outside = || scopes.scope_of[id].is_some_and(|scope| !scopes.is_inside(scope, body));
            match expr {
                Expr::Var(_) => variables.push(id),
                _ if id != function && !expr.is_closed_leaf() && is_outside() => captured.push(id),
                _ => {
                    expr.for_each_binder(|var| self.binding_walks[var] = walk);
                    expr.for_each_operand(|operand| {
                        if std::mem::replace(&mut self.use_counts[operand].0, walk) != walk {
                            stack.push(operand);
                        }
                    });
                }
            }
        }
        captured.extend(variables.into_iter().filter(|&var| self.binding_walks[var] != walk));
        captured.sort_unstable();
        captured
    }
}

/// Function, let body or branch in which each expression is evaluated. An expression that only one branch of an if uses
/// belongs to the branch: elsewhere, it would be computed even if the other branch is taken.
pub(crate) struct Bodies {
    scopes: Scopes,
}

impl Bodies {
    /// Computes the bodies of a module's live expressions.
    pub fn of(module: &Module) -> Bodies {
        Bodies { scopes: Scopes::of_module(module) }
    }

    /// Returns the body of an expression; `None` for an expression that is not live.
    pub fn scope(&self, id: ExprId) -> Option<ScopeId> {
        self.scopes.scope_of[id]
    }

    /// Returns true if two expressions are evaluated in the same body.
    pub fn are_in_same_body(&self, a: ExprId, b: ExprId) -> bool {
        self.scopes.scope_of[a] == self.scopes.scope_of[b]
    }
}
