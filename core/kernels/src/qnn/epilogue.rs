//! Output stage of a tile: the accumulators become `int32` results, or are requantized to 8-bit integers.

use super::tile::{Accumulators, TILE_CHANNELS, TILE_POSITIONS};
use super::transpose;
use crate::simd::{low_byte, multiversion, to_integers};
use crate::split::SharedPtr;
use byoc_ir::op::qnn::numerics::{Rescale, Rounding};

/// Position and size of a tile in the results.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputTile {
    /// Index of the result for the first channel and position.
    pub at: usize,
    /// First output channel.
    pub channel: usize,
    pub channels: usize,
    pub positions: usize,
    /// Strides between channels and between positions, in elements.
    pub channel_step: usize,
    pub position_step: usize,
}

/// Form of the results.
pub(super) enum Output {
    /// The results.
    Sums,
    /// 8-bit integers, with a bias of integers.
    Bytes(Scaling),
    /// Real numbers, with a bias of real numbers.
    Reals,
}

impl Output {
    /// Returns the index of the first zero point among the inputs of the operator.
    pub fn zero_points(&self) -> usize {
        if matches!(self, Output::Sums) { 2 } else { BIAS + 1 }
    }
}

/// Index of the bias among the inputs of fused operators.
pub(super) const BIAS: usize = 2;
/// Index of the scales among the inputs of an operator with real results.
pub(super) const SCALES: usize = 5;

/// Consumer of tile accumulators, called once per tile, from several threads.
pub(super) trait Epilogue: Sync {
    /// True if the sums of the data are needed because zero points of the weights may be nonzero.
    const NEEDS_TOTALS: bool;

    fn offsets(&self) -> &Offsets<'_>;

    /// Subtracts the products of the weights' zero points and the sums of the data.
    fn subtract_zero_points(
        &self,
        channel: usize,
        channels: usize,
        totals: &[i32; TILE_POSITIONS],
        accumulators: &mut Accumulators,
    ) {
        let zero_points = &self.offsets().zero_points[channel..channel + channels];
        for (accumulators, total) in accumulators.0.iter_mut().zip(totals) {
            for (sum, zero) in accumulators.iter_mut().zip(zero_points) {
                *sum = sum.wrapping_sub(total.wrapping_mul(*zero));
            }
        }
    }

    /// Writes a tile.
    fn write_tile(&self, tile: &OutputTile, accumulators: &Accumulators);
}

/// Terms added to the accumulators of each output channel: the zero-point correction, and a bias.
#[derive(Clone, Copy)]
pub(super) struct Offsets<'a> {
    /// One value for each output channel, followed by [`TILE_CHANNELS`] elements of padding.
    pub values: &'a [i32],
    /// Zero points of the weights as int8; empty if all are zero.
    pub zero_points: &'a [i32],
}

/// Output stage for `int32` results.
pub(super) struct PlainEpilogue<'a, const TOTALS: bool> {
    pub offsets: Offsets<'a>,
    pub out: SharedPtr<i32>,
    pub len: usize,
}

impl<const TOTALS: bool> Epilogue for PlainEpilogue<'_, TOTALS> {
    const NEEDS_TOTALS: bool = TOTALS;

    fn offsets(&self) -> &Offsets<'_> {
        &self.offsets
    }

    fn write_tile(&self, tile: &OutputTile, accumulators: &Accumulators) {
        let offsets = &self.offsets.values[tile.channel..tile.channel + TILE_CHANNELS];
        let mut values = [0; TILE_CHANNELS];
        for (p, accumulators) in accumulators.0[..tile.positions].iter().enumerate() {
            for c in 0..TILE_CHANNELS {
                values[c] = accumulators[c].wrapping_add(offsets[c]);
            }
            store_row(tile, &self.out, self.len, p, &values);
        }
    }
}

