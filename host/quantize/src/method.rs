//! Methods that choose the range represented by the integers; values outside the range are clipped to the nearer bound.
//!
//! Every method starts from the observed range of the calibration data and can only narrow it.

use super::histogram::Histogram;
use super::range::Range;
use super::scheme::{Scheme, best_power_of_two};
use std::fmt;

/// Range selection method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// Entire observed range.
    MinMax,
    /// Range from the quantile `1 - p` to the quantile `p` of the values, for a fraction `p`.
    Percentile(f64),
    /// Range with the smallest Kullback-Leibler divergence between the float and the quantized distribution.
    Entropy,
    /// Range with the smallest expected squared error of rounding and clipping.
    MeanSquaredError,
}

impl Method {
    /// Default fraction of [`Method::Percentile`].
    pub const PERCENTILE: f64 = 0.9999;

    /// Parses `min-max`, `percentile`, `percentile:99.9`, `entropy` or `mse`.
    ///
    /// # Errors
    /// If `text` names no method, or the percentile is not between 50 and 100.
    pub fn parse(text: &str) -> Result<Method, String> {
        match text.split_once(':') {
            None => match text {
                "min-max" => Ok(Method::MinMax),
                "percentile" => Ok(Method::Percentile(Method::PERCENTILE)),
                "entropy" => Ok(Method::Entropy),
                "mse" => Ok(Method::MeanSquaredError),
                _ => Err(format!("expected min-max, percentile[:P], entropy or mse, found {text}")),
            },
            Some(("percentile", fraction)) => match fraction.parse::<f64>() {
                Ok(percent) if (50.0..=100.0).contains(&percent) => Ok(Method::Percentile(percent / 100.0)),
                _ => Err(format!("expected a percentile from 50 to 100, found {fraction}")),
            },
            Some(_) => Err(format!("expected min-max, percentile[:P], entropy or mse, found {text}")),
        }
    }

    /// Returns the range for values with the histogram `values`.
    pub fn range(self, values: &Histogram, scheme: &Scheme) -> Range {
        let full_range = values.range();
        match self {
            Method::MinMax => full_range,
            Method::Percentile(fraction) => {
                Range { lo: values.quantile(1.0 - fraction), hi: values.quantile(fraction) }
            }
            Method::Entropy => entropy(values, scheme),
            Method::MeanSquaredError => mean_squared_error(values, scheme),
        }
    }
}

impl fmt::Display for Method {
    /// Formats the method in the syntax of [`Method::parse`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Method::MinMax => f.write_str("min-max"),
            Method::Percentile(fraction) => write!(f, "percentile:{}", (fraction * 1e8).round() / 1e6),
            Method::Entropy => f.write_str("entropy"),
            Method::MeanSquaredError => f.write_str("mse"),
        }
    }
}

/// Finds the range by the method of S. Migacz, "8-bit inference with TensorRT" (GTC 2017): clips at the distance from 0
/// that minimizes the Kullback-Leibler divergence D(P || Q), where P is the distribution of the clipped values, and Q
/// the distribution of the values that are not clipped, merged into one level per integer. Zeros are excluded, as the
/// original excludes its first bin.
fn entropy(values: &Histogram, scheme: &Scheme) -> Range {
    let full_range = values.range();
    let counts = values.magnitudes();
    let used_bins = counts.iter().rposition(|&c| c > 0).map_or(0, |last_bin| last_bin + 1);
    // Values of one sign use all integers of an asymmetric scheme; otherwise, magnitudes use half of the integers.
    let levels = if scheme.symmetric || full_range.lo < 0.0 && full_range.hi > 0.0 { 128 } else { 256 };
    let mut best_error = (f64::INFINITY, used_bins);
    for kept_bins in levels..=used_bins {
        let divergence = divergence(&counts[..used_bins], kept_bins, levels);
        if divergence < best_error.0 {
            best_error = (divergence, kept_bins);
        }
    }
    full_range.within(best_error.1 as f64 * values.width())
}

