//! Control flow: If, Loop and Scan.

use super::loops::{Carried, End, Iteration, Limits, counter, is_single, run_loop};
use super::sequence::{self, is_sequence};
use super::{Node, Outputs, Result, Row, attrs};
use crate::graph::FlatGraph;
use crate::proto::{DimensionProto, DimensionValue, ValueInfoProto};
use crate::state::Error;
use byoc_ir::diag::codes;
use byoc_ir::ir::{AttrValue, Dim, ExprId, TensorType, Type};
use byoc_ir::tensor::{DType, Tensor};
use std::cmp::Ordering;

pub const ROWS: &[Row] = &[("If", 1, branch), ("Loop", 1, repeat), ("Scan", 8, scan_8), ("Scan", 9, scan)];

/// Maximum number of iterations of an unrolled loop.
const MAX_UNROLLED: i64 = 1024;

/// Maximum batch size of an opset-8 Scan.
const MAX_BATCH: usize = 256;

fn branch(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let cond = condition(n, n.input(0)?)?;
    let (then_graph, else_graph) = (n.graph_attr("then_branch")?, n.graph_attr("else_branch")?);
    if let Some(constant_cond) = n.constant_value(cond) {
        let is_true = constant_cond.view().to_i64s().is_some_and(|values| values == [1]);
        return n.subgraph(if is_true { then_graph } else { else_graph }, &[]);
    }
    let (mut then_values, mut else_values) = match (n.subgraph(then_graph, &[]), n.subgraph(else_graph, &[])) {
        (Ok(then_values), Ok(else_values)) => (then_values, else_values),
        (Ok(then_values), Err(error)) => {
            let failing_values = failing_branch(n, "else_branch", cond, &then_values, error)?;
            (then_values, failing_values)
        }
        (Err(error), Ok(else_values)) => {
            let is_else = n.op_without_attrs("logical_not", &[cond])?;
            (failing_branch(n, "then_branch", is_else, &else_values, error)?, else_values)
        }
        (Err(error), Err(_)) => return Err(error),
    };
    if then_values.len() != else_values.len() || then_values.is_empty() {
        let message = format!(
            "expected branches with the same number of outputs >= 1, found {} and {}",
            then_values.len(),
            else_values.len()
        );
        return Err(n.invalid_node(message));
    }
    // Packed sequences are returned as two values, strings with their bytes.
    let (mut branches, mut forms) = ([Vec::new(), Vec::new()], Vec::new());
    for values in then_values.iter_mut().zip(&mut else_values) {
        let bytes = [n.string_bytes(*values.0), n.string_bytes(*values.1)];
        let is_packed = match packed_alike(n, [*values.0, *values.1])? {
            Some(fields) => {
                branches.iter_mut().zip(fields).for_each(|(branch, fields)| branch.extend(fields));
                true
            }
            None => {
                unify_ranks(n, values.0, values.1)?;
                branches[0].push(*values.0);
                branches[1].push(*values.1);
                false
            }
        };
        match bytes {
            [Some(then_bytes), Some(else_bytes)] => {
                branches[0].push(then_bytes);
                branches[1].push(else_bytes);
            }
            [None, None] => {}
            _ => {
                let message = "branches: expected strings in both, found strings in one of them";
                return Err(Box::new(n.error(codes::frontends::STRING_MISUSE, message)));
            }
        }
        forms.push(Form { is_packed, has_strings: bytes[0].is_some() });
    }
    let branches_len = branches[0].len();
    let branches = [n.tuple(&branches[0])?, n.tuple(&branches[1])?];
    let result = n.if_else(cond, branches)?;
    let fields = (0..branches_len as u32).map(|i| n.project(result, i)).collect::<Result<Vec<_>>>()?;
    rebuild(n, &forms, &fields)
}

/// Form in which branches and loops hand on a value: sequences as two tensors, and strings with their bytes.
#[derive(Clone, Copy)]
struct Form {
    is_packed: bool,
    has_strings: bool,
}

