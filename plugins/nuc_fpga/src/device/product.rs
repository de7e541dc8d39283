//! Execution of device calls on the CPU. A task computes a block of output positions and output channels as an int8
//! GEMM, whose rows are dense and padded to full vectors.

use crate::epilogue::Target;
use crate::layer::{Conv, Dense, Layer};
use byoc_plugin_api::{Result, Services};
use std::borrow::Cow;

/// Multiple to which rows are padded with zeros.
const LANES: usize = 32;
/// Number of output positions per task.
const POSITIONS: usize = 48;
/// Number of output channels per task.
const OUTPUTS: usize = 64;
/// Number of output positions and of output channels in a register tile.
const TILE: [usize; 2] = [2, 4];

/// Executes a call.
///
/// # Errors
/// If a task panics.
///
/// # Safety
/// `out` must have as many int32 elements as the layer has sums, not overlap the operands, and not be accessed by
/// anything else during the call. The operands must have the layer's sizes.
pub unsafe fn run(services: &Services, layer: &Layer, feature: &[i8], kernel: &[i8], out: Target) -> Result<()> {
    match layer {
        // SAFETY: the caller guarantees the sizes of the operands, and exclusive access to `out`.
        Layer::Conv2d(conv) => unsafe { conv2d(services, conv, feature, kernel, out) },
        // SAFETY: the caller guarantees the sizes of the operands, and exclusive access to `out`.
        Layer::Dense(dense) => unsafe { self::dense(services, dense, feature, kernel, out) },
    }
}

/// Pads rows of `terms` elements with zeros to a multiple of [`LANES`].
fn pad_rows(rows: &[i8], terms: usize) -> Cow<'_, [i8]> {
    let width = terms.next_multiple_of(LANES);
    if width == terms {
        return Cow::Borrowed(rows);
    }
    let mut padded_rows = vec![0; rows.len() / terms * width];
    for (destination, source) in padded_rows.chunks_exact_mut(width).zip(rows.chunks_exact(terms)) {
        destination[..terms].copy_from_slice(source);
    }
    Cow::Owned(padded_rows)
}

/// Executes a fully connected layer; see [`run`].
unsafe fn dense(services: &Services, dense: &Dense, feature: &[i8], kernel: &[i8], out: Target) -> Result<()> {
    let [batch, terms, outputs] = [dense.batch, dense.in_features, dense.out_features].map(|size| size as usize);
    let (feature, kernel) = (pad_rows(feature, terms), pad_rows(kernel, terms));
    let width = terms.next_multiple_of(LANES);
    let (bands, blocks) = (batch.div_ceil(POSITIONS), outputs.div_ceil(OUTPUTS));
    services.parallel_for(bands * blocks, |task| {
        let rows = range(task / blocks, POSITIONS, batch);
        let columns = range(task % blocks, OUTPUTS, outputs);
        let a = &feature[rows.start * width..rows.end * width];
        let b = &kernel[columns.start * width..columns.end * width];
        product(a, b, width, |position, output, sum| {
            // SAFETY: the tasks have disjoint rows and columns, all within the result, whose size the caller of `run`
            // guarantees.
            unsafe { out.sums().add((rows.start + position) * outputs + columns.start + output).write(sum) }
        });
    })
}

