//! Evaluates expressions that depend only on constants: operator calls on constants, the shape of a value whose
//! dimensions are known, fields of known tuples, ifs on a known condition, and variables bound to a constant.
//!
//! A folded expression becomes a constant with the origins of all expressions that it was computed from, so that the
//! folded model operators can be attributed to the constant.

use crate::analysis::purity::{Purities, Purity};
use crate::analysis::scope::rewritable_exprs;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Callee, Expr, ExprId, IndexVec, Module, OriginId, Type};
use byoc_ir::op::{self, Cost, Params, Value};
use byoc_ir::tensor::{Element, Tensor};
use byoc_ir::typing::Rebuild;
use byoc_ir::with_dtype;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Maximum size of a folded value in bytes, and maximum total growth of the module's constants in bytes: a short module
/// (with `zeros` or `tile`) must not grow into a multi-gigabyte artifact.
const MAX_BYTES: usize = 256 << 20;

/// Maximum amount of work for folding, in addition to [`WORK_PER_ELEMENT`] times the number of elements of the module's
/// constants. The work of a call is the number of elements read and written, or the number of operations if that is
/// larger. Costlier expressions are executed at run time, by faster kernels and under a time limit. The reference
/// implementations take several seconds for this amount of work.
const MAX_WORK: u64 = 1 << 29;

/// Work per element of the module's constants; bounds the average number of consecutive operators that are folded into
/// a weight.
const WORK_PER_ELEMENT: u64 = 32;

/// Maximum number of steps for collecting the origins of all constants. After that, a constant gets only the origin of
/// its last operator.
const MAX_ORIGIN_STEPS: usize = 4 << 20;

/// Evaluates the expressions that are known at compile time.
///
/// # Errors
/// If the rebuilt module is ill-typed, which indicates a bug in this pass.
pub fn fold_constant(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let is_rewritable = rewritable_exprs(module);
    let mut purities = Purities::default();
    let mut lets_of: HashMap<ExprId, Vec<ExprId>> = HashMap::new();
    for (id, node) in module.nodes.iter() {
        if let Expr::Let { var, value, .. } = node.expr
            && is_rewritable[id]
        {
            lets_of.entry(value).or_default().push(var);
        }
    }
    let mut constants: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, module.nodes.len());
    let elements =
        module.nodes.iter().filter_map(|(_, node)| node.expr.as_constant()).map(|tensor| tensor.len() as u64);
    let work = MAX_WORK.saturating_add(elements.sum::<u64>().saturating_mul(WORK_PER_ELEMENT));
    let mut folder = ConstantFolder { origins_of: BTreeMap::new(), remaining_bytes: MAX_BYTES, work };
    let mut result = Rebuild::run_in_order(module, values_first(module), |rebuild, id, expr| {
        if !is_rewritable[id] {
            return Ok(None);
        }
        let replacement = match expr {
            Expr::Var(_) => constants[id],
            Expr::Call(call) => match call.callee {
                Callee::Op(_) => match folder.call(rebuild, id)? {
                    None => folder.shape(rebuild, &mut purities, id),
                    replacement => replacement,
                },
                Callee::Expr(_) => None,
            },
            Expr::Project { tuple, index } => {
                let (module, tuple) = (&rebuild.new.module, rebuild.get(*tuple));
                match module.expr(tuple) {
                    Expr::Tuple(fields) if purities.of(module, tuple) == Purity::Value => Some(fields[*index as usize]),
                    _ => None,
                }
            }
            Expr::If { cond, then, otherwise } => {
                let cond = rebuild.new.module.expr(rebuild.get(*cond)).as_constant();
                let is_true = cond.map(|tensor| tensor.bytes().first() == Some(&1));
                is_true.map(|is_true| rebuild.get(if is_true { *then } else { *otherwise }))
            }
            Expr::Let { var, body, .. } => constants[*var].map(|_| rebuild.get(*body)),
            _ => None,
        };
        if let Some(vars) = lets_of.get(&id) {
            let new = match replacement {
                Some(new) => new,
                None => rebuild.copy(id)?,
            };
            if is_known(&rebuild.new.module, new) {
                // Variables bound to one of these variables are known, too.
                let mut work = vars.clone();
                while let Some(var) = work.pop() {
                    constants[var] = Some(new);
                    rebuild.set(var, new);
                    work.extend(lets_of.get(&var).into_iter().flatten());
                }
            }
            return Ok(Some(new));
        }
        Ok(replacement)
    })?;
    folder.propagate_origins(&mut result);
    Ok(result)
}

/// Returns the live expressions, operands before users, and the value of each let before the body.
fn values_first(module: &Module) -> Vec<ExprId> {
    let mut visited = IndexVec::filled(false, module.nodes.len());
    let mut order = Vec::with_capacity(module.nodes.len());
    for &root in module.globals.values() {
        for id in module.post_order(root, |_, _| true) {
            if !std::mem::replace(&mut visited[id], true) {
                order.push(id);
            }
        }
    }
    order
}

/// Returns true if an expression is a constant or a non-empty tuple of constants.
fn is_known(module: &Module, id: ExprId) -> bool {
    let is_constant = |id: ExprId| module.expr(id).as_constant().is_some();
    match module.expr(id) {
        Expr::Tuple(fields) => !fields.is_empty() && fields.iter().all(|&field| is_constant(field)),
        _ => is_constant(id),
    }
}