/// Returns the values of these forms that consist of the given tensors.
fn rebuild(n: &mut Node<'_, '_>, forms: &[Form], tensors: &[ExprId]) -> Result<Vec<ExprId>> {
    let mut tensors = tensors.iter().copied();
    let mut values = Vec::with_capacity(forms.len());
    for &Form { is_packed, has_strings } in forms {
        let mut next = || tensors.next().ok_or_else(|| n.invalid_node("expected a tensor for each part of a value"));
        let (first, shapes) = (next()?, is_packed.then(&mut next).transpose()?);
        let bytes = has_strings.then(&mut next).transpose()?;
        let value = match shapes {
            Some(shapes) => n.packed_sequence([first, shapes])?,
            None => first,
        };
        values.push(bytes.map_or(value, |bytes| n.with_bytes(value, bytes)));
    }
    Ok(values)
}

/// Returns the fields of the sequences of both branches in packed form, unless the branches return tensors or sequences
/// of the same known length. One of the sequences may be empty.
fn packed_alike(n: &mut Node<'_, '_>, values: [ExprId; 2]) -> Result<Option<[[ExprId; 2]; 2]>> {
    let have_same_type = n.value_type(values[0]) == n.value_type(values[1]);
    if !values.iter().all(|&value| is_sequence(n, value))
        || (have_same_type && !values.iter().any(|&value| n.is_packed(value)))
    {
        return Ok(None);
    }
    let types = [sequence::element_type(n, values[0])?, sequence::element_type(n, values[1])?];
    let Some((dtype, rank)) = types[0].or(types[1]) else { return Ok(None) };
    let mut fields = [values; 2];
    for ((fields, value), ty) in fields.iter_mut().zip(values).zip(types) {
        let packed = if ty.is_some() { sequence::pack(n, value)? } else { sequence::empty(n, dtype, rank)? };
        *fields = [packed.data, packed.shapes];
    }
    Ok(Some(fields))
}

/// Returns values for the branch `name`, which cannot be imported; computing them fails at run time. A branch may be
/// invalid for the bound dimensions if the other one serves them. `is_other` is true if the run takes the other branch,
/// which has the results `other_values`.
fn failing_branch(
    n: &mut Node<'_, '_>,
    name: &str,
    is_other: ExprId,
    other_values: &[ExprId],
    error: Error,
) -> Result<Outputs> {
    let types: Option<Vec<TensorType>> =
        other_values.iter().map(|&value| n.value_type(value).as_tensor().cloned()).collect();
    let is_invalid_node = matches!(error.code, codes::frontends::BAD_NODE | codes::frontends::NOT_CONSTANT);
    let Some(types) = types.filter(|_| is_invalid_node) else { return Err(error) };
    n.warn(format!("a run that takes {name} fails: {}", error.message));
    // In this branch, `is_other` is false, so there are no rows, and they cannot be reshaped to a scalar.
    let flags = n.reshape(is_other, &[1])?;
    let rows = n.op_without_attrs("argwhere", &[flags])?;
    let scalar = n.reshape(rows, &[])?;
    let value = |ty: TensorType| {
        let fill = n.cast(scalar, ty.dtype)?;
        let dims = AttrValue::ints(ty.dims.iter().map(|dim| dim.fixed().unwrap_or(1) as i64));
        n.op("full", &[fill], attrs![shape: dims, dtype: ty.dtype])
    };
    types.into_iter().map(value).collect()
}

/// Squeezes the branch result of higher rank to the rank of the other one. Exporters write `Squeeze` of a dimension that
/// may differ from 1 as an `If`, whose other branch the rest of the model does not expect; the squeeze fails at run time
/// if that branch is taken.
fn unify_ranks(n: &mut Node<'_, '_>, then_value: &mut ExprId, else_value: &mut ExprId) -> Result<()> {
    let (then_type, else_type) = (n.value_type(*then_value), n.value_type(*else_value));
    let (Some(then_type), Some(else_type)) = (then_type.as_tensor().cloned(), else_type.as_tensor().cloned()) else {
        return Ok(());
    };
    let (value, dims, target_dims) = match then_type.dims.len().cmp(&else_type.dims.len()) {
        Ordering::Equal => return Ok(()),
        Ordering::Greater => (then_value, &then_type.dims, &else_type.dims),
        Ordering::Less => (else_value, &else_type.dims, &then_type.dims),
    };
    let Some(axes) = squeezed_axes(dims, target_dims) else {
        let message = format!(
            "condition: expected a compile-time constant for branches of types {then_type} and {else_type}, found a run-time value"
        );
        let error = n.error(codes::frontends::NOT_CONSTANT, message);
        return Err(Node::with_bindings(error, &[&then_type, &else_type]));
    };
    *value = n.op("squeeze", &[*value], attrs![axis: AttrValue::ints(axes)])?;
    Ok(())
}

