//! Loops as recursive functions. The parameters of the function are the iteration number, the condition, the loop-carried
//! values, and the scan outputs so far. The recursive call is a tail call, which the executor runs in constant memory.

use super::{Node, Outputs, Result, attrs};
use byoc_ir::ir::{Dim, ExprId, FuncType, TensorType, Type};
use byoc_ir::tensor::{DType, Tensor};

/// Maximum number of attempts to find types that are valid for every iteration. Each attempt can only make more
/// dimensions unknown.
const MAX_ATTEMPTS: usize = 8;

/// Converts a one-element integer tensor to an int64 scalar.
pub(super) fn counter(n: &mut Node<'_, '_>, value: ExprId) -> Result<ExprId> {
    let value = n.cast(value, DType::I64)?;
    n.reshape(value, &[])
}

/// Callback that converts a loop body: receives the iteration number and the loop-carried values of an iteration, and
/// returns the results of that iteration.
pub(super) type Body<'b> = &'b mut dyn FnMut(&mut Node<'_, '_>, ExprId, &[ExprId]) -> Result<Iteration>;

/// Results of one iteration.
pub(super) struct Iteration {
    /// Condition for the next iteration; `None` if it is always true.
    pub next: Option<ExprId>,
    pub carried_values: Vec<ExprId>,
    /// Scan outputs of the iteration, each with the end of the accumulated output at which it is added.
    pub scan_outputs: Vec<(ExprId, End)>,
    /// Declared dimensions of each scan output of an iteration, used if no iteration runs.
    pub declared_shapes: Vec<Vec<Option<usize>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Back,
    Front,
}

/// Bounds of a loop: trip count and initial condition.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Maximum number of iterations.
    pub trips: Option<ExprId>,
    /// Condition for the first iteration; `None` if always true.
    pub start: Option<ExprId>,
}

/// Loop-carried values.
pub(super) struct Carried {
    pub initial_values: Vec<ExprId>,
    /// True for each value that the body computes anew without reading it. Its initial value may have any type.
    pub is_overwritten: Vec<bool>,
}

impl Carried {
    /// Returns loop-carried values that the body reads.
    pub fn read(initial_values: Vec<ExprId>) -> Carried {
        Carried { is_overwritten: vec![false; initial_values.len()], initial_values }
    }
}

/// Creates a loop, and returns the final loop-carried values followed by the scan outputs.
pub(super) fn run_loop(n: &mut Node<'_, '_>, limits: Limits, carried: Carried, body: Body<'_>) -> Result<Outputs> {
    let mut types: Vec<TensorType> = carried.initial_values.iter().map(|&value| n.ty(value)).collect::<Result<_>>()?;
    for _ in 0..MAX_ATTEMPTS {
        match try_loop(n, limits, &carried, &types, body)? {
            Attempt::Done(outputs) => return Ok(outputs),
            Attempt::Wider(wider_types) => types = wider_types,
        }
    }
    Err(n.invalid_node("body: the types of the loop-carried values change in every iteration"))
}

enum Attempt {
    Done(Outputs),
    /// Wider types of the loop-carried values, for the next attempt.
    Wider(Vec<TensorType>),
}

