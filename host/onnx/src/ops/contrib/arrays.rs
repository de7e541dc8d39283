//! Operators on the elements and axes of tensors.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::tensor::Tensor;

pub const ROWS: &[Row] = &[
    ("CDist", 1, cdist),
    ("ExpandDims", 1, |n| {
        let (data, axis) = (n.input(0)?, n.int(1, "axis")?);
        let axis = axis.ok_or_else(|| n.invalid_node("input 1 (axis): expected one integer"))?;
        let axis = n.axis(axis, n.rank(data)? + 1)?;
        single_output(n.op("expand_dims", &[data], attrs![axis: axis as i64])?)
    }),
    ("UnfoldTensor", 1, unfold),
    ("Unique", 1, |n| {
        let data = n.input(0)?;
        let results = n.op("unique_slices", &[data], attrs![is_sorted: false])?;
        // Results: elements, indices of their first occurrences, index of each input element, counts.
        [0, 2, 3].into_iter().take(n.output_count()).map(|i| n.project(results, i)).collect()
    }),
];

/// Computes the distance of each row of the first matrix to each row of the second.
fn cdist(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let metric = n.str_attr("metric", "sqeuclidean")?;
    if metric != "euclidean" && metric != "sqeuclidean" {
        return Err(n.invalid_node(format!("attribute metric: expected euclidean or sqeuclidean, found \"{metric}\"")));
    }
    let rows = n.op("expand_dims", &[n.input(0)?], attrs![axis: 1])?;
    let columns = n.op("expand_dims", &[n.input(1)?], attrs![axis: 0])?;
    let difference = n.op_without_attrs("subtract", &[rows, columns])?;
    let square = n.op_without_attrs("multiply", &[difference, difference])?;
    let sum = n.op("sum", &[square], attrs![axis: [-1]])?;
    single_output(if metric == "euclidean" { n.op_without_attrs("sqrt", &[sum])? } else { sum })
}

/// Replaces an axis by its windows of `size` elements, one every `step` elements. The elements of a window lie along a
/// new last axis.
fn unfold(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let dims = n.dims(data)?;
    let axis = n.axis(n.int_attr("dim", -1)?, dims.len())?;
    let Some(length) = dims[axis].fixed() else { return Err(n.unknown_dims_error(&n.ty(data)?)) };
    let (size, step) = (n.int_attr("size", 1)?, n.int_attr("step", 1)?);
    let length = length as i64;
    if !(1..=length).contains(&size) || step < 1 {
        return Err(n.invalid_node(format!(
            "expected a window size from 1 to {length} and a step >= 1, found {size} and {step}"
        )));
    }
    let begins: Vec<i64> = (0..=length - size).step_by(usize::try_from(step).unwrap_or(usize::MAX)).collect();
    let offsets: Vec<i64> = (0..size).collect();
    let begins = n.tensor(Tensor::from_slice(&[begins.len(), 1], &begins));
    let offsets = n.tensor(Tensor::from_slice(&[1, offsets.len()], &offsets));
    // Not computed here: the windows may have far more elements than the data.
    let indices = n.op_without_attrs("add", &[begins, offsets])?;
    let windows = n.op("take", &[data, indices], attrs![axis: axis as i64, mode: "clip"])?;
    let rank = dims.len();
    let order: Vec<usize> = (0..=axis).chain(axis + 2..=rank).chain([axis + 1]).collect();
    single_output(n.transpose(windows, &order)?)
}
