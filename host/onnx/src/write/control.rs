//! Expressions other than operators: branches, loops, calls of functions, tuples and lets.

use super::call::Call;
use super::names::Base;
use super::ops;
use super::ports::declare;
use super::proto_parts::graph as graph_attr;
use super::regions;
use super::values::{Operand, Value};
use super::writer::{Operator, Refusal, Result, Writer};
use crate::proto::{GraphProto, ValueInfoProto};
use byoc_ir::ir::{Callee, Expr, ExprId, ScopeId, Type, WhileLoop};
use byoc_ir::op::{self, Params};
use byoc_ir::tensor::{DType, Tensor};
use std::sync::Arc;

/// Writes the expressions of a unit that `roots` need.
///
/// # Errors
/// If a function calls itself, or calls expand to too many expressions.
pub fn write_unit(w: &mut Writer<'_>, unit: ScopeId, roots: &[ExprId]) -> Result<()> {
    let order = w.units.order(unit, roots);
    let order = order.ok_or_else(|| Refusal::new("a function that calls itself, other than as a while loop"))?;
    for id in order {
        w.count()?;
        let outer = w.current.replace(id);
        let written = write_expr(w, id);
        w.current = outer;
        if let Err(refusal) = written {
            let operator = operator_name(w, id);
            let label = w.label(id, &operator);
            w.refuse(&operator, label, refusal);
            set_placeholder(w, id);
        }
    }
    Ok(())
}

/// Gives a refused expression a value, so that the operators after it are examined as well.
fn set_placeholder(w: &mut Writer<'_>, id: ExprId) {
    let leaves = w.leaf_types(id).len();
    let mut operands = std::iter::repeat_n(Operand::Refused, leaves);
    let value = Value::of_type(w.module.ty(id), &mut operands);
    w.set(id, value);
}

fn operator_name(w: &Writer<'_>, id: ExprId) -> String {
    match w.module.expr(id) {
        Expr::Call(call) => match call.callee {
            Callee::Op(op) => op::get(op).name.to_owned(),
            Callee::Expr(_) => "function call".to_owned(),
        },
        Expr::If { .. } => "if".to_owned(),
        Expr::Let { .. } => "let".to_owned(),
        Expr::Match(_) | Expr::Constructor(_) => "algebraic data type".to_owned(),
        Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite { .. } => "reference".to_owned(),
        _ => "expression".to_owned(),
    }
}

fn write_expr(w: &mut Writer<'_>, id: ExprId) -> Result<()> {
    let module = w.module;
    let value = match module.expr(id) {
        Expr::Var(_) => match w.units.bound(id) {
            Some(value) => w.value(value)?,
            None => return w.value(id).map(drop),
        },
        Expr::Tuple(fields) => Value::Tuple(fields.iter().map(|&field| w.value(field)).collect::<Result<_>>()?),
        Expr::Project { tuple, index } => match w.value(*tuple)? {
            Value::Tuple(fields) => fields
                .get(*index as usize)
                .cloned()
                .ok_or_else(|| Refusal::new(format!("field {index} of a tuple that has {}", fields.len())))?,
            _ => return Err(Refusal::new("a projection of something other than a tuple")),
        },
        Expr::Let { body, .. } => match w.units.while_loop(id) {
            Some(parts) => write_loop(w, id, &parts)?,
            None => w.value(*body)?,
        },
        Expr::If { cond, then, otherwise } => write_if(w, id, *cond, [*then, *otherwise])?,
        Expr::Function(_) => Value::Function(id),
        Expr::Call(call) => match call.callee {
            Callee::Op(op) => {
                let def = op::get(op);
                let params = Params::new(def, &call.attrs);
                let label = w.label(id, def.name);
                let ret = module.ty(id);
                let outputs =
                    ops::write(&mut Call { w, params, id, args: &call.args, ret, label, domain: "", replaced: None })?;
                Value::of_type(ret, &mut outputs.into_iter())
            }
            Callee::Expr(callee) => match w.value(callee)? {
                Value::Function(function) => write_call(w, id, function, &call.args)?,
                _ => return Err(Refusal::new("a call of a value that is no function")),
            },
        },
        Expr::Match(_) | Expr::Constructor(_) => return Err(Refusal::new("ONNX has no algebraic data types")),
        Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite { .. } => {
            return Err(Refusal::new("ONNX has no mutable references"));
        }
        Expr::Constant(_) | Expr::Global(_) => return Ok(()),
    };
    w.set(id, value);
    Ok(())
}

/// Writes the body of a function where it is called, or a call of the local function that a region becomes.
fn write_call(w: &mut Writer<'_>, id: ExprId, function: ExprId, args: &[ExprId]) -> Result<Value> {
    let Some(definition) = w.module.expr(function).as_function() else {
        return Err(Refusal::new("a call of a value that is no function"));
    };
    if let Some(backend) = definition.attrs.str("Compiler") {
        return regions::write(w, id, (function, backend), args, write_unit);
    }
    w.enter(function)?;
    for (&param, &arg) in definition.params.iter().zip(args) {
        let value = w.value(arg)?;
        w.set(param, value);
    }
    write_unit(w, w.units.opened(function, 0), &[definition.body])?;
    w.calls.pop();
    w.value(definition.body)
}

