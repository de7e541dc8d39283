//! Evaluation of a module with the naive operator references: the slowest executor, and the easiest to trust.

pub mod onnx;

use byoc_ir::ir::{Callee, Expr, ExprId, Module};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::Tensor;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

/// Returns the path of `name` in the test data.
pub fn test_data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests").join(name)
}

/// Returns the directories of the test models, sorted.
pub fn model_folders() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(test_data("models")).expect("expected a readable directory of test models");
    let mut dirs: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    dirs.sort();
    dirs
}

/// Computes the outputs of `@main`, with tuples flattened.
///
/// # Errors
/// If an operator fails.
pub fn run(module: &Module, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let main = module.main().ok_or("expected a function @main, found none")?;
    let mut values: BTreeMap<ExprId, Value> = BTreeMap::new();
    for (&param, input) in main.params.iter().zip(inputs) {
        values.insert(param, Value::Tensor(input.clone()));
    }
    for id in module.post_order(main.body, |_, _| true) {
        if values.contains_key(&id) {
            continue;
        }
        let tensor = |id: &ExprId| match &values[id] {
            Value::Tensor(t) => t.clone(),
            Value::Tuple(_) => panic!("expected a flat tuple, found a nested one"),
        };
        let value = match module.expr(id) {
            Expr::Constant(t) => Value::Tensor((**t).clone()),
            Expr::Tuple(fields) => Value::Tuple(fields.iter().map(tensor).collect()),
            Expr::Project { tuple, index } => match &values[tuple] {
                Value::Tuple(fields) => Value::Tensor(fields[*index as usize].clone()),
                Value::Tensor(_) => return Err("expected a tuple, found a tensor".into()),
            },
            Expr::Call(call) => {
                let Callee::Op(op) = call.callee else {
                    return Err("expected an operator as callee, found a function".into());
                };
                let args: Vec<Value> = call.args.iter().map(|a| values[a].clone()).collect();
                let mut outputs = op::evaluate(op, &call.attrs, &args, 1 << 32)?;
                if module.ty(id).as_tuple().is_some() {
                    Value::Tuple(outputs)
                } else {
                    Value::Tensor(outputs.remove(0))
                }
            }
            _ => return interpret(module, inputs),
        };
        values.insert(id, value);
    }
    Ok(match values.remove(&main.body) {
        Some(Value::Tensor(t)) => vec![t],
        Some(Value::Tuple(fields)) => fields,
        None => Vec::new(),
    })
}

/// Value of an expression in a module with control flow: data or a closure.
#[derive(Clone)]
enum Data {
    Plain(Value),
    Function(ExprId, Rc<Scope>),
}

/// Values of the expressions in one function call, nested in the scope in which the function was defined.
#[derive(Default)]
struct Scope {
    values: RefCell<BTreeMap<ExprId, Data>>,
    outer: Option<Rc<Scope>>,
}

impl Scope {
    fn get(&self, id: ExprId) -> Option<Data> {
        self.values.borrow().get(&id).cloned().or_else(|| self.outer.as_ref()?.get(id))
    }

    fn set(&self, id: ExprId, value: Data) {
        self.values.borrow_mut().insert(id, value);
    }
}

/// Computes the outputs of `@main` of a module with functions and branches.
fn interpret(module: &Module, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let main = module.main().ok_or("expected a function @main, found none")?;
    let scope = Rc::new(Scope::default());
    for (&param, input) in main.params.iter().zip(inputs) {
        scope.set(param, Data::Plain(Value::Tensor(input.clone())));
    }
    match evaluate(module, main.body, &scope)? {
        Data::Plain(Value::Tensor(tensor)) => Ok(vec![tensor]),
        Data::Plain(Value::Tuple(fields)) => Ok(fields),
        Data::Function(..) => Err("expected a tensor or a tuple as result, found a function".into()),
    }
}

fn evaluate(module: &Module, id: ExprId, scope: &Rc<Scope>) -> Result<Data, String> {
    if let Some(known) = scope.get(id) {
        return Ok(known);
    }
    let data_of = |id: ExprId| match evaluate(module, id, scope)? {
        Data::Plain(value) => Ok(value),
        Data::Function(..) => Err("expected a tensor, found a function".to_owned()),
    };
    let tensor = |id: ExprId| match data_of(id)? {
        Value::Tensor(tensor) => Ok(tensor),
        Value::Tuple(_) => Err("expected a tensor, found a tuple".to_owned()),
    };
    let data = match module.expr(id) {
        Expr::Constant(t) => Data::Plain(Value::Tensor((**t).clone())),
        Expr::Tuple(fields) => {
            Data::Plain(Value::Tuple(fields.iter().map(|&field| tensor(field)).collect::<Result<_, _>>()?))
        }
        Expr::Project { tuple, index } => match data_of(*tuple)? {
            Value::Tuple(fields) => Data::Plain(Value::Tensor(fields[*index as usize].clone())),
            Value::Tensor(_) => return Err("expected a tuple, found a tensor".into()),
        },
        Expr::Function(_) => Data::Function(id, Rc::clone(scope)),
        Expr::Let { var, value, body } => {
            let value = evaluate(module, *value, scope)?;
            scope.set(*var, value);
            evaluate(module, *body, scope)?
        }
        Expr::If { cond, then, otherwise } => {
            let is_taken = tensor(*cond)?.view().to_i64s() == Some(vec![1]);
            evaluate(module, if is_taken { *then } else { *otherwise }, scope)?
        }
        Expr::Call(call) => match call.callee {
            Callee::Op(op) => {
                let args = call.args.iter().map(|&arg| data_of(arg)).collect::<Result<Vec<_>, _>>()?;
                let mut outputs = op::evaluate(op, &call.attrs, &args, 1 << 32)?;
                let is_tuple = module.ty(id).as_tuple().is_some();
                Data::Plain(if is_tuple { Value::Tuple(outputs) } else { Value::Tensor(outputs.remove(0)) })
            }
            Callee::Expr(callee) => {
                let Data::Function(function, outer) = evaluate(module, callee, scope)? else {
                    return Err("expected a function as callee, found a tensor".into());
                };
                let Expr::Function(function) = module.expr(function) else {
                    return Err("expected a function literal as callee, found another expression".into());
                };
                let inner = Scope { values: RefCell::default(), outer: Some(outer) };
                for (&param, &arg) in function.params.iter().zip(&call.args) {
                    inner.set(param, evaluate(module, arg, scope)?);
                }
                evaluate(module, function.body, &Rc::new(inner))?
            }
        },
        other => return Err(format!("unsupported expression {other:?}")),
    };
    scope.set(id, data.clone());
    Ok(data)
}

/// Computes max |a - b| / max |b|, or infinity if the shapes, element types or NaN positions differ.
pub fn max_rel_err(got: &Tensor, wanted: &Tensor) -> f64 {
    if got.dtype() != wanted.dtype() || got.shape() != wanted.shape() {
        return f64::INFINITY;
    }
    let (a, b) = (got.view().to_f64s(), wanted.view().to_f64s());
    if a.iter().zip(&b).any(|(x, y)| x.is_nan() != y.is_nan()) {
        return f64::INFINITY;
    }
    let difference = a.iter().zip(&b).filter(|(x, y)| x != y && !x.is_nan()).map(|(x, y)| (x - y).abs());
    let scale = b.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    difference.fold(0.0f64, f64::max) / scale.max(f64::MIN_POSITIVE)
}