/// Returns the axes whose removal turns `dims` into `target_dims`; `None` if a known dimension would be removed. Known
/// dimensions of 1 are removed only from tensors with a single element.
fn squeezed_axes(dims: &[Dim], target_dims: &[Dim]) -> Option<Vec<i64>> {
    let is_single = is_single(dims);
    let (mut axes, mut targets) = (Vec::new(), target_dims.iter().peekable());
    for (axis, dim) in dims.iter().enumerate() {
        if targets.next_if(|&target| target == dim).is_none() {
            (is_single || dim.fixed().is_none()).then(|| axes.push(axis as i64))?;
        }
    }
    targets.next().is_none().then_some(axes)
}

/// Converts a one-element condition tensor to a scalar.
fn condition(n: &mut Node<'_, '_>, value: ExprId) -> Result<ExprId> {
    let ty = n.ty(value)?;
    let is_single = ty.dims.iter().all(|dim| dim.fixed().is_none_or(|size| size == 1));
    if ty.dtype != DType::Bool || !is_single {
        return Err(n.invalid_node(format!("condition: expected a single Boolean, found {ty}")));
    }
    n.reshape(value, &[])
}

pub(super) fn repeat(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let graph = n.graph_attr("body")?;
    let trip_count = n.optional_input(0).map(|trip_count| counter(n, trip_count)).transpose()?;
    let start = n.optional_input(1).map(|start| condition(n, start)).transpose()?;
    let carried_values = (2..n.input_count()).map(|i| n.input(i)).collect::<Result<Vec<_>>>()?;
    let count = carried_values.len();
    if graph.proto.input.len() != count + 2 || graph.proto.output.len() < count + 1 {
        return Err(n.invalid_node(format!(
            "number of body inputs and outputs: expected {} and at least {}, found {} and {}",
            count + 2,
            count + 1,
            graph.proto.input.len(),
            graph.proto.output.len()
        )));
    }
    if carried_values.iter().any(|&value| is_sequence(n, value) || n.has_strings(value)) {
        let limits = Limits { trips: trip_count, start };
        return match is_unrolled(n, limits).then(|| unroll(n, graph, limits, carried_values.clone())) {
            Some(Ok(outputs)) => Ok(outputs),
            // The condition or a position is known in the run only.
            Some(Err(error)) if error.code != codes::frontends::NOT_CONSTANT => Err(error),
            _ => repeat_with_sequences(n, graph, limits, &carried_values),
        };
    }
    let has_no_condition = start.is_none();
    // The body returns an invariant value under the name of its input, so every iteration reads the initial value.
    let is_invariant: Vec<bool> =
        (0..count).map(|k| graph.proto.output[k + 1].name == graph.proto.input[k + 2].name).collect();
    let varying: Vec<usize> = (0..count).filter(|&k| !is_invariant[k]).collect();
    let read_names = graph.read_names();
    let is_overwritten = varying.iter().map(|&k| !read_names.contains(&*graph.proto.input[k + 2].name)).collect();
    let mut body = |n: &mut Node<'_, '_>, iteration: ExprId, values: &[ExprId]| {
        let mut inputs = vec![iteration, n.scalar(DType::Bool, 1.0)];
        let mut values = values.iter();
        for (&is_invariant, &initial_value) in is_invariant.iter().zip(&carried_values) {
            let varying_value = if is_invariant { None } else { values.next() };
            inputs.push(varying_value.map_or_else(|| n.capture(initial_value), |&value| value));
        }
        let outputs = n.subgraph(graph, &inputs)?;
        check_numbers(n, &outputs)?;
        // Without an initial condition, the condition from the body has no effect.
        let next = if has_no_condition { None } else { Some(condition(n, outputs[0])?) };
        Ok(Iteration {
            next: next.filter(|&next| !is_true(n, next)),
            carried_values: varying.iter().map(|&k| outputs[k + 1]).collect(),
            scan_outputs: outputs[count + 1..].iter().map(|&value| (value, End::Back)).collect(),
            declared_shapes: graph.proto.output[count + 1..].iter().map(declared_dims).collect(),
        })
    };
    let limits = Limits { trips: trip_count, start: start.filter(|&start| !is_true(n, start)) };
    let initial_values = varying.iter().map(|&k| carried_values[k]).collect();
    let mut results = run_loop(n, limits, Carried { initial_values, is_overwritten }, &mut body)?.into_iter();
    let mut outputs = Vec::with_capacity(graph.proto.output.len() - 1);
    for (&is_invariant, &initial_value) in is_invariant.iter().zip(&carried_values) {
        outputs.extend(if is_invariant { Some(initial_value) } else { results.next() });
    }
    outputs.extend(results);
    Ok(outputs)
}

