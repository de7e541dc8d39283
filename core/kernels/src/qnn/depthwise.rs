//! Convolutions of 8-bit integers with one input channel per group, by the kernel for float32: sums of products of
//! integers are exact there, in any order, as long as they stay below 2^24.

use super::epilogue::{BIAS, Output, SCALES};
use crate::depthwise::DepthwiseConv;
use crate::plane::Plane;
use crate::simd::{multiversion, to_integers};
use crate::{Kernel, Spec, fallback, split};
use byoc_ir::op::conv::ConvShape;
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};
use std::sync::{Mutex, PoisonError, TryLockError};

/// Maximum number of threads, each with its own scratch memory.
const SLOTS: usize = 16;
/// Largest number of taps whose products of differences between bytes, 255 * 255 at most, add up to less than 2^24.
const MAX_TAPS: usize = 258;

struct Depthwise {
    conv: DepthwiseConv,
    plane: Plane,
    /// Differences of the weights and their zero points.
    weights: Vec<f32>,
    output: Output,
    /// Reference kernel, used for zero points that 8 bits cannot represent.
    reference: Box<dyn Kernel>,
}

/// Creates the kernel for constant weights and channels that are stored as planes.
pub(super) fn make(spec: &Spec<'_>, s: &ConvShape, output: Output) -> Option<Box<dyn Kernel>> {
    let plane = Plane::new(s)?;
    let taps = plane.kernel[0] * plane.kernel[1];
    let size = |plane: &[usize; 5]| [plane[1] * plane[3] * plane[4], plane[3] * plane[4], plane[4], 1];
    let steps = |steps: &[usize; 5]| [steps[0], steps[1], steps[3], steps[4]];
    let are_planes = steps(&s.data.stride) == size(&s.data.size) && steps(&s.out.stride) == size(&s.out.size);
    let is_byte = |i: usize| matches!(spec.inputs[i].dtype, DType::I8 | DType::U8);
    let is_packed = steps(&s.weight.stride) == size(&s.weight.size);
    if plane.channels != 1 || plane.groups == 1 || taps > MAX_TAPS || !are_planes || !is_packed {
        return None;
    }
    let constant = |i: usize| spec.constants.get(i).copied().flatten();
    let (weights, zeros) = (constant(1)?, constant(output.zero_points() + 1)?.as_slice::<i32>());
    let limits = limits(spec.inputs[1].dtype);
    if !is_byte(0) || !is_byte(1) || zeros.iter().any(|zero| !limits.contains(zero)) {
        return None;
    }
    let zero = |i: usize| zeros[if zeros.len() == 1 { 0 } else { i / taps }];
    let values = weights.view().to_f64s().into_iter().enumerate();
    let weights = values.map(|(i, value)| value as f32 - zero(i) as f32).collect();
    let reference = fallback::make(spec)?;
    Some(Box::new(Depthwise { conv: DepthwiseConv::new(plane.clone(), None), plane, weights, output, reference }))
}

/// Returns the integers of an 8-bit type.
fn limits(dtype: DType) -> std::ops::RangeInclusive<i32> {
    if dtype == DType::U8 { 0..=255 } else { -128..=127 }
}

impl Depthwise {
    fn channel_len(&self) -> usize {
        self.plane.size[0] * self.plane.size[1]
    }

    /// Returns the number of scratch elements of a thread: a channel, what the kernel needs, and the sums of a channel.
    fn slot(&self) -> usize {
        self.channel_len() + self.conv.slot() + self.plane.positions()
    }

    /// Writes the results of an output channel.
    fn write(&self, inputs: &[TensorView<'_>], channel: usize, sums: &[f32], out: &mut [u8]) {
        match &self.output {
            Output::Sums => {
                to_integers(sums, bytemuck::cast_slice_mut(out));
            }
            Output::Bytes(scaling) => {
                let offset = inputs[BIAS].as_slice::<i32>()[channel];
                scaling.of_channel(channel).requantize_positions(sums, offset, out);
            }
            Output::Reals => {
                let (bias, scales) = (inputs[BIAS].as_slice::<f32>()[channel], inputs[SCALES].as_slice::<f32>());
                let scale = scales[if scales.len() == 1 { 0 } else { channel }];
                let out: &mut [f32] = bytemuck::cast_slice_mut(out);
                out.iter_mut().zip(sums).for_each(|(out, &sum)| *out = sum * scale + bias);
            }
        }
    }
}

impl Kernel for Depthwise {
    fn workspace(&self) -> usize {
        let own = (self.plane.batch * self.plane.groups).min(SLOTS) * self.slot() * 4;
        own.max(self.reference.workspace())
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let (p, data) = (&self.plane, &inputs[0]);
        let zero = inputs[self.output.zero_points()].as_slice::<i32>()[0];
        if !limits(data.dtype).contains(&zero) {
            return self.reference.run(inputs, outputs, workspace);
        }
        let slots: Vec<_> =
            split::scratch(workspace).chunks_exact_mut(self.slot()).take(SLOTS).map(Mutex::new).collect();
        let (positions, taps) = (p.positions(), p.kernel[0] * p.kernel[1]);
        let group_bytes = p.out_channels * positions * outputs[0].dtype.size();
        let work = outputs[0].len() * (taps + 4) / 8;
        split::for_each_chunk(&mut *outputs[0].data, group_bytes, work, |i, out| {
            let free = slots.iter().find_map(|slot| match slot.try_lock() {
                Ok(slot) => Some(slot),
                Err(TryLockError::Poisoned(slot)) => Some(slot.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            });
            let mut slot = free.unwrap_or_else(|| slots[0].lock().unwrap_or_else(PoisonError::into_inner));
            let (channel, rest) = slot.split_at_mut(self.channel_len());
            let (scratch, sums) = rest.split_at_mut(self.conv.slot());
            let bytes = &data.data[i * channel.len()..][..channel.len()];
            differences(bytes, if data.dtype == DType::I8 { 0x80 } else { 0 }, zero, channel);
            let mut arranged = self.conv.arrange(channel, scratch);
            let first = i % p.groups * p.out_channels;
            for (o, out) in out.chunks_exact_mut(group_bytes / p.out_channels).enumerate() {
                let weights = &self.weights[(first + o) * taps..][..taps];
                self.conv.convolve(&mut arranged, weights, &mut sums[..positions]);
                self.write(inputs, first + o, &sums[..positions], out);
            }
        });
        Ok(())
    }
}

multiversion! {
    /// Computes bytes minus their zero point; `sign` is the sign bit of `int8`, or 0.
    fn differences(bytes: &[u8], sign: u8, zero: i32, out: &mut [f32]) {
        let zero = zero + i32::from(sign);
        for (out, &byte) in out.iter_mut().zip(bytes) {
            *out = (i32::from(byte ^ sign) - zero) as f32;
        }
    }
}
