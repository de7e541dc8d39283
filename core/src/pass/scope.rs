//! Which expressions a function pass may touch. A function that was given to a backend (`Compiler`), is external
//! (`Extern`) or asks for it (`SkipOptimization`) is opaque, as in Relay's pass manager. And which expressions live in
//! the same function and let body: only those can be computed together.

use crate::ir::{Expr, ExprId, Function, IndexVec, Module, ScopeId, Scopes};
use std::cell::OnceCell;
use std::collections::BinaryHeap;

/// Returns true if passes leave the function alone.
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

/// The scope of the function body that each scope is in, or is.
pub(super) fn functions(module: &Module, scopes: &Scopes) -> IndexVec<ScopeId, ScopeId> {
    let mut functions: IndexVec<ScopeId, ScopeId> = IndexVec::with_capacity(scopes.tree.len());
    for (id, scope) in scopes.tree.iter() {
        let is_function = scope.opener.is_none_or(|opener| matches!(module.expr(opener), Expr::Function(_)));
        // A scope is opened after the one around it.
        functions.push(if is_function { id } else { functions[scope.parent] });
    }
    functions
}

/// Tells what function literals take from around them. Most take nothing, which is seen from how often each expression
/// inside is used; where that is not enough, the scopes are worked out. Its buffers serve many literals.
pub(super) struct Captures<'m> {
    module: &'m Module,
    scopes: OnceCell<Scopes>,
    /// How many operand places of live expressions hold each expression.
    uses: IndexVec<ExprId, u32>,
    /// The last walk, counted from 1, that met an expression, and how often.
    met: IndexVec<ExprId, (u32, u32)>,
    /// The last walk that met the binder of a variable.
    bound: IndexVec<ExprId, u32>,
    walks: u32,
}

impl<'m> Captures<'m> {
    /// Of a module's literals.
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
            met: IndexVec::filled((0, 0), count),
            bound: IndexVec::filled(0, count),
            walks: 0,
        }
    }

    /// How many places use an expression.
    pub fn uses(&self, id: ExprId) -> u32 {
        self.uses[id]
    }

    /// Variables that are bound outside of a literal, and what is computed outside because it is used there too.
    pub fn of_literal(&mut self, function: ExprId) -> Vec<ExprId> {
        if self.is_closed(function) { Vec::new() } else { self.around(function) }
    }

    /// Returns true if all that a literal reaches is used inside it alone. An expression is looked at after all that use it.
    fn is_closed(&mut self, function: ExprId) -> bool {
        self.walks += 1;
        let this = self.walks;
        let mut heap = BinaryHeap::from([function]);
        while let Some(id) = heap.pop() {
            let expr = self.module.expr(id);
            let inside = match expr {
                Expr::Var(_) => self.bound[id] == this,
                _ => id == function || expr.is_closed_leaf() || self.met[id].1 == self.uses[id],
            };
            if !inside {
                return false;
            }
            let Captures { met, bound, .. } = self;
            expr.for_each_binder(|var| bound[var] = this);
            expr.for_each_operand(|operand| {
                if met[operand].0 != this {
                    met[operand] = (this, 0);
                    heap.push(operand);
                }
                met[operand].1 += 1;
            });
        }
        true
    }

    fn around(&mut self, function: ExprId) -> Vec<ExprId> {
        let module = self.module;
        let scopes = self.scopes.get_or_init(|| Scopes::of_module(module));
        let Some(body) = scopes.opened[function] else { return Vec::new() };
        self.walks += 1;
        let this = self.walks;
        let mut variables = Vec::new();
        let mut captured = Vec::new();
        let mut stack = vec![function];
        while let Some(id) = stack.pop() {
            let expr = module.expr(id);
            let is_outside = || scopes.of[id].is_some_and(|scope| !scopes.is_inside(scope, body));
            match expr {
                Expr::Var(_) => variables.push(id),
                _ if id != function && !expr.is_closed_leaf() && is_outside() => captured.push(id),
                _ => {
                    expr.for_each_binder(|var| self.bound[var] = this);
                    expr.for_each_operand(|operand| {
                        if std::mem::replace(&mut self.met[operand].0, this) != this {
                            stack.push(operand);
                        }
                    });
                }
            }
        }
        captured.extend(variables.into_iter().filter(|&var| self.bound[var] != this));
        captured.sort_unstable();
        captured
    }
}

/// The function or let body that each expression is evaluated in. The branches of an if count as part of what is
/// around it.
pub(super) struct Bodies {
    scopes: Scopes,
    /// The scope without the branches that lead to it.
    body: IndexVec<ScopeId, ScopeId>,
}

impl Bodies {
    /// Of a module's live expressions.
    pub fn of(module: &Module) -> Bodies {
        let scopes = Scopes::of_module(module);
        let mut body: IndexVec<ScopeId, ScopeId> = IndexVec::with_capacity(scopes.tree.len());
        for (id, scope) in scopes.tree.iter() {
            let branch = scope.opener.is_some_and(|opener| matches!(module.expr(opener), Expr::If { .. }));
            // A scope is opened after the one around it.
            body.push(if branch { body[scope.parent] } else { id });
        }
        Bodies { scopes, body }
    }

    /// Returns true if two expressions are evaluated in the same body.
    pub fn same(&self, a: ExprId, b: ExprId) -> bool {
        let body = |id: ExprId| self.scopes.of[id].map(|scope| self.body[scope]);
        body(a) == body(b)
    }
}
