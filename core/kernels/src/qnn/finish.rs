//! Output stage of a tile: the sums become `int32` results unchanged, or are requantized to bytes.

use super::tile::{PLACES, Sums, WIDE};
use super::transpose;
use crate::simd::multiversion;
use crate::split::Shared;
use byoc_ir::op::qnn::numerics::{Rescale, Rounding};

/// Position and size of a tile in the results.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Index of the result for the first channel and place.
    pub at: usize,
    /// First output channel.
    pub channel: usize,
    pub channels: usize,
    pub places: usize,
    /// Distance in elements between channels, and between places.
    pub channel_step: usize,
    pub place_step: usize,
}

/// Consumer of the sums of tiles, each tile once, from several threads.
pub(super) trait Finish: Sync {
    /// True if sums of the data are needed, because the weights have a zero point.
    const NEEDS_TOTALS: bool;

    /// Subtracts the products of the weights' zero points and the sums of the data.
    fn totals(&self, _channel: usize, _channels: usize, _totals: &[i32; PLACES], _sums: &mut Sums) {}

    /// Writes a tile.
    fn tile(&self, row: &Row, sums: &Sums);
}

/// Terms added to the sums of each output channel: the share of the zero points, and a bias.
#[derive(Clone, Copy)]
pub(super) struct Offsets<'a> {
    /// One value for each output channel, followed by [`WIDE`] elements of padding.
    pub values: &'a [i32],
    /// Zero points of the weights, for signed ones; empty if all are zero.
    pub zero_points: &'a [i32],
}

fn take_totals(offsets: &Offsets<'_>, channel: usize, channels: usize, totals: &[i32; PLACES], sums: &mut Sums) {
    for (sums, total) in sums.0.iter_mut().zip(totals) {
        for (sum, zero) in sums.iter_mut().zip(&offsets.zero_points[channel..channel + channels]) {
            *sum = sum.wrapping_sub(total.wrapping_mul(*zero));
        }
    }
}

/// Output stage for `int32` results.
pub(super) struct Plain<'a, const TOTALS: bool> {
    pub offsets: Offsets<'a>,
    pub out: Shared<i32>,
    pub len: usize,
}

impl<const TOTALS: bool> Finish for Plain<'_, TOTALS> {
    const NEEDS_TOTALS: bool = TOTALS;

    fn totals(&self, channel: usize, channels: usize, totals: &[i32; PLACES], sums: &mut Sums) {
        take_totals(&self.offsets, channel, channels, totals, sums);
    }

    fn tile(&self, row: &Row, sums: &Sums) {
        let offsets = &self.offsets.values[row.channel..row.channel + WIDE];
        let end = row.at + (row.channels - 1) * row.channel_step + (row.places - 1) * row.place_step;
        assert!(end < self.len, "a tile inside the results");
        for (p, sums) in sums.0[..row.places].iter().enumerate() {
            for c in 0..row.channels {
                let value = sums[c].wrapping_add(offsets[c]);
                // SAFETY: the place lies inside the results (asserted) and belongs to this tile alone.
                unsafe { *self.out.get().add(row.at + c * row.channel_step + p * row.place_step) = value };
            }
        }
    }
}

/// Output stage for bytes: the sums with their offsets are rescaled, moved by a zero point, and clamped.
pub(super) struct Bytes<'a, const TOTALS: bool> {
    pub offsets: Offsets<'a>,
    pub scaling: &'a Scaling,
    pub out: Shared<u8>,
    pub len: usize,
}

impl<const TOTALS: bool> Finish for Bytes<'_, TOTALS> {
    const NEEDS_TOTALS: bool = TOTALS;

    fn totals(&self, channel: usize, channels: usize, totals: &[i32; PLACES], sums: &mut Sums) {
        take_totals(&self.offsets, channel, channels, totals, sums);
    }

    fn tile(&self, row: &Row, sums: &Sums) {
        let end = row.at + (row.channels - 1) * row.channel_step + (row.places - 1) * row.place_step;
        assert!(end < self.len, "a tile inside the results");
        let mut values = [[0u8; WIDE]; PLACES];
        scale(self.scaling, &self.offsets.values[row.channel..], row.channel, row.places, sums, &mut values);
        let out = self.out.get();
        if row.channel_step == 1 {
            for (p, values) in values[..row.places].iter().enumerate() {
                // SAFETY: the channels of a place lie inside the results (asserted) and belong to this tile alone.
                let to = unsafe { std::slice::from_raw_parts_mut(out.add(row.at + p * row.place_step), row.channels) };
                match to.first_chunk_mut::<WIDE>() {
                    Some(to) => *to = *values,
                    None => to.copy_from_slice(&values[..row.channels]),
                }
            }
            return;
        }
        if row.places == PLACES && row.place_step == 1 {
            let words = transpose::apart(&values);
            for (c, word) in words[..row.channels].iter().enumerate() {
                // SAFETY: the places of a channel lie inside the results (asserted) and belong to this tile alone.
                unsafe { out.add(row.at + c * row.channel_step).cast::<[u8; PLACES]>().write_unaligned(*word) };
            }
            return;
        }
        for (p, values) in values[..row.places].iter().enumerate() {
            for (c, value) in values[..row.channels].iter().enumerate() {
                // SAFETY: the place lies inside the results (asserted) and belongs to this tile alone.
                unsafe { *out.add(row.at + c * row.channel_step + p * row.place_step) = *value };
            }
        }
    }
}

