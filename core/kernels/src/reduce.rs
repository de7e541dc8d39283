//! Reductions of `f32` along any axes. Adjacent axes that are both kept or both reduced are merged. If the innermost
//! axis is reduced, each row is folded to a scalar; otherwise, rows are combined element by element.

use super::simd::multiversion;
use super::{Kernel, Offer, Spec, split};
use byoc_ir::op::reduce::reduced;
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};
use smallvec::SmallVec;

/// Dimension of an axis, and its stride in elements.
type Axis = (usize, usize);

/// Axes of the input after merging.
struct Shape {
    /// Kept axes except for the innermost axis, outermost first.
    kept_axes: SmallVec<[Axis; 4]>,
    /// Reduced axes except for the innermost axis, outermost first.
    folded_axes: SmallVec<[Axis; 4]>,
    /// Dimension of the innermost axis, and whether that axis is reduced.
    inner: (usize, bool),
}

impl Shape {
    fn new(spec: &Spec<'_>) -> Option<Shape> {
        let shape = spec.inputs[0].shape()?;
        let mask = reduced(&spec.params(), shape.len())?;
        let mut merged: SmallVec<[(usize, bool); 6]> = SmallVec::new();
        for (&size, &is_folded) in shape.iter().zip(&mask).filter(|(size, _)| **size != 1) {
            match merged.last_mut() {
                Some(last) if last.1 == is_folded => last.0 *= size,
                _ => merged.push((size, is_folded)),
            }
        }
        let inner = merged.pop().unwrap_or((1, true));
        let (mut kept_axes, mut folded_axes) = (SmallVec::new(), SmallVec::new());
        let mut stride = inner.0;
        for (size, is_folded) in merged.into_iter().rev() {
            if is_folded { &mut folded_axes } else { &mut kept_axes }.insert(0, (size, stride));
            stride *= size;
        }
        Some(Shape { kept_axes, folded_axes, inner })
    }

    /// Returns the number of input elements per output element.
    fn group(&self) -> usize {
        count(&self.folded_axes) * if self.inner.1 { self.inner.0 } else { 1 }
    }
}

fn count(axes: &[Axis]) -> usize {
    axes.iter().map(|a| a.0).product()
}

/// Converts a row-major index to an offset in elements.
fn offset(axes: &[Axis], mut index: usize) -> usize {
    let mut result = 0;
    for &(size, stride) in axes.iter().rev() {
        result += index % size * stride;
        index /= size;
    }
    result
}

/// Number of independent partial results per row, which break the dependency chain of the fold.
const LANES: usize = 32;

/// Folds a row into lanes, and the lanes into the total.
macro_rules! fold_row {
    ($row:expr, $first:expr, $accumulator:ident, |$a:ident, $x:ident| $fold:expr) => {{
        let mut lanes: [$accumulator; LANES] = [$first; LANES];
        let (blocks, tail) = $row.as_chunks::<LANES>();
        for block in blocks {
            for (lane, &x) in lanes.iter_mut().zip(block) {
                let ($a, $x) = (*lane, $accumulator::from(x));
                *lane = $fold;
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(tail) {
            let ($a, $x) = (*lane, $accumulator::from(x));
            *lane = $fold;
        }
        let mut total = lanes[0];
        for &$x in &lanes[1..] {
            let $a = total;
            total = $fold;
        }
        total
    }};
}

/// Number of elements that are summed in `f32`; the partial sums are added in binary64.
const BLOCK: usize = 2048;

/// Maximum number of adjacent results that are accumulated together. For at most `FEW_COLUMNS` results, the buffer is
/// smaller.
const COLUMNS: usize = 1024;
const FEW_COLUMNS: usize = 64;

macro_rules! folds {
    ($($module:ident $accumulator:ident, $first:expr, |$a:ident, $x:ident| $fold:expr;)*) => {$(
        mod $module {
            use super::*;
            multiversion! {
                pub(super) fn row(row: &[f32]) -> $accumulator {
                    fold_row!(row, $first, $accumulator, |$a, $x| $fold)
                }
                pub(super) fn fold_into(totals: &mut [$accumulator], row: &[f32]) {
                    for (total, &x) in totals.iter_mut().zip(row) {
                        let ($a, $x) = (*total, $accumulator::from(x));
                        *total = $fold;
                    }
                }
            }
            pub(super) static FOLD: Fold<$accumulator> =
                Fold { first: $first, row, fold_into, combine: |$a: f64, $x: f64| $fold };
        }
    )*};
}

folds! {
    sum f32, 0.0, |a, x| a + x;
    // In binary64, the product of a few elements does not overflow before it is multiplied by 0.
    product f64, 1.0, |a, x| a * x;
    maximum f32, f32::NEG_INFINITY, |a, x| if a.is_nan() || a > x { a } else { x };
    minimum f32, f32::INFINITY, |a, x| if a.is_nan() || a < x { a } else { x };
}

/// Operation that combines elements, with accumulators of type `A`.
struct Fold<A: 'static> {
    first: A,
    row: fn(&[f32]) -> A,
    fold_into: fn(&mut [A], &[f32]),
    combine: fn(f64, f64) -> f64,
}

struct Reduce<A: 'static> {
    shape: Shape,
    fold: &'static Fold<A>,
    is_mean: bool,
}

