//! Operators that select elements, where the number of selected elements depends on the data. The type relation
//! computes that number from the values of the operand; without known values the dimension is unknown.

use super::scalar::{Reader, Writer};
use super::walk::split_at_axis;
use super::{AttrDef, AttrKind, Default, Evaluation, Params, Relation, TypeResult};
use crate::ir::{Dim, Type};
use crate::tensor::{DType, TensorView, TensorViewMut};
use std::cmp::Ordering;

operator! {
    name: "argwhere",
    doc: "Indices of the elements that are not zero, one row each, in row-major order: int64 of shape (count, \
          rank).",
    inputs: &["condition"],
    relation: |relation| {
        let rank = relation.tensor(0)?.dims.len();
        let condition = relation.values.first().copied().flatten();
        let count = condition.map(|tensor| {
            let (view, reader) = (tensor.view(), Reader::new(&tensor.view()));
            (0..view.len()).filter(|&i| reader.is_nonzero(i)).count()
        });
        Ok(Type::tensor_of(DType::I64, [count.map_or(Dim::Any, Dim::Fixed), Dim::Fixed(rank)]))
    },
    reference: Some(|_, inputs, outputs| {
        let (shape, reader) = (inputs[0].shape, Reader::new(&inputs[0]));
        let nonzero = (0..inputs[0].len()).filter(|&i| reader.is_nonzero(i));
        let mut rows = outputs[0].as_mut_slice::<i64>().chunks_exact_mut(shape.len().max(1));
        for (mut i, row) in nonzero.zip(&mut rows) {
            for (axis, coordinate) in row.iter_mut().enumerate().rev() {
                *coordinate = (i % shape[axis]) as i64;
                i /= shape[axis];
            }
        }
        Ok(())
    }),
}

operator! {
    name: "unique_slices",
    doc: "Distinct elements, or the distinct slices along `axis`, in ascending order or in order of first \
          occurrence; the index of the first occurrence of each; for each input element, the index of the distinct \
          element that it equals; and the number of occurrences of each. NaN equals NaN and is the largest.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("axis", AttrKind::Int, Default::None, "axis of the slices; data is flattened if None"),
        AttrDef::new("is_sorted", AttrKind::Bool, Default::Bool(true), "true for ascending order"),
    ],
    relation: unique_slices_type,
    reference: Some(unique_slices),
}

/// Distinct slices of a tensor.
struct DistinctSlices {
    /// Index of the first occurrence of each distinct slice.
    first: Vec<usize>,
    /// For each slice of the tensor, the index of the distinct slice that it equals.
    inverse: Vec<usize>,
    counts: Vec<i64>,
}

/// Splits a shape at the axis in attribute `axis` into (outer, slices, inner). Without the attribute, each element is a
/// slice.
fn slices(params: &Params<'_>, shape: &[usize]) -> (usize, usize, usize) {
    match params.opt_int("axis") {
        Some(axis) => split_at_axis(shape, axis.rem_euclid(shape.len().max(1) as i64) as usize),
        None => (1, shape.iter().product(), 1),
    }
}

fn distinct_slices(
    (outer, count, inner): (usize, usize, usize),
    data: &TensorView<'_>,
    is_sorted: bool,
) -> DistinctSlices {
    let reader = Reader::new(data);
    let element = |a: usize, b: usize| match reader.compare(a, &reader, b) {
        Some(order) => order,
        None => reader.float(a).is_nan().cmp(&reader.float(b).is_nan()),
    };
    let compare = |a: usize, b: usize| {
        let positions = (0..outer).flat_map(|block| (0..inner).map(move |position| (block, position)));
        let element_offset =
            |slice: usize, (block, position): (usize, usize)| (block * count + slice) * inner + position;
        positions
            .map(|position| element(element_offset(a, position), element_offset(b, position)))
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    };
    let mut order: Vec<usize> = (0..count).collect();
    // The sort is stable, so equal slices keep their order.
    order.sort_by(|&a, &b| compare(a, b));
    let mut groups = DistinctSlices { first: Vec::new(), inverse: vec![0; count], counts: Vec::new() };
    for slice in order {
        if groups.first.last().is_none_or(|&first| compare(first, slice).is_ne()) {
            groups.first.push(slice);
            groups.counts.push(0);
        }
        let last = groups.first.len() - 1;
        groups.inverse[slice] = last;
        groups.counts[last] += 1;
    }
    if !is_sorted {
        let mut occurrence_order: Vec<usize> = (0..groups.first.len()).collect();
        occurrence_order.sort_by_key(|&i| groups.first[i]);
        let mut rank = vec![0; occurrence_order.len()];
        occurrence_order.iter().enumerate().for_each(|(occurrence, &group)| rank[group] = occurrence);
        groups.first = occurrence_order.iter().map(|&i| groups.first[i]).collect();
        groups.counts = occurrence_order.iter().map(|&i| groups.counts[i]).collect();
        groups.inverse.iter_mut().for_each(|i| *i = rank[*i]);
    }
    groups
}

