//! Pooling of 8-bit integers. `nn.max_pool2d`: the maximum over the rows of a window, then over its columns.
//! `qnn.avg_pool2d`: sums of integers, which are exact in any order.

use crate::{Kernel, Offer, Spec, split};
use byoc_ir::cancel::Ticks;
use byoc_ir::op::pool::{PoolShape, pool_window};
use byoc_ir::op::qnn::numerics::{Rounding, range};
use byoc_ir::op::qnn::{quantize_f32, scales};
use byoc_ir::op::spatial::WindowParams;
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};

inventory::submit! { Offer { op: "nn.max_pool2d", make } }
inventory::submit! { Offer { op: "qnn.avg_pool2d", make: make_average } }

struct MaxPool {
    shape: PoolShape,
    taps: [usize; 3],
    window: WindowParams,
    is_signed: bool,
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let (data, out) = (spec.inputs.first()?, spec.outputs.first()?);
    let params = spec.params();
    let (data_shape, out_shape) = (data.shape()?, out.shape()?);
    let shape = PoolShape::new(&params, &data_shape, &out_shape);
    let (taps, window) = pool_window(&params, 2);
    let is_byte = matches!(data.dtype, DType::I8 | DType::U8);
    // Every window contains data, as the padding before the data is smaller than a window.
    let is_empty = data_shape.contains(&0) || out_shape.contains(&0);
    if !is_byte || is_empty || shape.data.stride[4] != 1 && shape.data.stride[1] != 1 {
        return None;
    }
    Some(Box::new(MaxPool { shape, taps, window, is_signed: data.dtype == DType::I8 }))
}

/// Smallest value in a comparison: signed bytes are compared as unsigned bytes, with the sign bit flipped.
const MIN_BYTE: u8 = 0;

impl MaxPool {
    /// Returns the positions in the data that window `position` covers along an axis (1 for rows, 2 for columns).
    fn valid_indices(&self, axis: usize, position: usize) -> impl Iterator<Item = usize> {
        let (window, first) = (self.window, position * self.window.stride[axis]);
        let taps = window.taps_inside(axis, position, self.taps[axis], self.shape.data.size[2 + axis]);
        taps.map(move |tap| first + tap * window.dilation[axis] - window.before[axis])
    }

    /// Computes the maxima of the windows of a row of one channel, tap by tap.
    fn columns(&self, row: &[u8], out: &mut [u8]) {
        let (stride, before) = (self.window.stride[2], self.window.before[2]);
        out.fill(MIN_BYTE);
        for tap in 0..self.taps[2] {
            // The tap of window i reads element i * stride + tap - before.
            let tap = tap * self.window.dilation[2];
            let first = before.saturating_sub(tap).div_ceil(stride);
            let (Some(out), Some(row)) = (out.get_mut(first..), row.get(first * stride + tap - before..)) else {
                continue;
            };
            match stride {
                1 => out.iter_mut().zip(row).for_each(|(maximum, x)| *maximum = (*maximum).max(*x)),
                2 => {
                    let (pairs, last) = row.as_chunks::<2>();
                    out.iter_mut().zip(pairs).for_each(|(maximum, pair)| *maximum = (*maximum).max(pair[0]));
                    if let (Some(maximum), Some(x)) = (out.get_mut(pairs.len()), last.first()) {
                        *maximum = (*maximum).max(*x);
                    }
                }
                _ => out
                    .iter_mut()
                    .zip(row.iter().step_by(stride))
                    .for_each(|(maximum, x)| *maximum = (*maximum).max(*x)),
            }
        }
    }

    /// Computes result row `row` of an image, for one channel or for all channels; `rows` is scratch memory for a row
    /// of data.
    fn line(&self, x: &[u8], image_start: usize, row: usize, channels: usize, rows: &mut [u8], out: &mut [u8]) {
        let flip = if self.is_signed { 0x80 } else { 0 };
        rows.fill(MIN_BYTE);
        for column_in in self.valid_indices(1, row) {
            let data = &x[image_start + column_in * self.shape.data.stride[3]..][..rows.len()];
            rows.iter_mut().zip(data).for_each(|(maximum, x)| *maximum = (*maximum).max(x ^ flip));
        }
        if channels == 1 {
            self.columns(rows, out);
        } else {
            for (position, out) in out.chunks_exact_mut(channels).enumerate() {
                out.fill(MIN_BYTE);
                for column_in in self.valid_indices(2, position) {
                    let data = &rows[column_in * channels..][..channels];
                    out.iter_mut().zip(data).for_each(|(maximum, x)| *maximum = (*maximum).max(*x));
                }
            }
        }
        out.iter_mut().for_each(|x| *x ^= flip);
    }
}

impl Kernel for MaxPool {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let (s, x) = (&self.shape, inputs[0].data);
        let is_channels_last = s.data.stride[1] == 1 && s.data.size[1] != 1 || s.data.stride[4] != 1;
        // A line is a row of the result: of all channels if the channels are last, otherwise of one channel.
        let channels = if is_channels_last { s.data.size[1] } else { 1 };
        let (height, width) = (s.out.size[3], s.out.size[4]);
        let lines = outputs[0].data.len() / (width * channels);
        let parts = split::threads(outputs[0].data.len().saturating_mul(self.taps[1])).min(lines);
        let lines_per_part = lines.div_ceil(parts);
        split::for_each_chunk(outputs[0].data, lines_per_part * width * channels, usize::MAX, |part, out| {
            let mut rows = vec![MIN_BYTE; s.data.size[4] * channels];
            for (i, out) in out.chunks_exact_mut(width * channels).enumerate() {
                let line = part * lines_per_part + i;
                let (plane, row) = (line / height, line % height);
                let image_start = match is_channels_last {
                    true => plane * s.data.stride[0],
                    false => plane / s.data.size[1] * s.data.stride[0] + plane % s.data.size[1] * s.data.stride[1],
                };
                self.line(x, image_start, row, channels, &mut rows, out);
            }
        });
        Ok(())
    }
}

