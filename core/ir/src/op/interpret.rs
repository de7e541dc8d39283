//! Interpreter of data flow, branches and while loops, over tensors or over another domain of values, such as tensors
//! with error bounds. Values are retained until the end, because the interpreter serves references, not production
//! runs.

use super::Value;
use crate::cancel;
use crate::ir::{Attrs, Expr, ExprId, Module, OpId, Type, WhileLoop};
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of iterations per loop.
const MAX_ITERATIONS: usize = 1_000_000;

/// Domain of values.
pub trait Domain {
    /// Value of a tensor type.
    type Value: Clone;

    /// Returns the value of a constant.
    fn constant(&self, tensor: &Arc<Tensor>) -> Self::Value;

    /// Returns true if the value of a condition is true.
    fn is_true(&self, value: &Self::Value) -> bool;

    /// Calls an operator. Each argument consists of a flag, true for a tuple, and its fields. A tuple result is
    /// flattened.
    ///
    /// # Errors
    /// If the operator rejects the arguments.
    fn call(
        &self,
        operator: OpId,
        attrs: &Attrs,
        args: &[(bool, Vec<Self::Value>)],
    ) -> Result<Vec<Self::Value>, String>;
}

/// Values of expressions, with tuples flattened.
pub type Values<V> = HashMap<ExprId, Vec<V>>;

/// Computes the values of an expression and of its dependencies, and stores them in `values`; values inside loops are
/// not stored. Both branches of an `if` are computed, as operators have no side effects.
///
/// # Errors
/// If an operator rejects its arguments, a loop exceeds the maximum number of iterations, an expression is neither data
/// flow nor an `if` nor a while loop, or the work of this thread is [cancelled](crate::cancel).
pub fn interpret<D: Domain>(
    module: &Module,
    root: ExprId,
    domain: &D,
    values: &mut Values<D::Value>,
) -> Result<(), String> {
    let order = module.post_order(root, |id, _| !values.contains_key(&id) && module.while_loop(id).is_none());
    for id in order {
        if values.contains_key(&id) {
            continue;
        }
        let values_of = |operand: ExprId| values.get(&operand).cloned().unwrap_or_default();
        let value = match module.expr(id) {
            Expr::Constant(tensor) => vec![domain.constant(tensor)],
            Expr::Tuple(fields) => fields.iter().flat_map(|&field| values_of(field)).collect(),
            Expr::Project { tuple, index } => values_of(*tuple).into_iter().skip(*index as usize).take(1).collect(),
            Expr::If { cond, then, otherwise } => {
                let is_true = values_of(*cond).first().is_some_and(|cond| domain.is_true(cond));
                values_of(if is_true { *then } else { *otherwise })
            }
            expr => match (module.while_loop(id), expr.as_op_call()) {
                (Some(while_loop), _) => run_loop(module, while_loop, domain, values)?,
                (None, Some((operator, call))) => {
                    let is_tuple = |arg: ExprId| matches!(module.ty(arg), Type::Tuple(_));
                    let args = call.args.iter().map(|&arg| (is_tuple(arg), values_of(arg)));
                    domain.call(operator, &call.attrs, &args.collect::<Vec<_>>())?
                }
                (None, None) => return Err("expected an operator call, found another expression".to_owned()),
            },
        };
        values.insert(id, value);
    }
    Ok(())
}

// The recursion depth is the nesting depth of loops, which the callers bound.
fn run_loop<D: Domain>(
    module: &Module,
    while_loop: WhileLoop<'_>,
    domain: &D,
    values: &mut Values<D::Value>,
) -> Result<Vec<D::Value>, String> {
    let mut state = Vec::with_capacity(while_loop.initial.len());
    for &initial in while_loop.initial {
        interpret(module, initial, domain, values)?;
        state.push(values.get(&initial).cloned().unwrap_or_default());
    }
    for _ in 0..MAX_ITERATIONS {
        if cancel::is_requested() {
            return Err("the loop was cancelled".to_owned());
        }
        let mut scope = values.clone();
        scope.extend(while_loop.params.iter().copied().zip(state));
        interpret(module, while_loop.cond, domain, &mut scope)?;
        let cond = scope.get(&while_loop.cond).and_then(|cond| cond.first());
        if !cond.is_some_and(|cond| domain.is_true(cond)) {
            interpret(module, while_loop.result, domain, &mut scope)?;
            return Ok(scope.remove(&while_loop.result).unwrap_or_default());
        }
        state = Vec::with_capacity(while_loop.next.len());
        for &next in while_loop.next {
            interpret(module, next, domain, &mut scope)?;
            state.push(scope.get(&next).cloned().unwrap_or_default());
        }
    }
    Err(format!("loop: expected at most {MAX_ITERATIONS} iterations, found more"))
}

/// Domain of tensors, computed by the naive references.
#[derive(Clone, Copy, Debug)]
pub struct Tensors {
    /// Maximum size of a value in bytes.
    pub max_bytes: usize,
}

impl Domain for Tensors {
    type Value = Tensor;

    fn constant(&self, tensor: &Arc<Tensor>) -> Tensor {
        (**tensor).clone()
    }

    fn is_true(&self, value: &Tensor) -> bool {
        value.bytes().first() == Some(&1)
    }

    fn call(&self, operator: OpId, attrs: &Attrs, args: &[(bool, Vec<Tensor>)]) -> Result<Vec<Tensor>, String> {
        let value = |(is_tuple, fields): &(bool, Vec<Tensor>)| match (is_tuple, &fields[..]) {
            (false, [tensor]) => Value::Tensor(tensor.clone()),
            _ => Value::Tuple(fields.clone()),
        };
        super::evaluate(operator, attrs, &args.iter().map(value).collect::<Vec<_>>(), self.max_bytes)
    }
}