/// Executes a convolution; see [`run`].
unsafe fn conv2d(services: &Services, conv: &Conv, feature: &[i8], kernel: &[i8], out: Target) -> Result<()> {
    let terms = conv.terms();
    let kernel = pad_rows(kernel, terms);
    let width = terms.next_multiple_of(LANES);
    let [batch, groups, kernels] = [conv.batch, conv.group, conv.kernels].map(|size| size as usize);
    let positions = conv.out_height() * conv.out_width();
    let group_kernels = conv.group_kernels();
    let (bands, blocks) = (positions.div_ceil(POSITIONS), group_kernels.div_ceil(OUTPUTS));
    let image_size = (conv.channels * conv.height) as usize * conv.width as usize;
    services.parallel_for(batch * groups * bands * blocks, |task| {
        let (block, band) = (task % blocks, task / blocks % bands);
        let (group, image) = (task / (blocks * bands) % groups, task / (blocks * bands * groups));
        let band = range(band, POSITIONS, positions);
        let block = range(block, OUTPUTS, group_kernels);
        let mut windows = vec![0i8; band.len() * width];
        let image_data = &feature[image * image_size..(image + 1) * image_size];
        for (window_out, position) in windows.chunks_exact_mut(width).zip(band.clone()) {
            copy_window(conv, image_data, group, position, &mut window_out[..terms]);
        }
        let first_kernel = group * group_kernels + block.start;
        let b = &kernel[first_kernel * width..(first_kernel + block.len()) * width];
        product(&windows, b, width, |position, output, sum| {
            let index = (image * kernels + first_kernel + output) * positions + band.start + position;
            // SAFETY: the tasks have disjoint positions and channels, all within the result, whose size the caller of
            // `run` guarantees.
            unsafe { out.sums().add(index).write(sum) }
        });
    })
}

fn range(block: usize, size: usize, end: usize) -> std::ops::Range<usize> {
    block * size..((block + 1) * size).min(end)
}

/// Copies the elements of a window in kernel order. Elements outside the feature map are 0.
fn copy_window(conv: &Conv, image: &[i8], group: usize, position: usize, destination: &mut [i8]) {
    let (y, x) = (position / conv.out_width(), position % conv.out_width());
    let [height, width] = [conv.height, conv.width].map(|size| size as usize);
    let [taps_y, taps_x] = [conv.kernel_height, conv.kernel_width].map(|size| size as usize);
    let top_edge = (y * conv.stride_height as usize) as i64 - i64::from(conv.pad_height);
    let left_edge = (x * conv.stride_width as usize) as i64 - i64::from(conv.pad_width);
    // Range of a row's taps that are inside the feature map.
    let taps_inside =
        (-left_edge).clamp(0, taps_x as i64) as usize..(width as i64 - left_edge).clamp(0, taps_x as i64) as usize;
    let channels = conv.group_channels();
    for (row, row_out) in destination.chunks_exact_mut(taps_x).enumerate() {
        let (channel, v) = (group * channels + row / taps_y, row % taps_y);
        let input_row = top_edge + v as i64;
        if input_row < 0 || input_row >= height as i64 || taps_inside.is_empty() {
            row_out.fill(0);
            continue;
        }
        let offset = (channel * height + input_row as usize) * width + (left_edge + taps_inside.start as i64) as usize;
        row_out[..taps_inside.start].fill(0);
        row_out[taps_inside.end..].fill(0);
        row_out[taps_inside.clone()].copy_from_slice(&image[offset..offset + taps_inside.len()]);
    }
}

/// Computes the dot product of each row of `a` with each row of `b`. Rows have `width` elements, a multiple of
/// [`LANES`].
fn product(a: &[i8], b: &[i8], width: usize, write: impl Fn(usize, usize, i32)) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: `is_x86_feature_detected` has confirmed that the CPU supports AVX2.
        return tiles(
            a,
            b,
            width,
            |a, b| unsafe { avx2::tile(a, b, width) },
            |a, b| unsafe { avx2::dot_product(a, b) },
            write,
        );
    }
    let dot_product = |a: &[i8], b: &[i8]| a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum();
    let tile = |a: &[i8], b: &[i8]| {
        let row = |matrix: &[i8], i: usize| -> (usize, usize) { (i * width, (i * width + width).min(matrix.len())) };
        let bounds = |matrix: &'_ [i8], i: usize| row(matrix, i);
        std::array::from_fn(|i| {
            std::array::from_fn(|j| {
                let ((a0, a1), (b0, b1)) = (bounds(a, i), bounds(b, j));
                dot_product(&a[a0..a1], &b[b0..b1])
            })
        })
    };
    tiles(a, b, width, tile, dot_product, write);
}

