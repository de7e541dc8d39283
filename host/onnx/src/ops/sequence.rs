//! Sequences and optional values.
//!
//! A sequence of known length is a tuple of its elements. One whose length, or the position of an element, is known in
//! the run only is *packed*: a tuple of its elements as one vector, and of their shapes, which operators `sequence.*`
//! read and write. Its tensors have the same rank. An optional value is the value; its presence is known when the model
//! is read.

use super::loops::{Carried, Iteration, Limits, counter, run_loop};
use super::{Node, Outputs, Result, Row, attrs, single_output};
use crate::tensor::STRING;
use byoc_ir::diag::codes;
use byoc_ir::ir::{AttrValue, ExprId, Type};
use byoc_ir::tensor::strings::BEGIN_SHIFT;
use byoc_ir::tensor::{DType, Tensor};

pub const ROWS: &[Row] = &[
    ("ConcatFromSequence", 11, concat_from_sequence),
    ("Optional", 15, |n| match n.optional_input(0) {
        Some(value) => single_output(n.forward(value)),
        None => Err(n.invalid_node("an empty optional value is not supported")),
    }),
    ("OptionalGetElement", 15, |n| {
        let value = n.input(0)?;
        if !n.is_optional(value) {
            return single_output(n.forward(value));
        }
        if n.presence(value).is_some() {
            let Packed { data, shapes } = pack(n, value)?;
            return single_output(n.packed_sequence([data, shapes])?);
        }
        let (sequence, position) = (pack(n, value)?, n.tensor(Tensor::scalar(0i64)));
        single_output(at(n, sequence, position)?)
    }),
    ("OptionalHasElement", 15, has_element),
    ("SequenceAt", 11, |n| {
        let value = n.input(0)?;
        if let Sequence::Known(elements) = read(n, value)?
            && let Some(position) = known_position(n, 1)?
        {
            let position = resolve(n, position, elements.len(), elements.len())?;
            return single_output(elements[position]);
        }
        let (sequence, position) = (pack(n, value)?, position(n, 1)?);
        single_output(at(n, sequence, position)?)
    }),
    ("SequenceConstruct", 11, |n| {
        let elements = n.all_inputs()?;
        single_output(n.tuple(&elements)?)
    }),
    ("SequenceEmpty", 11, |n| {
        let sequence = n.tuple(&[])?;
        if n.int_attr("dtype", 1)? != i64::from(STRING) {
            return single_output(sequence);
        }
        let bytes = n.zeros(DType::U8, &[0])?;
        single_output(n.with_bytes(sequence, bytes))
    }),
    ("SequenceErase", 11, erase),
    ("SequenceInsert", 11, insert),
    ("SequenceLength", 11, sequence_length),
    ("SequenceMap", 17, sequence_map),
    ("SplitToSequence", 11, split_to_sequence),
];

/// Sequence in a converter.
enum Sequence {
    /// Elements, whose number is known.
    Known(Vec<ExprId>),
    Packed(Packed),
}

/// Elements of all tensors, a vector, and their shapes, one row each.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    pub data: ExprId,
    pub shapes: ExprId,
}

/// Tests whether a value is a sequence.
pub(super) fn is_sequence(n: &Node<'_, '_>, value: ExprId) -> bool {
    matches!(n.value_type(value), Type::Tuple(_))
}

fn read(n: &mut Node<'_, '_>, value: ExprId) -> Result<Sequence> {
    let Type::Tuple(fields) = n.value_type(value) else {
        return Err(n.invalid_node(format!("expected a sequence, found {}", n.value_type(value))));
    };
    if n.is_packed(value) {
        return Ok(Sequence::Packed(Packed { data: n.project(value, 0)?, shapes: n.project(value, 1)? }));
    }
    let elements = (0..fields.len()).map(|i| n.project(value, i as u32)).collect::<Result<Vec<_>>>()?;
    Ok(Sequence::Known(elements))
}

pub(super) fn has_element(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let value = n.optional_input(0);
    if let Some(value) = value.filter(|&value| n.is_optional(value)) {
        if let Some(presence) = n.presence(value) {
            return single_output(presence);
        }
        let length = length(n, value)?;
        return single_output(n.with_scalar("greater", length, 0.0)?);
    }
    single_output(n.scalar(DType::Bool, f64::from(u8::from(value.is_some()))))
}