/// Writes the channels of position `p` of a tile.
fn store_row<T: Copy>(tile: &OutputTile, out: &SharedPtr<T>, len: usize, p: usize, values: &[T; TILE_CHANNELS]) {
    let first = tile.at + p * tile.position_step;
    assert!(first + (tile.channels - 1) * tile.channel_step < len, "the tile lies inside the results");
    for (c, value) in values[..tile.channels].iter().enumerate() {
        // SAFETY: the assertion keeps the channels of the position inside the results, and the engine computes each tile
        // once, so no other thread accesses them.
        unsafe { *out.get().add(first + c * tile.channel_step) = *value };
    }
}

/// Output stage for 8-bit integers: adds the offsets to the accumulators, rescales them, adds the zero point, and
/// clamps the results.
pub(super) struct ByteEpilogue<'a, const TOTALS: bool> {
    pub offsets: Offsets<'a>,
    pub scaling: &'a Scaling,
    pub out: SharedPtr<u8>,
    pub len: usize,
}

impl<const TOTALS: bool> Epilogue for ByteEpilogue<'_, TOTALS> {
    const NEEDS_TOTALS: bool = TOTALS;

    fn offsets(&self) -> &Offsets<'_> {
        &self.offsets
    }

    fn write_tile(&self, tile: &OutputTile, accumulators: &Accumulators) {
        let end = tile.at + (tile.channels - 1) * tile.channel_step + (tile.positions - 1) * tile.position_step;
        assert!(end < self.len, "the tile lies inside the results");
        let mut values = [[0u8; TILE_CHANNELS]; TILE_POSITIONS];
        requantize_rows(
            self.scaling,
            &self.offsets.values[tile.channel..],
            tile.channel,
            tile.positions,
            accumulators,
            &mut values,
        );
        let out = self.out.get();
        if tile.channel_step == 1 {
            for (p, values) in values[..tile.positions].iter().enumerate() {
                // SAFETY: the assertion keeps the channels of the position inside the results, and the engine computes
                // each tile once, so no other thread accesses them.
                let target =
                    unsafe { std::slice::from_raw_parts_mut(out.add(tile.at + p * tile.position_step), tile.channels) };
                match target.first_chunk_mut::<TILE_CHANNELS>() {
                    Some(target) => *target = *values,
                    None => target.copy_from_slice(&values[..tile.channels]),
                }
            }
            return;
        }
        if tile.positions == TILE_POSITIONS && tile.position_step == 1 {
            let rows = transpose::to_channel_major(&values);
            for (c, channel_row) in rows[..tile.channels].iter().enumerate() {
                // SAFETY: the assertion keeps the positions of the channel inside the results, and the engine computes
                // each tile once, so no other thread accesses them.
                unsafe {
                    out.add(tile.at + c * tile.channel_step)
                        .cast::<[u8; TILE_POSITIONS]>()
                        .write_unaligned(*channel_row)
                };
            }
            return;
        }
        for (p, values) in values[..tile.positions].iter().enumerate() {
            store_row(tile, &self.out, self.len, p, values);
        }
    }
}

/// Output stage for `float32`: adds the offsets to the accumulators, scales the sums, and adds a bias.
pub(super) struct FloatEpilogue<'a, const TOTALS: bool> {
    pub offsets: Offsets<'a>,
    /// A scale and a bias for each output channel.
    pub scales: &'a [f32],
    pub bias: &'a [f32],
    pub out: SharedPtr<f32>,
    pub len: usize,
}

impl<const TOTALS: bool> Epilogue for FloatEpilogue<'_, TOTALS> {
    const NEEDS_TOTALS: bool = TOTALS;

    fn offsets(&self) -> &Offsets<'_> {
        &self.offsets
    }

    fn write_tile(&self, tile: &OutputTile, accumulators: &Accumulators) {
        let channels = tile.channel..tile.channel + tile.channels;
        let (offsets, scales, bias) =
            (&self.offsets.values[channels.clone()], &self.scales[channels.clone()], &self.bias[channels]);
        let mut values = [0f32; TILE_CHANNELS];
        for (p, accumulators) in accumulators.0[..tile.positions].iter().enumerate() {
            scale_row(&accumulators[..tile.channels], offsets, scales, bias, &mut values[..tile.channels]);
            store_row(tile, &self.out, self.len, p, &values);
        }
    }
}

