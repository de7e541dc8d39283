//! `nn.max_pool2d` on 8-bit integers: the maximum over the rows of a window, then over its columns.

use crate::{Kernel, Offer, Spec, split};
use byoc_ir::op::pool::{PoolShape, pool_window};
use byoc_ir::op::spatial::WindowParams;
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};

inventory::submit! { Offer { op: "nn.max_pool2d", make } }

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

    /// Computes result row `row` of an image, for one channel or for all channels; `rows` is scratch memory for a row
    /// of data.
    fn line(&self, x: &[u8], image_start: usize, row: usize, channels: usize, rows: &mut [u8], out: &mut [u8]) {
        let flip = if self.is_signed { 0x80 } else { 0 };
        rows.fill(MIN_BYTE);
        for column_in in self.valid_indices(1, row) {
            let data = &x[image_start + column_in * self.shape.data.stride[3]..][..rows.len()];
            rows.iter_mut().zip(data).for_each(|(maximum, x)| *maximum = (*maximum).max(x ^ flip));
        }
        for (position, out) in out.chunks_exact_mut(channels).enumerate() {
            out.fill(MIN_BYTE);
            for column_in in self.valid_indices(2, position) {
                let data = &rows[column_in * channels..][..channels];
                out.iter_mut().zip(data).for_each(|(maximum, x)| *maximum = (*maximum).max(*x));
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