/// Returns the Kullback-Leibler divergence D(P || Q). P clips the values of all bins after the first `kept_bins` bins
/// to the last of these bins. Q merges the first `kept_bins` bins into `levels` levels.
pub(super) fn divergence(counts: &[u64], kept_bins: usize, levels: usize) -> f64 {
    let clipped_count: u64 = counts[kept_bins..].iter().sum();
    let inside_count: u64 = counts[..kept_bins].iter().sum();
    let total_count = (inside_count + clipped_count) as f64;
    if inside_count == 0 {
        return f64::INFINITY;
    }
    let mut sum = 0.0;
    for level in 0..levels {
        let bins = level * kept_bins / levels..(level + 1) * kept_bins / levels;
        let level_counts = &counts[bins.clone()];
        let non_empty_bins = level_counts.iter().filter(|&&c| c > 0).count();
        let count: u64 = level_counts.iter().sum();
        let q = count as f64 / (non_empty_bins.max(1) as f64 * inside_count as f64);
        for (i, &c) in bins.zip(level_counts) {
            let is_last = i + 1 == kept_bins;
            let p = (c + if is_last { clipped_count } else { 0 }) as f64 / total_count;
            if p > 0.0 {
                // If the last bin has only clipped values, its probability in Q is 0; the probability of a single value
                // is used instead.
                let q = if c > 0 { q } else { 1.0 / total_count };
                sum += p * (p / q).ln();
            }
        }
    }
    sum
}

/// Scales the observed range by the factor with the smallest expected squared error, among 1/128, 2/128, ..., 1. The
/// error is step² / 12 for values within the range (rounding errors are uniform), and the squared distance to the
/// nearer bound for values outside it. (R. Banner et al., "Post training 4-bit quantization of convolutional networks",
/// NeurIPS 2019, with counts in place of a density.)
fn mean_squared_error(values: &Histogram, scheme: &Scheme) -> Range {
    const FACTORS: u32 = 128;
    if scheme.power_of_two {
        return best_power_of_two_range(values, scheme);
    }
    let full_range = values.range();
    let bins: Vec<(f64, u64)> = values.non_empty_bins().collect();
    let mut best_error = (f64::INFINITY, full_range);
    for factor in (1..=FACTORS).rev() {
        let factor = f64::from(factor) / f64::from(FACTORS);
        let range = if scheme.symmetric {
            full_range.within(factor * full_range.hi.max(-full_range.lo))
        } else {
            Range { lo: full_range.lo * factor, hi: full_range.hi * factor }
        };
        let step = f64::from(scheme.parameters(range).scale);
        let error = squared_error(&bins, range, step);
        if error < best_error.0 {
            best_error = (error, range);
        }
    }
    best_error.1
}

/// Finds the range of the power-of-two scale with the smallest squared error of rounding and clipping the histogram's
/// values. The error is computed from the integers, which may cover more than the range, since the scale of a range is
/// rounded up to a power of two.
fn best_power_of_two_range(values: &Histogram, scheme: &Scheme) -> Range {
    let full_range = values.range();
    let bins: Vec<(f64, u64)> = values.non_empty_bins().collect();
    let range = |scale: f32| {
        let limit = scheme.steps() * f64::from(scale);
        if scheme.symmetric {
            return full_range.within(limit);
        }
        // Rounding must not increase the width of the range above `limit`, since that would double the scale.
        let factor = (limit / scheme.reach(full_range)).min(1.0) * (1.0 - 1e-12);
        Range { lo: full_range.lo * factor, hi: full_range.hi * factor }
    };
    let error = |scale: f32| {
        let parameters = scheme.parameters(range(scale));
        bins.iter().map(|&(value, count)| count as f64 * scheme.error(parameters, value).powi(2)).sum()
    };
    range(best_power_of_two(scheme.parameters(full_range).scale, 0.0, error))
}