/// Requantization of accumulators to 8-bit integers, with a ratio for each output channel.
#[derive(Clone, Debug)]
pub(super) struct Scaling {
    pub ratios: Ratios,
    pub rounding: Rounding,
    pub zero_point: i32,
    /// Bounds of the quantized result, within the range of its type.
    pub low: i32,
    pub high: i32,
}

/// Ratios of the scales, one for each output channel, followed by [`TILE_CHANNELS`] elements of padding.
#[derive(Clone, Debug)]
pub(super) enum Ratios {
    /// Ratios as float32 factors.
    Float(Vec<f32>),
    /// Ratios as fixed-point multipliers and shifts.
    Fixed(FixedRatios),
}

/// Ratios `multiplier * 2^(left_shift - shift)`.
#[derive(Clone, Debug)]
pub(super) struct FixedRatios {
    multipliers: Vec<i32>,
    left_shifts: Vec<i64>,
    /// Total right shift of a product: 31 for the fraction bits of the multiplier, plus the right shift of a ratio
    /// below 1/2.
    shifts: Vec<i64>,
    /// True if no value is shifted to the left. In that case products fit 64 bits, results fit 32 bits, and nothing
    /// saturates before the bounds are applied.
    is_below_one: bool,
}

impl Scaling {
    /// Returns the requantization of a channel for tiles whose lanes are positions of that channel.
    pub fn of_channel(&self, channel: usize) -> Scaling {
        let ratios = match &self.ratios {
            Ratios::Float(ratios) => Ratios::Float(vec![ratios[channel]; TILE_CHANNELS]),
            Ratios::Fixed(ratios) => Ratios::Fixed(FixedRatios {
                multipliers: vec![ratios.multipliers[channel]; TILE_CHANNELS],
                left_shifts: vec![ratios.left_shifts[channel]; TILE_CHANNELS],
                shifts: vec![ratios.shifts[channel]; TILE_CHANNELS],
                is_below_one: ratios.is_below_one,
            }),
        };
        Scaling { ratios, ..*self }
    }

    /// Requantizes sums of one channel, for which this was made by [`Scaling::of_channel`], after adding `offset`.
    pub fn requantize_positions(&self, sums: &[f32], offset: i32, out: &mut [u8]) {
        const TILE: usize = TILE_POSITIONS * TILE_CHANNELS;
        let offsets = [offset; TILE_CHANNELS];
        let mut accumulators = Accumulators([[0; TILE_CHANNELS]; TILE_POSITIONS]);
        let mut rows = [[0; TILE_CHANNELS]; TILE_POSITIONS];
        for (sums, out) in sums.chunks(TILE).zip(out.chunks_mut(TILE)) {
            let lanes = accumulators.0.as_flattened_mut();
            to_integers(sums, lanes);
            requantize_rows(self, &offsets, 0, sums.len().div_ceil(TILE_CHANNELS), &accumulators, &mut rows);
            out.copy_from_slice(&rows.as_flattened()[..out.len()]);
        }
    }

