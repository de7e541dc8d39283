//! Product of a few rows of uint8 with a matrix of constant 8-bit integers, on the calling thread.

use super::tile::{self, Accumulators, Isa, TILE_CHANNELS, TILE_POSITIONS, Tile};
use super::weights::{KernelShape, pack};
use byoc_ir::tensor::{DType, TensorView};
use std::ops::Range;

/// Matrix of integers, packed for products with rows.
pub(crate) struct RowProduct {
    shape: KernelShape,
    packed: Vec<i8>,
    /// Sum and zero point of each column of the packed weights.
    totals: Vec<i32>,
    zero_points: Vec<i32>,
    isa: Isa,
}

impl RowProduct {
    /// Packs a matrix (rows, columns) of int8 or uint8 with a zero point for each column.
    pub fn new(weight: &TensorView<'_>, mut zero_points: Vec<i32>) -> RowProduct {
        let [inputs, outputs] = [weight.shape[0], weight.shape[1]];
        let shape = KernelShape { groups: 1, outputs, inputs, taps: vec![0], output_step: 1, input_step: outputs };
        let (mut packed, mut totals) = (vec![0; shape.packed_bytes()], vec![0; outputs]);
        pack(&shape, weight, &mut packed, &mut totals);
        if weight.dtype == DType::U8 {
            // uint8 weights are packed as int8, shifted by -128.
            zero_points.iter_mut().for_each(|zero_point| *zero_point = zero_point.wrapping_sub(128));
        }
        RowProduct { shape, packed, totals, zero_points, isa: tile::best_isa() }
    }

    /// Returns the size in bytes of a row of the data: its elements, and zeros up to whole words.
    pub fn row_bytes(&self) -> usize {
        self.shape.word_count() * 4
    }

    /// Computes sums[r, c] = sum over k of (data[r, k] - zero point) * (weight[k, c] - zero point of c), modulo 2^32, for
    /// as many rows as `sums` has, and for some columns, which are whole blocks of [`TILE_CHANNELS`].
    pub fn multiply(&self, data: &[u8], zero_point: i32, columns: Range<usize>, sums: &mut [i32]) {
        let (outputs, row_bytes) = (columns.len(), self.row_bytes());
        let data = &data[..sums.len() / outputs * row_bytes];
        let mut accumulators = Accumulators([[0; TILE_CHANNELS]; TILE_POSITIONS]);
        for (first, sums) in sums.chunks_mut(TILE_POSITIONS * outputs).enumerate() {
            let count = sums.len() / outputs;
            let positions = std::array::from_fn(|p| (first * TILE_POSITIONS + p.min(count - 1)) * row_bytes);
            let row_totals = positions.map(|at| data[at..][..row_bytes].iter().map(|&x| i32::from(x)).sum::<i32>());
            for block in columns.start / TILE_CHANNELS..columns.end.div_ceil(TILE_CHANNELS) {
                let (column, width, is_wide) = self.shape.block(block);
                let (begin, bytes) = self.shape.block_bytes(block);
                let weights = &self.packed[begin..][..bytes];
                let word_count = self.shape.word_count();
                Tile { data, positions: &positions, taps: &[0], word_count, weights, is_wide }.run(
                    self.isa,
                    count,
                    &mut accumulators,
                );
                let terms = (zero_point as u32).wrapping_mul(self.shape.inputs as u32) as i32;
                for ((row, sums), total) in accumulators.0.iter().zip(sums.chunks_mut(outputs)).zip(row_totals) {
                    let block = column..column + width;
                    let of_column = self.totals[block.clone()].iter().zip(&self.zero_points[block]);
                    let sums = &mut sums[column - columns.start..][..width];
                    for ((sum, &product), (&column_total, &column_zero)) in sums.iter_mut().zip(row).zip(of_column) {
                        *sum = product
                            .wrapping_sub(column_zero.wrapping_mul(total))
                            .wrapping_sub(zero_point.wrapping_mul(column_total))
                            .wrapping_add(terms.wrapping_mul(column_zero));
                    }
                }
            }
        }
    }
}
