//! Text layout: the expressions on separate lines, their scopes, and the number of lines inside each expression.

use crate::ir::{Expr, ExprId, Id, IndexVec, Module, ScopeId, Scopes};
use smallvec::SmallVec;
use std::collections::HashSet;

/// Form in which an expression is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Separate line, named by `%N`. Also used for leaves, which need no name.
    Line,
    /// Result of its scope.
    Body,
    /// Part of the expression that uses it: the value of a let, or a let that is an operand.
    Operand,
}

/// Text layout of a module or an expression.
pub(super) struct Layout {
    pub(super) scopes: Scopes,
    pub(super) forms: IndexVec<ExprId, Form>,
    /// Number of lines inside the text of an expression.
    pub(super) inside: IndexVec<ExprId, u32>,
    first: IndexVec<ScopeId, Option<ExprId>>,
    next: IndexVec<ExprId, Option<ExprId>>,
}

impl Layout {
    pub(super) fn of_module(module: &Module) -> Layout {
        let scopes = Scopes::of_module(module);
        // An expression shared by several functions, which the verifier reports, belongs to the scope of the module; it
        // is printed in the first function.
        let root_scope = module.globals.values().next().and_then(|&id| *scopes.opened.get(id)?);
        Layout::new(module, scopes, root_scope.unwrap_or(Scopes::root()), module.globals.values().copied())
    }

    pub(super) fn of_expr(module: &Module, root: ExprId) -> Layout {
        let scopes = Scopes::new(module, [root]);
        Layout::new(module, scopes, Scopes::root(), [root])
    }

    fn new(module: &Module, scopes: Scopes, root_scope: ScopeId, roots: impl IntoIterator<Item = ExprId>) -> Layout {
        let count = module.nodes.len();
        let mut layout = Layout {
            forms: IndexVec::filled(Form::Line, count),
            inside: IndexVec::filled(0, count),
            first: IndexVec::filled(None, scopes.tree.len()),
            next: IndexVec::filled(None, count),
            scopes,
        };
        layout.choose_places(module, roots);
        layout.lay_lines(module, root_scope);
        layout
    }

    pub(super) fn first_line(&self, scope: ScopeId) -> Option<ExprId> {
        self.first[scope]
    }

    pub(super) fn next_line(&self, line: ExprId) -> Option<ExprId> {
        self.next[line]
    }

    fn choose_places(&mut self, module: &Module, roots: impl IntoIterator<Item = ExprId>) {
        for root in roots {
            if self.scopes.uses.get(root) == Some(&0) {
                self.forms[root] = Form::Body;
            }
        }
        for (id, node) in module.nodes.iter() {
            if self.scopes.scope_of[id].is_none() {
                continue;
            }
            let (mut bodies, mut value): (SmallVec<[ExprId; 2]>, _) = (SmallVec::new(), None);
            match &node.expr {
                Expr::Function(function) => bodies.push(function.body),
                Expr::If { then, otherwise, .. } => bodies.extend([*then, *otherwise]),
                Expr::Match(m) => bodies.extend(m.clauses.iter().map(|clause| clause.body)),
                Expr::Let { value: bound, body, .. } => {
                    bodies.push(*body);
                    value = Some(*bound);
                }
                _ => {}
            }
            let is_used_once = |operand: &ExprId| self.scopes.uses.get(*operand) == Some(&1) && *operand < id;
            for operand in bodies.into_iter().filter(is_used_once) {
                self.forms[operand] = Form::Body;
            }
            if let Some(operand) = value.filter(is_used_once) {
                self.forms[operand] = Form::Operand;
            }
            node.expr.for_each_operand(|operand| {
                let is_let = module.nodes.get(operand).is_some_and(|node| matches!(node.expr, Expr::Let { .. }));
                if is_let && is_used_once(&operand) && self.forms[operand] == Form::Line {
                    self.forms[operand] = Form::Operand;
                }
            });
        }
    }

    /// Chains the lines of each scope in ascending order, and counts the lines inside each expression.
    fn lay_lines(&mut self, module: &Module, root_scope: ScopeId) {
        let mut last: IndexVec<ScopeId, Option<ExprId>> = IndexVec::filled(None, self.scopes.tree.len());
        let mut lines: IndexVec<ScopeId, u32> = IndexVec::filled(0, self.scopes.tree.len());
        let globals: HashSet<ExprId> = module.globals.values().copied().collect();
        for (id, node) in module.nodes.iter() {
            let Some(scope) = self.scopes.scope_of[id] else { continue };
            if node.expr.is_leaf() {
                continue;
            }
            // A global function that is also used as an operand, which the verifier reports, is printed only at its
            // definition: a separate line could end up in the function's own body.
            let is_operand_global = self.forms[id] == Form::Line && globals.contains(&id);
            // Operands and the contents of inner scopes precede the expression in the arena, so their counts are
            // complete.
            let mut line_count = 0;
            if let Some(first) = self.scopes.opened[id] {
                line_count += (0..node.expr.scopes()).map(|i| lines[ScopeId::new(first.index() + i)]).sum::<u32>();
            }
            node.expr.for_each_operand(|operand| {
                if operand < id && self.forms[operand] == Form::Operand {
                    line_count += self.inside[operand];
                }
            });
            self.inside[id] = line_count;
            let scope = if scope == Scopes::root() { root_scope } else { scope };
            match self.forms[id] {
                Form::Operand => {}
                Form::Line if is_operand_global => {}
                Form::Body => lines[scope] += line_count,
                Form::Line => {
                    lines[scope] += line_count + 1;
                    match last[scope].replace(id) {
                        Some(previous) => self.next[previous] = Some(id),
                        None => self.first[scope] = Some(id),
                    }
                }
            }
        }
    }
}