    /// Creates the requantization for `channels` output channels, from one factor for all channels or one factor per
    /// channel.
    pub fn new(factors: &[Rescale], channels: usize, zero_point: i32, (low, high): (i32, i32)) -> Scaling {
        let padded_channels = channels + TILE_CHANNELS;
        let factor_at = |i: usize| factors[if factors.len() == 1 { 0 } else { i.min(factors.len() - 1) }];
        let rounding = match factors.first() {
            Some(Rescale::Fixed(_, rounding) | Rescale::Float(_, rounding)) => *rounding,
            _ => Rounding::Upward,
        };
        let factors = if let Some(Rescale::Float(..)) = factors.first() {
            let ratio = |i| if let Rescale::Float(ratio, _) = factor_at(i) { ratio } else { 1.0 };
            Ratios::Float((0..padded_channels).map(ratio).collect())
        } else {
            let ratio = |i| match factor_at(i) {
                Rescale::Fixed(ratio, _) => (ratio.multiplier, ratio.exponent),
                _ => (1 << 30, 1),
            };
            let left_shifts: Vec<i64> = (0..padded_channels).map(|i| i64::from(ratio(i).1.clamp(0, 32))).collect();
            Ratios::Fixed(FixedRatios {
                multipliers: (0..padded_channels).map(|i| ratio(i).0).collect(),
                is_below_one: left_shifts.iter().all(|&shift| shift == 0),
                left_shifts,
                shifts: (0..padded_channels).map(|i| 31 + i64::from((-ratio(i).1).clamp(0, 32))).collect(),
            })
        };
        Scaling { ratios: factors, rounding, zero_point, low, high }
    }
}

/// 8-bit results of a tile: one row of channels for each position.
type Rows = [[u8; TILE_CHANNELS]; TILE_POSITIONS];

