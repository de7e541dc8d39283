//! Convolutions and matrix products of 8-bit integers: data in words of four channels per position, packed weights,
//! tiles of `int32` accumulators, and an output stage applied while the accumulators are in registers.
//!
//! A run has two parts, each split over the threads of the pool. First the data of an image are copied to the workspace
//! as uint8, channels last, with padding; data that already have this form are used in place. Then tiles of positions
//! by output channels are computed directly from the arranged data, tap by tap. No columns are gathered (no im2col).

use super::epilogue::{Epilogue, OutputTile};
use super::tile::{self, Accumulators, TILE_CHANNELS, TILE_POSITIONS, Tile};
use super::transpose::{self, CHANNELS};
use super::weights::KernelShape;
use crate::split;
use byoc_ir::tensor::{DType, TensorView};

/// Shape and strides of the data.
#[derive(Clone, Debug)]
pub(super) struct DataShape {
    /// Number of images. A matrix counts as one image, with one position per row.
    pub images: usize,
    /// Rows and columns.
    pub size: [usize; 2],
    /// Padding before the first row and column, and the number of rows and columns including all padding.
    pub before: [usize; 2],
    pub padded_size: [usize; 2],
    /// Strides between images, channels, rows and columns, in elements.
    pub steps: [usize; 4],
}

/// Shape and strides of the results.
#[derive(Clone, Debug)]
pub(super) struct OutShape {
    /// Rows and columns.
    pub size: [usize; 2],
    /// Strides between images, channels and positions, in elements. Rows are adjacent.
    pub steps: [usize; 3],
}

/// Geometry of a convolution or a matrix product, without its values.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    pub data: DataShape,
    pub out: OutShape,
    pub kernel: KernelShape,
    /// Stride of the window, in rows and columns of the padded data.
    pub stride: [usize; 2],
    /// Offset of each tap of the kernel, in rows and columns of the padded data.
    pub taps: Vec<[usize; 2]>,
}

/// Buffers of a run.
pub(super) struct Values<'a> {
    pub data: TensorView<'a>,
    /// Zero point of the data in their original type, before the shift to uint8.
    pub zero_point: i32,
    /// Packed weights.
    pub weights: &'a [i8],
}

/// Layout of the rearranged data of one image.
#[derive(Clone, Debug)]
struct Layout {
    /// Strides between groups, rows and columns, in bytes.
    group: usize,
    row: usize,
    column: usize,
    /// Size of an image in bytes.
    bytes: usize,
}

impl Engine {
    fn has_padding(&self) -> bool {
        self.data.padded_size != self.data.size
    }

    /// Returns true if the data can be read in place: unsigned, channels last, whole words, no padding.
    fn can_read_in_place(&self, dtype: DType) -> bool {
        dtype == DType::U8 && self.data.steps[1] == 1 && self.kernel.inputs.is_multiple_of(4) && !self.has_padding()
    }

    fn layout(&self, dtype: DType) -> Layout {
        if self.can_read_in_place(dtype) {
            let [_, _, row, column] = self.data.steps;
            let last_offset = |size: usize, step: usize| size.saturating_sub(1) * step;
            let bytes = last_offset(self.data.size[0], row) + last_offset(self.data.size[1], column);
            return Layout {
                group: self.kernel.inputs,
                row,
                column,
                bytes: bytes + self.kernel.inputs * self.kernel.groups,
            };
        }
        let column = self.kernel.word_count() * 4;
        let row = self.data.padded_size[1] * column;
        let group = self.data.padded_size[0] * row;
        Layout { group, row, column, bytes: group * self.kernel.groups }
    }

    /// Returns the size of the workspace in bytes.
    pub fn workspace(&self, dtype: DType) -> usize {
        if self.can_read_in_place(dtype) { 0 } else { self.layout(dtype).bytes }
    }

    /// Returns the number of output positions per image.
    pub fn positions(&self) -> usize {
        self.out.size[0] * self.out.size[1]
    }

    /// Returns true if a zero point of the data can be stored in the padding.
    pub fn takes_zero_point(&self, dtype: DType, zero_point: i32) -> bool {
        let limits = if dtype == DType::U8 { 0..=255 } else { -128..=127 };
        !self.has_padding() || limits.contains(&zero_point)
    }

    /// Computes every result and passes it to `epilogue`.
    pub fn run<F: Epilogue>(&self, values: &Values<'_>, epilogue: &F, workspace: &mut [u8]) {
        let dtype = values.data.dtype;
        let layout = self.layout(dtype);
        for image in 0..self.data.images {
            let image_data = &values.data.data[image * self.data.steps[0]..];
            if self.can_read_in_place(dtype) {
                self.accumulate(&image_data[..layout.bytes], &layout, values, image, epilogue);
            } else {
                let scratch = &mut workspace[..layout.bytes];
                self.lay_out(image_data, values, &layout, scratch);
                self.accumulate(scratch, &layout, values, image, epilogue);
            }
        }
    }