pub(super) fn sequence_length(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let value = n.input(0)?;
    let length = length(n, value)?;
    single_output(length)
}

/// Applies a function of the elements' values to the tensors of a sequence.
pub(super) fn map_fields(
    n: &mut Node<'_, '_>,
    value: ExprId,
    apply: &mut dyn FnMut(&mut Node<'_, '_>, ExprId) -> Result<ExprId>,
) -> Result<ExprId> {
    match read(n, value)? {
        Sequence::Packed(Packed { data, shapes }) => {
            let data = apply(n, data)?;
            n.packed_sequence([data, shapes])
        }
        Sequence::Known(elements) => {
            let elements = elements.into_iter().map(|element| apply(n, element)).collect::<Result<Vec<_>>>()?;
            n.tuple(&elements)
        }
    }
}

/// Gives values, tensors of strings or sequences of them, the same bytes: the bytes of all of them, one after the other.
pub(super) fn unite(n: &mut Node<'_, '_>, values: &mut [ExprId]) -> Result<ExprId> {
    let mut parts: Vec<ExprId> = Vec::new();
    let mut part_of_value = Vec::with_capacity(values.len());
    for &value in &*values {
        let Some(bytes) = n.string_bytes(value) else {
            let message = format!("expected strings in all operands, found {}", n.value_type(value));
            return Err(Box::new(n.error(codes::frontends::STRING_MISUSE, message)));
        };
        part_of_value.push(parts.iter().position(|&part| part == bytes).unwrap_or_else(|| {
            parts.push(bytes);
            parts.len() - 1
        }));
    }
    let mut begins = vec![None];
    for (i, &part) in parts[..parts.len().saturating_sub(1)].iter().enumerate() {
        let length = byte_count(n, part)?;
        let begin = match begins[i] {
            Some(begin) => n.op_without_attrs("add", &[begin, length])?,
            None => length,
        };
        begins.push(Some(begin));
    }
    let bytes = n.concatenate(&parts, 0)?;
    for (value, part) in values.iter_mut().zip(part_of_value) {
        if let Some(begin) = begins[part] {
            let offset = n.tensor(Tensor::scalar(1i64 << BEGIN_SHIFT));
            let offset = n.op_without_attrs("multiply", &[begin, offset])?;
            let mut shift = |n: &mut Node<'_, '_>, spans| n.op_without_attrs("add", &[spans, offset]);
            *value = if is_sequence(n, *value) { map_fields(n, *value, &mut shift)? } else { shift(n, *value)? };
            n.with_bytes(*value, bytes);
        }
    }
    Ok(bytes)
}

/// Returns the number of bytes, an int64 scalar.
fn byte_count(n: &mut Node<'_, '_>, bytes: ExprId) -> Result<ExprId> {
    if let Some(constant) = n.constant_value(bytes) {
        return Ok(n.tensor(Tensor::scalar(constant.len() as i64)));
    }
    let count = n.shape_vector(bytes, 0..1)?;
    n.reshape(count, &[])
}

/// Returns an output as a sequence in packed form. An optional value that is present is a sequence of one.
pub fn packed_output(n: &mut Node<'_, '_>, value: ExprId, dtype: DType) -> Result<ExprId> {
    let value = if is_sequence(n, value) { value } else { n.tuple(&[value])? };
    let Packed { data, shapes } = match element_type(n, value)? {
        Some(_) => pack(n, value)?,
        None => empty(n, dtype, 0)?,
    };
    n.packed_sequence([data, shapes])
}

/// Returns a sequence in packed form.
pub(super) fn pack(n: &mut Node<'_, '_>, value: ExprId) -> Result<Packed> {
    let elements = match read(n, value)? {
        Sequence::Packed(packed) => return Ok(packed),
        Sequence::Known(elements) => elements,
    };
    let Some(&first) = elements.first() else {
        return Err(n.invalid_node("expected a sequence that is not empty, as its tensors have an unknown rank"));
    };
    let ty = (n.dtype(first)?, n.rank(first)?);
    let parts = elements.into_iter().map(|element| parts(n, element, ty)).collect::<Result<Vec<_>>>()?;
    let (data, shapes): (Vec<ExprId>, Vec<ExprId>) = parts.into_iter().unzip();
    Ok(Packed { data: n.concatenate(&data, 0)?, shapes: n.concatenate(&shapes, 0)? })
}

