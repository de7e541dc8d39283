//! Channel means of layer inputs.

use byoc_ir::tensor::{DType, Tensor};

/// Per-channel sums of tensor values, over all samples and positions. The order of the additions is fixed, so the
/// result does not depend on the number of threads.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelMeans {
    /// Channel axis.
    axis: usize,
    sums: Vec<f64>,
    /// Number of values per channel.
    count: usize,
}

impl ChannelMeans {
    /// Creates an empty accumulator for tensors with the channel axis `axis`.
    pub fn new(axis: usize) -> ChannelMeans {
        ChannelMeans { axis, sums: Vec::new(), count: 0 }
    }

    /// Adds the values of a float32 tensor. Ignores tensors of other types, empty tensors, and tensors without the
    /// channel axis.
    pub fn add(&mut self, tensor: &Tensor) {
        let shape = tensor.shape();
        if tensor.dtype() != DType::F32 || self.axis >= shape.len() || tensor.is_empty() {
            return;
        }
        let (channels, inner) = (shape[self.axis], shape[self.axis + 1..].iter().product::<usize>());
        self.sums.resize(channels, 0.0);
        for (i, values) in tensor.as_slice::<f32>().chunks(inner).enumerate() {
            self.sums[i % channels] += values.iter().map(|&v| f64::from(v)).sum::<f64>();
        }
        self.count += tensor.len() / channels;
    }

    /// Returns the means of `channels` channels; `None` if the added tensors have a different number of channels, or if
    /// a mean is NaN or infinite.
    pub fn means(&self, channels: usize) -> Option<Vec<f64>> {
        let means: Vec<f64> = self.sums.iter().map(|sum| sum / self.count as f64).collect();
        (means.len() == channels && means.iter().all(|mean| mean.is_finite())).then_some(means)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_over_samples_and_positions() {
        let first_values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let mut nchw = ChannelMeans::new(1);
        nchw.add(&Tensor::from_slice(&[2, 3, 1, 2], &first_values));
        // Channel 0 has the values 0, 1, 6 and 7.
        assert_eq!(nchw.means(3), Some(vec![3.5, 5.5, 7.5]));
        nchw.add(&Tensor::from_slice(&[1, 3, 1, 2], &[9.5f32; 6]));
        assert_eq!(nchw.means(3), Some(vec![5.5, 41.0 / 6.0, 49.0 / 6.0]));
        let mut rows = ChannelMeans::new(1);
        rows.add(&Tensor::from_slice(&[4, 3], &first_values));
        assert_eq!(rows.means(3), Some(vec![4.5, 5.5, 6.5]));
    }

    #[test]
    fn no_means_of_other_values() {
        let mut empty_means = ChannelMeans::new(1);
        empty_means.add(&Tensor::from_slice(&[2, 2], &[1i32; 4]));
        empty_means.add(&Tensor::from_slice(&[2], &[1f32; 2]));
        empty_means.add(&Tensor::from_slice(&[0, 2], &[0f32; 0]));
        assert_eq!(empty_means.means(2), None);
        empty_means.add(&Tensor::from_slice(&[1, 2], &[1f32, f32::INFINITY]));
        assert_eq!((empty_means.means(2), empty_means.means(3)), (None, None));
    }
}
