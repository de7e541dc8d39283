//! Cases with control flow: an `if` whose branches apply the operators of another case to different inputs.

use crate::case::{Case, reverse};
use byoc_ir::ir::{Expr, ExprId, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Builder;
use std::collections::HashMap;

/// Returns the case `if (condition) { f(inputs) } else { f(other inputs) }` for a case that computes `f`. Returns `None` if
/// `f` has no inputs or is no data flow.
pub fn in_branch(case: &Case, condition: bool) -> Option<Case> {
    let main = case.module.main().filter(|main| !main.params.is_empty())?;
    let mut builder = Builder::default();
    let cond = builder.var("cond", Type::tensor(DType::Bool, &[]));
    let (mut params, mut inputs) = (vec![cond], vec![Tensor::from_bytes(DType::Bool, &[], &[u8::from(condition)])?]);
    let mut branch = |name: &str, inputs_of_branch: Vec<Tensor>| {
        let mut copies: HashMap<ExprId, ExprId> = HashMap::new();
        for (k, (param, input)) in main.params.iter().zip(inputs_of_branch).enumerate() {
            let copy = builder.var(format!("{name}{k}"), case.module.ty(*param).clone());
            copies.insert(*param, copy);
            params.push(copy);
            inputs.push(input);
        }
        for id in case.module.post_order(main.body, |id, _| !main.params.contains(&id)) {
            if copies.contains_key(&id) {
                continue;
            }
            let copy = match case.module.expr(id) {
                Expr::Constant(tensor) => builder.constant((**tensor).clone()),
                expr @ (Expr::Call(_) | Expr::Tuple(_) | Expr::Project { .. }) => {
                    let mut expr = expr.clone();
                    expr.map_operands(|operand| copies.get(&operand).copied().unwrap_or(operand));
                    builder.push(expr).ok()?
                }
                _ => return None,
            };
            copies.insert(id, copy);
        }
        copies.get(&main.body).copied()
    };
    let then = branch("x", case.inputs.clone())?;
    let otherwise = branch("y", case.inputs.iter().map(reverse).collect())?;
    let body = builder.push(Expr::If { cond, then, otherwise }).ok()?;
    builder.define("main", &params, body).ok()?;
    let description = format!("{}, in a branch", case.description);
    Some(Case { module: builder.module, inputs, description, ..case.clone() })
}
