//! Direct convolution with one input channel per group. Each channel is copied once into scratch memory with its
//! padding and, for a stride s, its columns are split into s planes, so that every tap of adjacent results reads
//! adjacent elements. No tap then needs a bounds check, and every load is a plain vector load.

use super::Kernel;
use super::plane::Plane;
use super::simd::{copy_every, mul_add, multiversion};
use super::split::{self, SharedPtr};
use byoc_ir::tensor::{TensorView, TensorViewMut};

/// Number of results computed at a time: two vectors of 16 elements.
const LANES: usize = 32;

/// Maximum number of threads, each with its own scratch memory.
const SLOTS: usize = 16;

pub(super) struct DepthwiseConv {
    plane: Plane,
    packed: Option<Vec<f32>>,
    /// Number of elements in a row of a split plane, padded so that the last results of a row can be computed with
    /// whole vectors.
    row: usize,
    /// Rows of the padded channel.
    rows: usize,
    /// Offset of each tap in the split channel, relative to the first tap.
    taps: Vec<usize>,
}

/// A channel in scratch memory, and memory for its last rows of results.
pub(super) struct Arranged<'a> {
    planes: &'a mut [f32],
    last_rows: &'a mut [f32],
}

impl DepthwiseConv {
    pub fn new(plane: Plane, packed: Option<Vec<f32>>) -> DepthwiseConv {
        let p = &plane;
        let extent = |axis: usize| (p.kernel[axis] - 1) * p.dilation[axis];
        let rows = (p.out[0] - 1) * p.stride[0] + extent(0) + 1;
        let row = p.out[1].next_multiple_of(LANES) + extent(1) / p.stride[1] + 1;
        let step = p.stride[1];
        let mut taps = Vec::new();
        for kh in 0..p.kernel[0] {
            for kw in 0..p.kernel[1] {
                let column_offset = kw * p.dilation[1];
                taps.push(kh * p.dilation[0] * step * row + column_offset % step * row + column_offset / step);
            }
        }
        DepthwiseConv { packed, row, rows, taps, plane }
    }

    /// Returns the number of elements in a split channel.
    fn split_len(&self) -> usize {
        self.rows * self.plane.stride[1] * self.row
    }

    /// Returns the number of scratch elements per channel: the split channel, and the last rows of results.
    pub fn slot(&self) -> usize {
        let width = self.plane.out[1];
        (self.split_len() + 2 * width.next_multiple_of(LANES) + width).next_multiple_of(LANES)
    }

    /// Copies a channel to scratch memory of [`DepthwiseConv::slot`] elements.
    pub fn arrange<'a>(&self, channel: &[f32], slot: &'a mut [f32]) -> Arranged<'a> {
        let (planes, last_rows) = slot.split_at_mut(self.split_len());
        self.pad_and_deinterleave(channel, planes);
        Arranged { planes, last_rows }
    }

    /// Computes the results of an output channel.
    pub fn convolve(&self, channel: &mut Arranged<'_>, weight: &[f32], out: &mut [f32]) {
        let p = &self.plane;
        let phase_stride = self.row * p.stride[1] * p.stride[0];
        rows(channel.planes, phase_stride, &self.taps, weight, out, p.out[1], channel.last_rows);
    }

    /// Copies a channel with padding and split columns. Row r of plane c is at (r * stride + c) * row.
    fn pad_and_deinterleave(&self, channel: &[f32], out: &mut [f32]) {
        let p = &self.plane;
        let step = p.stride[1];
        for (r, lines) in out.chunks_mut(step * self.row).enumerate() {
            let Some(y) = r.checked_sub(p.before[0]).filter(|&y| y < p.size[0]) else {
                lines.fill(0.0);
                continue;
            };
            let source_line = &channel[y * p.size[1]..][..p.size[1]];
            for (c, line) in lines.chunks_mut(self.row).enumerate() {
                // Element i of the line is column i * step + c - before of the data.
                let first = p.before[1].saturating_sub(c).div_ceil(step).min(line.len());
                let source = (first * step + c).saturating_sub(p.before[1]);
                let count = source_line.len().saturating_sub(source).div_ceil(step).min(line.len() - first);
                line[..first].fill(0.0);
                line[first + count..].fill(0.0);
                if count > 0 {
                    copy_every(&mut line[first..first + count], &source_line[source..], step);
                }
            }
        }
    }
}