/// Writes a unit as a subgraph, whose results are those of `results`.
fn subgraph(
    w: &mut Writer<'_>,
    name: &str,
    results: impl FnOnce(&mut Writer<'_>) -> Result<Vec<Operand>>,
    types: &[&Type],
) -> Result<GraphProto> {
    w.open()?;
    let operands = results(w);
    let operands = match operands {
        Ok(operands) if operands.iter().any(|operand| matches!(operand, Operand::Bytes) || w.has_strings(operand)) => {
            w.close();
            return Err(Refusal::new("strings as results of branches and loops"));
        }
        Ok(operands) => operands,
        Err(refusal) => {
            w.close();
            return Err(refusal);
        }
    };
    let (mut graph, outputs) = w.finish_graph(name, &operands);
    graph.output = outputs.iter().zip(types).map(|(output, ty)| declare(output, ty)).collect();
    Ok(graph)
}

fn write_if(w: &mut Writer<'_>, id: ExprId, cond: ExprId, branches: [ExprId; 2]) -> Result<Value> {
    let label = w.label(id, "If");
    let types = w.leaf_types(id);
    if types.is_empty() {
        return Ok(Value::of_type(w.module.ty(id), &mut std::iter::empty()));
    }
    let condition = w.leaves(cond)?;
    let mut graphs = Vec::with_capacity(2);
    for (index, branch) in branches.into_iter().enumerate() {
        let unit = w.units.opened(id, index);
        let name = ["then", "else"][index];
        let results = |w: &mut Writer<'_>| {
            write_unit(w, unit, &[branch])?;
            w.leaves(branch)
        };
        graphs.push(subgraph(w, name, results, &types)?);
    }
    let attributes = ["then_branch", "else_branch"].into_iter().zip(graphs);
    let attributes = attributes.map(|(name, graph)| graph_attr(name, graph)).collect();
    let outputs = w.node(&label, Operator { attributes, ..Operator::new("If") }, &condition, types.len());
    Ok(Value::of_type(w.module.ty(id), &mut outputs.into_iter()))
}

/// State of a loop as ONNX has it: the trip count and the condition apart from the carried values.
struct Loop {
    /// Parameter that counts iterations from 0, if the state has one.
    iteration: Option<ExprId>,
    /// Maximum number of iterations.
    trips: Option<ExprId>,
    /// Index of the Boolean that decides about the next iteration, if the state has one; otherwise the condition is
    /// computed from the state at the end of each iteration.
    continues: Option<usize>,
    /// Indices of the other parameters.
    carried: Vec<usize>,
}

impl Loop {
    /// Recognizes the state of a loop that the reader made; any other loop carries its whole state.
    fn of(w: &Writer<'_>, parts: &WhileLoop<'_>) -> Loop {
        let general =
            Loop { iteration: None, trips: None, continues: None, carried: (0..parts.params.len()).collect() };
        let [iteration, continues, ..] = parts.params else { return general };
        let op = |id: ExprId| w.module.expr(id).as_op_call().map(|(op, call)| (op::get(op).name, &call.args[..]));
        let is_scalar = |id: ExprId, value: i64| {
            let tensor = w.module.expr(id).as_constant();
            tensor.is_some_and(|tensor| tensor.shape().is_empty() && tensor.view().to_i64s() == Some(vec![value]))
        };
        let counts = matches!(op(parts.next[0]), Some(("add", [a, b])) if a == iteration && is_scalar(*b, 1));
        let is_boolean = *w.module.ty(*continues) == Type::scalar(DType::Bool);
        if !(counts && is_scalar(parts.initial[0], 0) && is_boolean) {
            return general;
        }
        let limit = |test: ExprId| match op(test) {
            Some(("less", [a, limit])) if a == iteration && !parts.params.contains(limit) => Some(*limit),
            _ => None,
        };
        let trips = match op(parts.cond) {
            _ if parts.cond == *continues => None,
            Some(("logical_and", [test, other])) if other == continues => match limit(*test) {
                Some(limit) if w.units.unit(limit) != w.units.unit(parts.cond) => Some(limit),
                _ => return general,
            },
            _ => return general,
        };
        let carried = (2..parts.params.len()).collect();
        Loop { iteration: Some(*iteration), trips, continues: Some(1), carried }
    }
}

