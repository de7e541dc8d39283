//! Operators that move whole blocks of bytes: concatenate, stack, split, take.

use super::{Kernel, Offer, Spec, split};
use byoc_ir::op::index::{TakeMode, take_axes};
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};
use bytemuck::Pod;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of bytes that can be copied at the cost of one simple operation on an element.
const BYTES_PER_OPERATION: usize = 8;

/// Number of elements looked up per chunk of work.
const ELEMENTS: usize = 4096;

inventory::submit! { Offer { op: "concatenate", make: make_concat } }
inventory::submit! { Offer { op: "stack", make: make_concat } }
inventory::submit! { Offer { op: "split", make: make_split } }
inventory::submit! { Offer { op: "take", make: make_take } }

/// Returns the product of the dimensions before the axis in attribute `axis`.
fn outer(spec: &Spec<'_>, shape: &[usize]) -> Option<usize> {
    let axis = spec.params().int("axis").rem_euclid(i64::try_from(shape.len()).ok()?) as usize;
    Some(shape[..axis].iter().product())
}

/// Concatenation: each row of the output consists of one chunk of every input, in order.
struct Concat {
    outer_len: usize,
}

fn make_concat(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    Some(Box::new(Concat { outer_len: outer(spec, &spec.outputs[0].shape()?)? }))
}

impl Kernel for Concat {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let out = &mut *outputs[0].data;
        let row = out.len().checked_div(self.outer_len).unwrap_or(0);
        let work = out.len() / BYTES_PER_OPERATION;
        split::for_each_chunk(out, row, work, |i, mut out| {
            for input in inputs {
                let size = input.data.len() / self.outer_len;
                let (chunk, tail) = out.split_at_mut(size);
                chunk.copy_from_slice(&input.data[i * size..(i + 1) * size]);
                out = tail;
            }
        });
        Ok(())
    }
}

/// Split: each row of the input is divided into one chunk per output.
struct Split {
    outer_len: usize,
}

fn make_split(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    Some(Box::new(Split { outer_len: outer(spec, &spec.inputs[0].shape()?)? }))
}

impl Kernel for Split {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let data = inputs[0].data;
        let row = data.len().checked_div(self.outer_len).unwrap_or(0);
        let mut begin = 0;
        for output in outputs {
            let size = output.data.len().checked_div(self.outer_len).unwrap_or(0);
            let work = output.data.len() / BYTES_PER_OPERATION;
            split::for_each_chunk(output.data, size, work, |i, out| {
                let start = i * row + begin;
                out.copy_from_slice(&data[start..start + size]);
            });
            begin += size;
        }
        Ok(())
    }
}

/// Gather of the input blocks that an index tensor selects.
struct Take {
    mode: TakeMode,
    /// Dimension of the axis.
    size: usize,
    /// Size of a block in bytes: the product of the dimensions after the axis and the size of an element.
    block: usize,
    /// Product of the dimensions between the batch dimensions and the axis.
    outer_len: usize,
    /// Number of indices per batch item.
    per_batch: usize,
}

fn make_take(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    if !matches!(spec.inputs[1].dtype, DType::I32 | DType::I64) {
        return None;
    }
    let (mut shape, index_shape) = (spec.inputs[0].shape()?, spec.inputs[1].shape()?);
    let (axis, batch) = take_axes(&spec.params(), shape.len(), index_shape.len())?;
    let axis = axis.unwrap_or_else(|| {
        shape = smallvec::smallvec![shape.iter().product()];
        0
    });
    Some(Box::new(Take {
        mode: TakeMode::parse(&spec.params().string("mode"))?,
        size: shape[axis],
        block: shape[axis + 1..].iter().product::<usize>() * spec.inputs[0].dtype.size(),
        outer_len: shape[batch..axis].iter().product(),
        per_batch: index_shape[batch..].iter().product(),
    }))
}

impl Take {
    fn copy(
        &self,
        data: &[u8],
        indices: impl Fn(usize) -> i64 + Sync,
        count: usize,
        out: &mut [u8],
    ) -> Result<(), String> {
        // Indices are checked before the work is split.
        self.check(&indices, count, out)?;
        let work = out.len() / BYTES_PER_OPERATION;
        split::for_each_chunk(out, self.block, work, |i, out| {
            let (row, position) = (i / self.per_batch, i % self.per_batch);
            let index = indices(row / self.outer_len * self.per_batch + position);
            let start = (row * self.size + self.mode.resolve(index, self.size).unwrap_or(0)) * self.block;
            out.copy_from_slice(&data[start..start + self.block]);
        });
        Ok(())
    }
}

impl Take {
    /// Checks the indices, unless the result is empty.
    fn check(&self, indices: impl Fn(usize) -> i64, count: usize, out: &[u8]) -> Result<(), String> {
        if out.is_empty() {
            return Ok(());
        }
        (0..count).try_for_each(|i| self.mode.resolve(indices(i), self.size).map(|_| ()))
    }

    /// Same as [`Take::copy`], for blocks of one element.
    fn copy_elements<T: Pod + Send + Sync>(
        &self,
        data: &[u8],
        indices: impl Fn(usize) -> i64 + Sync,
        count: usize,
        out: &mut [u8],
    ) -> Result<(), String> {
        let data: &[T] = bytemuck::cast_slice(data);
        let has_failed = AtomicBool::new(false);
        let elements: &mut [T] = bytemuck::cast_slice_mut(out);
        let work = elements.len() * 2;
        split::for_each_chunk(elements, ELEMENTS, work, |chunk, mut out| {
            let mut first = chunk * ELEMENTS;
            while !out.is_empty() {
                let (row, position) = (first / self.per_batch, first % self.per_batch);
                let (part, tail) = out.split_at_mut((self.per_batch - position).min(out.len()));
                let row_data = &data[row * self.size..][..self.size];
                let first_index = row / self.outer_len * self.per_batch + position;
                first += part.len();
                out = tail;
                for (i, out) in part.iter_mut().enumerate() {
                    match self.mode.resolve(indices(first_index + i), self.size) {
                        Ok(index) => *out = row_data[index],
                        Err(_) => has_failed.store(true, Ordering::Relaxed),
                    }
                }
            }
        });
        if has_failed.into_inner() { self.check(indices, count, out) } else { Ok(()) }
    }

    fn take(
        &self,
        data: &TensorView<'_>,
        indices: impl Fn(usize) -> i64 + Sync,
        count: usize,
        out: &mut [u8],
    ) -> Result<(), String> {
        if self.block != data.dtype.size() {
            return self.copy(data.data, indices, count, out);
        }
        match self.block {
            1 => self.copy_elements::<u8>(data.data, indices, count, out),
            2 => self.copy_elements::<u16>(data.data, indices, count, out),
            4 => self.copy_elements::<u32>(data.data, indices, count, out),
            8 => self.copy_elements::<u64>(data.data, indices, count, out),
            _ => self.copy(data.data, indices, count, out),
        }
    }
}

impl Kernel for Take {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let (data, out, count) = (&inputs[0], &mut *outputs[0].data, inputs[1].len());
        if inputs[1].dtype == DType::I32 {
            let indices = inputs[1].as_slice::<i32>();
            self.take(data, |i| i64::from(indices[i]), count, out)
        } else {
            let indices = inputs[1].as_slice::<i64>();
            self.take(data, |i| indices[i], count, out)
        }
    }
}
