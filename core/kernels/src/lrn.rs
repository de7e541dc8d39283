//! Normalization by the sum of squares over neighboring channels.

use super::dense::f32_shapes;
use super::simd::{mul_add, multiversion};
use super::{Kernel, Offer, Spec, split};
use byoc_ir::cancel::Ticks;
use byoc_ir::op::norm::AxisView;
use byoc_ir::tensor::{TensorView, TensorViewMut};
use std::ops::Range;

inventory::submit! { Offer { op: "nn.lrn", make } }

/// Number of elements in a channel whose sums are accumulated at a time.
const TILE: usize = 256;

/// Largest sum of squares that is computed in binary32; larger sums are computed in binary64.
const MAX_SUM: f32 = 1e37;

struct Lrn {
    view: AxisView,
    /// Number of neighbors on each side.
    neighbors: usize,
    bias: f64,
    /// Factor of the sum of squares.
    factor: f64,
    beta: f64,
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let ([data], _) = f32_shapes(spec)?;
    let params = spec.params();
    let view = AxisView::new(&data, params.int("axis"));
    let size = params.int("size");
    // Channels that are adjacent in memory are left to the reference.
    (view.inner >= 16).then(|| {
        let factor = params.float("alpha") / size as f64;
        let neighbors = (size / 2) as usize;
        Box::new(Lrn { view, neighbors, bias: params.float("bias"), factor, beta: params.float("beta") })
            as Box<dyn Kernel>
    })
}

impl Lrn {
    /// Returns the result for an element, in binary64.
    fn element(&self, x: f32, squares: impl Iterator<Item = f32>) -> f32 {
        let sum: f64 = squares.map(|x| f64::from(x) * f64::from(x)).sum();
        (f64::from(x) / (self.bias + self.factor * sum).powf(self.beta)) as f32
    }

    /// Computes the results for channel `channel` of `block`, from element `first` on. The squares are summed over
    /// `channels`.
    fn tile(&self, block: &[f32], channels: Range<usize>, channel: usize, first: usize, out: &mut [f32]) {
        let inner = self.view.inner;
        let line = |channel: usize| &block[channel * inner + first..][..out.len()];
        let sums = &mut [0.0; TILE][..out.len()];
        let mut ticks = Ticks::every(out.len());
        for neighbor in channels.clone() {
            if ticks.is_requested() {
                return;
            }
            add_squares(line(neighbor), sums);
        }
        let x = line(channel);
        let is_safe = sums.iter().all(|&sum| sum <= MAX_SUM);
        if is_safe && self.beta == 0.75 {
            return divide_by_power(x, sums, self.bias as f32, self.factor as f32, out);
        }
        for (i, (out, &x)) in out.iter_mut().zip(x).enumerate() {
            *out = self.element(x, channels.clone().map(|neighbor| block[neighbor * inner + first + i]));
        }
    }
}

multiversion! {
    fn add_squares(x: &[f32], sums: &mut [f32]) {
        for (sum, &x) in sums.iter_mut().zip(x) {
            *sum = mul_add::<FMA>(x, x, *sum);
        }
    }

    /// Computes x / (bias + factor * sum)^0.75.
    fn divide_by_power(x: &[f32], sums: &[f32], bias: f32, factor: f32, out: &mut [f32]) {
        for ((out, &x), &sum) in out.iter_mut().zip(x).zip(sums) {
            let root = mul_add::<FMA>(factor, sum, bias).sqrt();
            *out = x / (root * root.sqrt());
        }
    }
}

impl Kernel for Lrn {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let x = inputs[0].as_slice::<f32>();
        let AxisView { len, inner, .. } = self.view;
        let out = outputs[0].as_mut_slice::<f32>();
        let work = out.len().saturating_mul(2 * self.neighbors.min(len) + 4) / 4;
        split::for_each_chunk(out, inner, work, |i, out| {
            let channel = i % len;
            let block = &x[i / len * len * inner..][..len * inner];
            let channels = channel.saturating_sub(self.neighbors)..channel.saturating_add(self.neighbors + 1).min(len);
            for (tile, out) in out.chunks_mut(TILE).enumerate() {
                self.tile(block, channels.clone(), channel, tile * TILE, out);
            }
        });
        Ok(())
    }
}
