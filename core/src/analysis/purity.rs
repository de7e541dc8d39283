//! Purity analysis: the effects of evaluating an expression.

use byoc_ir::ir::{Callee, Expr, ExprId, Id, IndexVec, Module};

/// Purity classes, from pure to effectful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purity {
    /// Pure: the value does not depend on when or how often the expression is evaluated.
    Value,
    /// No effects, but the value depends on when the expression is evaluated: a new reference, or the contents of one.
    Timed,
    /// The expression may write to a reference, or not terminate.
    Effect,
}

/// Cache of expression purities for a growing module. The purity of an expression includes the effects of every
/// expression that it evaluates. Creating a closure does not evaluate its body. The effects of a call are known if the
/// callee is an operator, a constructor or a function literal; any other call counts as [`Purity::Effect`].
#[derive(Default)]
pub(crate) struct Purities {
    cache: IndexVec<ExprId, Purity>,
}

impl Purities {
    /// Computes the purity of every expression of a module.
    pub fn of_module(module: &Module) -> IndexVec<ExprId, Purity> {
        let mut purities = Purities::default();
        purities.extend(module);
        purities.cache
    }

    /// Returns the purity of one expression.
    pub fn of(&mut self, module: &Module, id: ExprId) -> Purity {
        self.extend(module);
        self.cache[id]
    }

    fn extend(&mut self, module: &Module) {
        let purity = &mut self.cache;
        while purity.len() < module.nodes.len() {
            let expr = module.expr(ExprId::new(purity.len()));
            let mut own_purity = match expr {
                Expr::RefNew(_) | Expr::RefRead(_) => Purity::Timed,
                Expr::RefWrite { .. } => Purity::Effect,
                Expr::Call(call) => match call.callee {
                    Callee::Op(_) => Purity::Value,
                    Callee::Expr(callee) => match module.expr(callee) {
                        Expr::Function(function) => purity[function.body],
                        Expr::Constructor(_) => Purity::Value,
                        _ => Purity::Effect,
                    },
                },
                _ => Purity::Value,
            };
            if !matches!(expr, Expr::Function(_)) {
                expr.for_each_operand(|operand| own_purity = own_purity.max(purity[operand]));
            }
            purity.push(own_purity);
        }
    }
}