/// Creates an empty sequence of tensors of a rank.
pub(super) fn empty(n: &mut Node<'_, '_>, dtype: DType, rank: usize) -> Result<Packed> {
    Ok(Packed { data: n.zeros(dtype, &[0])?, shapes: n.zeros(DType::I64, &[0, rank])? })
}

/// Returns a sequence with another tensor at its end.
fn append(n: &mut Node<'_, '_>, Packed { data, shapes }: Packed, element: ExprId) -> Result<Packed> {
    let ty = packed_type(n, Packed { data, shapes })?;
    let (elements, row) = parts(n, element, ty)?;
    Ok(Packed { data: n.concatenate(&[data, elements], 0)?, shapes: n.concatenate(&[shapes, row], 0)? })
}

/// Returns the elements of a tensor, a vector, and its shape, a row. The tensor must have the given element type and rank.
fn parts(n: &mut Node<'_, '_>, element: ExprId, (dtype, rank): (DType, usize)) -> Result<(ExprId, ExprId)> {
    let found = n.ty(element)?;
    if (found.dtype, found.dims.len()) != (dtype, rank) {
        return Err(n.invalid_node(format!("expected a tensor of {dtype} with rank {rank}, found {found}")));
    }
    let elements = n.op("reshape", &[element], attrs![newshape: [-1]])?;
    let shape = n.shape_vector(element, 0..rank)?;
    Ok((elements, n.reshape(shape, &[1, rank])?))
}

/// Returns the element type and the rank of the tensors of a sequence.
fn packed_type(n: &mut Node<'_, '_>, Packed { data, shapes }: Packed) -> Result<(DType, usize)> {
    Ok((n.dtype(data)?, n.dims(shapes)?[1].fixed().unwrap_or_default()))
}

fn at(n: &mut Node<'_, '_>, Packed { data, shapes }: Packed, position: ExprId) -> Result<ExprId> {
    n.op_without_attrs("sequence.at", &[data, shapes, position])
}

/// Returns the number of tensors, an int64 scalar.
fn length(n: &mut Node<'_, '_>, value: ExprId) -> Result<ExprId> {
    match read(n, value)? {
        Sequence::Known(elements) => Ok(n.tensor(Tensor::scalar(elements.len() as i64))),
        Sequence::Packed(Packed { shapes, .. }) => {
            let length = n.shape_vector(shapes, 0..1)?;
            n.reshape(length, &[])
        }
    }
}

/// Returns the position in input `i`, if it is a constant.
fn known_position(n: &mut Node<'_, '_>, i: usize) -> Result<Option<i64>> {
    let Some(value) = n.optional_input(i) else { return Ok(None) };
    if n.constant_value(value).is_none() { Ok(None) } else { n.int(i, "position") }
}

/// Returns the position in input `i`, which the run provides.
fn position(n: &mut Node<'_, '_>, i: usize) -> Result<ExprId> {
    let value = n.input(i)?;
    counter(n, value)
}

/// Resolves a position among `count` elements, where a negative position counts from the end; the result must be less
/// than `bound`.
fn resolve(n: &Node<'_, '_>, position: i64, count: usize, bound: usize) -> Result<usize> {
    let from_start = if position < 0 { position.saturating_add(count as i64) } else { position };
    usize::try_from(from_start)
        .ok()
        .filter(|&position| position < bound)
        .ok_or_else(|| n.invalid_node(format!("position {position} is out of range for a sequence of length {count}")))
}

