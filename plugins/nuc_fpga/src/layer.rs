//! The two device calls and their sizes.

use serde::{Deserialize, Serialize};

/// Maximum number of terms per accumulator: that many products of -128 and -128 add up to less than 2^31.
pub const MAX_TERMS: u64 = (i32::MAX as u64) / (128 * 128);

/// Call of `nuc_fpga_conv2d`: the arguments after the pointers, in order.
///
/// `out[n, o, y, x]` is the sum over the channels `i` of group `g = o / (kernels / group)` and the taps `v`, `u` of
/// `feature[n, g * (channels / group) + i, y * stride + v - pad, x * stride + u - pad] * kernel[o, i, v, u]`, where
/// elements outside the feature map are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv {
    /// Number of images.
    pub batch: u32,
    /// Number of input channels.
    pub channels: u32,
    /// Number of feature map rows.
    pub height: u32,
    /// Number of feature map columns.
    pub width: u32,
    /// Number of output channels.
    pub kernels: u32,
    /// Number of channel groups.
    pub group: u32,
    /// Number of zero rows on each side (above and below).
    pub pad_height: u32,
    /// Number of zero columns on each side (left and right).
    pub pad_width: u32,
    /// Number of kernel rows.
    pub kernel_height: u32,
    /// Number of kernel columns.
    pub kernel_width: u32,
    /// Vertical stride in rows.
    pub stride_height: u32,
    /// Horizontal stride in columns.
    pub stride_width: u32,
}

/// Call of `nuc_fpga_dense`: `out[n, o]` is the sum over `i` of `feature[n, i] * kernel[o, i]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    /// Number of feature matrix rows.
    pub batch: u32,
    /// Number of input features: terms of each dot product.
    pub in_features: u32,
    /// Number of result columns.
    pub out_features: u32,
}

/// Device call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// `nuc_fpga_conv2d`.
    Conv2d(Conv),
    /// `nuc_fpga_dense`.
    Dense(Dense),
}

/// Returns the number of windows along an axis with `pad` elements of padding on both sides; `None` if the padded size
/// is smaller than the window.
fn window_count(size: u32, kernel: u32, pad: u32, stride: u32) -> Option<u64> {
    let padded_slack = (u64::from(size) + 2 * u64::from(pad)).checked_sub(u64::from(kernel))?;
    Some(padded_slack / u64::from(stride) + 1)
}

impl Conv {
    /// Returns the number of result rows.
    pub fn out_height(&self) -> usize {
        window_count(self.height, self.kernel_height, self.pad_height, self.stride_height).unwrap_or(0) as usize
    }

    /// Returns the number of result columns.
    pub fn out_width(&self) -> usize {
        window_count(self.width, self.kernel_width, self.pad_width, self.stride_width).unwrap_or(0) as usize
    }

    /// Returns the number of input channels per group.
    pub fn group_channels(&self) -> usize {
        (self.channels / self.group) as usize
    }

    /// Returns the number of output channels per group.
    pub fn group_kernels(&self) -> usize {
        (self.kernels / self.group) as usize
    }

    /// Returns the number of terms per dot product.
    pub fn terms(&self) -> usize {
        self.group_channels() * self.kernel_height as usize * self.kernel_width as usize
    }
}