impl<A: Copy + Into<f64>> Reduce<A> {
    /// Folds the rows of `data` at `position` into one row, `totals.len()` columns at a time.
    fn fold_columns(&self, data: &[f32], mut position: usize, divisor: f64, out: &mut [f32], totals: &mut [A]) {
        let folded_axes = &self.shape.folded_axes;
        for out in out.chunks_mut(totals.len()) {
            let totals = &mut totals[..out.len()];
            totals.fill(self.fold.first);
            for r in 0..count(folded_axes) {
                let row = position + offset(folded_axes, r);
                (self.fold.fold_into)(totals, &data[row..row + out.len()]);
            }
            for (out, &total) in out.iter_mut().zip(&*totals) {
                *out = (total.into() / divisor) as f32;
            }
            position += out.len();
        }
    }
}

impl<A: Copy + Into<f64> + Sync> Kernel for Reduce<A> {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let (data, out) = (inputs[0].as_slice::<f32>(), outputs[0].as_mut_slice::<f32>());
        let Shape { kept_axes, folded_axes, inner } = &self.shape;
        let (size, rows) = (inner.0, count(folded_axes));
        let divisor = if self.is_mean { self.shape.group() as f64 } else { 1.0 };
        let work = data.len();
        if inner.1 {
            // Small groups share a chunk.
            let chunk = (BLOCK / self.shape.group().max(1)).max(1);
            split::for_each_chunk(out, chunk, work, |c, out| {
                let first = c * chunk;
                for (i, out) in out.iter_mut().enumerate() {
                    let base = offset(kept_axes, first + i);
                    let mut total: f64 = self.fold.first.into();
                    for r in 0..rows {
                        let position = base + offset(folded_axes, r);
                        for block in data[position..position + size].chunks(BLOCK) {
                            total = (self.fold.combine)(total, (self.fold.row)(block).into());
                        }
                    }
                    *out = (total / divisor) as f32;
                }
            });
        } else {
            split::for_each_chunk(out, size, work, |i, out| {
                let first = self.fold.first;
                let position = offset(kept_axes, i);
                if out.len() <= FEW_COLUMNS {
                    self.fold_columns(data, position, divisor, out, &mut [first; FEW_COLUMNS]);
                } else {
                    self.fold_columns(data, position, divisor, out, &mut [first; COLUMNS]);
                }
            });
        }
        Ok(())
    }
}

fn make<A: Copy + Into<f64> + Sync>(spec: &Spec<'_>, fold: &'static Fold<A>, is_mean: bool) -> Option<Box<dyn Kernel>> {
    if spec.inputs[0].dtype != DType::F32 {
        return None;
    }
    Some(Box::new(Reduce { shape: Shape::new(spec)?, fold, is_mean }))
}

inventory::submit! { Offer { op: "sum", make: |spec| make(spec, &sum::FOLD, false) } }
inventory::submit! { Offer { op: "mean", make: |spec| make(spec, &sum::FOLD, true) } }
inventory::submit! { Offer { op: "prod", make: |spec| make(spec, &product::FOLD, false) } }
inventory::submit! { Offer { op: "max", make: |spec| make(spec, &maximum::FOLD, false) } }
inventory::submit! { Offer { op: "min", make: |spec| make(spec, &minimum::FOLD, false) } }

/// Returns the number of elements per row (at least 1) if whole rows are reduced, which requires every kept axis to be
/// outside every reduced axis.
fn whole_row_len(spec: &Spec<'_>) -> Option<usize> {
    let shape = Shape::new(spec)?;
    (spec.inputs[0].dtype == DType::F32 && shape.folded_axes.is_empty() && shape.inner.1 && shape.inner.0 > 0)
        .then_some(shape.inner.0)
}

/// Index of the maximum or minimum of each row; NaN counts as the extreme.
struct ArgReduce {
    row: usize,
    best: fn(&[f32]) -> f32,
}

impl Kernel for ArgReduce {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let data = inputs[0].as_slice::<f32>();
        split::for_each_chunk(outputs[0].as_mut_slice::<i32>(), 1, data.len(), |i, out| {
            let row = &data[i * self.row..(i + 1) * self.row];
            let best = (self.best)(row);
            let index = row.iter().position(|&x| x == best || (best.is_nan() && x.is_nan()));
            out[0] = index.unwrap_or(0) as i32;
        });
        Ok(())
    }
}

/// Index of the maximum or minimum along an axis that is not the last; NaN counts as the extreme.
struct ArgReduceColumns {
    size: usize,
    inner: usize,
    /// Replaces the best elements and their indices in the columns where the given row has a better element.
    keep_better: fn(&[f32], i32, &mut [f32], &mut [i32]),
}