struct AveragePool {
    shape: PoolShape,
    taps: [usize; 3],
    window: WindowParams,
    includes_padding: bool,
    flip: u8,
    /// Zero point of the data with its sign bit flipped.
    zero_point: i64,
    scale: f32,
    result_scale: f32,
    result_zero_point: i32,
    limits: (i64, i64),
}

/// Bound of zero points: differences to larger ones are not exact in binary32.
const MAX_ZERO_POINT: u32 = 1 << 23;

fn make_average(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let (data, out, params) = (spec.inputs.first()?, spec.outputs.first()?, spec.params());
    let (data_shape, out_shape) = (data.shape()?, out.shape()?);
    let shape = PoolShape::new(&params, &data_shape, &out_shape);
    let (taps, window) = pool_window(&params, 2);
    let constant = |i: usize| spec.constants.get(i).copied().flatten();
    let scale = |i: usize| scales(&params, i, &constant(i)?.view()).ok()?.first().copied();
    let zero_point = |i: usize| constant(i)?.as_slice::<i32>().first().copied();
    let is_byte = matches!(data.dtype, DType::I8 | DType::U8);
    let is_empty = data_shape.contains(&0) || out_shape.contains(&0);
    let is_contiguous = shape.data.stride[4] == 1 && window.dilation[2] == 1 || shape.data.stride[1] == 1;
    let zero = zero_point(2).filter(|zero| zero.unsigned_abs() < MAX_ZERO_POINT)?;
    if !is_byte || is_empty || !is_contiguous {
        return None;
    }
    let flip = if data.dtype == DType::I8 { 0x80 } else { 0 };
    Some(Box::new(AveragePool {
        shape,
        taps,
        window,
        includes_padding: params.bool("count_include_pad"),
        flip,
        zero_point: i64::from(zero) + i64::from(flip),
        scale: scale(1)?,
        result_scale: scale(3)?,
        result_zero_point: zero_point(4)?,
        limits: range(data.dtype),
    }))
}

impl AveragePool {
    /// Returns the first index and the number of elements that window `position` covers along an axis, and the number
    /// of elements that it covers with padding.
    fn span(&self, axis: usize, position: usize) -> (usize, usize, usize) {
        let (window, size) = (self.window, self.shape.data.size[2 + axis]);
        let taps = window.taps_inside(axis, position, self.taps[axis], size);
        let first = position * window.stride[axis] + taps.start * window.dilation[axis];
        let padded = WindowParams { before: [0; 3], ..window };
        let padded_size = window.before[axis] + size + window.after[axis];
        let covered = padded.taps_inside(axis, position, self.taps[axis], padded_size).len();
        (first.saturating_sub(window.before[axis]), taps.len(), covered)
    }

    /// Returns the quantized mean of a window with `inside` elements, whose bytes with flipped sign bits have this sum.
    fn mean(&self, sum: i64, inside: usize, divisor: usize) -> u8 {
        let sum = sum - inside as i64 * self.zero_point;
        let mean = (sum as f64 / divisor.max(1) as f64) as f32 * self.scale;
        let zero = self.result_zero_point;
        quantize_f32(mean, self.result_scale, zero, self.limits, Rounding::ToNearest) as i64 as u8
    }
}

impl Kernel for AveragePool {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let (data, out) = (&self.shape.data, &self.shape.out);
        let (x, dilation) = (inputs[0].data, self.window.dilation);
        let channels_last = data.stride[4] != 1 || self.window.dilation[2] != 1;
        let mut sums = vec![0i64; data.size[1]];
        let mut ticks = Ticks::every(self.taps[2].saturating_mul(sums.len()));
        for (n, row, column) in positions([out.size[0], out.size[3], out.size[4]]) {
            let (first_row, rows, covered_rows) = self.span(1, row);
            let (first_column, columns, covered_columns) = self.span(2, column);
            let inside = rows * columns;
            let divisor = if self.includes_padding { covered_rows * covered_columns } else { inside };
            sums.fill(0);
            for r in 0..rows {
                if ticks.is_requested() {
                    return Ok(());
                }
                let start = n * data.stride[0] + (first_row + r * dilation[1]) * data.stride[3];
                if channels_last {
                    for c in 0..columns {
                        let pixel = &x[start + (first_column + c * dilation[2]) * data.stride[4]..][..sums.len()];
                        sums.iter_mut().zip(pixel).for_each(|(sum, &byte)| *sum += i64::from(byte ^ self.flip));
                    }
                } else {
                    for (channel, sum) in sums.iter_mut().enumerate() {
                        let line = &x[start + channel * data.stride[1] + first_column..][..columns];
                        *sum += byte_sum(line, self.flip);
                    }
                }
            }
            let start = n * out.stride[0] + row * out.stride[3] + column * out.stride[4];
            for (channel, &sum) in sums.iter().enumerate() {
                outputs[0].data[start + channel * out.stride[1]] = self.mean(sum, inside, divisor);
            }
        }
        Ok(())
    }
}

/// Returns the indices of three axes in row-major order.
fn positions([a, b, c]: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a * b * c).map(move |i| (i / (b * c), i / c % b, i % c))
}

/// Returns the sum of bytes with flipped sign bits.
fn byte_sum(bytes: &[u8], flip: u8) -> i64 {
    // Partial sums of so many bytes fit 32 bits.
    bytes.chunks(1 << 16).map(|part| i64::from(part.iter().map(|&byte| u32::from(byte ^ flip)).sum::<u32>())).sum()
}
