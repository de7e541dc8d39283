//! Traversal of the elements of dense row-major tensors, for the references.

use crate::cancel::Ticks;
use crate::tensor::{Shape, TensorView, TensorViewMut};

/// Returns the stride of each axis, in elements.
pub(super) fn strides(shape: &[usize]) -> Shape {
    let mut strides: Shape = smallvec::smallvec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Returns the strides for reading a tensor of `shape` as if broadcast to `rank` dimensions: 0 on repeated axes.
pub(super) fn broadcast_strides(shape: &[usize], rank: usize) -> Shape {
    let dense_strides = strides(shape);
    let mut result: Shape = smallvec::smallvec![0; rank];
    for (axis, &size) in shape.iter().enumerate() {
        if size != 1 {
            result[rank - shape.len() + axis] = dense_strides[axis];
        }
    }
    result
}

/// Returns the offset of the element at `index`, in elements.
pub(super) fn offset(index: &[usize], strides: &[usize]) -> usize {
    index.iter().zip(strides).map(|(i, s)| i * s).sum()
}

/// Calls `visit` with every index of `shape`, in row-major order, until the work is [cancelled](crate::cancel).
pub(super) fn for_each_index(shape: &[usize], mut visit: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut index: Shape = smallvec::smallvec![0; shape.len()];
    let mut ticks = Ticks::every(16);
    while !ticks.is_requested() {
        visit(&index);
        let Some(axis) = (0..shape.len()).rev().find(|&a| index[a] + 1 < shape[a]) else { return };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

/// Fills each element of the output with the input element at the offset that `source` returns for the output index.
pub(super) fn gather(
    input: &TensorView<'_>,
    output: &mut TensorViewMut<'_>,
    mut source: impl FnMut(&[usize]) -> usize,
) {
    let size = input.dtype.size();
    let shape = output.shape;
    let mut chunks = output.data.chunks_exact_mut(size);
    for_each_index(shape, |index| {
        let start = source(index) * size;
        if let Some(chunk) = chunks.next() {
            chunk.copy_from_slice(&input.data[start..start + size]);
        }
    });
}

/// Splits a shape at `axis`: the product of the dimensions before the axis, its dimension, and the product of the
/// dimensions after it.
pub(super) fn split_at_axis(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}
