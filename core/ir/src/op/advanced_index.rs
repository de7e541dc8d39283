//! Operators that index with several tensors, search positions, or write diagonals.

use super::broadcast::broadcast_dims;
use super::elementwise::{one_flop_per_element, same_as_input};
use super::index::{in_bounds, integer_argument, integers};
use super::scalar::{Reader, Writer};
use super::walk::{broadcast_strides, for_each_index, gather, offset, strides};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::codes;
use crate::ir::{Dim, Type};
use crate::tensor::{TensorView, TensorViewMut};
use std::cmp::Ordering;

operator! {
    name: "adv_index",
    doc: "data[indices0, indices1, ..] as NumPy indexes with arrays: the arrays are broadcast to one shape, whose \
          axes replace as many leading axes of data as there are arrays. Negative indices count from the end.",
    inputs: &["inputs"],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let fields = relation.tensors(0)?;
        let [data, indices @ ..] = &fields[..] else {
            return Err(relation.mismatch("expected data and at least one tensor of indices, found ()"));
        };
        if indices.is_empty() || indices.len() > data.dims.len() {
            return Err(relation.mismatch(format!(
                "number of tensors of indices: expected 1 to {}, found {}", data.dims.len(), indices.len()
            )));
        }
        if let Some(other) = indices.iter().find(|index| index.dtype.is_float()) {
            return Err(relation.mismatch(format!("indices: expected integers, found {}", other.dtype)));
        }
        let mut dims = broadcast_dims(relation, indices.iter().copied())?;
        dims.extend_from_slice(&data.dims[indices.len()..]);
        Ok(Type::tensor_of(data.dtype, dims))
    },
    reference: Some(adv_index),
}

fn adv_index(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let [data, indices @ ..] = inputs else { return Err("expected data and indices, found none".into()) };
    let data_strides = strides(data.shape);
    let rank = outputs[0].shape.len() - (data.shape.len() - indices.len());
    let mut columns = Vec::with_capacity(indices.len());
    for (axis, index) in indices.iter().enumerate() {
        let resolved: Result<Vec<usize>, _> =
            integers(index, "indices")?.into_iter().map(|i| in_bounds(i, data.shape[axis])).collect();
        columns.push((resolved?, broadcast_strides(index.shape, rank)));
    }
    gather(data, &mut outputs[0], |index| {
        let (position, rest) = index.split_at(rank);
        let leading: usize = columns
            .iter()
            .zip(&data_strides)
            .map(|((values, steps), stride)| values[offset(position, steps)] * stride)
            .sum();
        leading + offset(rest, &data_strides[indices.len()..])
    });
    Ok(())
}

operator! {
    name: "unravel_index",
    doc: "Coordinates of flat indices into a tensor of the given shape, one row for each of its axes.",
    inputs: &["data", "shape"],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let (data, shape) = (integer_argument(relation, 0)?, integer_argument(relation, 1)?);
        let ([axes], true) = (&shape.dims[..], data.dims.len() < 2) else {
            let [data, shape] = [&relation.args[0], &relation.args[1]];
            return Err(relation.mismatch(format!("expected a scalar or vector and a shape, found {data} and {shape}")));
        };
        Ok(Type::tensor_of(data.dtype, [axes].into_iter().chain(&data.dims).cloned()))
    },
    reference: Some(|_, inputs, outputs| {
        let (indices, shape) = (integers(&inputs[0], "data")?, integers(&inputs[1], "shape")?);
        let size = shape.iter().try_fold(1i64, |size, &dim| size.checked_mul(dim).filter(|_| dim > 0));
        let size = size.ok_or_else(|| format!("shape: expected positive dimensions, found {shape:?}"))?;
        let mut out = Writer::new(&mut outputs[0]);
        for (column, &index) in indices.iter().enumerate() {
            let mut rest = i64::try_from(in_bounds(index, size as usize)?).unwrap_or(i64::MAX);
            for (axis, dim) in shape.iter().enumerate().rev() {
                out.set_int(axis * indices.len() + column, i128::from(rest % dim));
                rest /= dim;
            }
        }
        Ok(())
    }),
}