fn erase(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let value = n.input(0)?;
    let has_position = n.optional_input(1).is_some();
    let known = if has_position { known_position(n, 1)? } else { Some(-1) };
    if let (Sequence::Known(mut elements), Some(position)) = (read(n, value)?, known) {
        if elements.is_empty() {
            return Err(n.invalid_node("expected a non-empty sequence, found an empty sequence"));
        }
        elements.remove(resolve(n, position, elements.len(), elements.len())?);
        return single_output(n.tuple(&elements)?);
    }
    let Packed { data, shapes } = pack(n, value)?;
    let position = if has_position { position(n, 1)? } else { n.tensor(Tensor::scalar(-1i64)) };
    let rest = n.op_without_attrs("sequence.erase", &[data, shapes, position])?;
    let fields = [n.project(rest, 0)?, n.project(rest, 1)?];
    single_output(n.packed_sequence(fields)?)
}

fn insert(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (value, element) = (n.input(0)?, n.input(1)?);
    let known = known_position(n, 2)?;
    let is_at_end = n.optional_input(2).is_none();
    if let Sequence::Known(mut elements) = read(n, value)?
        && (is_at_end || known.is_some() || elements.is_empty())
    {
        let end = elements.len();
        let position = known.map_or(Ok(end), |position| resolve(n, position, end, end + 1))?;
        elements.insert(position, element);
        return single_output(n.tuple(&elements)?);
    }
    let packed = pack(n, value)?;
    let fields = if is_at_end {
        let Packed { data, shapes } = append(n, packed, element)?;
        [data, shapes]
    } else {
        let position = position(n, 2)?;
        let inserted = n.op_without_attrs("sequence.insert", &[packed.data, packed.shapes, position, element])?;
        [n.project(inserted, 0)?, n.project(inserted, 1)?]
    };
    single_output(n.packed_sequence(fields)?)
}

/// Concatenates the elements along an axis, or stacks them along a new axis.
fn concat_from_sequence(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let value = n.input(0)?;
    let (axis, is_stacked) = (n.int_attr("axis", 0)?, n.int_attr("new_axis", 0)? != 0);
    let elements = match read(n, value)? {
        Sequence::Known(elements) => elements,
        Sequence::Packed(Packed { data, shapes }) => {
            let attrs = attrs![axis: axis, new_axis: is_stacked];
            return single_output(n.op("sequence.concatenate", &[data, shapes], attrs)?);
        }
    };
    let &first_element =
        elements.first().ok_or_else(|| n.invalid_node("expected a non-empty sequence, found an empty sequence"))?;
    let axis = n.axis(axis, n.rank(first_element)? + usize::from(is_stacked))? as i64;
    if !is_stacked {
        return single_output(n.concatenate(&elements, axis)?);
    }
    let tuple = n.tuple(&elements)?;
    single_output(n.op("stack", &[tuple], attrs![axis: axis])?)
}

/// Applies a subgraph to the corresponding elements of the input sequences. Tensor inputs are passed to every
/// application.
pub(super) fn sequence_map(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let graph = n.graph_attr("body")?;
    let inputs = n.all_inputs()?;
    if inputs.iter().any(|&input| n.is_packed(input)) {
        return map_packed(n, &inputs);
    }
    let Sequence::Known(first) = read(n, n.input(0)?)? else { return map_packed(n, &inputs) };
    let mut results: Vec<Vec<ExprId>> = vec![Vec::with_capacity(first.len()); graph.proto.output.len()];
    for i in 0..first.len() {
        let mut arguments = Vec::with_capacity(inputs.len());
        for &input in &inputs {
            arguments.push(if is_sequence(n, input) { element(n, input, i)? } else { input });
        }
        for (result, value) in results.iter_mut().zip(n.subgraph(graph, &arguments)?) {
            result.push(value);
        }
    }
    results.into_iter().map(|elements| tuple(n, elements)).collect()
}

/// Returns an element of a sequence of known length.
fn element(n: &mut Node<'_, '_>, sequence: ExprId, i: usize) -> Result<ExprId> {
    let (element, bytes) = (n.project(sequence, i as u32)?, n.string_bytes(sequence));
    Ok(bytes.map_or(element, |bytes| n.with_bytes(element, bytes)))
}