/// Scaling of each output channel.
#[derive(Clone, Debug)]
pub(super) struct Scaling {
    pub by: By,
    pub rounding: Rounding,
    pub zero_point: i32,
    /// Bounds of the result, in its integers, within the range of its type.
    pub low: i32,
    pub high: i32,
}

/// Ratios of the scales, one for each output channel, followed by [`WIDE`] elements of padding.
#[derive(Clone, Debug)]
pub(super) enum By {
    /// In float32.
    Float(Vec<f32>),
    /// In fixed point.
    Fixed(FixedRatios),
}

/// Ratios `multiplier * 2^(left - shift)`.
#[derive(Clone, Debug)]
pub(super) struct FixedRatios {
    multipliers: Vec<i32>,
    left: Vec<i64>,
    /// 31 plus the right shift of a ratio below 1/2.
    shifts: Vec<i64>,
    /// True if no value is shifted to the left: then products fit 64 bits and results 32, and nothing saturates
    /// before the bounds.
    below_one: bool,
}

impl Scaling {
    /// Creates the scaling of `channels` output channels, from one rescaling for all or one for each.
    pub fn new(by: &[Rescale], channels: usize, zero_point: i32, (low, high): (i32, i32)) -> Scaling {
        let padded = channels + WIDE;
        let at = |i: usize| by[if by.len() == 1 { 0 } else { i.min(by.len() - 1) }];
        let rounding = match by.first() {
            Some(Rescale::Fixed(_, rounding) | Rescale::Float(_, rounding)) => *rounding,
            _ => Rounding::Upward,
        };
        let by = if let Some(Rescale::Float(..)) = by.first() {
            let ratio = |i| if let Rescale::Float(ratio, _) = at(i) { ratio } else { 1.0 };
            By::Float((0..padded).map(ratio).collect())
        } else {
            let ratio = |i| match at(i) {
                Rescale::Fixed(ratio, _) => (ratio.multiplier, ratio.exponent),
                _ => (1 << 30, 1),
            };
            let left: Vec<i64> = (0..padded).map(|i| i64::from(ratio(i).1.clamp(0, 32))).collect();
            By::Fixed(FixedRatios {
                multipliers: (0..padded).map(|i| ratio(i).0).collect(),
                below_one: left.iter().all(|&left| left == 0),
                left,
                shifts: (0..padded).map(|i| 31 + i64::from((-ratio(i).1).clamp(0, 32))).collect(),
            })
        };
        Scaling { by, rounding, zero_point, low, high }
    }
}

/// Rows of bytes, one for each place.
type Rows = [[u8; WIDE]; PLACES];