/// Iterates over both operands in tiles, and over the remaining rows individually.
fn tiles(
    a: &[i8],
    b: &[i8],
    width: usize,
    tile: impl Fn(&[i8], &[i8]) -> [[i32; TILE[1]]; TILE[0]],
    dot_product: impl Fn(&[i8], &[i8]) -> i32,
    write: impl Fn(usize, usize, i32),
) {
    let (rows, columns) = (a.len() / width, b.len() / width);
    let (whole_rows, whole_columns) = (rows / TILE[0] * TILE[0], columns / TILE[1] * TILE[1]);
    for j in (0..whole_columns).step_by(TILE[1]) {
        let b = &b[j * width..(j + TILE[1]) * width];
        for i in (0..whole_rows).step_by(TILE[0]) {
            let tile_sums = tile(&a[i * width..(i + TILE[0]) * width], b);
            for (di, row_sums) in tile_sums.iter().enumerate() {
                for (dj, &sum) in row_sums.iter().enumerate() {
                    write(i + di, j + dj, sum);
                }
            }
        }
    }
    for i in 0..rows {
        let start_column = if i < whole_rows { whole_columns } else { 0 };
        for j in start_column..columns {
            write(i, j, dot_product(&a[i * width..(i + 1) * width], &b[j * width..(j + 1) * width]));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! AVX2 dot products, 16 elements at a time: elements are widened to 16 bits, and adjacent products are added in 32
    //! bits.

    use super::{LANES, TILE};
    use std::arch::x86_64::*;

    /// Loads 16 elements, beginning at index `offset`, and widens them to 16 bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(row: &[i8], offset: usize) -> __m256i {
        let bytes: &[i8; 16] = row[offset..offset + 16].first_chunk().unwrap_or(&[0; 16]);
        // SAFETY: `bytes` is a reference to 16 bytes, and the load requires no alignment.
        _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn horizontal_sum(accumulators: __m256i) -> i32 {
        let half_sums =
            _mm_add_epi32(_mm256_castsi256_si128(accumulators), _mm256_extracti128_si256::<1>(accumulators));
        let quarter_sums = _mm_add_epi32(half_sums, _mm_shuffle_epi32::<0b_01_00_11_10>(half_sums));
        _mm_cvtsi128_si32(_mm_add_epi32(quarter_sums, _mm_shuffle_epi32::<0b_10_11_00_01>(quarter_sums)))
    }

    /// Computes the dot products of two rows of `a` and four rows of `b`.
    #[target_feature(enable = "avx2")]
    pub fn tile(a: &[i8], b: &[i8], width: usize) -> [[i32; TILE[1]]; TILE[0]] {
        let mut accumulators = [[_mm256_setzero_si256(); TILE[1]]; TILE[0]];
        let (a0, a1) = a.split_at(width);
        let (b0, rest) = b.split_at(width);
        let (b1, rest) = rest.split_at(width);
        let (b2, b3) = rest.split_at(width);
        for offset in (0..width / LANES * LANES).step_by(16) {
            let a = [load(a0, offset), load(a1, offset)];
            for (j, b) in [b0, b1, b2, b3].iter().enumerate() {
                let b = load(b, offset);
                for (row, &a) in accumulators.iter_mut().zip(&a) {
                    row[j] = _mm256_add_epi32(row[j], _mm256_madd_epi16(a, b));
                }
            }
        }
        accumulators.map(|row| row.map(|sum| horizontal_sum(sum)))
    }

    /// Computes the dot product of two rows.
    #[target_feature(enable = "avx2")]
    pub fn dot_product(a: &[i8], b: &[i8]) -> i32 {
        let mut accumulators = _mm256_setzero_si256();
        for offset in (0..a.len() / LANES * LANES).step_by(16) {
            accumulators = _mm256_add_epi32(accumulators, _mm256_madd_epi16(load(a, offset), load(b, offset)));
        }
        horizontal_sum(accumulators)
    }
}
