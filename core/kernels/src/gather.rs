//! Gathering of single elements along an axis.

use super::{Kernel, Offer, Spec, split};
use byoc_ir::op::index::in_bounds;
use byoc_ir::tensor::{DType, Shape, TensorView, TensorViewMut};
use bytemuck::Pod;
use std::sync::atomic::{AtomicBool, Ordering};

inventory::submit! { Offer { op: "gather", make } }

struct Gather {
    /// Dimensions of the result before the last, each with the stride of the data; the stride of the axis is 0.
    outer: Vec<(usize, usize)>,
    /// Last dimension of the result.
    row: usize,
    /// Stride of the data along the last dimension, 0 if it is the axis.
    step: usize,
    /// Dimension of the axis, and its stride.
    axis: (usize, usize),
    index_type: DType,
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let index_type = spec.inputs[1].dtype;
    let (shape, result) = (spec.inputs[0].shape()?, spec.outputs[0].shape()?);
    if !matches!(index_type, DType::I32 | DType::I64) || !matches!(spec.inputs[0].dtype.size(), 1 | 2 | 4 | 8) {
        return None;
    }
    let axis = spec.params().int("axis").rem_euclid(shape.len().max(1) as i64) as usize;
    let mut strides: Shape = smallvec::smallvec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    let along_axis = (*shape.get(axis)?, strides[axis]);
    strides[axis] = 0;
    let mut dims: Vec<(usize, usize)> = result.iter().copied().zip(strides).collect();
    let (row, step) = dims.pop()?;
    Some(Box::new(Gather { outer: dims, row, step, axis: along_axis, index_type }))
}

impl Gather {
    fn copy<T: Pod + Send + Sync>(
        &self,
        data: &[u8],
        index: impl Fn(usize) -> i64 + Sync,
        out: &mut [u8],
    ) -> Result<(), String> {
        let (data, out): (&[T], &mut [T]) = (bytemuck::cast_slice(data), bytemuck::cast_slice_mut(out));
        let (size, stride) = self.axis;
        let has_failed = AtomicBool::new(false);
        let (count, work) = (out.len(), out.len() * 2);
        split::for_each_chunk(out, self.row, work, |row, out| {
            let (mut base, mut rest) = (0, row);
            for (dim, stride) in self.outer.iter().rev() {
                base += rest % dim * stride;
                rest /= dim;
            }
            for (i, out) in out.iter_mut().enumerate() {
                let position = index(row * self.row + i);
                let position = if position < 0 { position.wrapping_add(size as i64) } else { position };
                match usize::try_from(position).ok().filter(|&position| position < size) {
                    Some(position) => *out = data[base + i * self.step + position * stride],
                    None => has_failed.store(true, Ordering::Relaxed),
                }
            }
        });
        if has_failed.into_inner() {
            return (0..count).try_for_each(|i| in_bounds(index(i), size).map(drop));
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