/// Tests whether a loop that carries sequences may be unrolled: the number of its iterations is known and small.
fn is_unrolled(n: &mut Node<'_, '_>, limits: Limits) -> bool {
    let mut known = |value: Option<ExprId>| match value {
        Some(value) => n.constant_value(value)?.view().to_i64s()?.first().copied(),
        None => Some(0),
    };
    let (trips, start) = (known(limits.trips), known(limits.start));
    let is_bounded = limits.trips.is_some() || limits.start.is_some();
    is_bounded && start.is_some() && trips.is_some_and(|trips| trips <= MAX_UNROLLED)
}

/// Converts a loop that carries sequences, of a number of iterations that the run determines: the sequences are packed.
fn repeat_with_sequences(
    n: &mut Node<'_, '_>,
    graph: &FlatGraph,
    limits: Limits,
    carried_values: &[ExprId],
) -> Result<Outputs> {
    let count = carried_values.len();
    let types = sequence_types(n, graph, carried_values)?;
    let form = |n: &Node<'_, '_>, (value, ty): (&ExprId, &Option<_>)| Form {
        is_packed: ty.is_some(),
        has_strings: n.has_strings(*value),
    };
    let forms: Vec<Form> = carried_values.iter().zip(&types).map(|pair| form(n, pair)).collect();
    // Sequences are carried as two values, strings with their bytes.
    let mut initial_values = Vec::new();
    for (&value, ty) in carried_values.iter().zip(&types) {
        carry(n, value, *ty, &mut initial_values)?;
    }
    let has_no_condition = limits.start.is_none();
    let mut body = |n: &mut Node<'_, '_>, iteration: ExprId, values: &[ExprId]| {
        let mut inputs = vec![iteration, n.scalar(DType::Bool, 1.0)];
        inputs.extend(rebuild(n, &forms, values)?);
        let outputs = n.subgraph(graph, &inputs)?;
        check_numbers(n, &outputs[count + 1..])?;
        let next = if has_no_condition { None } else { Some(condition(n, outputs[0])?) };
        let mut carried_values = Vec::new();
        for ((&value, ty), form) in outputs[1..=count].iter().zip(&types).zip(&forms) {
            if n.has_strings(value) != form.has_strings {
                let message =
                    "body: expected strings for each loop-carried value of strings, and numbers for the others";
                return Err(Box::new(n.error(codes::frontends::STRING_MISUSE, message)));
            }
            carry(n, value, *ty, &mut carried_values)?;
        }
        Ok(Iteration {
            next: next.filter(|&next| !is_true(n, next)),
            carried_values,
            scan_outputs: outputs[count + 1..].iter().map(|&value| (value, End::Back)).collect(),
            declared_shapes: graph.proto.output[count + 1..].iter().map(declared_dims).collect(),
        })
    };
    let value_count = initial_values.len();
    let limits = Limits { start: limits.start.filter(|&start| !is_true(n, start)), ..limits };
    let results = run_loop(n, limits, Carried::read(initial_values), &mut body)?;
    let mut outputs = rebuild(n, &forms, &results[..value_count])?;
    outputs.extend(&results[value_count..]);
    Ok(outputs)
}

