//! Scope tree of a module, and the scope in which each expression is evaluated.
//!
//! A function's body, the body of a let, each branch of an if and each clause of a match are scopes; they form a tree
//! whose root is the module. An expression is evaluated in the innermost scope that contains all its uses: the least
//! common ancestor. So an expression that both branches of an if share is evaluated before the if, as in the text,
//! where it is bound to a `%0` above the if.

use super::{Callee, Expr, ExprId, Id, IndexVec, Module, ScopeId};

/// A scope: the body of a function or of a let, a branch of an if, or a clause of a match.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Enclosing scope; the root is its own parent.
    pub parent: ScopeId,
    /// Function, let, if or match that opens the scope; `None` for the root.
    pub opener: Option<ExprId>,
    depth: u32,
    /// Distant ancestor, which makes walks up the tree logarithmic.
    jump: ScopeId,
}

/// Scopes of a module.
#[derive(Clone, Debug)]
pub struct Scopes {
    /// Scope in which each expression is evaluated; `None` if the expression is unreachable from the roots.
    pub scope_of: IndexVec<ExprId, Option<ScopeId>>,
    /// Number of uses of each expression as an operand, counting reachable users only.
    pub uses: IndexVec<ExprId, u32>,
    /// First scope that each expression opens; an if opens two, a match one for each clause, with consecutive ids.
    pub opened: IndexVec<ExprId, Option<ScopeId>>,
    /// Scope tree.
    pub tree: IndexVec<ScopeId, Scope>,
}

impl Scopes {
    /// Returns the root of the tree.
    #[inline]
    pub fn root() -> ScopeId {
        ScopeId::new(0)
    }

    /// Computes the scopes of all expressions that are reachable from the globals of `module`.
    pub fn of_module(module: &Module) -> Scopes {
        Scopes::new(module, module.globals.values().copied())
    }

    /// Computes the scopes of all expressions that are reachable from `roots`. Operands that do not precede their user
    /// are skipped; the verifier reports them.
    pub fn new(module: &Module, roots: impl IntoIterator<Item = ExprId>) -> Scopes {
        let count = module.nodes.len();
        let root = Scope { parent: Scopes::root(), opener: None, depth: 0, jump: Scopes::root() };
        let mut tree = IndexVec::new();
        tree.push(root);
        let mut scopes = Scopes {
            scope_of: IndexVec::filled(None, count),
            uses: IndexVec::filled(0, count),
            opened: IndexVec::filled(None, count),
            tree,
        };
        for id in roots {
            if module.nodes.get(id).is_some() {
                scopes.scope_of[id] = Some(Scopes::root());
            }
        }
        // Users have larger ids, so a descending sweep reaches an expression after all its uses.
        for (id, node) in module.nodes.iter().rev() {
            let Some(scope) = scopes.scope_of[id] else { continue };
            for _ in 0..node.expr.scopes() {
                let opened = scopes.open(scope, id);
                scopes.opened[id].get_or_insert(opened);
            }
            let opened = scopes.opened[id];
            for_each_place(&node.expr, scope, opened, |operand, operand_scope| {
                if operand < id {
                    scopes.uses[operand] += 1;
                    scopes.scope_of[operand] = Some(match scopes.scope_of[operand] {
                        None => operand_scope,
                        Some(previous) => scopes.common_scope(previous, operand_scope),
                    });
                }
            });
        }
        scopes
    }

    /// Calls `visit` with each operand of a reachable expression and the scope in which the operand is used: the body
    /// of a function is used in the scope that the function opens.
    pub fn for_each_operand(&self, id: ExprId, expr: &Expr, visit: impl FnMut(ExprId, ScopeId)) {
        if let Some(scope) = self.scope_of[id] {
            for_each_place(expr, scope, self.opened[id], visit);
        }
    }

    /// Returns the innermost scope that contains both `a` and `b`.
    pub fn common_scope(&self, a: ScopeId, b: ScopeId) -> ScopeId {
        let (mut a, mut b) = (a, b);
        if self.tree[a].depth < self.tree[b].depth {
            std::mem::swap(&mut a, &mut b);
        }
        a = self.ancestor_at_depth(a, self.tree[b].depth);
        while a != b {
            let (x, y) = (self.tree[a], self.tree[b]);
            (a, b) = if x.jump == y.jump { (x.parent, y.parent) } else { (x.jump, y.jump) };
        }
        a
    }

