//! Evaluation of a module with the naive references of its operators: the slowest executor, and the easiest to trust.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use byoc_ir::ir::{Callee, Expr, ExprId, Module};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::Tensor;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Returns the path of a folder with test data.
pub fn test_data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests").join(name)
}

/// Returns the folders of the test models, sorted.
pub fn model_folders() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(test_data("models")).expect("cannot read the folder of the test models");
    let mut folders: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    folders.sort();
    folders
}

/// Computes the outputs of `@main`, tuples flattened.
///
/// # Errors
/// If an operator fails.
pub fn run(module: &Module, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let main = module.main().ok_or("no @main")?;
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
                Value::Tensor(_) => return Err("a field of a tensor".into()),
            },
            Expr::Call(call) => {
                let Callee::Op(op) = call.callee else { return Err("a call of a function".into()) };
                let args: Vec<Value> = call.args.iter().map(|a| values[a].clone()).collect();
                let mut outputs = op::evaluate(op, &call.attrs, &args, 1 << 32)?;
                if module.ty(id).as_tuple().is_some() {
                    Value::Tuple(outputs)
                } else {
                    Value::Tensor(outputs.remove(0))
                }
            }
            other => return Err(format!("{other:?} in a data-flow graph")),
        };
        values.insert(id, value);
    }
    Ok(match values.remove(&main.body) {
        Some(Value::Tensor(t)) => vec![t],
        Some(Value::Tuple(fields)) => fields,
        None => Vec::new(),
    })
}

/// Computes max |a - b| / max |b|, or infinity if shape, type or NaN differ.
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
