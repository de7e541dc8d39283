//! Operators that move elements of any type by a regular rule: each output dimension traverses the input with a fixed
//! stride. These are transposes, broadcasts, slices, tilings and layout changes. Contiguous dimensions are merged,
//! and the remaining dimensions are copied as runs, fills or small square blocks.

use super::{Kernel, Offer, Spec, split};
use byoc_ir::op::layout::{Layout, permutation};
use byoc_ir::op::slice::Slice;
use byoc_ir::tensor::{Shape, TensorView, TensorViewMut};
use smallvec::SmallVec;

/// Output dimension, with the stride of the input along this dimension in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    size: usize,
    stride: isize,
}

/// Minimum number of elements that a thread handles at a time.
const MIN_CHUNK: usize = 4096;

/// Side length of a square block in a transpose, in elements: 16 elements of 4 bytes fill a cache line.
const BLOCK: usize = 16;

/// Copy in which each output dimension traverses the input with a fixed stride.
#[derive(Clone, Debug)]
struct StridedCopy {
    /// Index of the input element for the first output element.
    start: isize,
    /// Merged dimensions, outermost first; the output traverses them in row-major order.
    dims: SmallVec<[Step; 6]>,
    element: usize,
}

impl StridedCopy {
    fn new(start: isize, dims: impl IntoIterator<Item = Step>, element: usize) -> StridedCopy {
        let mut merged: SmallVec<[Step; 6]> = SmallVec::new();
        for step in dims {
            if step.size == 1 {
                continue;
            }
            match merged.last_mut() {
                Some(outer) if outer.stride == step.stride * step.size as isize => {
                    *outer = Step { size: outer.size * step.size, stride: step.stride };
                }
                _ => merged.push(step),
            }
        }
        if merged.is_empty() {
            merged.push(Step { size: 1, stride: 1 });
        }
        StridedCopy { start, dims: merged, element }
    }

    /// Returns the index of the input element at the start of an output row; a row consists of the last `tail`
    /// dimensions.
    fn row_start(&self, mut row: usize, tail: usize) -> isize {
        let mut offset = self.start;
        for step in self.dims[..self.dims.len() - tail].iter().rev() {
            offset += (row % step.size) as isize * step.stride;
            row /= step.size;
        }
        offset
    }

    fn copy<T: bytemuck::Pod + Send + Sync>(&self, input: &[T], output: &mut [T]) {
        let Some(&last_step) = self.dims.last() else { return };
        // Dimension along which the input is contiguous; if it is not the innermost, the copy is a transpose.
        let transposed_axis = self.dims[..self.dims.len() - 1].iter().position(|d| d.stride == 1);
        if let (Some(transposed_axis), false) = (transposed_axis, matches!(last_step.stride, 0 | 1)) {
            return self.transpose(transposed_axis, input, output);
        }
        let work = output.len();
        let rows = (MIN_CHUNK / last_step.size.max(1)).max(1);
        if self.dims.len() == 1 {
            return split::for_each_chunk(output, MIN_CHUNK, work, |i, out| {
                copy_row(input, self.start + (i * MIN_CHUNK) as isize * last_step.stride, last_step.stride, out);
            });
        }
        split::for_each_chunk(output, rows * last_step.size, work, |i, out| {
            for (r, out) in out.chunks_mut(last_step.size).enumerate() {
                copy_row(input, self.row_start(i * rows + r, 1), last_step.stride, out);
            }
        });
    }

