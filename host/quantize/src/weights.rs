//! Quantization of weights to int8 and of biases to int32.

use super::layers::Layer;
use super::means::ChannelMeans;
use super::scheme::{Scheme, best_power_of_two};
use byoc_ir::tensor::Tensor;

/// Maximum quantized value of a weight; the range is symmetric about 0.
const MAX_QUANTIZED: f32 = 127.0;

/// Maximum magnitude of a quantized bias; leaves headroom in int32 for the accumulated products.
const MAX_BIAS: f64 = (1u32 << 30) as f64;

/// Weight quantized to int8.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedWeight {
    /// Quantized values, in the shape of the weight.
    pub values: Tensor,
    /// Per-channel scales (output channels), or a single per-tensor scale.
    pub scales: Vec<f32>,
}

/// Quantizes a float32 weight with zero point 0. Each scale (per channel, or per tensor) maps the largest magnitude to
/// 127; a power-of-two scale instead minimizes the squared error of rounding and clipping.
///
/// `axis` is the output channel axis. `bias` (per-channel values, a single value, or none) must fit into int32 when
/// divided by the product of `input_scale` and the weight scale; if the weights of a channel are too small for that,
/// its scale is increased. A channel of zeros receives the smallest scale of the non-zero channels.
pub fn quantize(weight: &Tensor, axis: usize, bias: &[f32], input_scale: f32, scheme: &Scheme) -> QuantizedWeight {
    let shape = weight.shape();
    let (channels, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>().max(1));
    let values = weight.as_slice::<f32>();
    // Maps a channel to the index of its scale.
    let scale_index = |channel: usize| if scheme.per_channel { channel } else { 0 };
    let count = scale_index(channels - 1) + 1;
    let mut channel_groups = vec![Vec::with_capacity(values.len() / count); count];
    for (i, &value) in values.iter().enumerate() {
        channel_groups[scale_index(i / inner % channels)].push(value);
    }
    let mut min_scales = vec![0f64; count];
    for channel in 0..channels {
        let bias = bias.get(channel).or(bias.first()).map_or(0.0, |b| f64::from(b.abs()));
        let min_scale = &mut min_scales[scale_index(channel)];
        *min_scale = min_scale.max(bias / (f64::from(input_scale) * MAX_BIAS));
    }
    let fitted_scales: Vec<_> =
        channel_groups.iter().zip(&min_scales).map(|(values, &min_scale)| fit(values, min_scale, scheme)).collect();
    let min_fit = fitted_scales.iter().flatten().copied().reduce(f32::min).unwrap_or(1.0);
    let scale_of_zeros = |min_scale: f64| scheme.scale(min_scale.max(f64::from(min_fit)));
    let scales: Vec<f32> = fitted_scales
        .iter()
        .zip(&min_scales)
        .map(|(fit, &min_scale)| fit.unwrap_or(scale_of_zeros(min_scale)))
        .collect();
    let integers: Vec<i8> = values
        .iter()
        .enumerate()
        .map(|(i, &value)| quantize_value(value, scales[scale_index(i / inner % channels)]) as i8)
        .collect();
    QuantizedWeight { values: Tensor::from_slice(shape, &integers), scales }
}

/// Returns the scale shared by `values`, at least `min_scale`; `None` if all values are 0.
fn fit(values: &[f32], min_scale: f64, scheme: &Scheme) -> Option<f32> {
    let largest = values.iter().fold(0f32, |largest, v| largest.max(v.abs()));
    if largest == 0.0 {
        return None;
    }
    let max_scale = scheme.scale((f64::from(largest) / f64::from(MAX_QUANTIZED)).max(min_scale));
    if !scheme.power_of_two {
        return Some(max_scale);
    }
    Some(best_power_of_two(max_scale, min_scale, |scale| squared_error(values, scale)))
}

/// Returns a weight as a number of steps of `scale`, rounded and clipped.
fn quantize_value(value: f32, scale: f32) -> f32 {
    (value / scale).round().clamp(-MAX_QUANTIZED, MAX_QUANTIZED)
}

/// Returns the sum of the squared errors of rounding and clipping weights at `scale`.
fn squared_error(values: &[f32], scale: f32) -> f64 {
    values.iter().map(|&v| f64::from(v - quantize_value(v, scale) * scale).powi(2)).sum()
}

