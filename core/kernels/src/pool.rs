//! Pooling over spatial axes of dense planes (NCHW): planes of the result are split over the threads; within a plane,
//! each tap is applied to a whole row of results.

use super::dense::f32_shapes;
use super::plane::is_dense;
use super::simd::multiversion;
use super::{Kernel, Offer, Spec, split};
use byoc_ir::cancel::Ticks;
use byoc_ir::op::pool::{PoolShape, pool_window};
use byoc_ir::op::spatial::{WindowParams, taps_inside};
use byoc_ir::tensor::{TensorView, TensorViewMut};
use std::ops::Range;

inventory::submit! { Offer { op: "nn.max_pool1d", make: |s| make(s, Reduction::Max) } }
inventory::submit! { Offer { op: "nn.max_pool2d", make: |s| make(s, Reduction::Max) } }
inventory::submit! { Offer { op: "nn.max_pool3d", make: |s| make(s, Reduction::Max) } }
inventory::submit! { Offer { op: "nn.avg_pool1d", make: |s| make(s, Reduction::Mean) } }
inventory::submit! { Offer { op: "nn.avg_pool2d", make: |s| make(s, Reduction::Mean) } }
inventory::submit! { Offer { op: "nn.avg_pool3d", make: |s| make(s, Reduction::Mean) } }
inventory::submit! { Offer { op: "nn.contrib_lp_pool1d", make: |s| make(s, norm(s)?) } }
inventory::submit! { Offer { op: "nn.contrib_lp_pool2d", make: |s| make(s, norm(s)?) } }
inventory::submit! { Offer { op: "nn.global_max_pool2d", make: |s| make_global(s, true) } }
inventory::submit! { Offer { op: "nn.global_avg_pool2d", make: |s| make_global(s, false) } }
inventory::submit! { Offer { op: "nn.adaptive_max_pool2d", make: |s| make_global(s, true) } }
inventory::submit! { Offer { op: "nn.adaptive_avg_pool2d", make: |s| make_global(s, false) } }

/// Reduction of a window to one element.
#[derive(Clone, Copy, PartialEq)]
enum Reduction {
    Max,
    Mean,
    /// L1 norm: sum of the absolute values.
    Norm1,
    /// L2 norm: square root of the sum of the squares.
    Norm2,
}

/// Returns the norm that a call computes; `None` for exponents that are left to the reference.
fn norm(spec: &Spec<'_>) -> Option<Reduction> {
    match spec.params().int("p") {
        1 => Some(Reduction::Norm1),
        2 => Some(Reduction::Norm2),
        _ => None,
    }
}

/// Axis of a sliding window.
struct Axis {
    size: usize,
    out: usize,
    stride: usize,
    /// Padding before the first element; tap 0 of position 0 is at index `-before`. Taps are `dilation` apart.
    before: usize,
    dilation: usize,
    taps: usize,
    /// Ranges of the taps that lie inside the data at some position, in ascending order. A large window may lie mostly
    /// in the padding.
    ranges: Vec<Range<usize>>,
    /// Divisor of the mean at each position.
    counts: Vec<usize>,
}

impl Axis {
    /// Returns the taps of a position that lie inside the data.
    fn taps_of(&self, position: usize) -> Range<usize> {
        taps_inside(position * self.stride, self.before, self.dilation, self.taps, self.size)
    }

    /// Returns the index of a tap that lies inside the data.
    fn index(&self, position: usize, tap: usize) -> usize {
        position * self.stride + tap * self.dilation - self.before
    }

    /// Returns the positions whose tap `tap` lies inside the data.
    fn valid_positions(&self, tap: usize) -> Range<usize> {
        let offset = tap * self.dilation;
        let first = self.before.saturating_sub(offset).div_ceil(self.stride);
        let last = (self.size + self.before).saturating_sub(offset).div_ceil(self.stride).min(self.out);
        first.min(last)..last
    }
}

/// Maximum number of positions along an axis; a larger result is left to the reference, which needs no table of the
/// positions.
const MAX_POSITIONS: usize = 1 << 24;

struct Pool {
    /// Depth, height and width.
    axes: [Axis; 3],
    reduction: Reduction,
}

