//! Sequences of tensors whose number is known in the run only, as two tensors: the elements of all tensors, one after the
//! other, and their shapes, one row each. All tensors have the same rank.

use super::walk::split_at_axis;
use super::{AttrDef, AttrKind, Default, Evaluation, Params, ReferenceError, Relation, TypeResult};
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, Type};
use crate::tensor::{DType, Shape, TensorView, TensorViewMut, element_count};

const AXIS: AttrDef = AttrDef::new("axis", AttrKind::Int, Default::Int(0), "axis of the tensors; < 0 from the end");
const NEW_AXIS: AttrDef =
    AttrDef::new("new_axis", AttrKind::Bool, Default::Bool(false), "true to stack the tensors along a new axis");
const KEEPDIMS: AttrDef =
    AttrDef::new("keepdims", AttrKind::Bool, Default::Bool(true), "false to remove the axis from tensors of size 1");

/// Shapes of the tensors of a sequence.
struct Layout {
    shapes: Vec<Shape>,
    /// Position of the first element of each tensor, and the number of all elements.
    offsets: Vec<usize>,
}

impl Layout {
    /// Reads the shapes of `elements` elements; `None` if the shapes have another number of elements.
    fn new(rank: usize, count: usize, sizes: &[i64], elements: usize) -> Option<Layout> {
        let mut layout = Layout { shapes: Vec::with_capacity(count), offsets: vec![0] };
        for row in 0..count {
            let sizes = sizes.get(row * rank..(row + 1) * rank)?;
            let shape = sizes.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<Shape>>()?;
            let end = layout.offsets[row].checked_add(element_count(&shape)?)?;
            layout.offsets.push(end);
            layout.shapes.push(shape);
        }
        (layout.offsets.last() == Some(&elements)).then_some(layout)
    }

    fn of(data: &TensorView<'_>, shapes: &TensorView<'_>) -> Result<Layout, ReferenceError> {
        let sizes = shapes.to_i64s().unwrap_or_default();
        let layout = Layout::new(shapes.shape[1], shapes.shape[0], &sizes, data.len());
        layout.ok_or_else(|| format!("expected shapes of {} elements in total", data.len()))
    }

    fn len(&self) -> usize {
        self.shapes.len()
    }

    /// Resolves a position, which counts from the end if it is negative.
    fn position(&self, position: &TensorView<'_>, count: usize) -> Result<usize, ReferenceError> {
        let found = position.to_i64s().and_then(|values| values.first().copied()).unwrap_or_default();
        resolve(found, self.len(), count).ok_or_else(|| out_of_range(found, self.len()))
    }
}

/// Returns the position among `length` tensors, if it is below `count`.
fn resolve(position: i64, length: usize, count: usize) -> Option<usize> {
    let from_start = if position < 0 { position.checked_add(length as i64)? } else { position };
    usize::try_from(from_start).ok().filter(|&position| position < count)
}

fn out_of_range(position: i64, length: usize) -> String {
    format!("position {position} is out of range for a sequence of length {length}")
}

/// Sequence in the arguments 0 and 1.
struct Sequence {
    dtype: DType,
    rank: usize,
    count: Dim,
    elements: Dim,
    /// Known in the run.
    layout: Option<Layout>,
}

fn sequence(relation: &Relation<'_>) -> Result<Sequence, Box<Diagnostic>> {
    let (data, shapes) = (relation.tensor(0)?, relation.tensor(1)?);
    let ([elements], [count, rank], DType::I64) = (&data.dims[..], &shapes.dims[..], shapes.dtype) else {
        let message = "expected a vector of elements, and int64 shapes with one row for each tensor";
        return Err(relation.mismatch(message));
    };
    let Some(rank) = rank.fixed().filter(|&rank| rank <= super::reshape::MAX_RANK) else {
        return Err(
            relation.mismatch(format!("shapes: expected a known number of columns, found {}", relation.args[1]))
        );
    };
    let known = (relation.known_ints(1), elements.fixed(), count.fixed());
    let layout =
        match known {
            (Some(sizes), Some(elements), Some(count)) => {
                let layout = Layout::new(rank, count, &sizes, elements);
                Some(layout.ok_or_else(|| {
                    relation.mismatch(format!("shapes: expected shapes of {elements} elements in total"))
                })?)
            }
            _ => None,
        };
    Ok(Sequence { dtype: data.dtype, rank, count: count.clone(), elements: elements.clone(), layout })
}