operator! {
    name: "invert_permutation",
    doc: "Inverse of a permutation of 0 to n - 1: result[data[i]] = i.",
    inputs: &["data"],
    pattern: OpPattern::Injective,
    relation: |relation| {
        match integer_argument(relation, 0)?.dims.len() {
            1 => same_as_input(relation),
            _ => Err(relation.mismatch(format!("data: expected a vector, found {}", relation.args[0]))),
        }
    },
    reference: Some(|_, inputs, outputs| {
        let permutation = integers(&inputs[0], "data")?;
        let mut is_set = vec![false; permutation.len()];
        let mut out = Writer::new(&mut outputs[0]);
        for (i, &target) in permutation.iter().enumerate() {
            let position = usize::try_from(target).ok().filter(|&p| is_set.get(p) == Some(&false));
            let position = position.ok_or_else(|| {
                format!("data: expected each index below {} once, found {target} at {i}", permutation.len())
            })?;
            is_set[position] = true;
            out.set_int(position, i as i128);
        }
        Ok(())
    }),
}

operator! {
    name: "searchsorted",
    doc: "Position at which each value keeps sorted_sequence in order: before equal elements, or after them with \
          `right`. A sequence of higher rank is searched along its last axis, in the row that has the leading \
          indices of the value.",
    inputs: &["sorted_sequence", "values"],
    attrs: &[
        AttrDef::new("right", AttrKind::Bool, Default::Bool(false), "true for the position after equal elements"),
        AttrDef::new("dtype", AttrKind::DType, Default::Str("int32"), "element type of the positions"),
    ],
    relation: |relation| {
        let (sequence, values) = (relation.tensor(0)?, relation.tensor(1)?);
        relation.same_dtype(sequence.dtype, values.dtype)?;
        let (rank, value_rank) = (sequence.dims.len(), values.dims.len());
        if rank == 0 || value_rank == 0 || rank > 1 && rank != value_rank {
            let [sequence, values] = [&relation.args[0], &relation.args[1]];
            return Err(relation.mismatch(format!(
                "expected a vector, or equal ranks from 1, found {sequence} and {values}"
            )));
        }
        for (i, (a, b)) in sequence.dims[..rank - 1].iter().zip(&values.dims).enumerate() {
            relation.same_dim(&format!("axis {i}"), a, b)?;
        }
        let dtype = relation.params.dtype("dtype").filter(|dtype| dtype.is_int()).ok_or_else(|| {
            let dtype = relation.params.string("dtype");
            relation.error(codes::types::BAD_ATTRIBUTE, format!("dtype: expected an integer type, found \"{dtype}\""))
        })?;
        Ok(Type::tensor_of(dtype, values.dims.iter().cloned()))
    },
    reference: Some(searchsorted),
    flops: one_flop_per_element,
}

fn searchsorted(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let [sequence, values] = [0, 1].map(|i| Reader::new(&inputs[i]));
    let last = |shape: &[usize]| shape.last().copied().unwrap_or(1);
    let (length, row) = (last(inputs[0].shape), last(inputs[1].shape));
    let is_before = |order: Option<Ordering>| match order {
        Some(order) => order.is_lt() || params.bool("right") && order.is_eq(),
        None => false,
    };
    let mut out = Writer::new(&mut outputs[0]);
    for i in 0..out.len() {
        let start = if inputs[0].shape.len() > 1 { i / row * length } else { 0 };
        let (mut low, mut high) = (0, length);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_before(sequence.compare(start + middle, &values, i)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        out.set_int(i, low as i128);
    }
    Ok(())
}

operator! {
    name: "meshgrid",
    doc: "Coordinate grids: one result for each field, with an axis for each field, along which the field runs. A \
          scalar field counts as a vector of one element. With indexing \"xy\", the first two axes are swapped.",
    inputs: &["data"],
    attrs: &[AttrDef::new("indexing", AttrKind::Str, Default::Str("ij"), "\"ij\" or \"xy\"")],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let fields = relation.tensors(0)?;
        let indexing = relation.params.string("indexing");
        if indexing != "ij" && indexing != "xy" {
            let message = format!("indexing: expected \"ij\" or \"xy\", found \"{indexing}\"");
            return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
        }
        let Some(first) = fields.first() else {
            return Err(relation.mismatch("data: expected at least one tensor, found none"));
        };
        let mut dims = Vec::with_capacity(fields.len());
        for field in &fields {
            relation.same_dtype(first.dtype, field.dtype)?;
            dims.push(match &field.dims[..] {
                [] => Dim::Fixed(1),
                [dim] => dim.clone(),
                _ => return Err(relation.mismatch(format!("data: expected scalars and vectors, found {}", relation.args[0]))),
            });
        }
        if indexing == "xy" && dims.len() >= 2 {
            dims.swap(0, 1);
        }
        Ok(Type::tuple(fields.iter().map(|_| Type::tensor_of(first.dtype, dims.iter().cloned()))))
    },
    reference: Some(|params, inputs, outputs| {
        let is_swapped = params.string("indexing") == "xy" && inputs.len() >= 2;
        for (i, (field, output)) in inputs.iter().zip(outputs).enumerate() {
            let axis = if is_swapped && i < 2 { 1 - i } else { i };
            gather(field, output, |index| index[axis]);
        }
        Ok(())
    }),
}

