//! Sorting along an axis. Each element becomes a key that holds its order and its index, so that an unstable sort of
//! the keys is a stable sort of the elements. If the result contains only the first elements of each row (`topk`), the
//! remaining keys are not sorted.

use super::{Kernel, Offer, Spec, split};
use byoc_ir::tensor::{DType, Element, TensorView, TensorViewMut};

inventory::submit! { Offer { op: "sort", make: |spec| make(spec, Some(0), None) } }
inventory::submit! { Offer { op: "argsort", make: |spec| make(spec, None, Some(0)) } }
inventory::submit! { Offer { op: "topk", make: make_topk } }
inventory::submit! { Offer { op: "dyn.topk", make: make_topk } }

fn make_topk(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    match spec.params().string("ret_type").as_str() {
        "values" => make(spec, Some(0), None),
        "indices" => make(spec, None, Some(0)),
        _ => make(spec, Some(0), Some(1)),
    }
}

/// Sort of the rows along an axis. There are `outer` blocks of `inner` rows; the `size` elements of a row are `inner`
/// elements apart.
struct Sort {
    outer: usize,
    size: usize,
    inner: usize,
    /// Number of elements per row of the result.
    count: usize,
    is_ascending: bool,
    /// Index of the output for the sorted elements, and of the output for their indices; `None` if there is no such
    /// output.
    values: Option<usize>,
    indices: Option<usize>,
}

fn make(spec: &Spec<'_>, values: Option<usize>, indices: Option<usize>) -> Option<Box<dyn Kernel>> {
    let params = spec.params();
    let (shape, result) = (spec.inputs[0].shape()?, spec.outputs[0].shape()?);
    let has_index_type = indices.is_none_or(|i| matches!(spec.outputs[i].dtype, DType::I32 | DType::I64));
    let axis = params.int("axis").rem_euclid(shape.len().max(1) as i64) as usize;
    let size = *shape.get(axis)?;
    if !matches!(spec.inputs[0].dtype, DType::F32 | DType::I32) || !has_index_type || u32::try_from(size).is_err() {
        return None;
    }
    Some(Box::new(Sort {
        outer: shape[..axis].iter().product(),
        size,
        inner: shape[axis + 1..].iter().product(),
        count: result[axis],
        is_ascending: params.bool("is_ascend"),
        values,
        indices,
    }))
}

/// Element whose order can be expressed as an unsigned integer.
trait Ordered: Element {
    fn order(self) -> u32;
}

impl Ordered for i32 {
    fn order(self) -> u32 {
        self as u32 ^ (1 << 31)
    }
}

impl Ordered for f32 {
    /// Returns an integer that preserves the order of the numbers: both zeros are equal, and NaN is the largest.
    fn order(self) -> u32 {
        let bits = (self + 0.0).to_bits();
        match bits >> 31 {
            _ if self.is_nan() => u32::MAX,
            0 => bits | 1 << 31,
            _ => !bits,
        }
    }
}

impl Sort {
    /// Writes the keys of each row to `keys`, and moves the `count` smallest keys of the row to the front, sorted.
    fn sort<T: Ordered>(&self, x: &[T], keys: &mut [u64]) {
        let steps = self.size.ilog2() as usize + 1;
        split::for_each_chunk(keys, self.size, x.len() * steps, |row, keys| {
            let first = row / self.inner * self.size * self.inner + row % self.inner;
            for (i, key) in keys.iter_mut().enumerate() {
                let order = x[first + i * self.inner].order();
                let order = if self.is_ascending { order } else { !order };
                *key = u64::from(order) << 32 | i as u64;
            }
            if self.count < self.size {
                keys.select_nth_unstable(self.count);
            }
            keys[..self.count].sort_unstable();
        });
    }

    /// Calls `write(block, index of the element in the block, out)` for each element of the result.
    fn write<T: Element>(&self, keys: &[u64], out: &mut [T], write: impl Fn(usize, usize, &mut T) + Sync) {
        let work = out.len();
        split::for_each_chunk(out, self.count * self.inner, work, |block, out| {
            for (i, out) in out.iter_mut().enumerate() {
                let row = block * self.inner + i % self.inner;
                let key = keys[row * self.size + i / self.inner];
                write(block, (key as u32) as usize * self.inner + i % self.inner, out);
            }
        });
    }

    fn run_typed<T: Ordered>(&self, x: &[T], outputs: &mut [TensorViewMut<'_>], keys: &mut [u64]) {
        self.sort(x, keys);
        if let Some(values) = self.values {
            let block_len = self.size * self.inner;
            self.write(keys, outputs[values].as_mut_slice::<T>(), |block, i, out| *out = x[block * block_len + i]);
        }
        let Some(indices) = self.indices else { return };
        match outputs[indices].dtype {
            DType::I32 => {
                self.write(keys, outputs[indices].as_mut_slice::<i32>(), |_, i, out| *out = (i / self.inner) as i32);
            }
            _ => self.write(keys, outputs[indices].as_mut_slice::<i64>(), |_, i, out| *out = (i / self.inner) as i64),
        }
    }
}

impl Kernel for Sort {
    fn workspace(&self) -> usize {
        self.outer * self.size * self.inner * 8
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let keys = bytemuck::cast_slice_mut(&mut workspace[..self.workspace()]);
        match inputs[0].dtype {
            DType::F32 => self.run_typed(inputs[0].as_slice::<f32>(), outputs, keys),
            _ => self.run_typed(inputs[0].as_slice::<i32>(), outputs, keys),
        }
        Ok(())
    }
}
