//! Scattering of single elements along an axis, and of blocks.

use super::gather::{AlongAxis, covers};
use super::{Kernel, Offer, Spec, split};
use byoc_ir::op::index::in_bounds;
use byoc_ir::tensor::{DType, Shape, TensorView, TensorViewMut};
use bytemuck::Pod;
use std::sync::atomic::{AtomicBool, Ordering};

inventory::submit! { Offer { op: "scatter_elements", make } }
inventory::submit! { Offer { op: "scatter_nd", make: make_blocks } }

/// Rule for combining an update with the element that it refers to.
#[derive(Clone, Copy)]
enum Mode {
    /// The update replaces the element.
    Update,
    /// The function combines the element with the update.
    Combine(fn(f32, f32) -> f32),
}

impl Mode {
    /// Returns the mode named by an attribute; `None` if the kernels do not cover the mode for this element type.
    fn new(name: &str, dtype: DType) -> Option<Mode> {
        let combine = match name {
            "update" => return Some(Mode::Update),
            "add" => |a, b| a + b,
            "mul" => |a, b| a * b,
            "min" => |a: f32, b| if a.is_nan() || a < b { a } else { b },
            "max" => |a: f32, b| if a.is_nan() || a > b { a } else { b },
            _ => return None,
        };
        (dtype == DType::F32).then_some(Mode::Combine(combine))
    }
}

/// Mapping from indices to the elements of a tensor.
trait Places: Send + Sync {
    /// Combines each element of `out` with the updates that refer to it, in the order of the updates.
    fn apply<T: Pod + Send + Sync>(
        &self,
        index: impl Fn(usize) -> i64 + Sync,
        updates: &[T],
        out: &mut [T],
        combine: impl Fn(T, T) -> T + Sync,
    ) -> Result<(), String>;
}

struct Scatter<P> {
    places: P,
    index_type: DType,
    mode: Mode,
}

impl<P: Places> Scatter<P> {
    /// Calls [`apply`](Places::apply) for the element type of the updates.
    fn apply_elements(
        &self,
        index: impl Fn(usize) -> i64 + Sync,
        updates: &TensorView<'_>,
        out: &mut [u8],
    ) -> Result<(), String> {
        fn replace<T>(_: T, update: T) -> T {
            update
        }
        fn cast<'a, T: Pod>(updates: &TensorView<'a>, out: &'a mut [u8]) -> (&'a [T], &'a mut [T]) {
            (bytemuck::cast_slice(updates.data), bytemuck::cast_slice_mut(out))
        }
        if let Mode::Combine(combine) = self.mode {
            let (updates, out) = cast::<f32>(updates, out);
            return self.places.apply(index, updates, out, combine);
        }
        match updates.dtype.size() {
            1 => {
                let (updates, out) = cast::<u8>(updates, out);
                self.places.apply(index, updates, out, replace)
            }
            2 => {
                let (updates, out) = cast::<u16>(updates, out);
                self.places.apply(index, updates, out, replace)
            }
            4 => {
                let (updates, out) = cast::<u32>(updates, out);
                self.places.apply(index, updates, out, replace)
            }
            _ => {
                let (updates, out) = cast::<u64>(updates, out);
                self.places.apply(index, updates, out, replace)
            }
        }
    }
}

impl<P: Places> Kernel for Scatter<P> {
    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run_in_place(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
        let (indices, updates, out) = (&inputs[0], &inputs[1], &mut *outputs[0].data);
        match self.index_type {
            DType::I32 => {
                let indices = indices.as_slice::<i32>();
                self.apply_elements(|i| i64::from(indices[i]), updates, out)
            }
            _ => {
                let indices = indices.as_slice::<i64>();
                self.apply_elements(|i| indices[i], updates, out)
            }
        }
    }
}

struct Elements {
    positions: AlongAxis,
    /// Number of elements in a block of the result. Each row of the updates refers to elements of one block.
    block: usize,
    /// Number of rows of the updates that refer to one block.
    rows: usize,
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let [data, indices] = [&spec.inputs[0], &spec.inputs[1]];
    if !covers(data.dtype, indices.dtype) {
        return None;
    }
    let (index_type, mode) = (indices.dtype, Mode::new(&spec.params().string("reduction"), data.dtype)?);
    let (shape, indices) = (data.shape()?, indices.shape()?);
    let axis = spec.params().int("axis").rem_euclid(shape.len().max(1) as i64) as usize;
    let positions = AlongAxis::new(&shape, &indices, axis)?;
    // Blocks are independent of each other. If the updates cover only some of the blocks, the entire result is treated
    // as one block.
    let first = if shape[..axis] == indices[..axis] { axis } else { 0 };
    let block = shape[first..].iter().product();
    let rows = indices[first..indices.len() - 1].iter().product();
    Some(Box::new(Scatter { places: Elements { positions, block, rows }, index_type, mode }))
}

impl Places for Elements {
    fn apply<T: Pod + Send + Sync>(
        &self,
        index: impl Fn(usize) -> i64 + Sync,
        updates: &[T],
        out: &mut [T],
        combine: impl Fn(T, T) -> T + Sync,
    ) -> Result<(), String> {
        let positions = &self.positions;
        let has_failed = AtomicBool::new(false);
        split::for_each_chunk(out, self.block, updates.len() * 2, |block, out| {
            for row in block * self.rows..(block + 1) * self.rows {
                let start = positions.row_start(row) - block * self.block;
                let first = row * positions.row;
                for (i, &update) in updates[first..first + positions.row].iter().enumerate() {
                    match positions.distance(index(first + i)) {
                        Some(distance) => {
                            let element = &mut out[start + i * positions.step + distance];
                            *element = combine(*element, update);
                        }
                        None => has_failed.store(true, Ordering::Relaxed),
                    }
                }
            }
        });
        if has_failed.into_inner() { positions.check(index, updates.len()) } else { Ok(()) }
    }
}

struct Blocks {
    /// Dimensions that the components of an index vector refer to.
    shape: Shape,
    /// Number of elements in a block.
    block: usize,
}

fn make_blocks(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let [data, indices] = [&spec.inputs[0], &spec.inputs[1]];
    if !covers(data.dtype, indices.dtype) {
        return None;
    }
    let (index_type, mode) = (indices.dtype, Mode::new(&spec.params().string("mode"), data.dtype)?);
    let mut shape = data.shape()?;
    let depth = *indices.shape()?.first()?;
    let block = shape.get(depth..)?.iter().product();
    shape.truncate(depth);
    Some(Box::new(Scatter { places: Blocks { shape, block }, index_type, mode }))
}

impl Places for Blocks {
    fn apply<T: Pod + Send + Sync>(
        &self,
        index: impl Fn(usize) -> i64 + Sync,
        updates: &[T],
        out: &mut [T],
        combine: impl Fn(T, T) -> T + Sync,
    ) -> Result<(), String> {
        if self.block == 0 {
            return Ok(());
        }
        let count = updates.len() / self.block;
        for (vector, updates) in updates.chunks_exact(self.block).enumerate() {
            let mut position = 0;
            for (component, &size) in self.shape.iter().enumerate() {
                position = position * size + in_bounds(index(component * count + vector), size)?;
            }
            let target = &mut out[position * self.block..(position + 1) * self.block];
            target.iter_mut().zip(updates).for_each(|(element, update)| *element = combine(*element, *update));
        }
        Ok(())
    }
}
