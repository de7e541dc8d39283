//! Cases with control flow: the operators of another case in the branches of an `if`, or in a while loop.

use crate::case::{Case, reverse};
use byoc_ir::ir::{Attrs, Expr, ExprId, FuncType, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Builder;
use std::collections::HashMap;

/// Returns the case `if (condition) { f(inputs) } else { f(other inputs) }` for a case that computes `f`. Returns
/// `None` if `f` has no inputs or is not pure data flow.
pub fn in_branch(case: &Case, condition: bool) -> Option<Case> {
    let mut composed = Composed::default();
    let cond = composed.input("cond", flag(condition)?);
    let (then_inputs, else_inputs) = (case.inputs.clone(), case.inputs.iter().map(reverse).collect());
    let (then_inputs, else_inputs) =
        (composed.inputs(case, "x", then_inputs)?, composed.inputs(case, "y", else_inputs)?);
    let then = composed.copy(case, &then_inputs)?;
    let otherwise = composed.copy(case, &else_inputs)?;
    let body = composed.builder.push(Expr::If { cond, then, otherwise }).ok()?;
    composed.finish(case, body, "in a branch")
}

/// Returns a case with a while loop that computes `f` in each iteration, alternately on the inputs of the case and on
/// other inputs. Returns `None` if `f` has no inputs, is not pure data flow, or has results with unknown dimensions.
///
/// The state begins with three flags, which shift by one position in each iteration. The first flag is the condition,
/// so the loop needs no operator besides those of the case. The rest of the state consists of the two sets of inputs,
/// which are swapped in each iteration, and the results of the last iteration, initially zeros.
pub fn in_loop(case: &Case, iterations: usize) -> Option<Case> {
    let main = case.module.main()?;
    let mut composed = Composed::default();
    let mut initial = Vec::new();
    for i in 0..3 {
        initial.push(composed.input(&format!("c{i}"), flag(i < iterations)?));
    }
    initial.extend(composed.inputs(case, "x", case.inputs.clone())?);
    initial.extend(composed.inputs(case, "y", case.inputs.iter().map(reverse).collect())?);
    let result_type = case.module.ty(main.body);
    let result_types = result_type.as_tuple().map_or_else(|| vec![result_type.clone()], <[Type]>::to_vec);
    for (i, ty) in result_types.iter().enumerate() {
        let ty = ty.as_tensor()?;
        let shape: Vec<usize> = ty.shape()?.to_vec();
        let bytes = vec![0; shape.iter().product::<usize>() * ty.dtype.size()];
        initial.push(composed.input(&format!("r{i}"), Tensor::from_bytes(ty.dtype, &shape, &bytes)?));
    }
    let builder = &mut composed.builder;
    let types: Vec<Type> = initial.iter().map(|&value| builder.module.ty(value).clone()).collect();
    let state: Vec<ExprId> =
        types.iter().enumerate().map(|(i, ty)| builder.var(format!("state{i}"), ty.clone())).collect();
    let (flags, rest) = state.split_at(3);
    let (first_set, rest) = rest.split_at(case.inputs.len());
    let (second_set, results) = rest.split_at(case.inputs.len());
    let ret = Type::tuple(result_types.clone());
    let variable = builder.var("loop", Type::func(FuncType::new(types, ret.clone())));
    let value = composed.copy(case, first_set)?;
    let builder = &mut composed.builder;
    let mut next = vec![flags[1], flags[2], flags[2]];
    next.extend(second_set.iter().chain(first_set));
    match result_type.as_tuple() {
        None => next.push(value),
        Some(fields) => {
            for i in 0..fields.len() as u32 {
                next.push(builder.project(value, i).ok()?);
            }
        }
    }
    let then = builder.call(variable, &next).ok()?;
    let otherwise = builder.tuple(results).ok()?;
    let body = builder.push(Expr::If { cond: flags[0], then, otherwise }).ok()?;
    let function = builder.function(&state, body, ret, Attrs::none()).ok()?;
    let first_call = builder.call(variable, &initial).ok()?;
    let body = builder.push(Expr::Let { var: variable, value: function, body: first_call }).ok()?;
    composed.finish(case, body, "in a loop")
}

fn flag(value: bool) -> Option<Tensor> {
    Tensor::from_bytes(DType::Bool, &[], &[u8::from(value)])
}

/// Case under construction.
#[derive(Default)]
struct Composed {
    builder: Builder,
    params: Vec<ExprId>,
    inputs: Vec<Tensor>,
}

impl Composed {
    fn input(&mut self, name: &str, value: Tensor) -> ExprId {
        let param = self.builder.var(name, Type::tensor(value.dtype(), value.shape()));
        self.params.push(param);
        self.inputs.push(value);
        param
    }

    /// Adds a set of inputs for a copy of the case's function; `None` if the function has no inputs.
    fn inputs(&mut self, case: &Case, name: &str, values: Vec<Tensor>) -> Option<Vec<ExprId>> {
        case.module.main().filter(|main| !main.params.is_empty())?;
        Some(values.into_iter().enumerate().map(|(i, value)| self.input(&format!("{name}{i}"), value)).collect())
    }

    /// Copies the body of the case's function, applied to `arguments`; `None` if it is not pure data flow.
    fn copy(&mut self, case: &Case, arguments: &[ExprId]) -> Option<ExprId> {
        let main = case.module.main()?;
        let mut copies: HashMap<ExprId, ExprId> = main.params.iter().copied().zip(arguments.iter().copied()).collect();
        for id in case.module.post_order(main.body, |id, _| !main.params.contains(&id)) {
            if copies.contains_key(&id) {
                continue;
            }
            let copy = match case.module.expr(id) {
                Expr::Constant(tensor) => self.builder.constant((**tensor).clone()),
                expr @ (Expr::Call(_) | Expr::Tuple(_) | Expr::Project { .. }) => {
                    let mut expr = expr.clone();
                    expr.map_operands(|operand| copies.get(&operand).copied().unwrap_or(operand));
                    self.builder.push(expr).ok()?
                }
                _ => return None,
            };
            copies.insert(id, copy);
        }
        copies.get(&main.body).copied()
    }

    fn finish(mut self, case: &Case, body: ExprId, description: &str) -> Option<Case> {
        self.builder.define("main", &self.params, body).ok()?;
        let description = format!("{}, {description}", case.description);
        Some(Case { module: self.builder.module, inputs: self.inputs, description, ..case.clone() })
    }
}
