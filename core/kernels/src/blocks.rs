//! Operators that move whole blocks of bytes: concatenate, stack, split, take.

use super::{Kernel, Offer, Spec, split};
use byoc_ir::op::index::{TakeMode, take_axes};
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};

/// Number of bytes that can be copied at the cost of one simple operation on an element.
const BYTES_PER_OPERATION: usize = 8;

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
    /// Number of indices per batch.
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
        if !out.is_empty() {
            (0..count).try_for_each(|i| self.mode.resolve(indices(i), self.size).map(|_| ()))?;
        }
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

impl Kernel for Take {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let (data, out) = (inputs[0].data, &mut *outputs[0].data);
        let count = inputs[1].len();
        if inputs[1].dtype == DType::I32 {
            let indices = inputs[1].as_slice::<i32>();
            self.copy(data, |i| i64::from(indices[i]), count, out)
        } else {
            let indices = inputs[1].as_slice::<i64>();
            self.copy(data, |i| indices[i], count, out)
        }
    }
}