fn groups_of(params: &Params<'_>, data: &TensorView<'_>) -> DistinctSlices {
    distinct_slices(slices(params, data.shape), data, params.bool("is_sorted"))
}

fn unique_slices_type(relation: &Relation<'_>) -> TypeResult {
    let data = relation.tensor(0)?;
    let axis = relation.params.opt_int("axis").map(|axis| relation.axis(axis, data.dims.len())).transpose()?;
    let static_values = relation.values.first().copied().flatten();
    let count =
        static_values.map_or(Dim::Any, |data| Dim::Fixed(groups_of(&relation.params, &data.view()).first.len()));
    let (values, total) = match axis {
        Some(axis) => {
            let mut dims = data.dims.to_vec();
            dims[axis] = count.clone();
            (dims, data.dims[axis].clone())
        }
        None => (vec![count.clone()], Dim::product(&data.dims).unwrap_or(Dim::Any)),
    };
    let vector = |dim: Dim| Type::tensor_of(DType::I64, [dim]);
    Ok(Type::tuple([Type::tensor_of(data.dtype, values), vector(count.clone()), vector(total), vector(count)]))
}

fn unique_slices(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let groups = groups_of(&params, &inputs[0]);
    let (outer, count, inner) = slices(&params, inputs[0].shape);
    let row = inner * inputs[0].dtype.size();
    let group_count = groups.first.len();
    for block in 0..outer {
        for (group, &slice) in groups.first.iter().enumerate() {
            let (group, slice) = ((block * group_count + group) * row, (block * count + slice) * row);
            outputs[0].data[group..group + row].copy_from_slice(&inputs[0].data[slice..slice + row]);
        }
    }
    Writer::new(&mut outputs[1]).store(groups.first.iter().map(|&i| i as f64));
    Writer::new(&mut outputs[2]).store(groups.inverse.iter().map(|&i| i as f64));
    Writer::new(&mut outputs[3]).store(groups.counts.iter().map(|&n| n as f64));
    Ok(())
}

operator! {
    name: "unique",
    doc: "Distinct elements of a vector, in ascending order or in order of first occurrence; the index of the first \
          occurrence of each; for each element of data, the index of the distinct element that it equals; the number of \
          distinct elements; and with return_counts the number of occurrences of each. The results have the length of \
          data, and zeros after the distinct elements.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("sorted", AttrKind::Bool, Default::Bool(true), "true for ascending order"),
        AttrDef::new("return_counts", AttrKind::Bool, Default::Bool(false), "true to return the numbers of occurrences"),
    ],
    relation: |relation| {
        let data = relation.tensor(0)?;
        let [length] = &data.dims[..] else {
            return Err(relation.mismatch(format!("data: expected a vector, found {}", relation.args[0])));
        };
        let indices = |length: &Dim| Type::tensor_of(DType::I32, [length.clone()]);
        let counts = relation.params.bool("return_counts").then(|| indices(length));
        let results = [relation.args[0].clone(), indices(length), indices(length), indices(&Dim::Fixed(1))];
        Ok(Type::tuple(results.into_iter().chain(counts)))
    },
    reference: Some(|params, inputs, outputs| {
        let groups = distinct_slices((1, inputs[0].len(), 1), &inputs[0], params.bool("sorted"));
        let size = inputs[0].dtype.size();
        outputs.iter_mut().for_each(|output| output.data.fill(0));
        for (target, &source) in outputs[0].data.chunks_exact_mut(size).zip(&groups.first) {
            target.copy_from_slice(&inputs[0].data[source * size..][..size]);
        }
        let count = [groups.first.len() as f64];
        let counts: Vec<f64> = groups.counts.iter().map(|&n| n as f64).collect();
        let columns = [groups.first, groups.inverse].map(|column| column.iter().map(|&i| i as f64).collect::<Vec<_>>());
        for (output, values) in outputs[1..].iter_mut().zip([&columns[0][..], &columns[1], &count, &counts]) {
            Writer::new(output).store(values.iter().copied());
        }
        Ok(())
    }),
}