    /// Copies square blocks of two dimensions: `transposed_axis`, along which the input is contiguous, and the
    /// innermost dimension, along which the output is contiguous.
    fn transpose<T: bytemuck::Pod + Send + Sync>(&self, transposed_axis: usize, input: &[T], output: &mut [T]) {
        let last = self.dims.len() - 1;
        let inner = self.dims[last];
        // A slab consists of the dimensions from `transposed_axis` inward; between `transposed_axis` and the innermost
        // dimension lie `middle` rows of the output.
        let slab_len: usize = self.dims[transposed_axis..].iter().map(|d| d.size).product();
        let row_step: usize = self.dims[transposed_axis + 1..].iter().map(|d| d.size).product();
        let middle = row_step / inner.size.max(1);
        let middle_start = |mut m: usize| {
            let mut offset = 0;
            for step in self.dims[transposed_axis + 1..last].iter().rev() {
                offset += (m % step.size) as isize * step.stride;
                m /= step.size;
            }
            offset
        };
        // A band of BLOCK indices along `transposed_axis` is contiguous in the output, and is a thread's unit of work.
        let band_len = BLOCK * row_step;
        let work = 4 * output.len();
        let copy_band = |slab_start: isize, first: usize, out: &mut [T]| {
            let row_count = out.len() / row_step;
            for m in 0..middle {
                let source = slab_start + middle_start(m) + first as isize;
                for j in (0..inner.size).step_by(BLOCK) {
                    let high = BLOCK.min(inner.size - j);
                    for i in 0..row_count {
                        let target = i * row_step + m * inner.size + j;
                        let base = source + i as isize + j as isize * inner.stride;
                        for (k, out) in out[target..target + high].iter_mut().enumerate() {
                            *out = input[(base + k as isize * inner.stride) as usize];
                        }
                    }
                }
            }
        };
        if self.dims[transposed_axis].size <= BLOCK {
            // One band per slab: adjacent slabs are processed by one thread.
            return split::for_each_chunk(output, slab_len, work, |s, out| {
                copy_band(self.slab_start(s, transposed_axis), 0, out)
            });
        }
        let slab_work = 4 * slab_len;
        for (s, out) in output.chunks_mut(slab_len.max(1)).enumerate() {
            let start = self.slab_start(s, transposed_axis);
            split::for_each_chunk(out, band_len, slab_work, |i, out| copy_band(start, i * BLOCK, out));
        }
    }

    fn slab_start(&self, slab: usize, transposed_axis: usize) -> isize {
        self.row_start(slab, self.dims.len() - transposed_axis)
    }
}

/// Writes a row of the output: as a run, as a fill, or element by element.
fn copy_row<T: bytemuck::Pod>(input: &[T], start: isize, stride: isize, out: &mut [T]) {
    match stride {
        1 => out.copy_from_slice(&input[start as usize..start as usize + out.len()]),
        0 => out.fill(input[start as usize]),
        _ => {
            for (i, out) in out.iter_mut().enumerate() {
                *out = input[(start + i as isize * stride) as usize];
            }
        }
    }
}

impl Kernel for StridedCopy {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let (input, output) = (inputs[0].data, &mut *outputs[0].data);
        match self.element {
            1 => self.copy(input, output),
            2 => self.copy::<u16>(bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output)),
            4 => self.copy::<u32>(bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output)),
            _ => self.copy::<u64>(bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output)),
        }
        Ok(())
    }
}

/// Returns the shape of input 0, the strides of its dimensions, and the shape of the output.
fn shapes(spec: &Spec<'_>) -> Option<(Shape, SmallVec<[isize; 6]>, Shape)> {
    let (shape, out) = (spec.inputs[0].shape()?, spec.outputs[0].shape()?);
    let mut strides: SmallVec<[isize; 6]> = smallvec::smallvec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as isize;
    }
    Some((shape, strides, out))
}

fn kernel(spec: &Spec<'_>, start: isize, dims: Vec<Step>) -> Option<Box<dyn Kernel>> {
    Some(Box::new(StridedCopy::new(start, dims, spec.outputs[0].dtype.size())))
}

fn make_transpose(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let (shape, strides, _) = shapes(spec)?;
    let axes = permutation(&spec.params(), shape.len())?;
    kernel(spec, 0, axes.into_iter().map(|a| Step { size: shape[a], stride: strides[a] }).collect())
}

fn make_broadcast(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let (shape, strides, out) = shapes(spec)?;
    let missing_rank = out.len() - shape.len();
    let step = |(i, &size): (usize, &usize)| {
        let stride = if i < missing_rank || shape[i - missing_rank] == 1 { 0 } else { strides[i - missing_rank] };
        Step { size, stride }
    };
    kernel(spec, 0, out.iter().enumerate().map(step).collect())
}

fn make_slice(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let (shape, strides, _) = shapes(spec)?;
    let ranges = Slice::from_attrs(&spec.params()).ranges(&shape).ok()?;
    let start = ranges.iter().zip(&strides).map(|(r, s)| r.start as isize * s).sum();
    let steps = ranges.iter().zip(&strides).map(|(r, s)| Step { size: r.len, stride: s.wrapping_mul(r.step as isize) });
    kernel(spec, start, steps.collect())
}

