//! Weights in the order in which tiles read them.

use super::tile::{HALF_CHANNELS, TILE_CHANNELS};
use byoc_ir::tensor::{DType, TensorView};

/// Layout of the weights of a convolution: `groups` groups of `outputs` output channels, each with `taps` taps over
/// `inputs` input channels.
#[derive(Clone, Debug)]
pub(super) struct KernelShape {
    pub groups: usize,
    pub outputs: usize,
    pub inputs: usize,
    /// Offset of each tap from the first.
    pub taps: Vec<usize>,
    /// Stride between output channels, in elements. Groups are adjacent.
    pub output_step: usize,
    /// Stride between input channels, in elements.
    pub input_step: usize,
}

impl KernelShape {
    /// Returns the number of words of four input channels.
    pub fn word_count(&self) -> usize {
        self.inputs.div_ceil(4)
    }

    /// Returns the number of multiply-adds per result.
    pub fn terms(&self) -> usize {
        self.inputs * self.taps.len()
    }

    /// Returns block `i` of a group's output channels: first channel, number of channels, and whether the block is
    /// wide.
    pub fn block(&self, i: usize) -> (usize, usize, bool) {
        let first = i * TILE_CHANNELS;
        let count = (self.outputs - first).min(TILE_CHANNELS);
        (first, count, count > HALF_CHANNELS)
    }

    /// Returns the number of blocks per group.
    pub fn blocks(&self) -> usize {
        self.outputs.div_ceil(TILE_CHANNELS)
    }

    /// Returns the size in bytes of a group's packed weights.
    pub fn group_bytes(&self) -> usize {
        let last = self.outputs % TILE_CHANNELS;
        let padded_outputs = match last {
            0 => self.outputs,
            last if last <= HALF_CHANNELS => self.outputs - last + HALF_CHANNELS,
            last => self.outputs - last + TILE_CHANNELS,
        };
        self.taps.len() * self.word_count() * 4 * padded_outputs
    }

    /// Returns the offset and the size in bytes of block `i` of a group's packed weights.
    pub fn block_bytes(&self, i: usize) -> (usize, usize) {
        let wide_bytes = self.taps.len() * self.word_count() * 4 * TILE_CHANNELS;
        (i * wide_bytes, if self.block(i).2 { wide_bytes } else { wide_bytes / 2 })
    }

    /// Returns the size in bytes of all packed weights.
    pub fn packed_bytes(&self) -> usize {
        self.groups * self.group_bytes()
    }
}

/// Packs up to four inputs of adjacent output channels, and adds them to the channels' sums.
#[inline(always)]
fn pack_words(shape: &KernelShape, weights: &[u8], flip: u8, inputs: usize, words: &mut [[i8; 4]], totals: &mut [i32]) {
    if shape.output_step == 1 && inputs == 4 {
        // The rows of a matrix (inputs, outputs) are interleaved.
        let [a, b, c, d] = [0, 1, 2, 3].map(|input| &weights[input * shape.input_step..][..words.len()]);
        for (o, (word, total)) in words.iter_mut().zip(totals).enumerate() {
            *word = [a[o], b[o], c[o], d[o]].map(|byte| (byte ^ flip) as i8);
            *total += word.iter().map(|&weight| i32::from(weight)).sum::<i32>();
        }
        return;
    }
    for (o, (word, total)) in words.iter_mut().zip(totals).enumerate() {
        for (input, weight) in word[..inputs].iter_mut().enumerate() {
            *weight = (weights[o * shape.output_step + input * shape.input_step] ^ flip) as i8;
            *total += i32::from(*weight);
        }
    }
}

/// Packs 8-bit weights into `packed`, and stores their sum for each output channel in `totals`.
///
/// # Panics
/// If a slice is too short, which is a bug in the kernel.
pub(super) fn pack(shape: &KernelShape, view: &TensorView<'_>, packed: &mut [i8], totals: &mut [i32]) {
    let (word_count, taps) = (shape.word_count(), shape.taps.len());
    let packed = &mut packed[..shape.packed_bytes()];
    // uint8 weights are shifted by -128, like their zero point.
    let flip = if view.dtype == DType::U8 { 0x80 } else { 0 };
    if packed.is_empty() {
        totals.fill(0);
        return;
    }
    for (group, packed) in packed.chunks_exact_mut(shape.group_bytes()).enumerate() {
        for block in 0..shape.blocks() {
            let (first, count, is_wide) = shape.block(block);
            let width = if is_wide { TILE_CHANNELS } else { HALF_CHANNELS };
            let (begin, bytes) = shape.block_bytes(block);
            let packed = &mut packed[begin..begin + bytes];
            packed.fill(0);
            debug_assert_eq!(bytes, taps * word_count * width * 4);
            let first_channel = group * shape.outputs + first;
            let totals = &mut totals[first_channel..][..count];
            totals.fill(0);
            for (i, words) in packed.as_chunks_mut::<4>().0.chunks_exact_mut(width).enumerate() {
                let first_input = i % word_count * 4;
                let inputs = (shape.inputs - first_input).min(4);
                let at =
                    first_channel * shape.output_step + first_input * shape.input_step + shape.taps[i / word_count];
                pack_words(shape, &view.data[at..], flip, inputs, &mut words[..count], totals);
            }
        }
    }
}