/// Adds the tensors in which a loop carries a value; `ty` is the type of the tensors of a sequence.
fn carry(n: &mut Node<'_, '_>, value: ExprId, ty: Option<(DType, usize)>, tensors: &mut Vec<ExprId>) -> Result<()> {
    match ty {
        None => tensors.push(value),
        Some((dtype, rank)) => {
            let packed = match sequence::element_type(n, value)? {
                Some(_) => sequence::pack(n, value)?,
                None => sequence::empty(n, dtype, rank)?,
            };
            tensors.extend([packed.data, packed.shapes]);
        }
    }
    tensors.extend(n.string_bytes(value));
    Ok(())
}

/// Checks that none of the scan outputs of a loop has strings.
fn check_numbers(n: &Node<'_, '_>, outputs: &[ExprId]) -> Result<()> {
    match outputs.iter().any(|&output| n.has_strings(output)) {
        true => {
            let message = "body: expected numbers as results of each iteration, found strings";
            Err(Box::new(n.error(codes::frontends::STRING_MISUSE, message)))
        }
        false => Ok(()),
    }
}

/// Returns the element type and rank of each carried sequence; `None` for a tensor. A conversion of the body tells what
/// it adds to an empty sequence.
fn sequence_types(
    n: &mut Node<'_, '_>,
    graph: &FlatGraph,
    carried_values: &[ExprId],
) -> Result<Vec<Option<(DType, usize)>>> {
    let iteration = n.variable("iteration", Type::scalar(DType::I64));
    n.open_function();
    let mut inputs = vec![iteration, n.scalar(DType::Bool, 1.0)];
    inputs.extend(carried_values.iter().map(|&value| n.capture(value)));
    let outputs = n.subgraph(graph, &inputs);
    let element_types = outputs.and_then(|outputs| {
        let ty = |(&value, &output): (&ExprId, &ExprId)| match is_sequence(n, value) {
            false => Ok(None),
            true => match sequence::element_type(n, value)? {
                Some(ty) => Ok(Some(ty)),
                None => sequence::element_type(n, output)?.map(Some).ok_or_else(|| {
                    n.invalid_node("body: expected a sequence that gets a tensor, found one that stays empty")
                }),
            },
        };
        carried_values.iter().zip(&outputs[1..]).map(ty).collect()
    });
    n.close_function();
    element_types
}

/// Unrolls a loop that carries sequences, because the length of a sequence is part of its type. The trip count and the
/// condition of every iteration must be constants.
fn unroll(n: &mut Node<'_, '_>, graph: &FlatGraph, limits: Limits, mut carried_values: Vec<ExprId>) -> Result<Outputs> {
    let count = carried_values.len();
    let trip_count = limits.trips.map(|trip_count| known(n, trip_count, "trip count")).transpose()?;
    let mut continues = match limits.start {
        Some(start) => known(n, start, "condition")? != 0,
        None => true,
    };
    let mut scan_rows: Vec<Vec<ExprId>> = vec![Vec::new(); graph.proto.output.len() - count - 1];
    let mut iteration = 0;
    while continues && trip_count.is_none_or(|trip_count| iteration < trip_count) {
        if iteration == MAX_UNROLLED {
            let message = format!("expected at most {MAX_UNROLLED} iterations of an unrolled loop");
            return Err(Box::new(n.error(codes::frontends::NOT_CONSTANT, message)));
        }
        let mut inputs = vec![n.tensor(Tensor::scalar(iteration)), n.scalar(DType::Bool, 1.0)];
        inputs.append(&mut carried_values);
        let outputs = n.subgraph(graph, &inputs)?;
        // Without an initial condition, the condition from the body has no effect.
        if limits.start.is_some() {
            let condition = condition(n, outputs[0])?;
            continues = known(n, condition, "condition")? != 0;
        }
        check_numbers(n, &outputs[count + 1..])?;
        carried_values = outputs[1..=count].to_vec();
        scan_rows.iter_mut().zip(&outputs[count + 1..]).for_each(|(rows, &value)| rows.push(value));
        iteration += 1;
    }
    for (i, rows) in scan_rows.iter().enumerate() {
        if rows.is_empty() {
            let name = &graph.proto.output[count + 1 + i].name;
            return Err(
                n.invalid_node(format!("scan output \"{name}\": expected an iteration, found a loop without any"))
            );
        }
        let rows = n.tuple(rows)?;
        carried_values.push(n.op("stack", &[rows], attrs![axis: 0])?);
    }
    Ok(carried_values)
}