    /// Copies the data as uint8, channels last, with padding; unused channels of the last word are zero.
    fn lay_out(&self, image_data: &[u8], values: &Values<'_>, layout: &Layout, scratch: &mut [u8]) {
        let flip: u8 = if values.data.dtype == DType::U8 { 0 } else { 0x80 };
        let pad = (values.zero_point as u8) ^ flip;
        let [_, channel, row_step, column_step] = self.data.steps;
        let inputs = self.kernel.inputs;
        let work = scratch.len() / 4;
        split::for_each_chunk(scratch, layout.row, work, |i, line| {
            let (group, row) = (i / self.data.padded_size[0], i % self.data.padded_size[0]);
            let first = group * inputs * channel;
            let source_row = row.checked_sub(self.data.before[0]).filter(|&row| row < self.data.size[0]);
            let Some(row) = source_row else {
                line.chunks_exact_mut(layout.column).for_each(|pixel| fill(pixel, pad, inputs));
                return;
            };
            let image_data = &image_data[first + row * row_step..];
            let (before, middle) = (self.data.before[1] * layout.column, self.data.size[1] * layout.column);
            let (left, rest) = line.split_at_mut(before);
            let (middle, right) = rest.split_at_mut(middle);
            for pixel in left.chunks_exact_mut(layout.column).chain(right.chunks_exact_mut(layout.column)) {
                fill(pixel, pad, inputs);
            }
            if channel == 1 {
                for (x, pixel) in middle.chunks_exact_mut(layout.column).enumerate() {
                    let channels_in = &image_data[x * column_step..][..inputs];
                    pixel[inputs..].fill(0);
                    copy_flipped(&mut pixel[..inputs], channels_in, flip);
                }
            } else {
                interleave(middle, image_data, (channel, column_step), inputs, layout.column, flip);
            }
        });
    }

    /// Computes the tiles of one image.
    fn accumulate<F: Epilogue>(&self, data: &[u8], layout: &Layout, values: &Values<'_>, image: usize, epilogue: &F) {
        let taps: Vec<usize> = self.taps.iter().map(|t| t[0] * layout.row + t[1] * layout.column).collect();
        let (positions, blocks) = (self.positions(), self.kernel.blocks());
        let tiles = positions.div_ceil(TILE_POSITIONS);
        let units = self.kernel.groups * blocks * tiles;
        let isa = tile::best_isa();
        let work = positions * self.kernel.outputs * self.kernel.groups * self.kernel.terms() / 64;
        let parts = split::threads(work).min(units);
        split::for_each_part(parts, |part| {
            let mut accumulators = Accumulators([[0; TILE_CHANNELS]; TILE_POSITIONS]);
            for unit in split::part(units, 1, part, parts) {
                let (i, tile) = (unit / tiles, unit % tiles);
                let (group, block) = (i / blocks, i % blocks);
                let (channel, channels, is_wide) = self.kernel.block(block);
                let (begin, bytes) = self.kernel.block_bytes(block);
                let first = tile * TILE_POSITIONS;
                let count = TILE_POSITIONS.min(positions - first);
                let offsets = std::array::from_fn(|p| {
                    let position = first + p.min(count - 1);
                    let (row, column) = (position / self.out.size[1], position % self.out.size[1]);
                    group * layout.group + row * self.stride[0] * layout.row + column * self.stride[1] * layout.column
                });
                let weights = &values.weights[group * self.kernel.group_bytes() + begin..][..bytes];
                let word_count = self.kernel.word_count();
                let work = Tile { data, positions: &offsets, taps: &taps, word_count, weights, is_wide };
                work.run(isa, count, &mut accumulators);
                if F::NEEDS_TOTALS {
                    let mut totals = [0; TILE_POSITIONS];
                    for (total, position) in totals.iter_mut().zip(&offsets[..count]) {
                        *total = taps.iter().map(|tap| sum(&data[position + tap..][..self.kernel.inputs])).sum();
                    }
                    epilogue.subtract_zero_points(
                        group * self.kernel.outputs + channel,
                        channels,
                        &totals,
                        &mut accumulators,
                    );
                }
                let channel = group * self.kernel.outputs + channel;
                let [image_step, channel_step, position_step] = self.out.steps;
                let start = image * image_step + channel * channel_step + first * position_step;
                let out_tile =
                    OutputTile { at: start, channel, channels, positions: count, channel_step, position_step };
                epilogue.write_tile(&out_tile, &accumulators);
            }
        });
    }
}

fn sum(bytes: &[u8]) -> i32 {
    bytes.iter().map(|&b| i32::from(b)).sum()
}

fn fill(pixel: &mut [u8], pad: u8, inputs: usize) {
    pixel[..inputs].fill(pad);
    pixel[inputs..].fill(0);
}

fn copy_flipped(out: &mut [u8], source: &[u8], flip: u8) {
    out.iter_mut().zip(source).for_each(|(out, source)| *out = source ^ flip);
}

/// Interleaves channels that are stored as separate planes; channels whose positions are contiguous are processed in
/// blocks. `pixel` is the size of a position in bytes.
fn interleave(out: &mut [u8], source: &[u8], (channel, column): (usize, usize), inputs: usize, pixel: usize, flip: u8) {
    let blocked_inputs = if column == 1 { inputs / CHANNELS * CHANNELS } else { 0 };
    for first in (0..blocked_inputs).step_by(CHANNELS) {
        for (block, out) in out.chunks_mut(TILE_POSITIONS * pixel).enumerate() {
            let channel_data = &source[first * channel + block * TILE_POSITIONS..];
            let mut rows = [[0u8; TILE_POSITIONS]; CHANNELS];
            for (c, row) in rows.iter_mut().enumerate() {
                // Bytes after the last position are read where they exist, and ignored.
                let channel_data = &channel_data[c * channel..];
                match channel_data.first_chunk() {
                    Some(channel_data) => *row = *channel_data,
                    None => row[..channel_data.len()].copy_from_slice(channel_data),
                }
            }
            for (out, bytes) in out.chunks_exact_mut(pixel).zip(transpose::to_position_rows(&rows, flip)) {
                out[first..first + CHANNELS].copy_from_slice(&bytes);
            }
        }
    }
    for (x, out) in out.chunks_exact_mut(pixel).enumerate() {
        for (c, out) in out.iter_mut().enumerate().skip(blocked_inputs) {
            *out = if c < inputs { source[c * channel + x * column] ^ flip } else { 0 };
        }
    }
}
