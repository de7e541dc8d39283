//! Traversal of the elements of dense row-major tensors, for the references.

use crate::cancel::Ticks;
use crate::tensor::{Shape, TensorView, TensorViewMut};
use smallvec::SmallVec;

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

/// Number of elements that are visited between two polls of the cancellation token.
const RUN: usize = 1 << 14;

/// Calls `visit` for runs of elements of `shape`, in row-major order, until the work is [cancelled](crate::cancel). A run
/// has the offset of its first element in each operand, a length, and the step of each operand. Axes that all operands
/// traverse alike are joined.
pub(super) fn for_each_run<const N: usize>(
    shape: &[usize],
    strides: [&[usize]; N],
    mut visit: impl FnMut([usize; N], usize, [usize; N]),
) {
    if shape.contains(&0) {
        return;
    }
    let mut axes: SmallVec<[(usize, [usize; N]); 8]> = SmallVec::new();
    for (axis, &size) in shape.iter().enumerate().filter(|(_, size)| **size != 1) {
        let steps = strides.map(|strides| strides[axis]);
        match axes.last_mut() {
            Some((outer, outer_steps)) if (0..N).all(|k| outer_steps[k] == steps[k] * size) => {
                *outer *= size;
                *outer_steps = steps;
            }
            _ => axes.push((size, steps)),
        }
    }
    let (len, steps) = axes.pop().unwrap_or((1, [0; N]));
    let outer_shape: Shape = axes.iter().map(|axis| axis.0).collect();
    for_each_index(&outer_shape, |index| {
        let start: [usize; N] = std::array::from_fn(|k| index.iter().zip(&axes).map(|(i, axis)| i * axis.1[k]).sum());
        let mut ticks = Ticks::every(1);
        for first in (0..len).step_by(RUN) {
            if first > 0 && ticks.is_requested() {
                return;
            }
            visit(std::array::from_fn(|k| start[k] + first * steps[k]), RUN.min(len - first), steps);
        }
    });
}

/// Fills the output with the input elements at the given strides.
pub(super) fn gather_strided(input: &TensorView<'_>, output: &mut TensorViewMut<'_>, strides: &[usize]) {
    match input.dtype.size() {
        1 => copy_runs::<1>(input, output, strides),
        2 => copy_runs::<2>(input, output, strides),
        4 => copy_runs::<4>(input, output, strides),
        8 => copy_runs::<8>(input, output, strides),
        _ => gather(input, output, |index| offset(index, strides)),
    }
}

/// Copies elements of `S` bytes.
fn copy_runs<const S: usize>(input: &TensorView<'_>, output: &mut TensorViewMut<'_>, strides: &[usize]) {
    let (source, mut rest) = (input.data.as_chunks::<S>().0, output.data.as_chunks_mut::<S>().0);
    for_each_run(output.shape, [strides], |[start], len, [step]| {
        let (run, tail) = std::mem::take(&mut rest).split_at_mut(len);
        rest = tail;
        match step {
            0 => run.fill(source[start]),
            1 => run.copy_from_slice(&source[start..start + len]),
            _ => run.iter_mut().zip(source[start..].iter().step_by(step)).for_each(|(to, from)| *to = *from),
        }
    });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_visit_the_offsets_of_every_index_in_order() {
        // Dense, broadcast, transposed, with axes of 1, and longer than a run.
        let cases: [(&[usize], &[usize], &[usize]); 6] = [
            (&[2, 3, 4], &[12, 4, 1], &[0, 0, 1]),
            (&[2, 3, 4], &[12, 4, 1], &[0, 1, 0]),
            (&[4, 1, 3], &[1, 7, 4], &[3, 1, 1]),
            (&[3, RUN + 5], &[RUN + 5, 1], &[0, 1]),
            (&[RUN + 5, 2], &[1, RUN + 5], &[1, 0]),
            (&[], &[], &[]),
        ];
        for (shape, a, b) in cases {
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            for_each_index(shape, |index| expected.push([offset(index, a), offset(index, b)]));
            for_each_run(shape, [a, b], |[i, j], len, [i_step, j_step]| {
                found.extend((0..len).map(|k| [i + k * i_step, j + k * j_step]));
            });
            assert!(expected == found, "{shape:?} {a:?} {b:?}");
        }
        for_each_run(&[2, 0], [&[0, 1]], |_, _, _| panic!("an empty shape has no runs"));
    }
}
