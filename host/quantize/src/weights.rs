//! Quantization of weights to int8 and of biases to int32.

use super::scheme::Scheme;
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
    /// Scale of each output channel, or one for all.
    pub scales: Vec<f32>,
}

/// Quantizes a float32 weight with zero point 0 and the scale that maps the largest magnitude (in each channel, or
/// overall) to 127.
///
/// `axis` is the axis of the output channels. `bias` (one value per channel, one for all, or none) must fit into int32
/// when divided by the product of `input_scale` and the weight's scale; if the weights of a channel are too small for
/// that, the scale of the channel is increased. A channel of zeros gets the smallest scale of the others.
pub fn quantize(weight: &Tensor, axis: usize, bias: &[f32], input_scale: f32, scheme: &Scheme) -> QuantizedWeight {
    let shape = weight.shape();
    let (channels, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>().max(1));
    let values = weight.as_slice::<f32>();
    let channel = |i: usize| i / inner % channels;
    let mut largest = vec![0f64; channels];
    for (i, v) in values.iter().enumerate() {
        let largest = &mut largest[channel(i)];
        *largest = largest.max(f64::from(v.abs()));
    }
    let least = largest.iter().copied().filter(|&v| v > 0.0).fold(f64::INFINITY, f64::min);
    let wanted = largest.iter().enumerate().map(|(c, &v)| {
        let for_weight = if v > 0.0 {
            v
        } else if least.is_finite() {
            least
        } else {
            f64::from(MAX_QUANTIZED)
        };
        let bias = bias.get(c).or(bias.first()).map_or(0.0, |b| f64::from(b.abs()));
        (for_weight / f64::from(MAX_QUANTIZED)).max(bias / (f64::from(input_scale) * MAX_BIAS))
    });
    let scales: Vec<f32> = if scheme.per_channel {
        wanted.map(|scale| scheme.scale(scale)).collect()
    } else {
        vec![scheme.scale(wanted.fold(0.0, f64::max))]
    };
    let integers: Vec<i8> = values
        .iter()
        .enumerate()
        .map(|(i, v)| {
            let scale = scales.get(channel(i)).unwrap_or(&scales[0]);
            (v / scale).round().clamp(-MAX_QUANTIZED, MAX_QUANTIZED) as i8
        })
        .collect();
    QuantizedWeight { values: Tensor::from_slice(shape, &integers), scales }
}

/// Quantizes a bias to int32 with `scales` (one per channel, or one for all). The result has the shape `shape`, except
/// that a single value becomes one value per channel, followed by `dims_after` dimensions of 1, if there are several
/// scales.
pub fn quantize_bias(values: &[f32], shape: &[usize], scales: &[f32], dims_after: usize) -> Tensor {
    let integer =
        |value: f32, scale: f32| (f64::from(value) / f64::from(scale)).round().clamp(-MAX_BIAS, MAX_BIAS) as i32;
    if values.len() == 1 && scales.len() > 1 {
        let integers: Vec<i32> = scales.iter().map(|&scale| integer(values[0], scale)).collect();
        let shape: Vec<usize> = std::iter::once(scales.len()).chain(vec![1; dims_after]).collect();
        return Tensor::from_slice(&shape, &integers);
    }
    let integers: Vec<i32> =
        values.iter().enumerate().map(|(i, &v)| integer(v, *scales.get(i).unwrap_or(&scales[0]))).collect();
    Tensor::from_slice(shape, &integers)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(q.scales.iter().all(|s| 5.0 / (0.1 * f64::from(*s)) <= 1.001 * MAX_BIAS), "{:?}", q.scales);
        let bias = quantize_bias(&[5.0, 5.0, 5.0], &[3], &q.scales.map_scale(0.1), 0);
        assert!(bias.as_slice::<i32>().iter().all(|b| *b > 0 && *b <= 1 << 30));
        let zeros = Tensor::from_slice(&[1, 1], &[0.0f32]);
        assert_eq!(quantize(&zeros, 0, &[], 1.0, &Scheme::SYMMETRIC).scales, [1.0]);
    }

    trait MapScale {
        fn map_scale(&self, by: f32) -> Vec<f32>;
    }

    impl MapScale for Vec<f32> {
        fn map_scale(&self, by: f32) -> Vec<f32> {
            self.iter().map(|s| s * by).collect()
        }
    }

    #[test]
    fn bias_keeps_its_shape_unless_scales_differ() {
        let bias = quantize_bias(&[1.0, -0.26], &[2, 1, 1], &[0.1, 0.5], 2);
        assert_eq!(bias, Tensor::from_slice(&[2, 1, 1], &[10i32, -1]));
        let one = quantize_bias(&[1.0], &[], &[0.1, 0.5], 2);
        assert_eq!(one, Tensor::from_slice(&[2, 1, 1], &[10i32, 2]));
        assert_eq!(quantize_bias(&[1.0], &[1], &[0.5], 2), Tensor::from_slice(&[1], &[2i32]));
    }
}
