//! What evaluating an expression does besides giving its value.

use crate::ir::{Callee, Expr, ExprId, Id, IndexVec, Module};

/// From harmless to harmful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purity {
    /// It gives the same value whenever and however often it is evaluated.
    Value,
    /// It has no effect, but what it gives depends on when it is evaluated: a new reference, or what one holds.
    Timed,
    /// It may write to a reference, or not end.
    Effect,
}

/// The purity of the expressions of a module that may still grow, each with all that it evaluates. Making a function
/// evaluates nothing of its body. What a call does is known when it calls an operator or a function literal.
#[derive(Default)]
pub(super) struct Purities {
    known: IndexVec<ExprId, Purity>,
}

impl Purities {
    /// Of every expression of a module.
    pub fn of_module(module: &Module) -> IndexVec<ExprId, Purity> {
        let mut purities = Purities::default();
        purities.extend(module);
        purities.known
    }

    /// Of one expression.
    pub fn of(&mut self, module: &Module, id: ExprId) -> Purity {
        self.extend(module);
        self.known[id]
    }

    fn extend(&mut self, module: &Module) {
        let purity = &mut self.known;
        while purity.len() < module.nodes.len() {
            let expr = module.expr(ExprId::new(purity.len()));
            let mut own = match expr {
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
                expr.for_each_operand(|operand| own = own.max(purity[operand]));
            }
            purity.push(own);
        }
    }
}
