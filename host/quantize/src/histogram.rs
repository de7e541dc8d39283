//! Fixed-size histogram of a tensor's values.

use super::range::Range;

/// Number of bins on either side of 0.
pub const HALF_BINS: usize = 4096;

/// Counts of values in `2 * HALF_BINS` bins of equal width around 0. If a value is outside the bins, pairs of bins are
/// merged, which doubles their width, until the bins cover the value. The largest magnitude in the first call to
/// [`add`](Self::add) determines the initial width; the order of the values has no other effect. Zeros are counted
/// separately, since every scheme represents them exactly.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bound of the bins, which cover `-limit` to `limit`.
    limit: f64,
    /// Bin counts, in ascending order of values.
    bins: Vec<u64>,
    /// Number of values that are exactly 0.
    zeros: u64,
    /// Number of NaN and infinite values, which no other count includes.
    non_finite_count: u64,
    min: f64,
    max: f64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            limit: 0.0,
            bins: vec![0; 2 * HALF_BINS],
            zeros: 0,
            non_finite_count: 0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
        }
    }
}

impl Histogram {
    /// Adds values to the counts.
    pub fn add(&mut self, values: &[f32]) {
        let (mut min, mut max) = (f32::INFINITY, f32::NEG_INFINITY);
        for &v in values {
            if v.is_finite() {
                min = min.min(v);
                max = max.max(v);
            }
        }
        if min > max {
            self.non_finite_count += values.len() as u64;
            return;
        }
        self.min = self.min.min(f64::from(min));
        self.max = self.max.max(f64::from(max));
        self.cover(f64::from(min.abs().max(max.abs())));
        let bins_per_unit = if self.limit > 0.0 { HALF_BINS as f64 / self.limit } else { 0.0 };
        for &v in values {
            if v == 0.0 {
                self.zeros += 1;
            } else if v.is_finite() {
                let bin = (f64::from(v) * bins_per_unit).floor() + HALF_BINS as f64;
                self.bins[(bin as usize).min(2 * HALF_BINS - 1)] += 1;
            } else {
                self.non_finite_count += 1;
            }
        }
    }

    /// Widens the bins until they cover `value`.
    fn cover(&mut self, value: f64) {
        if self.limit == 0.0 {
            self.limit = value;
        }
        while self.limit < value {
            self.limit *= 2.0;
            let mut wide_bins = vec![0; 2 * HALF_BINS];
            for (i, pair) in self.bins.chunks(2).enumerate() {
                wide_bins[HALF_BINS / 2 + i] = pair[0] + pair[1];
            }
            self.bins = wide_bins;
        }
    }

    /// Returns the range of the finite values; both bounds are 0 if there are none.
    pub fn range(&self) -> Range {
        if self.min > self.max { Range::default() } else { Range { lo: self.min, hi: self.max } }
    }

    /// Returns the number of NaN and infinite values.
    pub fn non_finite_count(&self) -> u64 {
        self.non_finite_count
    }

    /// Returns the number of finite values, including zeros.
    pub fn count(&self) -> u64 {
        self.zeros + self.bins.iter().sum::<u64>()
    }

    /// Returns the width of a bin.
    pub fn width(&self) -> f64 {
        self.limit / HALF_BINS as f64
    }

    /// Returns the center and count of each non-empty bin, in ascending order; zeros are excluded.
    pub fn non_empty_bins(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let width = self.width();
        let bins = self.bins.iter().enumerate().filter(|(_, count)| **count > 0);
        bins.map(move |(i, &count)| ((i as f64 - HALF_BINS as f64 + 0.5) * width, count))
    }

    /// Returns the counts by absolute value, in bins of the same width; zeros are excluded.
    pub fn magnitudes(&self) -> Vec<u64> {
        (0..HALF_BINS).map(|i| self.bins[HALF_BINS + i] + self.bins[HALF_BINS - 1 - i]).collect()
    }

    /// Returns the quantile `fraction` (0 to 1) of the values, interpolated within its bin.
    pub fn quantile(&self, fraction: f64) -> f64 {
        let range = self.range();
        let target_count = fraction.clamp(0.0, 1.0) * self.count() as f64;
        let mut count_below = 0.0;
        let width = self.width();
        for i in 0..2 * HALF_BINS {
            if i == HALF_BINS && self.zeros > 0 {
                count_below += self.zeros as f64;
                if count_below >= target_count {
                    return 0f64.clamp(range.lo, range.hi);
                }
            }
            let count = self.bins[i] as f64;
            if count > 0.0 && count_below + count >= target_count {
                let start = (i as f64 - HALF_BINS as f64) * width;
                return (start + width * (target_count - count_below).max(0.0) / count).clamp(range.lo, range.hi);
            }
            count_below += count;
        }
        range.hi
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_preserves_counts() {
        let mut h = Histogram::default();
        h.add(&[0.0, 0.25, -0.5, 1.0]);
        assert_eq!(h.width(), 1.0 / HALF_BINS as f64);
        h.add(&[-3.5, 0.25]);
        // The bound doubles twice, from 1 to 4.
        assert_eq!(h.width(), 4.0 / HALF_BINS as f64);
        assert_eq!(h.range(), Range { lo: -3.5, hi: 1.0 });
        assert_eq!(h.count(), 6);
        let bins: Vec<_> = h.non_empty_bins().collect();
        let half_width = h.width() / 2.0;
        assert_eq!(
            bins,
            [(-3.5 + half_width, 1), (-0.5 + half_width, 1), (0.25 + half_width, 2), (1.0 - half_width, 1)]
        );
        assert_eq!(h.magnitudes().iter().sum::<u64>(), 5);
    }

    #[test]
    fn empty_and_all_zero_histograms() {
        let mut h = Histogram::default();
        assert_eq!((h.range(), h.count()), (Range::default(), 0));
        h.add(&[]);
        h.add(&[0.0, -0.0]);
        assert_eq!((h.range(), h.count(), h.quantile(0.5)), (Range::default(), 2, 0.0));
        h.add(&[2.0]);
        assert_eq!(h.range(), Range { lo: 0.0, hi: 2.0 });
    }

    #[test]
    fn counts_non_finite_values_separately() {
        let mut h = Histogram::default();
        h.add(&[f32::NAN, 1.0, f32::INFINITY]);
        h.add(&[f32::NAN]);
        assert_eq!((h.non_finite_count(), h.count(), h.range()), (3, 1, Range { lo: 1.0, hi: 1.0 }));
    }

    #[test]
    fn quantiles_of_a_uniform_distribution() {
        let mut h = Histogram::default();
        let values: Vec<f32> = (0..100_000).map(|i| (i as f32 + 0.5) / 50_000.0 - 1.0).collect();
        h.add(&values);
        for fraction in [0.0, 0.01, 0.25, 0.5, 0.9, 0.999, 1.0] {
            let expected = 2.0 * fraction - 1.0;
            let actual = h.quantile(fraction);
            assert!((actual - expected).abs() < 1e-3, "quantile {fraction}: expected {expected}, found {actual}");
        }
        // Half of the values are 0 and half are 1, so every quantile below 0.5 is 0.
        let mut h = Histogram::default();
        h.add(&[0.0, 0.0, 1.0, 1.0]);
        assert_eq!(h.quantile(0.4), 0.0);
        assert!((h.quantile(0.9) - 1.0).abs() < 1e-3);
    }
}