/// Returns the constant trip count or condition of a loop that carries a sequence, as an integer.
fn known(n: &mut Node<'_, '_>, value: ExprId, role: &str) -> Result<i64> {
    let constant = n.constant_value(value).and_then(|constant| constant.view().to_i64s()?.first().copied());
    constant.ok_or_else(|| {
        let message = format!(
            "{role}: expected a compile-time constant for a loop that carries a sequence, found a run-time value"
        );
        Box::new(n.error(codes::frontends::NOT_CONSTANT, message))
    })
}

/// Returns the declared dimensions of a value; `None` for each non-numeric dimension.
fn declared_dims(info: &ValueInfoProto) -> Vec<Option<usize>> {
    let shape = info.r#type.as_ref().and_then(|ty| ty.tensor_type.as_ref()?.shape.as_ref());
    let integer = |dim: &DimensionProto| match dim.value {
        Some(DimensionValue::DimValue(size)) => usize::try_from(size).ok(),
        _ => None,
    };
    shape.map_or_else(Vec::new, |shape| shape.dim.iter().map(integer).collect())
}

fn is_true(n: &mut Node<'_, '_>, condition: ExprId) -> bool {
    n.constant_value(condition)
        .is_some_and(|constant_cond| constant_cond.view().to_i64s().is_some_and(|values| values == [1]))
}

fn scan(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let graph = n.graph_attr("body")?;
    let scan_count = usize::try_from(n.int_attr("num_scan_inputs", 0)?).unwrap_or(0);
    let count = n.input_count().checked_sub(scan_count).filter(|_| scan_count > 0);
    let Some(count) =
        count.filter(|&count| graph.proto.input.len() == n.input_count() && graph.proto.output.len() >= count)
    else {
        return Err(n.invalid_node(format!(
            "num_scan_inputs and number of body inputs and outputs: expected 1 to {0}, {0} and at least one output per \
             state variable, found {scan_count}, {1} and {2}",
            n.input_count(),
            graph.proto.input.len(),
            graph.proto.output.len()
        )));
    };
    let carried_values = (0..count).map(|i| n.input(i)).collect::<Result<Vec<_>>>()?;
    let inputs = (count..count + scan_count).map(|i| n.input(i)).collect::<Result<Vec<_>>>()?;
    scan_over(n, graph, carried_values, &inputs)
}