struct ConstantFolder {
    /// Sources of each folded constant: the origin of the operator, and the arguments.
    origins_of: BTreeMap<ExprId, (OriginId, Vec<ExprId>)>,
    /// Remaining budget for the growth of constants, in bytes.
    remaining_bytes: usize,
    /// Remaining work budget.
    work: u64,
}

impl ConstantFolder {
    fn call(&mut self, rebuild: &mut Rebuild<'_>, id: ExprId) -> Result<Option<ExprId>, Box<Diagnostic>> {
        let Some((operator, call)) = rebuild.old.expr(id).as_op_call() else { return Ok(None) };
        if op::get(operator).properties.annotation {
            return Ok(None);
        }
        let module = &rebuild.new.module;
        let mut operand_ids = Vec::new();
        let mut constant = |id: ExprId| {
            operand_ids.push(id);
            module.expr(id).as_constant().map(|tensor| (**tensor).clone())
        };
        let values: Option<Vec<Value>> = call
            .args
            .iter()
            .map(|&arg| {
                let arg = rebuild.get(arg);
                match module.expr(arg) {
                    Expr::Tuple(fields) => {
                        let fields: Option<Vec<_>> = fields.iter().map(|&field| constant(field)).collect();
                        fields.map(Value::Tuple)
                    }
                    _ => constant(arg).map(Value::Tensor),
                }
            })
            .collect();
        let Some(values) = values else { return Ok(None) };
        let size = |tensors: &[Tensor]| tensors.iter().map(|t| t.bytes().len()).sum::<usize>();
        let read: usize = values
            .iter()
            .map(|value| match value {
                Value::Tensor(tensor) => tensor.bytes().len(),
                Value::Tuple(fields) => size(fields),
            })
            .sum();
        let def = op::get(operator);
        let types: Vec<Type> = call.args.iter().map(|&arg| rebuild.new.module.ty(rebuild.get(arg)).clone()).collect();
        let cost = Cost { params: Params::new(def, &call.attrs), args: &types, ret: rebuild.old.ty(id) };
        let moved_elements = (0..types.len()).map(|i| cost.arg_len(i)).fold(cost.ret_len(), u64::saturating_add);
        let Some(remaining_work) = self.work.checked_sub((def.flops)(&cost).max(moved_elements)) else {
            return Ok(None);
        };
        // Calls that cannot be evaluated (no reference, result too large, index out of bounds) are evaluated at
        // run time, where the error is reported.
        let limit = MAX_BYTES.min(read.saturating_add(self.remaining_bytes));
        let Ok(results) = op::evaluate(operator, &call.attrs, &values, limit) else { return Ok(None) };
        self.work = remaining_work;
        self.remaining_bytes = self.remaining_bytes.saturating_sub(size(&results).saturating_sub(read));
        let is_tuple = rebuild.old.ty(id).as_tuple().is_some();
        let origin = rebuild.old.nodes[id].origin;
        let mut constants = Vec::with_capacity(results.len());
        for tensor in results {
            let new = rebuild.new.constant(tensor);
            self.origins_of.insert(new, (origin, operand_ids.clone()));
            constants.push(new);
        }
        Ok(Some(if is_tuple { rebuild.new.tuple(&constants)? } else { constants[0] }))
    }

    /// Folds `shape_of` and `ndarray_size` of a value with known dimensions.
    fn shape(&mut self, rebuild: &mut Rebuild<'_>, purities: &mut Purities, id: ExprId) -> Option<ExprId> {
        let (operator, call) = rebuild.old.expr(id).as_op_call()?;
        let counts = match op::get(operator).name {
            "shape_of" => false,
            "ndarray_size" => true,
            _ => return None,
        };
        let arg = rebuild.get(*call.args.first()?);
        let shape = rebuild.new.module.ty(arg).as_tensor()?.shape()?;
        if purities.of(&rebuild.new.module, arg) != Purity::Value {
            return None;
        }
        let result = rebuild.old.ty(id).as_tensor()?;
        let numbers: Vec<usize> =
            if counts { vec![byoc_ir::tensor::element_count(&shape)?] } else { shape.iter().copied().collect() };
        let tensor = with_dtype!(result.dtype, T => {
            let values: Vec<T> = numbers.iter().map(|&n| <T as Element>::from_f64(n as f64)).collect();
            if counts { Tensor::scalar(values[0]) } else { Tensor::from_slice(&[values.len()], &values) }
        });
        // If a dimension does not fit the element type, the call is evaluated at run time, where the error is reported.
        let is_exact = tensor.view().to_i64s()?.iter().zip(&numbers).all(|(&v, &n)| usize::try_from(v) == Ok(n));
        is_exact.then(|| rebuild.new.constant(tensor))
    }

    /// Sets the origins of live constants to the origins of their sources. Intermediate constants are dead and need no
    /// origins.
    fn propagate_origins(&self, module: &mut Module) {
        let live = module.live();
        let mut steps = 0;
        for (&constant, (own_origin, operands)) in self.origins_of.iter().filter(|(id, _)| live[**id]) {
            let mut origins = vec![*own_origin];
            let mut visited = HashSet::new();
            let mut work = operands.clone();
            while let Some(id) = work.pop() {
                if steps >= MAX_ORIGIN_STEPS {
                    break;
                }
                if visited.insert(id) {
                    steps += 1;
                    match self.origins_of.get(&id) {
                        Some((origin, operands)) => {
                            origins.push(*origin);
                            work.extend(operands);
                        }
                        None => origins.push(module.nodes[id].origin),
                    }
                }
            }
            module.nodes[constant].origin = module.origins.union_all(origins);
        }
    }
}