/// Returns the expected squared error of clipping to `range` and rounding to `step`, summed over (value, count) pairs.
pub(super) fn squared_error(values: &[(f64, u64)], range: Range, step: f64) -> f64 {
    let rounding = step * step / 12.0;
    let error = |v: f64| {
        if v > range.hi {
            (v - range.hi).powi(2)
        } else if v < range.lo {
            (range.lo - v).powi(2)
        } else {
            rounding
        }
    };
    values.iter().map(|&(value, count)| count as f64 * error(value)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc::io::random::Random;

    fn histogram(values: impl IntoIterator<Item = f32>) -> Histogram {
        let mut h = Histogram::default();
        h.add(&values.into_iter().collect::<Vec<_>>());
        h
    }

    fn normal_values(n: usize) -> Vec<f32> {
        let mut random = Random::new(1);
        (0..n).map(|_| random.normal() as f32).collect()
    }

    #[test]
    fn parses_names() {
        for text in ["min-max", "percentile:99.99", "percentile:99.9", "entropy", "mse"] {
            assert_eq!(Method::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Method::parse("percentile").unwrap(), Method::Percentile(0.9999));
        for text in ["minmax", "percentile:101", "percentile:x", "mse:3", ""] {
            Method::parse(text).expect_err(text);
        }
    }

    #[test]
    fn min_max_is_everything() {
        let h = histogram([-1.5, 0.0, 2.0]);
        assert_eq!(Method::MinMax.range(&h, &Scheme::SYMMETRIC), Range { lo: -1.5, hi: 2.0 });
    }

    #[test]
    fn percentile_excludes_outliers() {
        // 9998 values in (0, 1] and two at 100.
        let h = histogram((1..=9998).map(|i| i as f32 / 9998.0).chain([100.0, 100.0]));
        let range = Method::Percentile(0.999).range(&h, &Scheme::SYMMETRIC);
        assert!(range.hi < 1.03 && range.hi > 0.95, "expected an upper bound near 1, found {range:?}");
        assert_eq!(Method::Percentile(1.0).range(&h, &Scheme::SYMMETRIC).hi, 100.0);
    }

    #[test]
    fn divergence_matches_the_definition() {
        // The divergence for four bins in two levels, with P = (1, 3, 2, 2) / 8 and Q = (2, 2, 2, 2) / 8, is 1/8
        // ln(1/2) + 3/8 ln(3/2) = 0.065405...
        let expected = (1.0 / 8.0) * 0.5f64.ln() + (3.0 / 8.0) * 1.5f64.ln();
        assert!((divergence(&[1, 3, 2, 2], 4, 2) - expected).abs() < 1e-12);
        // With the last two bins clipped, P = (1, 7) / 8 and Q = (1, 3) / 4 (two levels of one bin), so the divergence
        // is 1/8 ln(1/2) + 7/8 ln(7/6).
        let expected = (1.0 / 8.0) * 0.5f64.ln() + (7.0 / 8.0) * (7.0f64 / 6.0).ln();
        assert!((divergence(&[1, 3, 2, 2], 2, 2) - expected).abs() < 1e-12);
        // An empty bin has probability 0 in Q, so P = Q.
        assert!(divergence(&[4, 0, 2, 2], 4, 2).abs() < 1e-12);
        assert_eq!(divergence(&[0, 0, 1], 2, 2), f64::INFINITY);
    }

    #[test]
    fn entropy_clips_a_long_tail_and_keeps_a_uniform_distribution() {
        let tail = histogram(normal_values(100_000).into_iter().chain([60.0]));
        let range = Method::Entropy.range(&tail, &Scheme::SYMMETRIC);
        assert!(range.hi < 20.0 && range.hi > 2.0, "expected an upper bound from 2 to 20, found {range:?}");
        let uniform_histogram = histogram((0..100_000).map(|i| i as f32 / 50_000.0 - 1.0));
        let range = Method::Entropy.range(&uniform_histogram, &Scheme::SYMMETRIC);
        assert!(range.hi > 0.95, "expected an upper bound above 0.95, found {range:?}");
    }

    #[test]
    fn squared_error_matches_the_definition() {
        let values = [(-2.0, 1), (0.5, 2), (3.0, 1)];
        // One value is 1 below the range, one is 2 above it, and two are within it, with a step of 0.6.
        let error = squared_error(&values, Range { lo: -1.0, hi: 1.0 }, 0.6);
        let expected = 1.0 + 4.0 + 2.0 * 0.03;
        assert!((error - expected).abs() < 1e-12, "expected {expected}, found {error}");
    }

    #[test]
    fn the_best_clipping_of_a_normal_distribution_at_eight_bits() {
        // The minimum of step² / 12 + 2 * E[(x - c)²; x > c] with step = c / 127, found numerically, is at c = 3.92
        // standard deviations.
        let h = histogram(normal_values(400_000));
        let range = Method::MeanSquaredError.range(&h, &Scheme::SYMMETRIC);
        assert!((range.hi - 3.92).abs() < 0.25, "expected an upper bound near 3.92, found {range:?}");
        // One outlier at 50 among N values moves the bound to the solution c of N * c / (12 * 127²) = 50 - c, which is
        // 16.3 for N = 400,000.
        let h = histogram(normal_values(400_000).into_iter().chain([50.0]));
        let range = Method::MeanSquaredError.range(&h, &Scheme::SYMMETRIC);
        assert!((range.hi - 16.3).abs() < 0.5, "expected an upper bound near 16.3, found {range:?}");
    }

    /// Returns the power-of-two scale from 2^-30 to 2^10 with the smallest squared error of `values` in int8.
    fn best_by_search(values: &[f32]) -> f32 {
        let error = |scale: f64| -> f64 {
            let nearest = |v: f64| (v / scale + 0.5).floor().clamp(-128.0, 127.0) * scale;
            values.iter().map(|&v| (f64::from(v) - nearest(f64::from(v))).powi(2)).sum()
        };
        let scales = (-30..=10).map(|exponent| f64::from(exponent).exp2());
        scales.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap() as f32
    }

    #[test]
    fn best_power_of_two_of_a_histogram() {
        let scheme = Scheme::parse("symmetric,power-of-two").unwrap();
        let scale = |values: &[f32], method: Method| {
            scheme.parameters(method.range(&histogram(values.iter().copied()), &scheme)).scale
        };
        let mut narrower_count = 0;
        for i in 0..12 {
            let scaled_values: Vec<f32> = normal_values(20_000).iter().map(|v| v * 1.12f32.powi(i)).collect();
            let cubed_values: Vec<f32> = scaled_values.iter().map(|v| v.powi(3)).collect();
            let positive_values: Vec<f32> = scaled_values.iter().map(|v| v.max(0.0)).collect();
            for values in [scaled_values, cubed_values, positive_values] {
                let best_scale = scale(&values, Method::MeanSquaredError);
                assert_eq!(best_scale, best_by_search(&values), "values scaled by 1.12^{i}");
                narrower_count += usize::from(best_scale < scale(&values, Method::MinMax));
            }
        }
        assert!((6..=30).contains(&narrower_count), "expected 6 to 30 narrower ranges, found {narrower_count}");
    }

    #[test]
    fn best_power_of_two_of_an_asymmetric_scheme() {
        let scheme = Scheme::parse("asymmetric,power-of-two").unwrap();
        for i in 0..12 {
            let values: Vec<f32> = normal_values(20_000).iter().map(|v| (v * 1.12f32.powi(i)).max(-0.3)).collect();
            let h = histogram(values.iter().copied());
            let range = Method::MeanSquaredError.range(&h, &scheme);
            let error =
                |parameters| values.iter().map(|&v| scheme.error(parameters, f64::from(v)).powi(2)).sum::<f64>();
            let actual_error = error(scheme.parameters(range));
            // The zero point depends on the range, so the test compares the ranges of all factors.
            for factor in 1..=1000 {
                let factor = f64::from(factor) / 1000.0;
                let other = Range { lo: h.range().lo * factor, hi: h.range().hi * factor };
                let other_error = error(scheme.parameters(other));
                assert!(actual_error <= 1.01 * other_error, "1.12^{i}, {factor}: {actual_error} > {other_error}");
            }
        }
    }

    #[test]
    fn min_max_covers_everything_with_a_power_of_two() {
        let scheme = Scheme::parse("symmetric,power-of-two").unwrap();
        for largest in [0.9f32, 127.0, 127.1, 250.0] {
            let h = histogram(normal_values(1000).into_iter().map(|v| v * 0.01).chain([-largest]));
            let scale = scheme.parameters(Method::MinMax.range(&h, &scheme)).scale;
            let covered = 127.0 * scale;
            assert!(covered >= largest && covered < 2.0 * largest, "expected to cover {largest}, found {covered}");
        }
    }

    #[test]
    fn every_method_accepts_a_tensor_of_zeros() {
        let h = histogram([0.0, 0.0]);
        for text in ["min-max", "percentile", "entropy", "mse"] {
            for scheme in ["symmetric", "asymmetric", "symmetric,power-of-two", "asymmetric,power-of-two"] {
                let range = Method::parse(text).unwrap().range(&h, &Scheme::parse(scheme).unwrap());
                assert_eq!(range, Range::default(), "{text} {scheme}");
            }
        }
    }
}
