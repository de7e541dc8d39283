//! Which expressions a function pass may touch. A function that was given to a backend (`Compiler`), is external
//! (`Extern`) or asks for it (`SkipOptimization`) is opaque, as in Relay's pass manager. And which expressions live in
//! the same function and let body: only those can be computed together.

use crate::ir::{Expr, ExprId, Function, IndexVec, Module, ScopeId, Scopes};

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

/// Tells what function literals take from around them. Its buffers serve many literals.
pub(super) struct Captures<'m> {
    module: &'m Module,
    scopes: Scopes,
    /// The last literal, counted from 1, that an expression was seen in, and that binds it.
    seen: IndexVec<ExprId, u32>,
    bound: IndexVec<ExprId, u32>,
    literals: u32,
}

impl<'m> Captures<'m> {
    /// Of a module's literals.
    pub fn of(module: &'m Module) -> Captures<'m> {
        let count = module.nodes.len();
        Captures {
            module,
            scopes: Scopes::of_module(module),
            seen: IndexVec::filled(0, count),
            bound: IndexVec::filled(0, count),
            literals: 0,
        }
    }

    /// How many places use an expression.
    pub fn uses(&self, id: ExprId) -> u32 {
        self.scopes.uses[id]
    }

    /// Variables that are bound outside of a literal, and what is computed outside because it is used there too.
    pub fn of_literal(&mut self, function: ExprId) -> Vec<ExprId> {
        let Some(body) = self.scopes.opened[function] else { return Vec::new() };
        self.literals += 1;
        let this = self.literals;
        let mut variables = Vec::new();
        let mut captured = Vec::new();
        let mut stack = vec![function];
        while let Some(id) = stack.pop() {
            let expr = self.module.expr(id);
            let is_outside = || self.scopes.of[id].is_some_and(|scope| !self.scopes.is_inside(scope, body));
            match expr {
                Expr::Var(_) => variables.push(id),
                _ if id != function && !expr.is_closed_leaf() && is_outside() => captured.push(id),
                _ => {
                    expr.for_each_binder(|var| self.bound[var] = this);
                    expr.for_each_operand(|operand| {
                        if std::mem::replace(&mut self.seen[operand], this) != this {
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

    /// Whether two expressions are evaluated in the same body.
    pub fn same(&self, a: ExprId, b: ExprId) -> bool {
        let body = |id: ExprId| self.scopes.of[id].map(|scope| self.body[scope]);
        body(a) == body(b)
    }
}
