//! Module: an arena of expressions and the global functions among them.

use super::{Expr, ExprId, Function, IndexVec, Name, Node, OriginId, Origins, Type, TypeDefs};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Module: an arena to which expressions are appended, never removed. Expressions that are unreachable from the globals
/// are dead, and are dropped when a pass rebuilds the module.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// Expressions. Operands precede their users.
    pub nodes: IndexVec<ExprId, Node>,
    /// Global functions by name, each an [`Expr::Function`].
    pub globals: BTreeMap<Name, ExprId>,
    /// Type definitions. Passes keep them unchanged.
    pub types: Arc<TypeDefs>,
    /// Origins of the expressions.
    pub origins: Origins,
}

impl Module {
    /// Creates an empty module.
    pub fn new() -> Module {
        Module::default()
    }

    /// Creates an empty module with the type definitions and the origins of `other`, for a pass to fill.
    pub fn like(other: &Module) -> Module {
        Module { types: other.types.clone(), origins: other.origins.clone(), ..Module::default() }
    }

    /// Appends an expression whose type is not known yet. (`typing::Builder` infers types as it appends.)
    #[inline]
    pub fn push(&mut self, expr: Expr, origin: OriginId) -> ExprId {
        self.push_typed(expr, Type::Unknown, origin)
    }

    /// Appends an expression of a known type.
    #[inline]
    pub fn push_typed(&mut self, expr: Expr, ty: Type, origin: OriginId) -> ExprId {
        self.nodes.push(Node { expr, ty, origin })
    }

    /// Returns an expression.
    #[inline]
    pub fn expr(&self, id: ExprId) -> &Expr {
        &self.nodes[id].expr
    }

    /// Returns the type of an expression.
    #[inline]
    pub fn ty(&self, id: ExprId) -> &Type {
        &self.nodes[id].ty
    }

    /// Returns the global function `name`.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.expr(*self.globals.get(name)?).as_function()
    }

    /// Returns `@main`.
    pub fn main(&self) -> Option<&Function> {
        self.function("main")
    }

    /// Marks the expressions that are reachable from the global functions.
    pub fn live(&self) -> IndexVec<ExprId, bool> {
        let mut live = IndexVec::filled(false, self.nodes.len());
        for &root in self.globals.values() {
            live[root] = true;
        }
        // Operands have smaller ids, so one descending sweep sees every user first.
        for (id, node) in self.nodes.iter().rev() {
            if live[id] {
                node.expr.for_each_operand(|operand| live[operand] = true);
            }
        }
        live
    }

    /// Returns the expressions reachable from `root` in post-order: operands before users, arguments left to right,
    /// each once. `enter` decides whether the operands of an expression are visited. The text format prints expressions
    /// in this order.
    pub fn post_order(&self, root: ExprId, mut enter: impl FnMut(ExprId, &Expr) -> bool) -> Vec<ExprId> {
        enum Step {
            Enter(ExprId),
            Leave(ExprId),
        }
        let mut visited = std::collections::HashSet::new();
        let mut order = Vec::new();
        let mut stack = vec![Step::Enter(root)];
        while let Some(step) = stack.pop() {
            match step {
                Step::Leave(id) => order.push(id),
                Step::Enter(id) if visited.insert(id) => {
                    stack.push(Step::Leave(id));
                    let expr = self.expr(id);
                    if enter(id, expr) {
                        let first = stack.len();
                        expr.for_each_operand(|operand| stack.push(Step::Enter(operand)));
                        stack[first..].reverse();
                    }
                }
                Step::Enter(_) => {}
            }
        }
        order
    }
}