impl Sequence {
    /// Returns the layout and the position in argument `i`, if both are known. Positions below the length plus `extra`
    /// are valid.
    fn at(&self, relation: &Relation<'_>, i: usize, extra: usize) -> Result<Option<(&Layout, usize)>, Box<Diagnostic>> {
        let ty = relation.tensor(i)?;
        if !ty.dtype.is_int() || ty.dims.iter().any(|dim| dim.fixed().is_some_and(|size| size != 1)) {
            return Err(relation.mismatch(format!("position: expected an integer, found {}", relation.args[i])));
        }
        let position = relation.known_ints(i).and_then(|values| values.first().copied());
        let (Some(position), Some(layout)) = (position, &self.layout) else { return Ok(None) };
        match resolve(position, layout.len(), layout.len() + extra) {
            Some(resolved) => Ok(Some((layout, resolved))),
            None => Err(relation.error(codes::runtime::SEQUENCE_INDEX, out_of_range(position, layout.len()))),
        }
    }

    fn ty(&self, elements: Dim, count: Dim) -> Type {
        packed_type(self.dtype, elements, count, self.rank)
    }

    fn axis(&self, relation: &Relation<'_>, rank: usize) -> Result<usize, Box<Diagnostic>> {
        relation.axis(relation.params.int("axis"), rank)
    }
}

fn packed_type(dtype: DType, elements: Dim, count: Dim, rank: usize) -> Type {
    let shapes = Type::tensor_of(DType::I64, [count, Dim::Fixed(rank)]);
    Type::tuple([Type::tensor_of(dtype, [elements]), shapes])
}

fn plus(a: &Dim, b: &Dim) -> Dim {
    a.fixed().zip(b.fixed()).and_then(|(a, b)| a.checked_add(b)).map_or(Dim::Any, Dim::Fixed)
}

/// Copies elements of `source` from `start` on to the elements of `target` from `at` on.
fn copy(source: &TensorView<'_>, start: usize, target: &mut TensorViewMut<'_>, at: usize, count: usize) {
    let size = source.dtype.size();
    target.data[at * size..(at + count) * size].copy_from_slice(&source.data[start * size..(start + count) * size]);
}

operator! {
    name: "sequence.at",
    doc: "The tensor at a position of a sequence, which counts from the end if it is negative.",
    inputs: &["data", "shapes", "position"],
    relation: |relation| {
        let sequence = sequence(relation)?;
        Ok(match sequence.at(relation, 2, 0)? {
            Some((layout, position)) => Type::tensor(sequence.dtype, &layout.shapes[position]),
            None => Type::tensor_of(sequence.dtype, vec![Dim::Any; sequence.rank]),
        })
    },
    reference: Some(|_, inputs, outputs| {
        let layout = Layout::of(&inputs[0], &inputs[1])?;
        let position = layout.position(&inputs[2], layout.len())?;
        let count = outputs[0].len();
        copy(&inputs[0], layout.offsets[position], &mut outputs[0], 0, count);
        Ok(())
    }),
}

