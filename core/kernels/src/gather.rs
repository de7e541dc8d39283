//! Gathering of single elements along an axis.

use super::{Kernel, Offer, Spec, split};
use byoc_ir::op::index::in_bounds;
use byoc_ir::tensor::{DType, Shape, TensorView, TensorViewMut};
use bytemuck::Pod;
use std::sync::atomic::{AtomicBool, Ordering};

inventory::submit! { Offer { op: "gather", make } }

/// Mapping from indices along one axis to positions in the data, computed for one row of the index tensor at a time.
pub(super) struct AlongAxis {
    /// Dimensions of the index tensor except the last, each with the corresponding stride of the data, which is 0 for
    /// the axis.
    outer: Vec<(usize, usize)>,
    /// Last dimension of the index tensor.
    pub row: usize,
    /// Stride of the data along the last dimension; 0 if that is the axis.
    pub step: usize,
    /// Dimension of the axis, and its stride.
    axis: (usize, usize),
}

impl AlongAxis {
    /// Creates the mapping for data and indices of the given dimensions; `None` for data of rank 0.
    pub fn new(shape: &[usize], indices: &[usize], axis: usize) -> Option<AlongAxis> {
        let mut strides: Shape = smallvec::smallvec![1; shape.len()];
        for i in (1..shape.len()).rev() {
            strides[i - 1] = strides[i] * shape[i];
        }
        let along_axis = (*shape.get(axis)?, strides[axis]);
        strides[axis] = 0;
        let mut outer: Vec<(usize, usize)> = indices.iter().copied().zip(strides).collect();
        let (row, step) = outer.pop()?;
        Some(AlongAxis { outer, row, step, axis: along_axis })
    }

    /// Returns the position in the data that the first entry of a row selects if that entry is 0.
    pub fn row_start(&self, row: usize) -> usize {
        let (mut start, mut rest) = (0, row);
        for (dim, stride) in self.outer.iter().rev() {
            start += rest % dim * stride;
            rest /= dim;
        }
        start
    }

    /// Returns the distance in elements from index 0 to an index along the axis; `None` if the index is out of range.
    #[inline(always)]
    pub fn distance(&self, index: i64) -> Option<usize> {
        let (size, stride) = self.axis;
        let index = if index < 0 { index.wrapping_add(size as i64) } else { index };
        usize::try_from(index).ok().filter(|&index| index < size).map(|index| index * stride)
    }

    /// Checks the first `count` indices.
    ///
    /// # Errors
    /// If an index is out of range.
    pub fn check(&self, index: impl Fn(usize) -> i64, count: usize) -> Result<(), String> {
        (0..count).try_for_each(|i| in_bounds(index(i), self.axis.0).map(drop))
    }
}

/// Returns true if the kernels support the type of the indices and the size of the data's elements.
pub(super) fn covers(data: DType, indices: DType) -> bool {
    matches!(indices, DType::I32 | DType::I64) && matches!(data.size(), 1 | 2 | 4 | 8)
}

struct Gather {
    positions: AlongAxis,
    index_type: DType,
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let index_type = spec.inputs[1].dtype;
    if !covers(spec.inputs[0].dtype, index_type) {
        return None;
    }
    let (shape, result) = (spec.inputs[0].shape()?, spec.outputs[0].shape()?);
    let axis = spec.params().int("axis").rem_euclid(shape.len().max(1) as i64) as usize;
    Some(Box::new(Gather { positions: AlongAxis::new(&shape, &result, axis)?, index_type }))
}

impl Gather {
    fn copy<T: Pod + Send + Sync>(
        &self,
        data: &[u8],
        index: impl Fn(usize) -> i64 + Sync,
        out: &mut [u8],
    ) -> Result<(), String> {
        let (data, out): (&[T], &mut [T]) = (bytemuck::cast_slice(data), bytemuck::cast_slice_mut(out));
        let positions = &self.positions;
        let has_failed = AtomicBool::new(false);
        let (count, work) = (out.len(), out.len() * 2);
        split::for_each_chunk(out, positions.row, work, |row, out| {
            let start = positions.row_start(row);
            for (i, out) in out.iter_mut().enumerate() {
                match positions.distance(index(row * positions.row + i)) {
                    Some(distance) => *out = data[start + i * positions.step + distance],
                    None => has_failed.store(true, Ordering::Relaxed),
                }
            }
        });
        if has_failed.into_inner() {
            return positions.check(index, count);
        }
        Ok(())
    }

    fn copy_elements(
        &self,
        data: &TensorView<'_>,
        index: impl Fn(usize) -> i64 + Sync,
        out: &mut [u8],
    ) -> Result<(), String> {
        match data.dtype.size() {
            1 => self.copy::<u8>(data.data, index, out),
            2 => self.copy::<u16>(data.data, index, out),
            4 => self.copy::<u32>(data.data, index, out),
            _ => self.copy::<u64>(data.data, index, out),
        }
    }
}

impl Kernel for Gather {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let out = &mut *outputs[0].data;
        match self.index_type {
            DType::I32 => {
                let indices = inputs[1].as_slice::<i32>();
                self.copy_elements(&inputs[0], |i| i64::from(indices[i]), out)
            }
            _ => {
                let indices = inputs[1].as_slice::<i64>();
                self.copy_elements(&inputs[0], |i| indices[i], out)
            }
        }
    }
}
