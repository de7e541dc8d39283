//! Transposed convolutions over one and two spatial axes: a matrix product computes the contribution of every data
//! element through every tap, and the contributions are then added at their positions (col2im). Blocks of output
//! channels are split over the threads; a block's contributions fit in the cache.

use super::dense::f32_shapes;
use super::gemm::{Matrix, Output, gemm};
use super::plane::{Plane, is_dense};
use super::simd::multiversion;
use super::split::{self, SharedPtr};
use super::{Kernel, Offer, Spec};
use byoc_ir::op::conv::ConvShape;
use byoc_ir::tensor::{TensorView, TensorViewMut};

inventory::submit! { Offer { op: "nn.conv1d_transpose", make } }
inventory::submit! { Offer { op: "nn.conv2d_transpose", make } }

/// Maximum size in bytes of the contributions of a block.
const BLOCK_BYTES: usize = 512 << 10;

/// Maximum number of blocks computed concurrently.
const SLOTS: usize = 16;

struct ConvTranspose {
    /// Convolution being transposed: its `out` is the data here, its `size` the result.
    plane: Plane,
    /// Output channels per block.
    block: usize,
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let ([data, weight], out) = f32_shapes(spec)?;
    let shape = ConvShape::new(&spec.params(), &data, &weight, &out);
    if !is_dense(&shape.data) || !is_dense(&shape.weight) || !is_dense(&shape.out) {
        return None;
    }
    let plane = Plane::new(&ConvShape { data: shape.out, out: shape.data, ..shape })?;
    let taps = plane.kernel[0] * plane.kernel[1];
    let max_channels = BLOCK_BYTES / 4 / (taps * plane.positions());
    let block = max_channels.clamp(1, plane.channels.div_ceil(4));
    Some(Box::new(ConvTranspose { plane, block }))
}

impl ConvTranspose {
    fn slot(&self) -> usize {
        self.block * self.plane.kernel[0] * self.plane.kernel[1] * self.plane.positions()
    }

    fn blocks(&self) -> usize {
        self.plane.channels.div_ceil(self.block)
    }

    /// Adds the contributions of one channel, one row of data positions per tap.
    fn scatter(&self, contributions: &[f32], channel: &mut [f32]) {
        let p = &self.plane;
        channel.fill(0.0);
        for (tap, values) in contributions.chunks(p.positions()).enumerate() {
            let (kh, kw) = (tap / p.kernel[1], tap % p.kernel[1]);
            let columns = p.valid_positions(1, kw);
            if columns.is_empty() {
                continue;
            }
            for h in p.valid_positions(0, kh) {
                let values = &values[h * p.out[1]..][..p.out[1]][columns.clone()];
                let line = (h * p.stride[0] + kh * p.dilation[0] - p.before[0]) * p.size[1];
                let first = columns.start * p.stride[1] + kw * p.dilation[1] - p.before[1];
                add_every(&mut channel[line + first..line + p.size[1]], p.stride[1], values);
            }
        }
    }
}

multiversion! {
    /// Adds values to every `step`-th element.
    fn add_every(out: &mut [f32], step: usize, values: &[f32]) {
        if step == 1 {
            out.iter_mut().zip(values).for_each(|(t, v)| *t += v);
        } else {
            out.iter_mut().step_by(step).zip(values).for_each(|(t, v)| *t += v);
        }
    }
}

impl Kernel for ConvTranspose {
    fn workspace(&self) -> usize {
        (self.plane.batch * self.plane.groups * self.blocks()).min(SLOTS) * self.slot() * 4
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let p = &self.plane;
        let (x, w) = (inputs[0].as_slice::<f32>(), inputs[1].as_slice::<f32>());
        let (positions, taps, size) = (p.positions(), p.kernel[0] * p.kernel[1], p.size[0] * p.size[1]);
        let out = outputs[0].as_mut_slice::<f32>();
        let scratch = split::scratch(workspace);
        let (blocks, slot) = (self.blocks(), self.slot());
        let runs = p.batch * p.groups * blocks;
        // The channels are named as in the convolution: `out_channels` belong to the data.
        let work = p.batch * p.groups * p.channels * taps * positions * p.out_channels / 8;
        let parts = split::threads(work).min(SLOTS).min(runs);
        assert!(
            parts * slot <= scratch.len() && p.batch * p.groups * p.channels * size <= out.len(),
            "every run lies within the scratch memory and the result"
        );
        let (scratch, out) = (SharedPtr::new(scratch), SharedPtr::new(out));
        split::for_each_part(parts, |part| {
            // SAFETY: the assertion keeps slot `part` inside the scratch memory, and `for_each_part` runs each part
            // once, so no other thread accesses the slot.
            let contributions = unsafe { std::slice::from_raw_parts_mut(scratch.get().add(part * slot), slot) };
            for run in split::part(runs, 1, part, parts) {
                let (index, first) = (run / blocks, run % blocks * self.block);
                let channels = self.block.min(p.channels - first);
                let weight = &w[index % p.groups * p.out_channels * p.channels * taps + first * taps..];
                let weight = Matrix { data: weight, row: 1, col: p.channels * taps };
                let data = Matrix { data: &x[index * p.out_channels * positions..], row: positions, col: 1 };
                let products = Output::of(contributions, channels * taps, positions, positions);
                gemm(1, p.out_channels, weight, data, products);
                // SAFETY: the assertion keeps the channels of this run inside the result, and `split::part` assigns
                // each run to one part, so no other thread accesses them.
                let out = unsafe {
                    let first = out.get().add((index * p.channels + first) * size);
                    std::slice::from_raw_parts_mut(first, channels * size)
                };
                for (channel, values) in out.chunks_mut(size).zip(contributions.chunks(taps * positions)) {
                    self.scatter(values, channel);
                }
            }
        });
        Ok(())
    }
}