fn make(spec: &Spec<'_>, reduction: Reduction) -> Option<Box<dyn Kernel>> {
    let ([data], out) = f32_shapes(spec)?;
    let params = spec.params();
    let shape = PoolShape::new(&params, &data, &out);
    let positions = shape.out.spatial().into_iter().max();
    if positions > Some(MAX_POSITIONS)
        || !is_dense(&shape.data)
        || !is_dense(&shape.out)
        || shape.data.size.contains(&0)
        || shape.out.size.contains(&0)
    {
        return None;
    }
    let (taps, window) = pool_window(&params, data.len() - 2);
    let includes_padding = reduction == Reduction::Mean && params.bool("count_include_pad");
    let unpadded_window = WindowParams { before: [0; 3], ..window };
    let axis = |i: usize| {
        let (size, out) = (shape.data.size[2 + i], shape.out.size[2 + i]);
        let padded_size = window.before[i] + size + window.after[i];
        let taps_at = |position: usize| window.taps_inside(i, position, taps[i], size);
        let count = |position: usize| match includes_padding {
            true => unpadded_window.taps_inside(i, position, taps[i], padded_size).len(),
            false => taps_at(position).len(),
        };
        let mut ranges: Vec<Range<usize>> = Vec::new();
        // Reversed, so that the ranges ascend: later positions use earlier taps.
        for range in (0..out).rev().map(taps_at).filter(|range| !range.is_empty()) {
            match ranges.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => ranges.push(range),
            }
        }
        let (stride, before, dilation) = (window.stride[i], window.before[i], window.dilation[i]);
        Axis { size, out, stride, before, dilation, taps: taps[i], ranges, counts: (0..out).map(count).collect() }
    };
    Some(Box::new(Pool { axes: [axis(0), axis(1), axis(2)], reduction }))
}

impl Pool {
    /// Computes the plane at depth `d` of the result of one channel.
    fn plane(&self, x: &[f32], d: usize, out: &mut [f32]) {
        let [depth, rows, cols] = &self.axes;
        let mut ticks = Ticks::every(cols.out);
        for (h, row) in out.chunks_mut(cols.out).enumerate() {
            row.fill(if self.reduction == Reduction::Max { f32::NEG_INFINITY } else { 0.0 });
            for kd in depth.taps_of(d) {
                for kh in rows.taps_of(h) {
                    if ticks.is_requested() {
                        return;
                    }
                    self.add_line(self.line(x, [d, h], [kd, kh]), row);
                }
            }
            match self.reduction {
                Reduction::Max | Reduction::Norm1 => {}
                Reduction::Mean => {
                    let lines = depth.counts[d] * rows.counts[h];
                    for (value, count) in row.iter_mut().zip(&cols.counts) {
                        *value /= (lines * count).max(1) as f32;
                    }
                }
                Reduction::Norm2 => {
                    for (w, value) in row.iter_mut().enumerate() {
                        // The squares may overflow or underflow even if the norm does not.
                        *value = if SAFE_SQUARES.contains(value) { value.sqrt() } else { self.wide_norm(x, [d, h, w]) };
                    }
                }
            }
        }
    }

    /// Returns the line of the data at the taps `[kd, kh]` of the positions `[d, h]`.
    fn line<'x>(&self, x: &'x [f32], [d, h]: [usize; 2], [kd, kh]: [usize; 2]) -> &'x [f32] {
        let [depth, rows, cols] = &self.axes;
        let (d, h) = (depth.index(d, kd), rows.index(h, kh));
        &x[(d * rows.size + h) * cols.size..][..cols.size]
    }

    /// Applies the taps along a line to a row of results.
    fn add_line(&self, line: &[f32], row: &mut [f32]) {
        let cols = &self.axes[2];
        for kw in cols.ranges.iter().flat_map(Range::clone) {
            let columns = cols.valid_positions(kw);
            if columns.is_empty() {
                continue;
            }
            let first = cols.index(columns.start, kw);
            let row = &mut row[columns];
            match self.reduction {
                Reduction::Max => update_maxima(row, &line[first..], cols.stride),
                Reduction::Mean => add(row, &line[first..], cols.stride),
                Reduction::Norm1 => add_magnitudes(row, &line[first..], cols.stride),
                Reduction::Norm2 => add_squares(row, &line[first..], cols.stride),
            }
        }
    }

    /// Computes the Euclidean norm of one window in binary64.
    fn wide_norm(&self, x: &[f32], [d, h, w]: [usize; 3]) -> f32 {
        let [depth, rows, cols] = &self.axes;
        let mut sum = 0.0f64;
        for kd in depth.taps_of(d) {
            for kh in rows.taps_of(h) {
                let line = self.line(x, [d, h], [kd, kh]);
                for kw in cols.taps_of(w) {
                    let value = f64::from(line[cols.index(w, kw)]);
                    sum += value * value;
                }
            }
        }
        sum.sqrt() as f32
    }
}

/// Range of sums of squares that are computed in binary32 without overflow and without significant underflow.
const SAFE_SQUARES: Range<f32> = 1e-24..1e38;