/// Returns the mean error of each output channel of a layer: the sum of `E[x] * (quantized - weight)` over the weights
/// of the channel, where `E[x]` is the mean of the input channel; `None` if an input channel has no mean.
///
/// Subtracting it from the bias restores the mean (M. Nagel et al., "Data-free quantization through weight equalization
/// and bias correction", ICCV 2019, section 4.2). All taps of a filter are assumed to read values with the same mean;
/// padding, which reads zeros at the border, is ignored.
pub fn mean_errors(
    layer: &Layer,
    weight: &Tensor,
    quantized_weight: &QuantizedWeight,
    inputs: &ChannelMeans,
) -> Option<Vec<f64>> {
    let shape = weight.shape();
    let inner = |axis: usize| shape[axis + 1..].iter().product::<usize>();
    let (outputs, of_output) = (shape[layer.weight_axis], inner(layer.weight_axis));
    let (per_group, of_input) = (shape[layer.weight_input_axis], inner(layer.weight_input_axis));
    let means = inputs.means(per_group * layer.groups)?;
    let mut errors = vec![0f64; outputs];
    for (i, (&float, &integer)) in
        weight.as_slice::<f32>().iter().zip(quantized_weight.values.as_slice::<i8>()).enumerate()
    {
        let (output, input) = (i / of_output % outputs, i / of_input % per_group);
        let scale = f64::from(*quantized_weight.scales.get(output).unwrap_or(&quantized_weight.scales[0]));
        let group = output * layer.groups / outputs;
        errors[output] += means[group * per_group + input] * (scale * f64::from(integer) - f64::from(float));
    }
    Some(errors)
}

/// Quantizes a bias to int32 with per-channel scales or a single scale. The result has the shape `shape`, except that a
/// single value with several scales becomes per-channel values, followed by `dims_after` dimensions of 1.
pub fn quantize_bias(values: &[f32], shape: &[usize], scales: &[f32], dims_after: usize) -> Tensor {
    let integer =
        |value: f32, scale: f32| (f64::from(value) / f64::from(scale)).round().clamp(-MAX_BIAS, MAX_BIAS) as i32;
    if values.len() == 1 && scales.len() > 1 {
        let integers: Vec<i32> = scales.iter().map(|&scale| integer(values[0], scale)).collect();
        return Tensor::from_slice(&per_channel(scales.len(), dims_after), &integers);
    }
    let integers: Vec<i32> =
        values.iter().enumerate().map(|(i, &v)| integer(v, *scales.get(i).unwrap_or(&scales[0]))).collect();
    Tensor::from_slice(shape, &integers)
}