operator! {
    name: "sequence.insert",
    doc: "A sequence with another tensor before a position, which may be the length of the sequence.",
    inputs: &["data", "shapes", "position", "tensor"],
    relation: |relation| {
        let (sequence, tensor) = (sequence(relation)?, relation.tensor(3)?);
        if tensor.dtype != sequence.dtype || tensor.dims.len() != sequence.rank {
            let expected = Type::tensor_of(sequence.dtype, vec![Dim::Any; sequence.rank]);
            return Err(relation.mismatch(format!("tensor: expected {expected}, found {}", relation.args[3])));
        }
        sequence.at(relation, 2, 1)?;
        let added = Dim::product(&tensor.dims).unwrap_or(Dim::Any);
        Ok(sequence.ty(plus(&sequence.elements, &added), plus(&sequence.count, &Dim::Fixed(1))))
    },
    reference: Some(|_, inputs, outputs| {
        let layout = Layout::of(&inputs[0], &inputs[1])?;
        let position = layout.position(&inputs[2], layout.len() + 1)?;
        let ([data, shapes], start) = (outputs, layout.offsets[position]) else {
            return Err("expected two results".into());
        };
        let added = inputs[3].len();
        copy(&inputs[0], 0, data, 0, start);
        copy(&inputs[3], 0, data, start, added);
        copy(&inputs[0], start, data, start + added, inputs[0].len() - start);
        let sizes: Vec<i64> = inputs[3].shape.iter().map(|&size| size as i64).collect();
        let (rank, rows) = (sizes.len(), inputs[1].to_i64s().unwrap_or_default());
        let all = [&rows[..position * rank], &sizes[..], &rows[position * rank..]].concat();
        shapes.as_mut_slice::<i64>().copy_from_slice(&all);
        Ok(())
    }),
}

operator! {
    name: "sequence.erase",
    doc: "A sequence without the tensor at a position.",
    inputs: &["data", "shapes", "position"],
    relation: |relation| {
        let sequence = sequence(relation)?;
        Ok(match sequence.at(relation, 2, 0)? {
            Some((layout, position)) => {
                let removed = layout.offsets[position + 1] - layout.offsets[position];
                let rest = layout.offsets[layout.len()] - removed;
                sequence.ty(Dim::Fixed(rest), Dim::Fixed(layout.len() - 1))
            }
            None => sequence.ty(Dim::Any, Dim::Any),
        })
    },
    reference: Some(|_, inputs, outputs| {
        let layout = Layout::of(&inputs[0], &inputs[1])?;
        let position = layout.position(&inputs[2], layout.len())?;
        let ([data, shapes], [start, end]) = (outputs, [layout.offsets[position], layout.offsets[position + 1]])
        else {
            return Err("expected two results".into());
        };
        copy(&inputs[0], 0, data, 0, start);
        copy(&inputs[0], end, data, start, inputs[0].len() - end);
        let (rank, mut rows) = (inputs[1].shape[1], inputs[1].to_i64s().unwrap_or_default());
        rows.drain(position * rank..(position + 1) * rank);
        shapes.as_mut_slice::<i64>().copy_from_slice(&rows);
        Ok(())
    }),
}

operator! {
    name: "sequence.concatenate",
    doc: "The tensors of a sequence, concatenated along an axis, or stacked along a new one. The sequence must not be \
          empty.",
    inputs: &["data", "shapes"],
    attrs: &[AXIS, NEW_AXIS],
    relation: concatenate_type,
    reference: Some(concatenate),
}

fn concatenate_type(relation: &Relation<'_>) -> TypeResult {
    let sequence = sequence(relation)?;
    let is_stacked = relation.params.bool("new_axis");
    let rank = sequence.rank + usize::from(is_stacked);
    let axis = sequence.axis(relation, rank)?;
    let Some(layout) = &sequence.layout else { return Ok(Type::tensor_of(sequence.dtype, vec![Dim::Any; rank])) };
    let error = |message: String| relation.error(codes::runtime::SEQUENCE_INDEX, message);
    let Some(first) = layout.shapes.first() else { return Err(error("expected a sequence that is not empty".into())) };
    let is_equal =
        |shape: &Shape| first.iter().zip(shape).enumerate().all(|(i, (a, b))| a == b || (i == axis && !is_stacked));
    if let Some(other) = layout.shapes.iter().find(|shape| !is_equal(shape)) {
        return Err(error(format!("expected tensors of shape {first:?} but for axis {axis}, found {other:?}")));
    }
    let mut shape = first.clone();
    match is_stacked {
        true => shape.insert(axis, layout.len()),
        false => shape[axis] = layout.shapes.iter().map(|shape| shape[axis]).sum(),
    }
    Ok(Type::tensor(sequence.dtype, &shape))
}