impl Layer {
    /// Returns the name of the driver function.
    pub fn function(&self) -> &'static str {
        match self {
            Layer::Conv2d(_) => "nuc_fpga_conv2d",
            Layer::Dense(_) => "nuc_fpga_dense",
        }
    }

    /// Returns the number of elements in the feature map, the kernel and the result.
    pub fn elements(&self) -> [u64; 3] {
        let product =
            |sizes: &[u64]| sizes.iter().fold(1u64, |product_so_far, &size| product_so_far.saturating_mul(size));
        match self {
            Layer::Conv2d(c) => {
                let [batch, channels, kernels] = [c.batch, c.channels, c.kernels].map(u64::from);
                let taps = [c.kernel_height, c.kernel_width].map(u64::from);
                let out = [c.out_height() as u64, c.out_width() as u64];
                [
                    product(&[batch, channels, c.height.into(), c.width.into()]),
                    product(&[kernels, u64::from(c.channels / c.group.max(1)), taps[0], taps[1]]),
                    product(&[batch, kernels, out[0], out[1]]),
                ]
            }
            Layer::Dense(d) => {
                let [batch, inputs, outputs] = [d.batch, d.in_features, d.out_features].map(u64::from);
                [batch * inputs, outputs * inputs, batch * outputs]
            }
        }
    }

    /// Returns the number of terms per dot product.
    pub fn terms(&self) -> u64 {
        match self {
            Layer::Conv2d(c) => {
                let taps = u64::from(c.kernel_height).saturating_mul(c.kernel_width.into());
                taps.saturating_mul(u64::from(c.channels / c.group.max(1)))
            }
            Layer::Dense(d) => d.in_features.into(),
        }
    }

    /// Returns the number of multiply-accumulate operations.
    pub fn macs(&self) -> u64 {
        self.elements()[2].saturating_mul(self.terms())
    }

    /// Returns the accumulator shape in the epilogue: batch size, number of channels, and number of contiguous elements
    /// per channel.
    pub fn channels(&self) -> [usize; 3] {
        match self {
            Layer::Conv2d(c) => [c.batch as usize, c.kernels as usize, c.out_height() * c.out_width()],
            Layer::Dense(d) => [d.batch as usize, d.out_features as usize, 1],
        }
    }

    /// Returns the integer arguments of the call, in the order of the driver's signature.
    pub fn arguments(&self) -> Vec<u32> {
        match *self {
            Layer::Conv2d(c) => vec![
                c.batch,
                c.channels,
                c.height,
                c.width,
                c.kernels,
                c.group,
                c.pad_height,
                c.pad_width,
                c.kernel_height,
                c.kernel_width,
                c.stride_height,
                c.stride_width,
            ],
            Layer::Dense(d) => vec![d.batch, d.in_features, d.out_features],
        }
    }

    /// Checks that the sizes are valid and fit into the driver's `int`.
    ///
    /// # Errors
    /// If a size is invalid; the message describes the first violation.
    pub fn check(&self) -> Result<(), String> {
        if let Some(size) = self.arguments().into_iter().find(|&size| size > i32::MAX as u32) {
            return Err(format!(
                "expected sizes of at most 2147483647 (the maximum of the driver's int), found {size}"
            ));
        }
        if let Layer::Conv2d(c) = self {
            let sizes =
                [c.channels, c.kernels, c.group, c.kernel_height, c.kernel_width, c.stride_height, c.stride_width];
            if sizes.contains(&0) {
                return Err("expected sizes, strides and groups >= 1, found 0".into());
            }
            if !c.channels.is_multiple_of(c.group) || !c.kernels.is_multiple_of(c.group) {
                let Conv { channels, kernels, group, .. } = c;
                return Err(format!(
                    "expected channels and kernels divisible by {group} groups, found {channels} and {kernels}"
                ));
            }
            if window_count(c.height, c.kernel_height, c.pad_height, c.stride_height).is_none()
                || window_count(c.width, c.kernel_width, c.pad_width, c.stride_width).is_none()
            {
                let padded_height = u64::from(c.height) + 2 * u64::from(c.pad_height);
                let padded_width = u64::from(c.width) + 2 * u64::from(c.pad_width);
                return Err(format!(
                    "expected a kernel within the padded feature map of {padded_height}x{padded_width}, found {}x{}",
                    c.kernel_height, c.kernel_width
                ));
            }
        }
        for (tensor, count) in ["feature map", "kernel", "result"].iter().zip(self.elements()) {
            if count == 0 {
                return Err(format!("{tensor}: expected at least 1 element, found 0"));
            }
            if count > i32::MAX as u64 {
                return Err(format!(
                    "{tensor}: expected at most 2147483647 elements (the maximum of the driver's int), found {count}"
                ));
            }
        }
        if self.terms() > MAX_TERMS {
            return Err(format!("expected at most {MAX_TERMS} terms per int32 accumulator, found {}", self.terms()));
        }
        Ok(())
    }
}