/// Number of columns that are reduced at a time.
const ARG_COLUMNS: usize = 256;

impl Kernel for ArgReduceColumns {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let data = inputs[0].as_slice::<f32>();
        let block = |block: usize, first: usize, out: &mut [i32]| {
            let data = &data[block * self.size * self.inner + first..];
            let best = &mut [0.0; ARG_COLUMNS][..out.len()];
            best.copy_from_slice(&data[..out.len()]);
            out.fill(0);
            for i in 1..self.size {
                (self.keep_better)(&data[i * self.inner..][..out.len()], i as i32, best, out);
            }
        };
        split::for_each_chunk(outputs[0].as_mut_slice::<i32>(), self.inner, data.len(), |i, out| {
            out.chunks_mut(ARG_COLUMNS).enumerate().for_each(|(tile, out)| block(i, tile * ARG_COLUMNS, out));
        });
        Ok(())
    }
}

multiversion! {
    fn keep_larger(row: &[f32], index: i32, best: &mut [f32], indices: &mut [i32]) {
        for ((&x, best), at) in row.iter().zip(best).zip(indices) {
            let is_better = x > *best || x.is_nan() && !best.is_nan();
            *best = if is_better { x } else { *best };
            *at = if is_better { index } else { *at };
        }
    }

    fn keep_smaller(row: &[f32], index: i32, best: &mut [f32], indices: &mut [i32]) {
        for ((&x, best), at) in row.iter().zip(best).zip(indices) {
            let is_better = x < *best || x.is_nan() && !best.is_nan();
            *best = if is_better { x } else { *best };
            *at = if is_better { index } else { *at };
        }
    }
}

fn make_arg_reduce(
    spec: &Spec<'_>,
    best: fn(&[f32]) -> f32,
    keep_better: fn(&[f32], i32, &mut [f32], &mut [i32]),
) -> Option<Box<dyn Kernel>> {
    if spec.params().bool("select_last_index") || spec.inputs[0].dtype != DType::F32 {
        return None;
    }
    if let Some(row) = whole_row_len(spec) {
        return i32::try_from(row).is_ok().then(|| Box::new(ArgReduce { row, best }) as Box<dyn Kernel>);
    }
    let shape = spec.inputs[0].shape()?;
    let mask = reduced(&spec.params(), shape.len())?;
    let axis = mask.iter().position(|&is_folded| is_folded)?;
    let size = shape[axis];
    if mask.iter().filter(|&&is_folded| is_folded).count() != 1 || size == 0 || i32::try_from(size).is_err() {
        return None;
    }
    Some(Box::new(ArgReduceColumns { size, inner: shape[axis + 1..].iter().product(), keep_better }))
}

inventory::submit! { Offer { op: "argmax", make: |spec| make_arg_reduce(spec, maximum::row, keep_larger) } }
inventory::submit! { Offer { op: "argmin", make: |spec| make_arg_reduce(spec, minimum::row, keep_smaller) } }

multiversion! {
    /// Returns the sum of (x - mean)^2.
    fn squared_deviations(row: &[f32], mean: f32) -> f32 {
        let mut lanes = [0f32; LANES];
        let (blocks, tail) = row.as_chunks::<LANES>();
        for block in blocks {
            for (lane, &x) in lanes.iter_mut().zip(block) {
                *lane += (x - mean) * (x - mean);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(tail) {
            *lane += (x - mean) * (x - mean);
        }
        lanes.iter().sum()
    }
}

/// Variance of each row around a given mean.
struct Variance {
    row: usize,
    divisor: f64,
}

impl Kernel for Variance {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let (data, mean) = (inputs[0].as_slice::<f32>(), inputs[1].as_slice::<f32>());
        split::for_each_chunk(outputs[0].as_mut_slice::<f32>(), 1, data.len(), |i, out| {
            let row = &data[i * self.row..(i + 1) * self.row];
            let total: f64 = row.chunks(BLOCK).map(|block| f64::from(squared_deviations(block, mean[i]))).sum();
            out[0] = (total / self.divisor) as f32;
        });
        Ok(())
    }
}

inventory::submit! {
    Offer {
        op: "variance",
        make: |spec| {
            let row = whole_row_len(spec)?;
            let (data, mean) = (spec.inputs[0].shape()?, spec.inputs[1].shape()?);
            let mask = reduced(&spec.params(), data.len())?;
            let kept_dims = data.iter().zip(mask).map(|(&n, is_folded)| if is_folded { 1 } else { n });
            let correction = if spec.params().bool("unbiased") { 1.0 } else { 0.0 };
            let kernel = Variance { row, divisor: row as f64 - correction };
            mean.iter().copied().eq(kept_dims).then(|| Box::new(kernel) as Box<dyn Kernel>)
        },
    }
}