    /// Returns true if `inner` is `outer` or nested in it.
    #[inline]
    pub fn is_inside(&self, inner: ScopeId, outer: ScopeId) -> bool {
        self.ancestor_at_depth(inner, self.tree[outer].depth) == outer
    }

    /// Returns the ancestor of `scope` at `depth`, or `scope` itself if it is not deeper.
    fn ancestor_at_depth(&self, mut scope: ScopeId, depth: u32) -> ScopeId {
        while self.tree[scope].depth > depth {
            let Scope { parent, jump, .. } = self.tree[scope];
            scope = if self.tree[jump].depth >= depth { jump } else { parent };
        }
        scope
    }

    fn open(&mut self, parent: ScopeId, opener: ExprId) -> ScopeId {
        let parent_entry = self.tree[parent];
        let jump_entry = self.tree[parent_entry.jump];
        // A jump combines the two preceding jumps if they have equal length, or else takes one step (Myers, 1983).
        let has_equal_jumps =
            parent_entry.depth - jump_entry.depth == jump_entry.depth - self.tree[jump_entry.jump].depth;
        let jump = if has_equal_jumps { jump_entry.jump } else { parent };
        self.tree.push(Scope { parent, opener: Some(opener), depth: parent_entry.depth + 1, jump })
    }
}

fn for_each_place(expr: &Expr, scope: ScopeId, opened: Option<ScopeId>, mut visit: impl FnMut(ExprId, ScopeId)) {
    let inner = opened.unwrap_or(scope);
    match expr {
        Expr::Function(function) => {
            function.params.iter().for_each(|&param| visit(param, inner));
            visit(function.body, inner);
        }
        Expr::Let { var, value, body } => {
            visit(*var, inner);
            visit(*value, scope);
            visit(*body, inner);
        }
        Expr::If { cond, then, otherwise } => {
            visit(*cond, scope);
            visit(*then, inner);
            visit(*otherwise, ScopeId::new(inner.index() + 1));
        }
        Expr::Match(m) => {
            visit(m.data, scope);
            for (index, clause) in m.clauses.iter().enumerate() {
                let inner = ScopeId::new(inner.index() + index);
                clause.pattern.for_each_var(&mut |var| visit(var, inner));
                visit(clause.body, inner);
            }
        }
        Expr::Call(call) => {
            if let Callee::Expr(callee) = call.callee {
                visit(callee, scope);
            }
            call.args.iter().for_each(|&arg| visit(arg, scope));
        }
        other => other.for_each_operand(|operand| visit(operand, scope)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Attrs, Function, Origins, Type};

    /// `fn (%c) { let %v = s; if (%c) { (s, %v) } else { (s,) } }` with `s` used in the value and both branches.
    #[test]
    fn shared_expression_is_evaluated_in_common_scope() {
        let mut module = Module::new();
        let mut push = |expr| module.push(expr, Origins::none());
        let c = push(Expr::var("c", Type::Unknown));
        let v = push(Expr::var("v", Type::Unknown));
        let s = push(Expr::Tuple(Box::new([])));
        let t = push(Expr::Tuple(Box::new([])));
        let then = push(Expr::Tuple(Box::new([s, v, t])));
        let otherwise = push(Expr::Tuple(Box::new([s, t])));
        let branch = push(Expr::If { cond: c, then, otherwise });
        let binding = push(Expr::Let { var: v, value: s, body: branch });
        let function = Function::new([c], binding, Type::Unknown, Attrs::none());
        let function = push(Expr::Function(Box::new(function)));
        module.globals.insert("main".into(), function);

        let scopes = Scopes::of_module(&module);
        let body = scopes.opened[function];
        assert_eq!(scopes.scope_of[binding], body);
        assert_eq!(scopes.scope_of[s], body, "used both before and inside the let");
        assert_eq!(
            scopes.scope_of[t], scopes.opened[binding],
            "used in both branches, so evaluated before the if, in the let's body"
        );
        assert_eq!(scopes.scope_of[then], scopes.opened[branch]);
        assert_eq!((scopes.uses[s], scopes.uses[t]), (3, 2));
        let (Some(outer), Some(inner)) = (body, scopes.scope_of[then]) else { panic!("both are reachable") };
        assert!(scopes.is_inside(inner, outer) && !scopes.is_inside(outer, inner));
    }
}
