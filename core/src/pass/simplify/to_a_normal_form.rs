//! Names every intermediate value: each call, tuple, projection, branch and function is bound by a `let`, in the
//! scope in which it is evaluated, and operands are variables, constants or global functions.
//!
//! A function body and each branch become one chain of lets, in the order of the arena; lets inside operands are moved
//! to the chain of the enclosing scope. A value that is already bound by a `let` keeps its variable. Scopes are built
//! from the inside out, without recursion.

use crate::analysis::scope::{is_opaque, rewritable_exprs};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Expr, ExprId, Id, IndexVec, Module, Origins, ScopeId, Scopes, Type};
use std::mem;

/// Element of a scope's chain of lets.
#[derive(Clone)]
enum Step {
    /// Binds a variable to a value, both of the new module.
    Bind(ExprId, ExprId),
    /// Inserts the steps of a let's body.
    Body(ScopeId),
}

/// Binds every intermediate value with a `let`.
///
/// # Errors
/// If the module is ill-typed.
pub fn to_a_normal_form(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let mut normalizer = Normalizer::new(module);
    normalizer.name_values();
    // The parent of a scope has a smaller id.
    for index in (0..normalizer.items.len()).rev() {
        normalizer.build(ScopeId::new(index));
    }
    for (name, &root) in &module.globals {
        let function = normalizer.atom(root);
        normalizer.target.globals.insert(name.clone(), function);
    }
    Ok(normalizer.target)
}

struct Normalizer<'m> {
    source: &'m Module,
    target: Module,
    scopes: Scopes,
    is_rewritable: IndexVec<ExprId, bool>,
    /// Atom (variable or leaf) that replaces each expression as an operand.
    atoms: IndexVec<ExprId, Option<ExprId>>,
    /// Expressions evaluated in each scope, except expressions that the module already binds with a let.
    items: IndexVec<ScopeId, Vec<ExprId>>,
    steps: IndexVec<ScopeId, Vec<Step>>,
}

impl<'m> Normalizer<'m> {
    fn new(source: &'m Module) -> Normalizer<'m> {
        let scopes = Scopes::of_module(source);
        let count = scopes.tree.len();
        Normalizer {
            source,
            target: Module::like(source),
            is_rewritable: rewritable_exprs(source),
            atoms: IndexVec::filled(None, source.nodes.len()),
            items: IndexVec::filled(Vec::new(), count),
            steps: IndexVec::filled(Vec::new(), count),
            scopes,
        }
    }

    fn push(&mut self, expr: Expr, origin_of: ExprId) -> ExprId {
        let node = &self.source.nodes[origin_of];
        self.target.push_typed(expr, node.ty.clone(), node.origin)
    }

    fn atom(&self, source: ExprId) -> ExprId {
        self.atoms[source].expect("an operand comes before its users")
    }

    /// Returns true if a let can bind `value` directly, without another variable: `value` has no other user.
    fn is_own_value(&self, value: ExprId) -> bool {
        self.scopes.uses[value] == 1
            && !self.source.expr(value).is_leaf()
            && !matches!(self.source.expr(value), Expr::Let { .. })
    }

    /// Creates a variable for every value, copies leaves, and copies the contents of opaque functions unchanged.
    fn name_values(&mut self) {
        let mut is_bound = IndexVec::filled(false, self.source.nodes.len());
        for (id, node) in self.source.nodes.iter() {
            if let Expr::Let { value, .. } = node.expr
                && self.is_rewritable[id]
                && self.is_own_value(value)
            {
                is_bound[value] = true;
            }
        }
        for (id, node) in self.source.nodes.iter() {
            let Some(scope) = self.scopes.scope_of[id] else { continue };
            let atom = match &node.expr {
                expr if expr.is_leaf() => self.push(expr.clone(), id),
                _ if !self.is_rewritable[id] => {
                    let expr = self.with_atoms(id);
                    self.push(expr, id)
                }
                &Expr::Let { body, .. } => {
                    self.items[scope].push(id);
                    self.atom(body)
                }
                // The variable of the let is the atom.
                _ if is_bound[id] => continue,
                _ => {
                    self.items[scope].push(id);
                    if scope == Scopes::root() {
                        continue;
                    }
                    self.target.push_typed(Expr::var("x", node.ty.clone()), node.ty.clone(), Origins::none())
                }
            };
            self.atoms[id] = Some(atom);
        }
    }

    fn with_atoms(&self, id: ExprId) -> Expr {
        let mut expr = self.source.expr(id).clone();
        expr.map_operands(|operand| self.atom(operand));
        expr
    }

    /// Turns the expressions evaluated in a scope into steps. Nested scopes must already be built.
    fn build(&mut self, scope: ScopeId) {
        let mut steps = Vec::new();
        for id in mem::take(&mut self.items[scope]) {
            match *self.source.expr(id) {
                Expr::Let { var, value, .. } => {
                    let value = if self.is_own_value(value) { self.value(value) } else { self.atom(value) };
                    steps.push(Step::Bind(self.atom(var), value));
                    steps.extend(self.scopes.opened[id].map(Step::Body));
                }
                _ => {
                    let value = self.value(id);
                    match self.atoms[id] {
                        Some(var) => steps.push(Step::Bind(var, value)),
                        None => self.atoms[id] = Some(value),
                    }
                }
            }
        }
        self.steps[scope] = steps;
    }

    /// Builds an expression with atoms as operands.
    fn value(&mut self, id: ExprId) -> ExprId {
        let expr = match self.source.expr(id) {
            &Expr::If { cond, then, otherwise } => {
                let first_scope = self.scopes.opened[id].map_or(0, Id::index);
                let then = self.chain(ScopeId::new(first_scope), then);
                let otherwise = self.chain(ScopeId::new(first_scope + 1), otherwise);
                Expr::If { cond: self.atom(cond), then, otherwise }
            }
            Expr::Match(m) => {
                let mut m = m.clone();
                let first_scope = self.scopes.opened[id].map_or(0, Id::index);
                m.data = self.atom(m.data);
                for (index, clause) in m.clauses.iter_mut().enumerate() {
                    clause.pattern.map_vars(&mut |var| self.atom(var));
                    clause.body = self.chain(ScopeId::new(first_scope + index), clause.body);
                }
                Expr::Match(m)
            }
            Expr::Function(function) if !is_opaque(function) => {
                let body = self.chain(self.scopes.opened[id].unwrap_or(Scopes::root()), function.body);
                let mut function = function.clone();
                function.params.iter_mut().for_each(|param| *param = self.atom(*param));
                function.body = body;
                Expr::Function(function)
            }
            _ => self.with_atoms(id),
        };
        self.push(expr, id)
    }

    /// Wraps the result of a scope in the lets of the scope, including the lets of nested let bodies.
    fn chain(&mut self, scope: ScopeId, result: ExprId) -> ExprId {
        let result = self.atom(result);
        let ty: Type = self.target.ty(result).clone();
        let mut binds = Vec::new();
        let mut work = vec![mem::take(&mut self.steps[scope]).into_iter()];
        while let Some(steps) = work.last_mut() {
            match steps.next() {
                Some(Step::Bind(var, value)) => binds.push((var, value)),
                Some(Step::Body(inner)) => work.push(mem::take(&mut self.steps[inner]).into_iter()),
                None => {
                    work.pop();
                }
            }
        }
        binds.into_iter().rev().fold(result, |body, (var, value)| {
            self.target.push_typed(Expr::Let { var, value, body }, ty.clone(), Origins::none())
        })
    }
}
