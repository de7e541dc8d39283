//! Winograd loops for AVX-512.
//!
//! Each thread computes its part in groups of tiles. The data of a whole group is transformed first. This yields, for
//! each position, a matrix of tiles by channels in the order in which the microkernel reads it: `LANES` channels of up
//! to `MAX_ROWS` tiles at a time. The group is then multiplied by each filter block in turn, and the block's results
//! are transformed back while they are still in cache.

use super::{BLOCK, LANES, MAX_ROWS, POSITIONS, Pointers, Winograd};
use std::arch::x86_64::*;
use std::ops::Range;

/// Group of tiles, split into batches of nearly equal size, one per microkernel call.
struct Group {
    tiles: Range<usize>,
    batches: usize,
}

impl Group {
    fn new(tiles: Range<usize>) -> Group {
        Group { batches: tiles.len().div_ceil(MAX_ROWS), tiles }
    }

    /// Returns a batch as a range of tiles relative to the group's first tile.
    fn batch(&self, index: usize) -> Range<usize> {
        let begin = |index: usize| self.tiles.len() * index / self.batches;
        begin(index)..begin(index + 1)
    }
}

/// Returns the mask of the lanes that hold the remaining `elements` elements.
fn lanes(elements: usize) -> __mmask16 {
    if elements >= LANES { !0 } else { (1 << elements) - 1 }
}

