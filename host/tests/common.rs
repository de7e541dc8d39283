//! Helpers for tests that run programs: naive evaluation of data-flow modules.

use byoc::driver::plan::plan;
use byoc::runtime::exec::{Executor, Pool};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Callee, Expr, ExprId, IndexVec, Module};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::Tensor;
use std::sync::Arc;

/// Creates a host-only executor for a module.
pub fn executor(module: &Module) -> Executor {
    let lowered_program = plan(module, &[], &[]).unwrap();
    Executor::new(lowered_program.program, lowered_program.constants, Vec::new(), Arc::new(Pool::new(2).unwrap()))
        .unwrap()
}

/// Plans and runs a module only on the host.
pub fn run(module: &Module, inputs: &[Tensor]) -> Result<Vec<Tensor>, Diagnostic> {
    executor(module).run(inputs)
}

/// Evaluates a data-flow module expression by expression, with the naive reference of each operator. Function literals
/// are evaluated at their calls, as if inlined.
pub fn run_reference(module: &Module, inputs: &[Tensor]) -> Vec<Tensor> {
    let main = module.main().unwrap();
    let mut values: IndexVec<ExprId, Option<Vec<Tensor>>> = IndexVec::filled(None, module.nodes.len());
    let mut alias: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, module.nodes.len());
    for (_, node) in module.nodes.iter() {
        if let Expr::Call(call) = &node.expr
            && let Callee::Expr(callee) = call.callee
            && let Expr::Function(function) = module.expr(callee)
        {
            function.params.iter().zip(&call.args).for_each(|(&param, &arg)| alias[param] = Some(arg));
        }
    }
    let mut inputs = inputs.iter();
    for &param in &main.params {
        values[param] = Some(vec![inputs.next().unwrap().clone()]);
    }
    fn get(
        values: &mut IndexVec<ExprId, Option<Vec<Tensor>>>,
        alias: &IndexVec<ExprId, Option<ExprId>>,
        module: &Module,
        id: ExprId,
    ) -> Vec<Tensor> {
        if let Some(value) = &values[id] {
            return value.clone();
        }
        let value = match module.expr(id) {
            Expr::Constant(tensor) => vec![(**tensor).clone()],
            Expr::Var(_) => get(values, alias, module, alias[id].unwrap()),
            Expr::Tuple(fields) => fields.iter().flat_map(|&f| get(values, alias, module, f)).collect(),
            Expr::Project { tuple, index } => {
                let fields = module.ty(*tuple).as_tuple().unwrap();
                let leaf_count = |ty: &byoc_ir::ir::Type| ty.as_tuple().map_or(1, |fields| fields.len());
                let skip: usize = fields[..*index as usize].iter().map(leaf_count).sum();
                get(values, alias, module, *tuple)
                    .into_iter()
                    .skip(skip)
                    .take(leaf_count(&fields[*index as usize]))
                    .collect()
            }
            Expr::Call(call) => match call.callee {
                Callee::Op(op) => {
                    let args: Vec<Value> = call
                        .args
                        .iter()
                        .map(|&arg| {
                            let mut value = get(values, alias, module, arg);
                            match module.ty(arg).as_tuple() {
                                Some(_) => Value::Tuple(value),
                                None => Value::Tensor(value.remove(0)),
                            }
                        })
                        .collect();
                    op::evaluate(op, &call.attrs, &args, usize::MAX).unwrap()
                }
                Callee::Expr(callee) => get(values, alias, module, module.expr(callee).as_function().unwrap().body),
            },
            other => panic!("expected data flow, found {other:?}"),
        };
        values[id] = Some(value.clone());
        value
    }
    get(&mut values, &alias, module, main.body)
}