/// Converts the opset-8 Scan, whose values have a leading batch axis, to one loop per batch element.
fn scan_8(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let graph = n.graph_attr("body")?;
    let scan_count = usize::try_from(n.int_attr("num_scan_inputs", 0)?).unwrap_or(0);
    if n.optional_input(0).is_some() {
        return Err(n.invalid_node("input 0 (sequence_lens) is not supported"));
    }
    let values = (1..n.input_count()).map(|i| n.input(i)).collect::<Result<Vec<_>>>()?;
    let Some(count) = values.len().checked_sub(scan_count).filter(|_| graph.proto.input.len() == values.len()) else {
        return Err(n.invalid_node(format!(
            "num_scan_inputs and number of body inputs: expected at most {0} and {0}, found {scan_count} and {1}",
            values.len(),
            graph.proto.input.len()
        )));
    };
    let batch = match values.first() {
        Some(&value) => n.dims(value)?.first().and_then(Dim::fixed).unwrap_or(0),
        None => 0,
    };
    if !(1..=MAX_BATCH).contains(&batch) {
        return Err(n.invalid_node(format!("expected a known batch size from 1 to {MAX_BATCH}, found {batch}")));
    }
    let mut elements = Vec::with_capacity(batch);
    for i in 0..batch {
        let index = n.tensor(Tensor::scalar(i as i64));
        let element_values = values.iter().map(|&value| n.op("take", &[value, index], attrs![axis: 0]));
        let element_values = element_values.collect::<Result<Vec<_>>>()?;
        elements.push(scan_over(n, graph, element_values[..count].to_vec(), &element_values[count..])?);
    }
    let stack = |i: usize| {
        let elements_of_output: Vec<ExprId> = elements.iter().map(|element| element[i]).collect();
        let stacked_output = n.tuple(&elements_of_output)?;
        n.op("stack", &[stacked_output], attrs![axis: 0])
    };
    (0..graph.proto.output.len()).map(stack).collect()
}

/// Creates a loop over the scanned `inputs`.
fn scan_over(
    n: &mut Node<'_, '_>,
    graph: &FlatGraph,
    carried_values: Vec<ExprId>,
    inputs: &[ExprId],
) -> Result<Outputs> {
    let (count, scan_outputs) = (carried_values.len(), inputs.len());
    let outputs = graph.proto.output.len() - count;
    let axes = scan_attr(n, "scan_input_axes", scan_outputs)?;
    let directions = scan_attr(n, if n.opset < 9 { "directions" } else { "scan_input_directions" }, scan_outputs)?;
    let output_axes = scan_attr(n, "scan_output_axes", outputs)?;
    let output_directions = scan_attr(n, "scan_output_directions", outputs)?;
    let axes: Vec<usize> =
        inputs.iter().zip(axes).map(|(&input, axis)| n.axis(axis, n.rank(input)?)).collect::<Result<_>>()?;
    let length = n.shape_vector(inputs[0], axes[0]..axes[0] + 1)?;
    let length = counter(n, length)?;
    let last_index = n.with_scalar("subtract", length, 1.0)?;
    let mut body = |n: &mut Node<'_, '_>, iteration: ExprId, values: &[ExprId]| {
        let mut arguments = values.to_vec();
        for (i, &input) in inputs.iter().enumerate() {
            let (input, last_index) = (n.capture(input), n.capture(last_index));
            let index =
                if directions[i] == 0 { iteration } else { n.op_without_attrs("subtract", &[last_index, iteration])? };
            arguments.push(n.op("take", &[input, index], attrs![axis: axes[i] as i64, mode: "fast"])?);
        }
        let results = n.subgraph(graph, &arguments)?;
        let end = |i: usize| if output_directions[i] == 0 { End::Back } else { End::Front };
        let scan_outputs = results[count..].iter().enumerate().map(|(i, &value)| (value, end(i))).collect();
        let declared_shapes = graph.proto.output[count..].iter().map(declared_dims).collect();
        Ok(Iteration { next: None, carried_values: results[..count].to_vec(), scan_outputs, declared_shapes })
    };
    let mut results =
        run_loop(n, Limits { trips: Some(length), start: None }, Carried::read(carried_values), &mut body)?;
    for (result, axis) in results[count..].iter_mut().zip(output_axes) {
        let rank = n.rank(*result)?;
        let axis = n.axis(axis, rank)?;
        let mut order: Vec<usize> = (1..rank).collect();
        order.insert(axis, 0);
        *result = n.transpose(*result, &order)?;
    }
    Ok(results)
}

/// Returns a list attribute of Scan that has `count` values, one per input or output; all are 0 by default.
fn scan_attr(n: &Node<'_, '_>, name: &str, count: usize) -> Result<Vec<i64>> {
    match n.ints_attr(name)? {
        None => Ok(vec![0; count]),
        Some(values) if values.len() == count => Ok(values),
        Some(values) => {
            Err(n.invalid_node(format!("attribute {name}: expected length {count}, found {}", values.len())))
        }
    }
}
