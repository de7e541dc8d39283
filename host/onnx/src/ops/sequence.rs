//! Sequences of known length, as tuples, and optional values whose presence is known at compile time.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::ir::{AttrValue, ExprId, Type};
use byoc_ir::tensor::{DType, Tensor};

pub const ROWS: &[Row] = &[
    ("ConcatFromSequence", 11, concat_from_sequence),
    ("Optional", 15, |n| match n.optional_input(0) {
        Some(value) => single_output(n.forward(value)),
        None => Err(n.invalid_node("an empty optional value is not supported")),
    }),
    ("OptionalGetElement", 15, |n| {
        let value = n.input(0)?;
        single_output(n.forward(value))
    }),
    ("OptionalHasElement", 15, |n| {
        let is_present = n.optional_input(0).is_some();
        single_output(n.scalar(DType::Bool, f64::from(u8::from(is_present))))
    }),
    ("SequenceAt", 11, |n| {
        let sequence = n.input(0)?;
        let count = length(n, sequence)?;
        let position = position(n, 1, count, count)?;
        single_output(n.project(sequence, position as u32)?)
    }),
    ("SequenceConstruct", 11, |n| {
        let elements = n.all_inputs()?;
        single_output(n.tuple(&elements)?)
    }),
    ("SequenceEmpty", 11, |n| single_output(n.tuple(&[])?)),
    ("SequenceErase", 11, |n| {
        let mut elements = elements(n)?;
        let position = match n.optional_input(1) {
            Some(_) => position(n, 1, elements.len(), elements.len())?,
            None => elements
                .len()
                .checked_sub(1)
                .ok_or_else(|| n.invalid_node("expected a non-empty sequence, found an empty sequence"))?,
        };
        elements.remove(position);
        single_output(n.tuple(&elements)?)
    }),
    ("SequenceInsert", 11, |n| {
        let mut elements = elements(n)?;
        let new_element = n.input(1)?;
        let position = match n.optional_input(2) {
            Some(_) => position(n, 2, elements.len(), elements.len() + 1)?,
            None => elements.len(),
        };
        elements.insert(position, new_element);
        single_output(n.tuple(&elements)?)
    }),
    ("SequenceLength", 11, |n| {
        let sequence = n.input(0)?;
        let count = length(n, sequence)?;
        single_output(n.tensor(Tensor::scalar(count as i64)))
    }),
    ("SequenceMap", 17, sequence_map),
    ("SplitToSequence", 11, split_to_sequence),
];

/// Returns the number of elements of a sequence.
fn length(n: &Node<'_, '_>, sequence: ExprId) -> Result<usize> {
    match n.value_type(sequence) {
        Type::Tuple(fields) => Ok(fields.len()),
        other => Err(n.invalid_node(format!("expected a sequence, found {other}"))),
    }
}

/// Returns the elements of the sequence in input 0.
fn elements(n: &mut Node<'_, '_>) -> Result<Vec<ExprId>> {
    let sequence = n.input(0)?;
    (0..length(n, sequence)?).map(|i| n.project(sequence, i as u32)).collect()
}

/// Reads a position from input `i`. A negative position counts from the end of `count` elements; the result must be
/// less than `bound`.
fn position(n: &mut Node<'_, '_>, i: usize, count: usize, bound: usize) -> Result<usize> {
    let input_position =
        n.int(i, "position")?.ok_or_else(|| n.invalid_node(format!("input {i} (position) is missing")))?;
    let resolved_position =
        if input_position < 0 { input_position.saturating_add(count as i64) } else { input_position };
    usize::try_from(resolved_position).ok().filter(|&position| position < bound).ok_or_else(|| {
        n.invalid_node(format!("position {input_position} is out of range for a sequence of length {count}"))
    })
}

/// Concatenates the elements along an axis, or stacks them along a new axis.
fn concat_from_sequence(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let elements = elements(n)?;
    let &first_element =
        elements.first().ok_or_else(|| n.invalid_node("expected a non-empty sequence, found an empty sequence"))?;
    let is_stacked = n.int_attr("new_axis", 0)? != 0;
    let axis = n.axis(n.int_attr("axis", 0)?, n.rank(first_element)? + usize::from(is_stacked))? as i64;
    if !is_stacked {
        return single_output(n.concatenate(&elements, axis)?);
    }
    let tuple = n.tuple(&elements)?;
    single_output(n.op("stack", &[tuple], attrs![axis: axis])?)
}

/// Applies a subgraph to the corresponding elements of the input sequences. Tensor inputs are passed to every
/// application.
fn sequence_map(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let graph = n.graph_attr("body")?;
    let inputs = n.all_inputs()?;
    let count = length(n, n.input(0)?)?;
    let mut results: Vec<Vec<ExprId>> = vec![Vec::with_capacity(count); graph.proto.output.len()];
    for i in 0..count {
        let mut arguments = Vec::with_capacity(inputs.len());
        for &input in &inputs {
            let is_sequence = matches!(n.value_type(input), Type::Tuple(_));
            arguments.push(if is_sequence { n.project(input, i as u32)? } else { input });
        }
        for (result, value) in results.iter_mut().zip(n.subgraph(graph, &arguments)?) {
            result.push(value);
        }
    }
    results.iter().map(|elements| n.tuple(elements)).collect()
}

/// Splits a tensor into parts of equal size or of the listed sizes, or into slices of length 1. The split axis of such
/// slices is removed unless `keepdims` is set.
fn split_to_sequence(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let dims = n.dims(data)?;
    let axis = n.axis(n.int_attr("axis", 0)?, dims.len())?;
    let Some(size) = dims[axis].fixed() else { return Err(n.unknown_dims_error(&n.ty(data)?)) };
    let scalar = match n.optional_input(1) {
        Some(sizes) => n.rank(sizes)? == 0,
        None => false,
    };
    let split_sizes = n.ints(1, "split")?;
    let keepdims = split_sizes.is_some() || n.int_attr("keepdims", 1)? != 0;
    let sizes: Vec<usize> = match split_sizes {
        None => vec![1; size],
        Some(sizes) if scalar => {
            let part_size =
                sizes.first().and_then(|&part_size| usize::try_from(part_size).ok()).filter(|&part_size| part_size > 0);
            let part_size = part_size
                .ok_or_else(|| n.invalid_node(format!("input 1 (split): expected a size > 0, found {sizes:?}")))?;
            (0..size.div_ceil(part_size)).map(|i| part_size.min(size - i * part_size)).collect()
        }
        Some(sizes) => {
            let known_sizes: Option<Vec<usize>> = sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
            let sum = |sizes: &Vec<usize>| sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
            known_sizes.filter(|sizes| sum(sizes) == Some(size)).ok_or_else(|| {
                n.invalid_node(format!("input 1 (split): expected sizes that sum to {size}, found {sizes:?}"))
            })?
        }
    };
    let mut offset = 0;
    let mut slices = Vec::with_capacity(sizes.len());
    for size in sizes {
        let part = n.slice(data, axis, offset, offset + size)?;
        let part_axis = AttrValue::ints([axis as i64]);
        slices.push(if keepdims { part } else { n.op("squeeze", &[part], attrs![axis: part_axis])? });
        offset += size;
    }
    single_output(n.tuple(&slices)?)
}