fn make_slice_like(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let (_, strides, out) = shapes(spec)?;
    kernel(spec, 0, out.iter().zip(strides).map(|(&size, stride)| Step { size, stride }).collect())
}

fn make_reverse(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let (shape, strides, _) = shapes(spec)?;
    let axis = spec.params().int("axis").rem_euclid(shape.len() as i64) as usize;
    let mut dims: Vec<Step> = shape.iter().zip(&strides).map(|(&size, &stride)| Step { size, stride }).collect();
    let start = (shape[axis] as isize - 1).max(0) * strides[axis];
    dims[axis].stride = -strides[axis];
    kernel(spec, start, dims)
}

fn make_tile(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let (shape, strides, out) = shapes(spec)?;
    let missing_rank = out.len() - shape.len();
    let mut dims: Vec<Step> = out[..missing_rank].iter().map(|&size| Step { size, stride: 0 }).collect();
    for ((&size, &stride), &total) in shape.iter().zip(&strides).zip(&out[missing_rank..]) {
        dims.push(Step { size: total.checked_div(size)?, stride: 0 });
        dims.push(Step { size, stride });
    }
    kernel(spec, 0, dims)
}

fn make_repeat(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let (shape, strides, out) = shapes(spec)?;
    let mut dims = Vec::new();
    for ((&size, &stride), &total) in shape.iter().zip(&strides).zip(&out) {
        dims.push(Step { size, stride });
        dims.push(Step { size: total.checked_div(size)?, stride: 0 });
    }
    kernel(spec, 0, dims)
}

fn make_layout(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let (shape, strides, out) = shapes(spec)?;
    let params = spec.params();
    let (source_layout, target_layout) =
        (Layout::parse(&params.string("src_layout"))?, Layout::parse(&params.string("dst_layout"))?);
    // The index of an axis is a mixed-radix number with one digit per dimension of the layout. `digits` returns the
    // digits of an axis, least significant first, as (dimension, place value, place value of the next digit).
    let digits = |layout: &Layout, shape: &[usize], letter: char| -> Vec<(usize, usize, usize)> {
        let mut axes: Vec<usize> = (0..shape.len()).filter(|&i| layout.0[i].0 == letter).collect();
        axes.sort_by_key(|&i| layout.0[i].1.is_some());
        let mut unit = 1;
        let mut digit = |i: usize| {
            let unit_before = unit;
            unit *= shape[i];
            (i, unit_before, unit)
        };
        axes.into_iter().rev().map(&mut digit).collect()
    };
    let mut dims = Vec::new();
    for (i, &(letter, _)) in target_layout.0.iter().enumerate() {
        let source = digits(&source_layout, &shape, letter);
        let (_, unit_before, high) = digits(&target_layout, &out, letter).into_iter().find(|d| d.0 == i)?;
        // Where digits of both sides overlap, the output dimension traverses a dimension of the input.
        let mut pieces = Vec::new();
        for &(axis, begin, end) in &source {
            let (a, b) = (unit_before.max(begin), high.min(end));
            if a < b {
                let is_divisible = a > 0 && b % a == 0 && a % begin == 0 && a % unit_before == 0;
                pieces.push(is_divisible.then(|| Step { size: b / a, stride: strides[axis] * (a / begin) as isize })?);
            }
        }
        dims.extend(pieces.into_iter().rev());
    }
    let is_complete = dims.iter().map(|d| d.size).product::<usize>() == out.iter().product::<usize>();
    if is_complete { kernel(spec, 0, dims) } else { None }
}

inventory::submit! { Offer { op: "transpose", make: make_transpose } }
inventory::submit! { Offer { op: "broadcast_to", make: make_broadcast } }
inventory::submit! { Offer { op: "broadcast_to_like", make: make_broadcast } }
inventory::submit! { Offer { op: "dyn.broadcast_to", make: make_broadcast } }
inventory::submit! { Offer { op: "strided_slice", make: make_slice } }
inventory::submit! { Offer { op: "slice_like", make: make_slice_like } }
inventory::submit! { Offer { op: "reverse", make: make_reverse } }
inventory::submit! { Offer { op: "tile", make: make_tile } }
inventory::submit! { Offer { op: "dyn.tile", make: make_tile } }
inventory::submit! { Offer { op: "repeat", make: make_repeat } }
inventory::submit! { Offer { op: "layout_transform", make: make_layout } }
