//! Rebuilding a module in a pass.
//!
//! Ascending ids order operands before users, so a rebuild is one loop: for each live expression the pass either
//! provides a replacement, or the expression is copied with its operands mapped. A copy keeps its type if the types of
//! its operands are unchanged; otherwise, or if an operand became a constant, its type is inferred again. Dead
//! expressions are not copied, and no expression is visited twice.

use super::{Builder, infer_expr, unify};
use crate::cancel::{self, Ticks};
use crate::diag::Diagnostic;
use crate::ir::{Callee, Expr, ExprId, IndexVec, Module, OriginId, Origins, Type};

/// Module copy in progress: the new module, and the mapping from old expressions to their replacements.
pub struct Rebuild<'a> {
    /// Original module.
    pub old: &'a Module,
    /// Builder of the new module, set to the origin of the expression being rebuilt.
    pub new: Builder,
    /// Expressions of the old module that are reachable from its globals.
    pub live: IndexVec<ExprId, bool>,
    map: IndexVec<ExprId, Option<ExprId>>,
}

impl<'a> Rebuild<'a> {
    /// Rebuilds a module. For each live expression of `old`, in ascending order, `visit` returns its replacement in the
    /// new module, or `None` to have it copied.
    ///
    /// # Errors
    /// If `visit` fails, operand types no longer agree, or the work is cancelled.
    pub fn run(
        old: &'a Module,
        visit: impl FnMut(&mut Rebuild<'a>, ExprId, &'a Expr) -> Result<Option<ExprId>, Box<Diagnostic>>,
    ) -> Result<Module, Box<Diagnostic>> {
        let live = old.live();
        let order = old.nodes.ids().filter(|&id| live[id]).collect::<Vec<_>>();
        Rebuild::start(old, live).finish(order, visit)
    }

    /// Rebuilds a module from only the expressions in `order`, in that order, for passes that omit or move expressions.
    /// Operands must precede their users, and the global functions must be included.
    ///
    /// # Errors
    /// See [`Rebuild::run`].
    pub fn run_in_order(
        old: &'a Module,
        order: impl IntoIterator<Item = ExprId>,
        visit: impl FnMut(&mut Rebuild<'a>, ExprId, &'a Expr) -> Result<Option<ExprId>, Box<Diagnostic>>,
    ) -> Result<Module, Box<Diagnostic>> {
        Rebuild::start(old, old.live()).finish(order, visit)
    }

    fn start(old: &'a Module, live: IndexVec<ExprId, bool>) -> Rebuild<'a> {
        let mut module = Module::like(old);
        module.nodes = IndexVec::with_capacity(old.nodes.len());
        Rebuild { old, new: Builder::new(module), live, map: IndexVec::filled(None, old.nodes.len()) }
    }

    fn finish(
        mut self,
        order: impl IntoIterator<Item = ExprId>,
        mut visit: impl FnMut(&mut Rebuild<'a>, ExprId, &'a Expr) -> Result<Option<ExprId>, Box<Diagnostic>>,
    ) -> Result<Module, Box<Diagnostic>> {
        let mut ticks = Ticks::every(64);
        for id in order {
            if ticks.is_requested() {
                cancel::check(String::new)?;
            }
            let node = &self.old.nodes[id];
            self.new.origin = Some(node.origin);
            let replacement = match visit(&mut self, id, &node.expr)? {
                Some(replacement) => replacement,
                None => self.copy(id)?,
            };
            self.map[id] = Some(replacement);
        }
        for (name, &id) in &self.old.globals {
            let replacement = self.get(id);
            self.new.module.globals.insert(name.clone(), replacement);
        }
        Ok(self.new.module)
    }

    /// Returns the replacement of an operand of the expression being visited, or of any expression that is known to
    /// have been visited.
    ///
    /// # Panics
    /// If the expression has not been visited. Operands always have been visited; for other expressions, such as the
    /// function of a global, use [`Rebuild::visited`].
    pub fn get(&self, old: ExprId) -> ExprId {
        self.map[old].expect("an operand is visited before its users")
    }

    /// Returns the replacement of an expression; `None` if the expression has not been visited.
    pub fn visited(&self, old: ExprId) -> Option<ExprId> {
        self.map[old]
    }

    /// Returns the replacement of `old`, an expression without operands; copies it if it has not been visited.
    pub fn get_or_copy(&mut self, old: ExprId) -> ExprId {
        match self.map[old] {
            Some(replacement) => replacement,
            None => {
                let node = &self.old.nodes[old];
                let replacement = self.new.module.push_typed(node.expr.clone(), node.ty.clone(), node.origin);
                self.map[old] = Some(replacement);
                replacement
            }
        }
    }

    /// Makes `new` the replacement of `old` for users that are visited later.
    pub fn set(&mut self, old: ExprId, new: ExprId) {
        self.map[old] = Some(new);
    }

    /// Copies an expression with its operands mapped.
    ///
    /// # Errors
    /// If the types of the new operands do not agree.
    pub fn copy(&mut self, id: ExprId) -> Result<ExprId, Box<Diagnostic>> {
        let node = &self.old.nodes[id];
        let mut expr = node.expr.clone();
        expr.map_operands(|operand| self.get(operand));
        let ty = if self.operands_keep_their_types(&node.expr) {
            node.ty.clone()
        } else {
            let ty = infer_expr(&self.new.module, &expr)?;
            // The type of a constructor without fields depends on its context.
            if ty.is_complete() { ty } else { unify(&ty, &node.ty).unwrap_or(ty) }
        };
        Ok(self.new.module.push_typed(expr, ty, node.origin))
    }

    /// Adds the origins of an old expression to a new expression, for passes that merge two operators into one.
    pub fn inherit(&mut self, new: ExprId, old: ExprId) {
        let origin = self.old.nodes[old].origin;
        self.inherit_origin(new, origin);
    }

    /// Adds `origin` to the origins of a new expression.
    pub fn inherit_origin(&mut self, new: ExprId, origin: OriginId) {
        if origin != Origins::none() {
            let module = &mut self.new.module;
            let union = module.origins.union(module.nodes[new].origin, origin);
            module.nodes[new].origin = union;
        }
    }

    fn operands_keep_their_types(&self, expr: &Expr) -> bool {
        // The type of a call to a global is derived from the global, which may follow in the arena, so the old type is
        // kept.
        if let Expr::Call(call) = expr
            && let Callee::Expr(callee) = call.callee
            && matches!(self.old.expr(callee), Expr::Global(_))
        {
            return true;
        }
        let mut is_unchanged = true;
        expr.for_each_operand(|operand| {
            let old_type = self.old.ty(operand);
            let new_type = self.get(operand);
            is_unchanged &= old_type == self.new.module.ty(new_type) && *old_type != Type::Unknown;
            // The value of a constant can determine a type that was unknown before, such as the result of dyn.reshape.
            is_unchanged &= self.new.module.expr(new_type).as_constant().is_none()
                || self.old.expr(operand).as_constant().is_some();
        });
        is_unchanged
    }
}