multiversion! {
    /// Computes (sum + offset) * scale + bias for the channels of a position.
    fn scale_row(sums: &[i32], offsets: &[i32], scales: &[f32], bias: &[f32], out: &mut [f32]) {
        let channels = out.len();
        let (sums, offsets, scales, bias) = (&sums[..channels], &offsets[..channels], &scales[..channels], &bias[..channels]);
        for c in 0..channels {
            out[c] = sums[c].wrapping_add(offsets[c]) as f32 * scales[c] + bias[c];
        }
    }

    /// Adds the offsets of the channels to the first `positions` rows of `accumulators`, and requantizes these rows to
    /// 8-bit integers.
    fn requantize_rows(scaling: &Scaling, offsets: &[i32], channel: usize, positions: usize, accumulators: &Accumulators, rows_out: &mut Rows) {
        let Some(offsets) = offsets.first_chunk::<TILE_CHANNELS>() else { return };
        let rows = accumulators.0.iter().zip(rows_out).take(positions);
        match &scaling.ratios {
            Ratios::Float(ratios) => {
                let Some(ratios) = ratios[channel..].first_chunk::<TILE_CHANNELS>() else { return };
                // Beyond these bounds the result saturates for any zero point; within them, float32 is exact where the
                // result does not saturate. (The comparisons below are `max` and `min` of numbers that are never NaN.)
                let (low, high, zero) = (scaling.low as f32, scaling.high as f32, scaling.zero_point as f32);
                for (accumulators, rows_out) in rows {
                    for c in 0..TILE_CHANNELS {
                        let real = accumulators[c].wrapping_add(offsets[c]) as f32 * ratios[c];
                        let rounded_value = match scaling.rounding {
                            Rounding::ToEven => real.round_ties_even(),
                            Rounding::Upward => (real + 0.5).floor(),
                            Rounding::ToNearest => round_half_away(real),
                        };
                        let value = rounded_value + zero;
                        let value = if value < low { low } else { value };
                        let value = if value > high { high } else { value };
                        rows_out[c] = low_byte(value);
                    }
                }
            }
            Ratios::Fixed(ratios) => {
                let multipliers = ratios.multipliers[channel..].first_chunk::<TILE_CHANNELS>();
                let shifts = ratios.shifts[channel..].first_chunk::<TILE_CHANNELS>();
                let left_shifts = ratios.left_shifts[channel..].first_chunk::<TILE_CHANNELS>();
                let (Some(multipliers), Some(shifts), Some(left_shifts)) = (multipliers, shifts, left_shifts) else { return };
                // Bounds before the zero point is added.
                let unshifted_bound = |bound: i32| i64::from(bound) - i64::from(scaling.zero_point);
                let (low, high) = (unshifted_bound(scaling.low), unshifted_bound(scaling.high));
                let bounds = (i32::try_from(low), i32::try_from(high));
                match (bounds, scaling.rounding) {
                    ((Ok(low), Ok(high)), Rounding::Upward) if ratios.is_below_one => {
                        for (accumulators, rows_out) in rows {
                            for c in 0..TILE_CHANNELS {
                                let product = product(accumulators[c], offsets[c], multipliers[c]) + (1 << (shifts[c] - 1));
                                rows_out[c] = clamp_to_u8(product >> shifts[c], low, high, scaling.zero_point);
                            }
                        }
                    }
                    ((Ok(low), Ok(high)), Rounding::ToNearest) if ratios.is_below_one => {
                        for (accumulators, rows_out) in rows {
                            for c in 0..TILE_CHANNELS {
                                let product = product(accumulators[c], offsets[c], multipliers[c]);
                                let adjusted_product = product + (product >> 63) + (1 << (shifts[c] - 1));
                                rows_out[c] = clamp_to_u8(adjusted_product >> shifts[c], low, high, scaling.zero_point);
                            }
                        }
                    }
                    ((Ok(low), Ok(high)), Rounding::ToEven) if ratios.is_below_one => {
                        for (accumulators, rows_out) in rows {
                            for c in 0..TILE_CHANNELS {
                                let product = product(accumulators[c], offsets[c], multipliers[c]);
                                let parity = (product >> shifts[c]) & 1;
                                let adjusted_product = product + parity + ((1 << (shifts[c] - 1)) - 1);
                                rows_out[c] = clamp_to_u8(adjusted_product >> shifts[c], low, high, scaling.zero_point);
                            }
                        }
                    }
                    _ => {
                        let [zero, low, high] = [scaling.zero_point, scaling.low, scaling.high].map(i64::from);
                        for (accumulators, rows_out) in rows {
                            for c in 0..TILE_CHANNELS {
                                let (t, right_shift) = (accumulators[c].wrapping_add(offsets[c]), shifts[c] - 31);
                                let value = multiply_fixed_point(t, multipliers[c].into(), left_shifts[c], right_shift, scaling.rounding);
                                rows_out[c] = (value + zero).clamp(low, high) as u8;
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns `(sum + offset) * multiplier`; the addition wraps.
#[inline(always)]
fn product(sum: i32, offset: i32, multiplier: i32) -> i64 {
    i64::from(sum.wrapping_add(offset)) * i64::from(multiplier)
}

/// Clamps a value that fits 32 bits, and adds the zero point.
#[inline(always)]
fn clamp_to_u8(value: i64, low: i32, high: i32, zero_point: i32) -> u8 {
    (value as i32).max(low).min(high).wrapping_add(zero_point) as u8
}

/// Rounds to the nearest integer, halves away from zero. (Without hardware support, the standard function is a library
/// call.)
#[inline(always)]
pub(super) fn round_half_away(x: f32) -> f32 {
    let truncated = x.trunc();
    let fraction = (x - truncated).abs();
    if fraction >= 0.5 { truncated + 1f32.copysign(x) } else { truncated }
}

/// Multiplies a value by `multiplier * 2^(left_shift - right_shift - 31)`; the product is rounded, and saturates to
/// `int32`. Shifts are at most 32: with a longer left shift, any value but 0 is out of range; with a longer right
/// shift, every result is 0.
#[inline(always)]
pub(super) fn multiply_fixed_point(
    value: i32,
    multiplier: i64,
    left_shift: i64,
    right_shift: i64,
    rounding: Rounding,
) -> i64 {
    // Once the shifted value reaches 2^32, the product is outside `int32` for any multiplier; below that it fits 64
    // bits.
    let bound = 1i64 << (32 - left_shift);
    let product = (i64::from(value).clamp(-bound, bound) << left_shift) * multiplier;
    let (half, shift) = (1i64 << (30 + right_shift), 31 + right_shift);
    let adjusted_product = match rounding {
        Rounding::Upward => product + half,
        Rounding::ToNearest => product + half - i64::from(product < 0),
        Rounding::ToEven => product + (half - 1) + ((product >> shift) & 1),
    };
    (adjusted_product >> shift).clamp(i64::from(i32::MIN), i64::from(i32::MAX))
}