impl Winograd {
    /// Computes a range of filter blocks for a range of tiles, in scratch memory slot `slot`.
    ///
    /// # Safety
    /// The requirements of [`run`](Winograd::run) apply, and no other thread may write these results or use that
    /// scratch memory.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn run_part(&self, pointers: &Pointers, slot: usize, tiles: Range<usize>, blocks: Range<usize>) {
        let channels = self.weights.padded_channels();
        let groups = tiles.len().div_ceil(self.tiles_per_group()).max(1);
        let begin = |group: usize| tiles.start + tiles.len() * group / groups;
        // SAFETY: `scratch` reserves `scratch_per_thread` elements per slot, enough for a group of `tiles_per_group`
        // tiles.
        let (data, products) = unsafe {
            let data = pointers.scratch.add(slot * self.scratch_per_thread());
            (data, data.add(POSITIONS * self.tiles_per_group() * channels))
        };
        for group in (0..groups).map(|group| Group::new(begin(group)..begin(group + 1))) {
            // SAFETY: the caller guarantees valid tensors, with weights for every block; the slot can hold a group.
            unsafe {
                self.transform(pointers, &group, data);
                for block in blocks.clone() {
                    let weights = pointers.weights.add(block * POSITIONS * channels * BLOCK);
                    self.multiply(&group, data, weights, products, block);
                    self.transform_back(pointers, &group, products, block);
                }
            }
        }
    }

    /// Returns the image that contains a tile, and the tile's row and column in that image.
    fn locate(&self, tile: usize) -> [usize; 3] {
        let [rows, columns] = self.grid();
        [tile / (rows * columns), tile / columns % rows, tile % columns]
    }

    /// Computes Bt d B for every tile of a group and every channel.
    #[target_feature(enable = "avx512f")]
    unsafe fn transform(&self, pointers: &Pointers, group: &Group, transformed: *mut f32) {
        let [channels, padded_channels] = [self.weights.size[1], self.weights.padded_channels()];
        for batch in (0..group.batches).map(|index| group.batch(index)) {
            for tile in batch.clone() {
                let [image, row, column] = self.locate(group.tiles.start + tile);
                let [row, column] = [row * 2, column * 2];
                let is_inside = |first_index: usize, padding: usize, size: usize| {
                    std::array::from_fn::<bool, 4, _>(|i| (padding..size + padding).contains(&(first_index + i)))
                };
                let rows = is_inside(row, self.padding[0], self.source[1]);
                let columns = is_inside(column, self.padding[1], self.source[2]);
                let is_whole = rows == [true; 4] && columns == [true; 4];
                // The corner may be in the padding, so addresses are formed with wrapping arithmetic.
                let [images, row_stride, column_stride] = self.strides;
                let corner = pointers.data.wrapping_add(image * images + row * row_stride + column * column_stride);
                let corner = corner.wrapping_sub(self.padding[0] * row_stride + self.padding[1] * column_stride);
                for channel in (0..padded_channels).step_by(LANES) {
                    let address =
                        |i: usize, j: usize| corner.wrapping_add(i * row_stride + j * column_stride + channel);
                    let left = lanes(channels - channel);
                    // SAFETY: reads are unmasked only if the whole tile is inside the image; otherwise, the mask
                    // excludes elements outside it. The matrices at `transformed` hold every tile and channel.
                    unsafe {
                        let data = if is_whole && left == !0 {
                            std::array::from_fn(|i| std::array::from_fn(|j| _mm512_loadu_ps(address(i, j))))
                        } else {
                            std::array::from_fn(|i| {
                                std::array::from_fn(|j| {
                                    let mask = if rows[i] && columns[j] { left } else { 0 };
                                    _mm512_maskz_loadu_ps(mask, address(i, j))
                                })
                            })
                        };
                        let offset =
                            batch.start * padded_channels + channel * batch.len() + (tile - batch.start) * LANES;
                        for (index, value) in transform_data(data).into_iter().enumerate() {
                            _mm512_storeu_ps(
                                transformed.add(index * group.tiles.len() * padded_channels + offset),
                                value,
                            );
                        }
                    }
                }
            }
        }
    }

    /// Multiplies a group's data by a filter block, for every position.
    #[target_feature(enable = "avx512f")]
    unsafe fn multiply(&self, group: &Group, data: *const f32, weights: *const f32, products: *mut f32, block: usize) {
        let channels = self.weights.padded_channels();
        let filters = self.weights.size[0] - block * BLOCK;
        let kernels = if filters > LANES { &WIDE_KERNELS } else { &NARROW_KERNELS };
        for position in 0..POSITIONS {
            for batch in (0..group.batches).map(|index| group.batch(index)) {
                let offset = position * group.tiles.len() + batch.start;
                // SAFETY: the caller guarantees matrices of this many tiles, channels and filters for every position.
                unsafe {
                    let (data, weights) = (data.add(offset * channels), weights.add(position * channels * BLOCK));
                    kernels[batch.len() - 1](channels, data, weights, products.add(offset * BLOCK));
                }
            }
        }
    }

    /// Computes At m A for the products m of a group and a block, followed by the bias, the addend and the clamp.
    #[target_feature(enable = "avx512f")]
    unsafe fn transform_back(&self, pointers: &Pointers, group: &Group, products: *const f32, block: usize) {
        let filters = self.weights.size[0];
        let [height, width] = self.result;
        let [low, high] = self.range.map(|bound| _mm512_set1_ps(bound));
        for first_filter in (block * BLOCK..filters.min((block + 1) * BLOCK)).step_by(LANES) {
            let mask = lanes(filters - first_filter);
            let mut bias = _mm512_setzero_ps();
            if !pointers.bias.is_null() {
                // SAFETY: the caller guarantees a bias with one element per filter.
                bias = unsafe { _mm512_maskz_loadu_ps(mask, pointers.bias.add(first_filter)) };
            }
            for tile in 0..group.tiles.len() {
                let [image, row, column] = self.locate(group.tiles.start + tile);
                let [row, column] = [row * 2, column * 2];
                let corner = ((image * height + row) * width + column) * filters + first_filter;
                // SAFETY: `multiply` wrote products for every position, tile and filter; only results inside the image
                // are accessed.
                unsafe {
                    let product_base = products.add(tile * BLOCK + first_filter % BLOCK);
                    let product =
                        |position: usize| _mm512_loadu_ps(product_base.add(position * group.tiles.len() * BLOCK));
                    let results =
                        transform_result(std::array::from_fn(|i| std::array::from_fn(|j| product(i * 4 + j))));
                    for (i, row_results) in results.into_iter().enumerate() {
                        for (j, result) in row_results.into_iter().enumerate() {
                            if row + i >= height || column + j >= width {
                                continue;
                            }
                            let offset = corner + (i * width + j) * filters;
                            let mut sum = _mm512_add_ps(result, bias);
                            if !pointers.addend.is_null() {
                                sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, pointers.addend.add(offset)));
                            }
                            // Propagates NaN: these instructions return the second operand of an unordered comparison.
                            let clamped_sum = _mm512_min_ps(high, _mm512_max_ps(low, sum));
                            _mm512_mask_storeu_ps(pointers.result.add(offset), mask, clamped_sum);
                        }
                    }
                }
            }
        }
    }
}