/// Creates a sequence of known length.
fn tuple(n: &mut Node<'_, '_>, mut elements: Vec<ExprId>) -> Result<ExprId> {
    if !elements.iter().any(|&element| n.has_strings(element)) {
        return n.tuple(&elements);
    }
    let bytes = unite(n, &mut elements)?;
    let sequence = n.tuple(&elements)?;
    Ok(n.with_bytes(sequence, bytes))
}

/// Maps sequences of a length that the run determines, in a loop.
fn map_packed(n: &mut Node<'_, '_>, inputs: &[ExprId]) -> Result<Outputs> {
    let graph = n.graph_attr("body")?;
    let trips = length(n, inputs[0])?;
    let sequences = inputs
        .iter()
        .map(|&input| if is_sequence(n, input) { pack(n, input).map(Some) } else { Ok(None) })
        .collect::<Result<Vec<_>>>()?;
    let apply = |n: &mut Node<'_, '_>, iteration: ExprId| {
        let mut arguments = Vec::with_capacity(inputs.len());
        for (&input, sequence) in inputs.iter().zip(&sequences) {
            arguments.push(match *sequence {
                Some(Packed { data, shapes }) => {
                    let captured = Packed { data: n.capture(data), shapes: n.capture(shapes) };
                    at(n, captured, iteration)?
                }
                None => n.capture(input),
            });
        }
        n.subgraph(graph, &arguments)
    };
    // The first conversion of the body tells the types of its results.
    let iteration = n.variable("iteration", Type::scalar(DType::I64));
    n.open_function();
    let results = apply(n, iteration);
    n.close_function();
    let mut initial_values = Vec::new();
    for result in results? {
        let Packed { data, shapes } = empty(n, n.dtype(result)?, n.rank(result)?)?;
        initial_values.extend([data, shapes]);
    }
    let mut body = |n: &mut Node<'_, '_>, iteration: ExprId, values: &[ExprId]| {
        let mut carried_values = Vec::with_capacity(values.len());
        for (result, fields) in apply(n, iteration)?.into_iter().zip(values.chunks_exact(2)) {
            let Packed { data, shapes } = append(n, Packed { data: fields[0], shapes: fields[1] }, result)?;
            carried_values.extend([data, shapes]);
        }
        Ok(Iteration { next: None, carried_values, scan_outputs: Vec::new(), declared_shapes: Vec::new() })
    };
    let limits = Limits { trips: Some(trips), start: None };
    let fields = run_loop(n, limits, Carried::read(initial_values), &mut body)?;
    fields.chunks_exact(2).map(|fields| n.packed_sequence([fields[0], fields[1]])).collect()
}

/// Splits a tensor into parts of equal size or of the listed sizes, or into slices of length 1. The split axis of such
/// slices is removed unless `keepdims` is set.
fn split_to_sequence(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let dims = n.dims(data)?;
    let axis = n.axis(n.int_attr("axis", 0)?, dims.len())?;
    let split = n.optional_input(1);
    let keepdims = split.is_some() || n.int_attr("keepdims", 1)? != 0;
    let is_known = split.is_none_or(|split| n.constant_value(split).is_some());
    let Some(size) = dims[axis].fixed().filter(|_| is_known) else {
        let split = match split {
            Some(split) => n.cast(split, DType::I64)?,
            None => n.tensor(Tensor::scalar(1i64)),
        };
        let parts = n.op("sequence.split", &[data, split], attrs![axis: axis as i64, keepdims: keepdims])?;
        let fields = [n.project(parts, 0)?, n.project(parts, 1)?];
        return single_output(n.packed_sequence(fields)?);
    };
    let scalar = match split {
        Some(sizes) => n.rank(sizes)? == 0,
        None => false,
    };
    let sizes: Vec<usize> = match n.ints(1, "split")? {
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

/// Returns the element type and the rank of the tensors of a sequence; `None` if it is empty.
pub(super) fn element_type(n: &mut Node<'_, '_>, value: ExprId) -> Result<Option<(DType, usize)>> {
    Ok(match read(n, value)? {
        Sequence::Known(elements) => match elements.first() {
            Some(&first) => Some((n.dtype(first)?, n.rank(first)?)),
            None => None,
        },
        Sequence::Packed(packed) => Some(packed_type(n, packed)?),
    })
}