const DIAGONAL: &[AttrDef] = &[
    AttrDef::new(
        "k1",
        AttrKind::Int,
        Default::Required,
        "lowest diagonal; the main diagonal is 0, those below it are negative",
    ),
    AttrDef::new("k2", AttrKind::Int, Default::Required, "highest diagonal, at least k1"),
    AttrDef::new(
        "super_diag_right_align",
        AttrKind::Bool,
        Default::Bool(true),
        "true if the rows of diagonals that are not below the main one end at the last column",
    ),
    AttrDef::new(
        "sub_diag_right_align",
        AttrKind::Bool,
        Default::Bool(false),
        "true if the rows of diagonals below the main one end at the last column",
    ),
];

operator! {
    name: "matrix_set_diag",
    doc: "Matrices with the diagonals k1 to k2 replaced. diagonal has a row for each of them, from k2 down to k1, with \
          as many columns as the longest one; without that axis if k1 equals k2.",
    inputs: &["input", "diagonal"],
    attrs: DIAGONAL,
    pattern: OpPattern::Injective,
    relation: matrix_set_diag_type,
    reference: Some(matrix_set_diag),
}

/// Returns the length of diagonal `k` of a matrix.
fn diagonal_length(rows: usize, columns: usize, k: i64) -> i64 {
    (rows as i64 + k.min(0)).min(columns as i64 - k.max(0))
}

fn matrix_set_diag_type(relation: &Relation<'_>) -> TypeResult {
    let (input, diagonal) = (relation.tensor(0)?, relation.tensor(1)?);
    relation.same_dtype(input.dtype, diagonal.dtype)?;
    let (k1, k2) = (relation.params.int("k1"), relation.params.int("k2"));
    if k1 > k2 || k1 < i64::from(i32::MIN) || k2 > i64::from(i32::MAX) {
        return Err(relation.error(codes::types::BAD_ATTRIBUTE, format!("k2: expected at least k1 = {k1}, found {k2}")));
    }
    let Some((batch, [rows, columns])) = input.dims.split_last_chunk::<2>() else {
        return Err(relation.mismatch(format!("input: expected matrices, found {}", relation.args[0])));
    };
    let mut expected = batch.to_vec();
    if k1 != k2 {
        expected.push(Dim::Fixed((k2 - k1 + 1) as usize));
    }
    expected.push(match (rows.fixed(), columns.fixed()) {
        (Some(rows), Some(columns)) => {
            if -k1 >= rows as i64 || k2 >= columns as i64 {
                return Err(relation.mismatch(format!(
                    "expected diagonals from {} to {}, found {k1} to {k2}",
                    1 - rows as i64,
                    columns as i64 - 1
                )));
            }
            Dim::Fixed((rows as i64 + k2.min(0)).min(columns as i64 - k1.max(0)).max(0) as usize)
        }
        _ => Dim::Any,
    });
    if expected.len() != diagonal.dims.len() {
        let found = &relation.args[1];
        return Err(relation.mismatch(format!("diagonal: expected rank {}, found {found}", expected.len())));
    }
    for (i, (expected, dim)) in expected.iter().zip(&diagonal.dims).enumerate() {
        relation.same_dim(&format!("axis {i} of diagonal"), expected, dim)?;
    }
    same_as_input(relation)
}

fn matrix_set_diag(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (k1, k2) = (params.int("k1"), params.int("k2"));
    let shape = inputs[0].shape;
    let (rows, columns) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let (count, length) = ((k2 - k1 + 1) as usize, inputs[1].shape[inputs[1].shape.len() - 1]);
    let size = inputs[0].dtype.size();
    outputs[0].data.copy_from_slice(inputs[0].data);
    let mut position = 0;
    for_each_index(shape, |index| {
        let (row, column) = (index[shape.len() - 2], index[shape.len() - 1]);
        let k = column as i64 - row as i64;
        if (k1..=k2).contains(&k) {
            let is_right = params.bool(if k >= 0 { "super_diag_right_align" } else { "sub_diag_right_align" });
            let missing = if is_right { length as i64 - diagonal_length(rows, columns, k) } else { 0 };
            let batch = position / (rows * columns);
            let source = (batch * count + (k2 - k) as usize) * length + row.min(column) + missing.max(0) as usize;
            let bytes = &inputs[1].data[source * size..][..size];
            outputs[0].data[position * size..][..size].copy_from_slice(bytes);
        }
        position += 1;
    });
    Ok(())
}