impl Kernel for DepthwiseConv {
    fn workspace(&self) -> usize {
        (self.plane.batch * self.plane.groups).min(SLOTS) * self.slot() * 4
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let p = &self.plane;
        let (x, w) = (inputs[0].as_slice::<f32>(), inputs[1].as_slice::<f32>());
        let w = self.packed.as_deref().unwrap_or(w);
        let (positions, taps, channels) = (p.positions(), self.taps.len(), p.batch * p.groups);
        let scratch = split::scratch(workspace);
        let out = outputs[0].as_mut_slice::<f32>();
        let outputs_per_channel = p.out_channels * positions;
        let parts = split::threads(out.len() * taps / 8).min(SLOTS).min(channels);
        let slot = self.slot();
        assert!(
            parts * slot <= scratch.len() && channels * outputs_per_channel <= out.len(),
            "every part lies within the buffers"
        );
        let (scratch, out) = (SharedPtr::new(scratch), SharedPtr::new(out));
        split::for_each_part(parts, |part| {
            // SAFETY: the assertion keeps slot `part` inside the scratch memory, and `for_each_part` runs each part
            // once, so no other thread accesses the slot.
            let slot = unsafe { std::slice::from_raw_parts_mut(scratch.get().add(part * slot), slot) };
            for channel in split::part(channels, 1, part, parts) {
                let size = p.size[0] * p.size[1];
                let mut arranged = self.arrange(&x[channel * size..][..size], slot);
                let first = channel % p.groups * p.out_channels;
                // SAFETY: the assertion keeps the results of the channel inside the output, and `split::part` assigns
                // each channel to one part, so no other thread accesses them.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(out.get().add(channel * outputs_per_channel), outputs_per_channel)
                };
                for (i, out) in out.chunks_mut(positions).enumerate() {
                    self.convolve(&mut arranged, &w[(first + i) * taps..][..taps], out);
                }
            }
        });
        Ok(())
    }
}

/// Computes a row of results in whole vectors; `x` begins at the first tap of the row, and `out` has room for the last
/// vector.
#[inline(always)]
fn row<const FMA: bool>(x: &[f32], taps: &[usize], weight: &[f32], out: &mut [f32]) {
    let (vectors, _) = out.as_chunks_mut::<LANES>();
    for (i, results) in vectors.iter_mut().enumerate() {
        let x = &x[i * LANES..];
        let mut accumulators = [0.0f32; LANES];
        for (tap, w) in taps.iter().zip(weight) {
            if let Some(values) = x.get(*tap..).and_then(|x| x.first_chunk::<LANES>()) {
                for l in 0..LANES {
                    accumulators[l] = mul_add::<FMA>(values[l], *w, accumulators[l]);
                }
            }
        }
        *results = accumulators;
    }
}

multiversion! {
    /// Computes every row of results; `phase_stride` is the stride in elements between the first taps of adjacent rows.
    /// The last vector of a row reaches into the next rows, which are computed later. Rows whose last vector would
    /// exceed the output are computed in `last_rows` and copied.
    fn rows(x: &[f32], phase_stride: usize, taps: &[usize], weight: &[f32], out: &mut [f32], width: usize, last_rows: &mut [f32]) {
        let padded = width.next_multiple_of(LANES);
        let direct = if out.len() >= padded { (out.len() - padded) / width + 1 } else { 0 };
        for h in 0..direct {
            row::<FMA>(&x[h * phase_stride..], taps, weight, &mut out[h * width..][..padded]);
        }
        let last = &mut out[direct * width..];
        for h in 0..last.len() / width {
            let x = &x[(direct + h) * phase_stride..];
            row::<FMA>(x, taps, weight, &mut last_rows[h * width..][..padded]);
        }
        last.copy_from_slice(&last_rows[..last.len()]);
    }
}