/// Returns the shape of per-channel values, followed by `dims_after` dimensions of 1.
pub fn per_channel(channels: usize, dims_after: usize) -> Vec<usize> {
    std::iter::once(channels).chain(vec![1; dims_after]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc::io::random::Random;

    #[test]
    fn every_channel_reaches_127() {
        let weight = Tensor::from_slice(&[2, 2], &[1.0f32, -12.7, 0.5, 0.25]);
        let q = quantize(&weight, 0, &[], 1.0, &Scheme::SYMMETRIC);
        assert_eq!(q.values.as_slice::<i8>(), [10, -127, 127, 64]);
        assert_eq!(q.scales, [12.7 / 127.0, 0.5 / 127.0]);
        // The output channels are on axis 1: the columns.
        let q = quantize(&weight, 1, &[], 1.0, &Scheme::SYMMETRIC);
        assert_eq!(q.values.as_slice::<i8>(), [127, -127, 64, 3]);
        let per_tensor = Scheme { per_channel: false, ..Scheme::SYMMETRIC };
        let q = quantize(&weight, 0, &[], 1.0, &per_tensor);
        assert_eq!((q.values.as_slice::<i8>(), q.scales.len()), (&[10, -127, 5, 3][..], 1));
    }

    #[test]
    fn channel_of_zeros_and_channel_with_large_bias() {
        let weight = Tensor::from_slice(&[3, 1], &[0.0f32, 1.27, 1e-12]);
        let q = quantize(&weight, 0, &[5.0, 5.0, 5.0], 0.1, &Scheme::SYMMETRIC);
        assert_eq!(q.values.as_slice::<i8>()[..2], [0, 127]);
        // 5 / (0.1 * scale) is at most 2^30.
        let is_bounded = q.scales.iter().all(|s| 5.0 / (0.1 * f64::from(*s)) <= 1.001 * MAX_BIAS);
        assert!(is_bounded, "expected biases of at most {MAX_BIAS}, found scales {:?}", q.scales);
        let bias = quantize_bias(&[5.0, 5.0, 5.0], &[3], &q.scales.map_scale(0.1), 0);
        assert!(bias.as_slice::<i32>().iter().all(|b| *b > 0 && *b <= 1 << 30));
        let zeros = Tensor::from_slice(&[1, 1], &[0.0f32]);
        assert_eq!(quantize(&zeros, 0, &[], 1.0, &Scheme::SYMMETRIC).scales, [1.0]);
    }

    /// Returns the power-of-two scale from 2^-30 to 2^10 with the smallest squared error of `values` in int8.
    fn best_by_search(values: &[f32]) -> f32 {
        let error = |scale: f64| -> f64 {
            let nearest = |v: f64| (v / scale + 0.5).floor().clamp(-127.0, 127.0) * scale;
            values.iter().map(|&v| (f64::from(v) - nearest(f64::from(v))).powi(2)).sum()
        };
        let scales = (-30..=10).map(|exponent| f64::from(exponent).exp2());
        scales.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap() as f32
    }

    #[test]
    fn power_of_two_has_the_smallest_squared_error() {
        let mut random = Random::new(3);
        let mut random_rows = |n: usize, power: i32, deviation: f64| -> Vec<f32> {
            (0..n).map(|_| (random.normal().powi(power) * deviation) as f32).collect()
        };
        let (mut clipped, mut unclipped) = (0, 0);
        for n in [9, 64, 1000] {
            // The cubes of normally distributed values have a heavy-tailed distribution.
            for power in [1, 3] {
                let rows: Vec<Vec<f32>> = (0..12).map(|i| random_rows(n, power, 0.01 * 1.2f64.powi(i))).collect();
                let weight = Tensor::from_slice(&[12, n], &rows.concat());
                let scheme = Scheme { power_of_two: true, ..Scheme::SYMMETRIC };
                let q = quantize(&weight, 0, &[], 1.0, &scheme);
                for (row, &scale) in rows.iter().zip(&q.scales) {
                    assert_eq!(scale, best_by_search(row), "row of {n} values to the power {power}");
                    let is_covered = row.iter().all(|v| v.abs() <= 127.0 * scale);
                    *(if is_covered { &mut unclipped } else { &mut clipped }) += 1;
                }
                let per_tensor = quantize(&weight, 0, &[], 1.0, &Scheme { per_channel: false, ..scheme });
                assert_eq!(
                    per_tensor.scales,
                    [best_by_search(&rows.concat())],
                    "rows of {n} values to the power {power}"
                );
            }
        }
        assert!(
            clipped > 5 && unclipped > 5,
            "expected more than 5 rows with and without clipping, found {clipped} and {unclipped}"
        );
    }

    #[test]
    fn power_of_two_leaves_room_for_the_bias() {
        // A weight of 1.1 among small weights is clipped, unless the bias requires a larger scale.
        let mut values = vec![0.001f32; 1000];
        values[0] = 1.1;
        let weight = Tensor::from_slice(&[1, 1000], &values);
        let scheme = Scheme { power_of_two: true, ..Scheme::SYMMETRIC };
        let scale = quantize(&weight, 0, &[1.0], 1.0, &scheme).scales[0];
        assert_eq!(scale, best_by_search(&values));
        let bias = 1.5 * scale * MAX_BIAS as f32;
        let raised_scale = quantize(&weight, 0, &[bias], 1.0, &scheme).scales[0];
        assert_eq!(raised_scale, 2.0 * scale);
        assert!(f64::from(bias) / f64::from(raised_scale) <= MAX_BIAS);
    }

    trait MapScale {
        fn map_scale(&self, factor: f32) -> Vec<f32>;
    }

    impl MapScale for Vec<f32> {
        fn map_scale(&self, factor: f32) -> Vec<f32> {
            self.iter().map(|s| s * factor).collect()
        }
    }

    #[test]
    fn bias_keeps_its_shape_unless_scales_differ() {
        let bias = quantize_bias(&[1.0, -0.26], &[2, 1, 1], &[0.1, 0.5], 2);
        assert_eq!(bias, Tensor::from_slice(&[2, 1, 1], &[10i32, -1]));
        let single_channel = quantize_bias(&[1.0], &[], &[0.1, 0.5], 2);
        assert_eq!(single_channel, Tensor::from_slice(&[2, 1, 1], &[10i32, 2]));
        assert_eq!(quantize_bias(&[1.0], &[1], &[0.5], 2), Tensor::from_slice(&[1], &[2i32]));
    }
}