fn write_loop(w: &mut Writer<'_>, id: ExprId, parts: &WhileLoop<'_>) -> Result<Value> {
    let label = w.label(id, "Loop");
    let unit = w.units.opened(parts.function, 0);
    let form = Loop::of(w, parts);
    let mut initial = Vec::new();
    for &index in &form.carried {
        initial.extend(w.leaves(parts.initial[index])?);
    }
    let always = Operand::Constant(Arc::new(Tensor::from_bools(&[], &[true])));
    let trips = match form.trips {
        Some(trips) => w.leaves(trips)?,
        None => vec![Operand::Absent],
    };
    let start = match form.continues {
        Some(index) => w.leaves(parts.initial[index])?,
        None => {
            for (&param, &value) in parts.params.iter().zip(parts.initial) {
                let value = w.value(value)?;
                w.set(param, value);
            }
            write_unit(w, unit, &[parts.cond])?;
            w.leaves(parts.cond)?
        }
    };
    let types: Vec<&Type> = form.carried.iter().flat_map(|&index| w.leaf_types(parts.params[index])).collect();
    let body = write_body(w, &label, parts, &form, &types)?;
    let mut inputs = trips;
    let is_always = |operand: &Operand| operand.constant().is_some_and(|tensor| tensor.bytes() == [1]);
    let runs_on =
        form.continues.is_some_and(|index| w.leaves(parts.next[index]).is_ok_and(|next| next.iter().all(is_always)));
    // Without a condition, that of the body has no effect.
    inputs.extend(if runs_on && start.iter().all(is_always) { vec![Operand::Absent] } else { start });
    inputs.extend(initial);
    let operator = Operator { attributes: vec![graph_attr("body", body)], ..Operator::new("Loop") };
    let outputs = w.node(&label, operator, &inputs, types.len());
    let mut outputs = outputs.into_iter();
    for &index in &form.carried {
        let value = Value::of_type(w.module.ty(parts.params[index]), &mut outputs);
        w.set(parts.params[index], value);
    }
    // The result may not read the number of the iteration or the condition, which end with the loop.
    for param in form.iteration.into_iter().chain(form.continues.map(|index| parts.params[index])) {
        w.set(param, Value::Tensor(always.clone()));
    }
    let branch = w.module.expr(parts.function).as_function().map_or(id, |function| function.body);
    write_branch(w, unit, branch, 1, &[parts.result])?;
    w.value(parts.result)
}

/// Writes what `roots` need in a branch of the if that the function of a loop is, and before it in the function.
fn write_branch(w: &mut Writer<'_>, unit: ScopeId, branch: ExprId, index: usize, roots: &[ExprId]) -> Result<()> {
    let mut outer = w.units.captured(branch).to_vec();
    outer.extend(roots);
    write_unit(w, unit, &outer)?;
    write_unit(w, w.units.opened(branch, index), roots)
}

/// Writes the body of a loop: inputs are the number of the iteration, the condition and the carried values.
fn write_body(
    w: &mut Writer<'_>,
    label: &str,
    parts: &WhileLoop<'_>,
    form: &Loop,
    types: &[&Type],
) -> Result<GraphProto> {
    let unit = w.units.opened(parts.function, 0);
    let branch = w.module.expr(parts.function).as_function().map_or(parts.function, |function| function.body);
    let mut inputs: Vec<ValueInfoProto> = Vec::new();
    let mut input = |w: &mut Writer<'_>, name: &str, ty: &Type| {
        let name = w.names.temporary(Base::Label(format!("{label}.{name}")));
        inputs.push(declare(&name, ty));
        Operand::Name(name)
    };
    let iteration = input(w, "iteration", &Type::scalar(DType::I64));
    let continues = input(w, "continues", &Type::scalar(DType::Bool));
    if let Some(param) = form.iteration {
        w.set(param, Value::Tensor(iteration.clone()));
    }
    if let Some(index) = form.continues {
        w.set(parts.params[index], Value::Tensor(continues));
    }
    for &index in &form.carried {
        let param = parts.params[index];
        let names: Vec<Operand> = w.leaf_types(param).into_iter().map(|ty| input(w, "carried", ty)).collect();
        let value = Value::of_type(w.module.ty(param), &mut names.into_iter());
        w.set(param, value);
    }
    let bool_type = Type::scalar(DType::Bool);
    let output_types: Vec<&Type> = std::iter::once(&bool_type).chain(types.iter().copied()).collect();
    let results = |w: &mut Writer<'_>| {
        write_branch(w, unit, branch, 0, parts.next)?;
        let next: Vec<Value> = parts.next.iter().map(|&next| w.value(next)).collect::<Result<_>>()?;
        let mut results = match form.continues {
            Some(index) => w.leaves(parts.next[index])?,
            None => {
                for (&param, value) in parts.params.iter().zip(&next) {
                    w.set(param, value.clone());
                }
                write_unit(w, unit, &[parts.cond])?;
                w.leaves(parts.cond)?
            }
        };
        for &index in &form.carried {
            let leaves = next[index].leaves();
            results.extend(leaves.ok_or_else(|| Refusal::new("a function as a value that a loop carries"))?);
        }
        Ok(results)
    };
    let mut graph = subgraph(w, "body", results, &output_types)?;
    graph.input = inputs;
    Ok(graph)
}