multiversion! {
    /// Adds the channels' offsets to the first `places` rows of `sums`, and rescales them to bytes.
    fn scale(scaling: &Scaling, offsets: &[i32], channel: usize, places: usize, sums: &Sums, to: &mut Rows) {
        let Some(offsets) = offsets.first_chunk::<WIDE>() else { return };
        let rows = sums.0.iter().zip(to).take(places);
        match &scaling.by {
            By::Float(ratios) => {
                let Some(ratios) = ratios[channel..].first_chunk::<WIDE>() else { return };
                // Beyond these bounds the result saturates for any zero point; within them, float32 is exact where
                // the result does not saturate. (`max` and `min` of numbers that are never NaN.)
                let (low, high, zero) = (scaling.low as f32, scaling.high as f32, scaling.zero_point as f32);
                for (sums, to) in rows {
                    for c in 0..WIDE {
                        let real = sums[c].wrapping_add(offsets[c]) as f32 * ratios[c];
                        let whole = match scaling.rounding {
                            Rounding::ToEven => real.round_ties_even(),
                            Rounding::Upward => (real + 0.5).floor(),
                            Rounding::ToNearest => away(real),
                        };
                        let value = whole + zero;
                        let value = if value < low { low } else { value };
                        let value = if value > high { high } else { value };
                        // SAFETY: the value is between two numbers of the results' type, and no NaN.
                        to[c] = unsafe { value.to_int_unchecked::<i32>() } as u8;
                    }
                }
            }
            By::Fixed(ratios) => {
                let multipliers = ratios.multipliers[channel..].first_chunk::<WIDE>();
                let shifts = ratios.shifts[channel..].first_chunk::<WIDE>();
                let left = ratios.left[channel..].first_chunk::<WIDE>();
                let (Some(multipliers), Some(shifts), Some(left)) = (multipliers, shifts, left) else { return };
                // Bounds before the zero point is added.
                let before = |bound: i32| i64::from(bound) - i64::from(scaling.zero_point);
                let bounds = (i32::try_from(before(scaling.low)), i32::try_from(before(scaling.high)));
                match (bounds, scaling.rounding) {
                    ((Ok(low), Ok(high)), Rounding::Upward) if ratios.below_one => {
                        for (sums, to) in rows {
                            for c in 0..WIDE {
                                let product = product(sums[c], offsets[c], multipliers[c]) + (1 << (shifts[c] - 1));
                                to[c] = bounded(product >> shifts[c], low, high, scaling.zero_point);
                            }
                        }
                    }
                    ((Ok(low), Ok(high)), Rounding::ToNearest) if ratios.below_one => {
                        for (sums, to) in rows {
                            for c in 0..WIDE {
                                let product = product(sums[c], offsets[c], multipliers[c]);
                                let moved = product + (product >> 63) + (1 << (shifts[c] - 1));
                                to[c] = bounded(moved >> shifts[c], low, high, scaling.zero_point);
                            }
                        }
                    }
                    ((Ok(low), Ok(high)), Rounding::ToEven) if ratios.below_one => {
                        for (sums, to) in rows {
                            for c in 0..WIDE {
                                let product = product(sums[c], offsets[c], multipliers[c]);
                                let odd = (product >> shifts[c]) & 1;
                                let moved = product + odd + ((1 << (shifts[c] - 1)) - 1);
                                to[c] = bounded(moved >> shifts[c], low, high, scaling.zero_point);
                            }
                        }
                    }
                    _ => {
                        let [zero, low, high] = [scaling.zero_point, scaling.low, scaling.high].map(i64::from);
                        for (sums, to) in rows {
                            for c in 0..WIDE {
                                let (t, right) = (sums[c].wrapping_add(offsets[c]), shifts[c] - 31);
                                let value = fixed(t, multipliers[c].into(), left[c], right, scaling.rounding);
                                to[c] = (value + zero).clamp(low, high) as u8;
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Multiplies a sum with its offset by a multiplier.
#[inline(always)]
fn product(sum: i32, offset: i32, multiplier: i32) -> i64 {
    i64::from(sum.wrapping_add(offset)) * i64::from(multiplier)
}

/// Clamps a value that fits 32 bits, and moves it by a zero point.
#[inline(always)]
fn bounded(value: i64, low: i32, high: i32, zero_point: i32) -> u8 {
    (value as i32).max(low).min(high).wrapping_add(zero_point) as u8
}

/// Rounds to the nearest integer, halves away from zero. (The standard function is a call on processors without the
/// instruction.)
#[inline(always)]
pub(super) fn away(x: f32) -> f32 {
    let whole = x.trunc();
    let rest = (x - whole).abs();
    if rest >= 0.5 { whole + 1f32.copysign(x) } else { whole }
}

/// Multiplies a value by multiplier * 2^(left - right - 31), rounded and saturated to `int32`. Shifts are at most 32:
/// with a longer left shift any value but 0 is out of range, with a longer right shift every result is 0.
#[inline(always)]
pub(super) fn fixed(value: i32, multiplier: i64, left: i64, right: i64, rounding: Rounding) -> i64 {
    // Once the shifted value reaches 2^32, the product is outside `int32` for any multiplier; below that it fits 64
    // bits.
    let bound = 1i64 << (32 - left);
    let product = (i64::from(value).clamp(-bound, bound) << left) * multiplier;
    let (half, shift) = (1i64 << (30 + right), 31 + right);
    let moved = match rounding {
        Rounding::Upward => product + half,
        Rounding::ToNearest => product + half - i64::from(product < 0),
        Rounding::ToEven => product + (half - 1) + ((product >> shift) & 1),
    };
    (moved >> shift).clamp(i64::from(i32::MIN), i64::from(i32::MAX))
}