fn concatenate(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let layout = Layout::of(&inputs[0], &inputs[1])?;
    let (rank, out) = (outputs[0].shape.len(), &mut outputs[0]);
    let axis = params.int("axis");
    let axis = usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).unwrap_or_default();
    let (outer, size, inner) = split_at_axis(out.shape, axis);
    let is_stacked = params.bool("new_axis");
    let mut at = 0;
    for (shape, &start) in layout.shapes.iter().zip(&layout.offsets) {
        let rows = if is_stacked { 1 } else { shape[axis] };
        for i in 0..outer {
            copy(&inputs[0], start + i * rows * inner, out, (i * size + at) * inner, rows * inner);
        }
        at += rows;
    }
    Ok(())
}

operator! {
    name: "sequence.split",
    doc: "The parts of a tensor along an axis, as a sequence: of the sizes in a vector, or of the size in a scalar, the \
          last of which may be smaller.",
    inputs: &["data", "split"],
    attrs: &[AXIS, KEEPDIMS],
    relation: |relation| {
        let (data, split) = (relation.tensor(0)?, relation.tensor(1)?);
        let axis = relation.axis(relation.params.int("axis"), data.dims.len())?;
        let rank = data.dims.len() - usize::from(!relation.params.bool("keepdims"));
        let elements = Dim::product(&data.dims).unwrap_or(Dim::Any);
        if !split.dtype.is_int() || split.dims.len() > 1 {
            return Err(relation.mismatch(format!("split: expected integers, found {}", relation.args[1])));
        }
        let count = match (relation.known_ints(1), data.dims[axis].fixed()) {
            (Some(sizes), Some(size)) => {
                let parts = parts(&sizes, split.dims.is_empty(), size).map_err(|message| relation.mismatch(message))?;
                Dim::Fixed(parts.len())
            }
            _ => split.dims.first().cloned().unwrap_or(Dim::Any),
        };
        Ok(packed_type(data.dtype, elements, count, rank))
    },
    reference: Some(split),
}

/// Returns the sizes of the parts of an axis of `size`.
fn parts(split: &[i64], is_size: bool, size: usize) -> Result<Vec<usize>, String> {
    let sizes: Option<Vec<usize>> = split.iter().map(|&size| usize::try_from(size).ok()).collect();
    match (sizes.as_deref(), is_size) {
        (Some(&[part]), true) if part > 0 => Ok((0..size.div_ceil(part)).map(|i| part.min(size - i * part)).collect()),
        (Some(sizes), false) if sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size)) == Some(size) => {
            Ok(sizes.to_vec())
        }
        (_, true) => Err(format!("split: expected a size > 0, found {split:?}")),
        (_, false) => Err(format!("split: expected sizes that sum to {size}, found {split:?}")),
    }
}

fn split(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let [data, shapes] = outputs else { return Err("expected two results".into()) };
    let (shape, axis) = (inputs[0].shape, params.int("axis"));
    let axis = usize::try_from(if axis < 0 { axis + shape.len() as i64 } else { axis }).unwrap_or_default();
    let (outer, size, inner) = split_at_axis(shape, axis);
    let sizes = inputs[1].to_i64s().unwrap_or_default();
    let (mut at, mut begin, mut rows) = (0, 0, Vec::new());
    for part in parts(&sizes, inputs[1].shape.is_empty(), size)? {
        for i in 0..outer {
            copy(&inputs[0], (i * size + begin) * inner, data, at, part * inner);
            at += part * inner;
        }
        begin += part;
        let is_kept = |i: usize| i != axis || params.bool("keepdims");
        let sizes = shape.iter().enumerate().filter(|(i, _)| is_kept(*i));
        rows.extend(sizes.map(|(i, &size)| if i == axis { part as i64 } else { size as i64 }));
    }
    shapes.as_mut_slice::<i64>().copy_from_slice(&rows);
    Ok(())
}