/// Creates a loop whose loop-carried values have the types `types` in every iteration.
fn try_loop(
    n: &mut Node<'_, '_>,
    limits: Limits,
    carried: &Carried,
    types: &[TensorType],
    body: Body<'_>,
) -> Result<Attempt> {
    let (int, bool_type) = (Type::scalar(DType::I64), Type::scalar(DType::Bool));
    let iteration = n.variable("iteration", int.clone());
    let continue_condition = n.variable("continue", bool_type.clone());
    let values: Vec<ExprId> =
        types.iter().map(|ty| n.variable("carried", Type::tensor_of(ty.dtype, ty.dims.clone()))).collect();
    n.open_function();
    n.enter_loop(iteration);
    let results_of_body = body(n, iteration, &values);
    n.leave_loop();
    let Iteration { next, carried_values: mut results, scan_outputs, declared_shapes } = results_of_body?;
    let mut wider_types = types.to_vec();
    for (i, (ty, result)) in wider_types.iter_mut().zip(&mut results).enumerate() {
        let mut result_type = n.ty(*result)?;
        if !has_same_rank_and_dtype(&result_type, ty) && carried.is_overwritten[i] {
            let dims = result_type.dims.iter().map(|dim| dim.fixed().map_or(Dim::Any, Dim::Fixed)).collect();
            *ty = TensorType { dims, ..result_type };
            continue;
        }
        if is_single(&result_type.dims) && is_single(&ty.dims) && result_type.dims.len() > ty.dims.len() {
            *result = n.reshape(*result, &vec![1; ty.dims.len()])?;
            result_type = n.ty(*result)?;
        }
        if !has_same_rank_and_dtype(&result_type, ty) {
            return Err(n.invalid_node(format!("body: loop-carried value {i}: expected {ty}, found {result_type}")));
        }
        for (dim, actual_dim) in ty.dims.iter_mut().zip(&result_type.dims) {
            if dim != actual_dim {
                *dim = Dim::Any;
            }
        }
    }
    if wider_types != types {
        n.close_function();
        return Ok(Attempt::Wider(wider_types));
    }
    let mut params = vec![iteration, continue_condition];
    params.extend(&values);
    let mut scan_parts = Vec::with_capacity(scan_outputs.len());
    for &(value, end) in &scan_outputs {
        let ty = n.ty(value)?;
        let dims: Vec<Dim> = std::iter::once(Dim::Any).chain(ty.dims.iter().cloned()).collect();
        let part = n.variable("scanned", Type::tensor_of(ty.dtype, dims));
        params.push(part);
        scan_parts.push((part, append(n, iteration, part, value, end)?));
    }
    let results_type = Type::tuple(params[2..].iter().map(|&param| n.value_type(param)).collect::<Vec<_>>());
    let param_types: Vec<Type> = params.iter().map(|&param| n.value_type(param)).collect();
    let function = n.variable("loop", Type::func(FuncType::new(param_types, results_type.clone())));
    let next_iteration = n.with_scalar("add", iteration, 1.0)?;
    let true_value = n.scalar(DType::Bool, 1.0);
    let mut arguments = vec![next_iteration, next.unwrap_or(true_value)];
    arguments.extend(&results);
    arguments.extend(scan_parts.iter().map(|part| part.1));
    let next_call = n.call_function(function, &arguments)?;
    let final_values = n.tuple(&params[2..])?;
    let is_below_limit = match limits.trips.map(|trip_count| n.capture(trip_count)) {
        Some(trip_count) => Some(n.op_without_attrs("less", &[iteration, trip_count])?),
        None => None,
    };
    let continues = match is_below_limit {
        Some(is_below_limit) => n.op_without_attrs("logical_and", &[is_below_limit, continue_condition])?,
        None => continue_condition,
    };
    let branch = n.if_else(continues, [next_call, final_values])?;
    let definition = n.function(&params, branch, results_type)?;
    let captures = n.close_function();
    let zero = n.tensor(Tensor::scalar(0i64));
    let mut initial_arguments = vec![zero, limits.start.unwrap_or(true_value)];
    for (&value, ty) in carried.initial_values.iter().zip(types) {
        let is_replaced = !has_same_rank_and_dtype(&n.ty(value)?, ty);
        // Without iterations, the value is empty, or zeros if its dimensions are known.
        let shape = ty.dims.iter().map(|dim| dim.fixed().unwrap_or(0)).collect::<Vec<_>>();
        initial_arguments.push(if is_replaced { n.zeros(ty.dtype, &shape)? } else { value });
    }
    for (i, &(value, _)) in scan_outputs.iter().enumerate() {
        let ty = n.ty(value)?;
        let declared_size = |axis: usize| declared_shapes.get(i).and_then(|dims| *dims.get(axis)?);
        let size = |(axis, dim): (usize, &Dim)| dim.fixed().or_else(|| declared_size(axis)).unwrap_or(0);
        let shape: Vec<usize> = std::iter::once(0).chain(ty.dims.iter().enumerate().map(size)).collect();
        initial_arguments.push(n.zeros(ty.dtype, &shape)?);
    }
    let loop_call = n.call_function(function, &initial_arguments)?;
    let mut result = n.let_in(function, definition, loop_call)?;
    for (value, variable) in captures.into_iter().rev() {
        result = n.let_in(variable, value, result)?;
    }
    (0..params.len() - 2).map(|i| n.project(result, i as u32)).collect::<Result<Outputs>>().map(Attempt::Done)
}

fn has_same_rank_and_dtype(a: &TensorType, b: &TensorType) -> bool {
    a.dtype == b.dtype && a.dims.len() == b.dims.len()
}

/// Adds the scan output of an iteration to the scan outputs of previous iterations. The first iteration replaces the
/// initial value, which has no elements and may have unknown dimensions.
fn append(n: &mut Node<'_, '_>, iteration: ExprId, part: ExprId, value: ExprId, end: End) -> Result<ExprId> {
    let row = n.op("expand_dims", &[value], attrs![axis: 0])?;
    let operands = if end == End::Back { [part, row] } else { [row, part] };
    let extended_outputs = n.concatenate(&operands, 0)?;
    if n.ty(value)?.shape().is_some() {
        return Ok(extended_outputs);
    }
    let zero = n.tensor(Tensor::scalar(0i64));
    let is_first = n.op_without_attrs("equal", &[iteration, zero])?;
    n.if_else(is_first, [row, extended_outputs])
}

/// Tests whether a tensor with these dimensions has a single element.
pub(super) fn is_single(dims: &[Dim]) -> bool {
    dims.iter().all(|dim| dim.fixed() == Some(1))
}