multiversion! {
    /// Replaces each `row[i]` by the maximum of `row[i]` and `x[i * step]`; NaN propagates.
    fn update_maxima(row: &mut [f32], x: &[f32], step: usize) {
        #[inline(always)]
        fn keep_larger(a: &mut f32, b: f32) {
            *a = if b > *a || b.is_nan() { b } else { *a };
        }
        match step {
            1 => row.iter_mut().zip(x).for_each(|(r, v)| keep_larger(r, *v)),
            2 => row.iter_mut().zip(x.chunks(2)).for_each(|(r, v)| keep_larger(r, v[0])),
            _ => row.iter_mut().zip(x.iter().step_by(step)).for_each(|(r, v)| keep_larger(r, *v)),
        }
    }

    fn add(row: &mut [f32], x: &[f32], step: usize) {
        match step {
            1 => row.iter_mut().zip(x).for_each(|(r, v)| *r += v),
            2 => row.iter_mut().zip(x.chunks(2)).for_each(|(r, v)| *r += v[0]),
            _ => row.iter_mut().zip(x.iter().step_by(step)).for_each(|(r, v)| *r += v),
        }
    }

    fn add_magnitudes(row: &mut [f32], x: &[f32], step: usize) {
        match step {
            1 => row.iter_mut().zip(x).for_each(|(r, v)| *r += v.abs()),
            _ => row.iter_mut().zip(x.iter().step_by(step)).for_each(|(r, v)| *r += v.abs()),
        }
    }

    fn add_squares(row: &mut [f32], x: &[f32], step: usize) {
        match step {
            1 => row.iter_mut().zip(x).for_each(|(r, v)| *r += v * v),
            _ => row.iter_mut().zip(x.iter().step_by(step)).for_each(|(r, v)| *r += v * v),
        }
    }
}

impl Kernel for Pool {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let [depth, rows, cols] = &self.axes;
        let x = inputs[0].as_slice::<f32>();
        let out = outputs[0].as_mut_slice::<f32>();
        let taps: usize = self.axes.iter().map(|axis| axis.taps.min(axis.size)).product();
        let work = out.len().saturating_mul(taps) / 4;
        let size = depth.size * rows.size * cols.size;
        split::for_each_chunk(out, rows.out * cols.out, work, |i, out| {
            self.plane(&x[i / depth.out * size..][..size], i % depth.out, out);
        });
        Ok(())
    }
}

/// Reduction of a whole plane to one element.
struct Global {
    plane: usize,
    is_max: bool,
}

fn make_global(spec: &Spec<'_>, is_max: bool) -> Option<Box<dyn Kernel>> {
    let ([data], out) = f32_shapes(spec)?;
    let shape = PoolShape::new(&spec.params(), &data, &out);
    let is_global = shape.out.spatial() == [1; 3] && !shape.data.size.contains(&0) && is_dense(&shape.data);
    is_global.then(|| Box::new(Global { plane: shape.data.spatial().iter().product(), is_max }) as Box<dyn Kernel>)
}

impl Kernel for Global {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let x = inputs[0].as_slice::<f32>();
        split::for_each_chunk(outputs[0].as_mut_slice::<f32>(), 1, x.len() / 4, |i, out| {
            let plane = &x[i * self.plane..][..self.plane];
            out[0] = if self.is_max { largest_of(plane) } else { sum(plane) / self.plane as f32 };
        });
        Ok(())
    }
}

const LANES: usize = 32;

multiversion! {
    /// Returns the sum, accumulated in partial sums.
    pub(super) fn sum(x: &[f32]) -> f32 {
        let mut accumulators = [0.0f32; LANES];
        let (blocks, tail) = x.as_chunks::<LANES>();
        for values in blocks {
            for l in 0..LANES {
                accumulators[l] += values[l];
            }
        }
        for (s, v) in accumulators.iter_mut().zip(tail) {
            *s += v;
        }
        accumulators.iter().sum()
    }

    /// Returns the sum of squared differences from `mean`, accumulated in partial sums.
    pub(super) fn sum_of_squares(x: &[f32], mean: f32) -> f32 {
        let mut accumulators = [0.0f32; LANES];
        let (blocks, tail) = x.as_chunks::<LANES>();
        for values in blocks {
            for l in 0..LANES {
                let d = values[l] - mean;
                accumulators[l] += d * d;
            }
        }
        for (s, v) in accumulators.iter_mut().zip(tail) {
            *s += (v - mean) * (v - mean);
        }
        accumulators.iter().sum()
    }

    /// Returns the maximum; NaN propagates.
    pub(super) fn largest_of(x: &[f32]) -> f32 {
        let mut maxima = [f32::NEG_INFINITY; LANES];
        let (blocks, tail) = x.as_chunks::<LANES>();
        for values in blocks {
            for l in 0..LANES {
                maxima[l] = if values[l] > maxima[l] || values[l].is_nan() { values[l] } else { maxima[l] };
            }
        }
        let tail = tail.iter().chain(&maxima);
        tail.fold(f32::NEG_INFINITY, |a, &b| if b > a || b.is_nan() { b } else { a })
    }
}
