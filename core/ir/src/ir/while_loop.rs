//! While loops. Relay expresses a loop as a recursive function; this module recognizes the form that the ONNX frontend
//! produces.

use super::{Callee, Expr, ExprId, Module};

/// While loop: `let %loop = fn (params) { if (cond) { %loop(next) } else { result } }; %loop(initial)`.
///
/// If the variable has further uses, the expression is not a loop; a caller that converts loops must check for them.
#[derive(Clone, Copy, Debug)]
pub struct WhileLoop<'m> {
    /// Variable that the function is bound to.
    pub variable: ExprId,
    /// Function whose call executes one iteration.
    pub function: ExprId,
    /// State at the start of an iteration: the parameters of the function.
    pub params: &'m [ExprId],
    /// Initial state.
    pub initial: &'m [ExprId],
    /// Condition for another iteration.
    pub cond: ExprId,
    /// Recursive call.
    pub next_call: ExprId,
    /// Next state: the arguments of the recursive call.
    pub next: &'m [ExprId],
    /// Result of the loop, a function of the final state.
    pub result: ExprId,
    /// Call of the function with the initial state.
    pub first_call: ExprId,
}

impl Module {
    /// Returns the parts of a while loop; `None` if the expression is not a `let` of that form.
    pub fn while_loop(&self, id: ExprId) -> Option<WhileLoop<'_>> {
        let &Expr::Let { var: variable, value: function, body: first_call } = self.expr(id) else { return None };
        let definition = self.expr(function).as_function()?;
        let &Expr::If { cond, then: next_call, otherwise: result } = self.expr(definition.body) else { return None };
        let arguments = |call: ExprId| {
            let call = self.expr(call).as_call().filter(|call| call.callee == Callee::Expr(variable))?;
            (call.args.len() == definition.params.len()).then_some(&call.args[..])
        };
        let (initial, next) = (arguments(first_call)?, arguments(next_call)?);
        Some(WhileLoop {
            variable,
            function,
            params: &definition.params,
            initial,
            cond,
            next_call,
            next,
            result,
            first_call,
        })
    }
}
