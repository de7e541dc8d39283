//! Quantization over the range of the values of a run.

use crate::simd::{low_byte, multiversion};
use crate::{Kernel, Offer, Spec, split};
use byoc_ir::op::qnn::Quantized;
use byoc_ir::tensor::{TensorView, TensorViewMut};
use std::sync::atomic::{AtomicU32, Ordering};

inventory::submit! { Offer { op: "qnn.contrib_dynamic_quantize", make: |_: &Spec<'_>| Some(Box::new(DynamicQuantize)) } }

/// Number of elements that a thread processes at once.
const CHUNK: usize = 4096;

struct DynamicQuantize;

impl Kernel for DynamicQuantize {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let values = inputs[0].as_slice::<f32>();
        let (min, max) = whole_range(values);
        let (scale, zero_point) = Quantized::parameters(min, max);
        split::for_each_chunk(&mut *outputs[0].data, CHUNK, values.len(), |i, out| {
            quantize(&values[i * CHUNK..][..out.len()], scale, f32::from(zero_point), out);
        });
        outputs[1].as_mut_slice::<f32>()[0] = scale;
        outputs[2].data[0] = zero_point;
        Ok(())
    }
}

/// Returns the range of the values, extended to contain 0. Threads share the bounds as the bits of their magnitudes,
/// whose order is that of the numbers.
fn whole_range(values: &[f32]) -> (f32, f32) {
    let parts = split::threads(values.len() / 2);
    let bounds = [AtomicU32::new(0), AtomicU32::new(0)];
    split::for_each_part(parts, |i| {
        let (min, max) = range(&values[split::part(values.len(), 16, i, parts)]);
        for (bound, value) in bounds.iter().zip([-min, max]) {
            bound.fetch_max(value.max(0.0).to_bits(), Ordering::Relaxed);
        }
    });
    let [min, max] = bounds.map(|bound| f32::from_bits(bound.into_inner()));
    (-min, max)
}

multiversion! {
    /// Returns the range of the values, extended to contain 0.
    pub(crate) fn range(values: &[f32]) -> (f32, f32) {
        let mut bounds = [(0f32, 0f32); 16];
        let (chunks, rest) = values.as_chunks::<16>();
        for chunk in chunks {
            for (bound, &x) in bounds.iter_mut().zip(chunk) {
                *bound = (if x < bound.0 { x } else { bound.0 }, if x > bound.1 { x } else { bound.1 });
            }
        }
        let merge = |a: (f32, f32), b: (f32, f32)| (a.0.min(b.0), a.1.max(b.1));
        bounds.into_iter().chain(rest.iter().map(|&x| (x, x))).fold((0.0, 0.0), merge)
    }

    /// Computes round(value / scale) + zero point, with ties rounded to even, as uint8.
    pub(crate) fn quantize(values: &[f32], scale: f32, zero_point: f32, out: &mut [u8]) {
        for (out, &value) in out.iter_mut().zip(values) {
            // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer; quotients are at most 255.
            let rounded = (value / scale + 12_582_912.0) - 12_582_912.0;
            *out = low_byte((rounded + zero_point).clamp(0.0, 255.0));
        }
    }
}