/// Computes Bt d B.
#[inline]
#[target_feature(enable = "avx512f")]
fn transform_data(d: [[__m512; 4]; 4]) -> [__m512; POSITIONS] {
    let transform_points = |a: __m512, b: __m512, c: __m512, d: __m512| {
        [_mm512_sub_ps(a, c), _mm512_add_ps(b, c), _mm512_sub_ps(c, b), _mm512_sub_ps(b, d)]
    };
    let columns: [[__m512; 4]; 4] = std::array::from_fn(|j| transform_points(d[0][j], d[1][j], d[2][j], d[3][j]));
    let mut matrix = [_mm512_setzero_ps(); POSITIONS];
    for i in 0..4 {
        let row = transform_points(columns[0][i], columns[1][i], columns[2][i], columns[3][i]);
        matrix[i * 4..][..4].copy_from_slice(&row);
    }
    matrix
}

/// Computes At m A.
#[inline]
#[target_feature(enable = "avx512f")]
fn transform_result(m: [[__m512; 4]; 4]) -> [[__m512; 2]; 2] {
    let gather = |a: __m512, b: __m512, c: __m512, d: __m512| {
        [_mm512_add_ps(a, _mm512_add_ps(b, c)), _mm512_sub_ps(_mm512_sub_ps(b, c), d)]
    };
    let columns: [[__m512; 2]; 4] = std::array::from_fn(|j| gather(m[0][j], m[1][j], m[2][j], m[3][j]));
    std::array::from_fn(|i| gather(columns[0][i], columns[1][i], columns[2][i], columns[3][i]))
}

/// Microkernel, which multiplies a batch of tiles by a filter block. The parameters are the number of channels, the
/// data in blocks of (tiles, `LANES` channels), the weights in rows of `BLOCK` filters, and the result in rows of
/// `BLOCK` filters.
type Kernel = unsafe fn(usize, *const f32, *const f32, *mut f32);

macro_rules! kernels {
    ($registers:literal: $($rows:literal)*) => { [$(multiply::<$rows, $registers>),*] };
}

/// Microkernels for filter blocks of two registers, indexed by batch size minus 1.
static WIDE_KERNELS: [Kernel; MAX_ROWS] = kernels!(2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);

/// Microkernels for filter blocks that fit in one register, indexed by batch size minus 1.
static NARROW_KERNELS: [Kernel; MAX_ROWS] = kernels!(1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);

/// Multiplies matrices in registers. With 14 rows of 2 registers, there are 28 accumulators, 2 weight registers and 1
/// data register.
#[target_feature(enable = "avx512f")]
unsafe fn multiply<const ROWS: usize, const REGISTERS: usize>(
    channels: usize,
    mut data: *const f32,
    mut weights: *const f32,
    products: *mut f32,
) {
    /// Number of channels per iteration.
    const UNROLL: usize = 4;
    let mut accumulators = [[_mm512_setzero_ps(); REGISTERS]; ROWS];
    // SAFETY: the caller guarantees this many channels of data and weights.
    unsafe {
        for _ in 0..channels / LANES {
            for step in 0..LANES / UNROLL {
                for channel in 0..UNROLL {
                    let weights = weights.add(channel * BLOCK);
                    let row: [__m512; REGISTERS] = std::array::from_fn(|r| _mm512_loadu_ps(weights.add(r * LANES)));
                    for (tile, row_sums) in accumulators.iter_mut().enumerate() {
                        let x = _mm512_set1_ps(*data.add(tile * LANES + step * UNROLL + channel));
                        for (sum, &weight) in row_sums.iter_mut().zip(&row) {
                            *sum = _mm512_fmadd_ps(x, weight, *sum);
                        }
                    }
                }
                weights = weights.add(UNROLL * BLOCK);
            }
            data = data.add(ROWS * LANES);
        }
        for (tile, row_sums) in accumulators.iter().enumerate() {
            for (r, &sum) in row_sums.iter().enumerate() {
                _mm512_storeu_ps(products.add(tile * BLOCK + r * LANES), sum);
            }
        }
    }
}
