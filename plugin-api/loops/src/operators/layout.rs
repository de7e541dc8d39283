//! Geometry of convolutions: the roles of dimensions in a layout, the taps of transposed convolutions, and the width of
//! the zero border.

use byoc_plugin_support::region::{Op, RegionIr};

/// Indices of the dimensions in layouts such as `NCHW` and `OIHW`.
pub struct Layout {
    /// Batch dimension of the data.
    pub n: usize,
    /// Channel dimension of the data.
    pub c: usize,
    /// Spatial dimensions of the data, in the order depth, height, width.
    pub spatial: Vec<usize>,
    /// Dimension of the output channels in the weight.
    pub out: usize,
    /// Dimension of the input channels in the weight.
    pub input: usize,
    /// Spatial dimensions of the weight, in the order of `spatial`.
    pub kernel: Vec<usize>,
}

/// Parses the layout attributes of a convolution; `None` for an unsupported layout.
pub fn layout(op: &Op<'_>, axes: usize) -> Option<Layout> {
    let letters = &["D", "H", "W"][3 - axes..];
    let find = |text: &str, letter: &str| text.find(letter).filter(|_| text.len() == axes + 2);
    let (data, weight) = (op.attrs().text("data_layout"), op.attrs().text("kernel_layout"));
    Some(Layout {
        n: find(data, "N")?,
        c: find(data, "C")?,
        spatial: letters.iter().map(|l| find(data, l)).collect::<Option<_>>()?,
        out: find(weight, "O")?,
        input: find(weight, "I")?,
        kernel: letters.iter().map(|l| find(weight, l)).collect::<Option<_>>()?,
    })
}

/// Returns the number of spatial axes of a convolution; `None` for any other operator.
pub fn spatial_axes(name: &str) -> Option<usize> {
    match name {
        "nn.conv1d" => Some(1),
        "nn.conv2d" | "nn.conv2d_transpose" | "qnn.conv2d" | "qnn.conv2d_transpose" => Some(2),
        _ => None,
    }
}

/// Returns true if the layouts of a convolution are supported.
pub fn layout_is_known(op: &Op<'_>) -> bool {
    spatial_axes(op.name).is_some_and(|axes| layout(op, axes).is_some())
        && ["", op.attrs().text("data_layout")].contains(&op.attrs().text("out_layout"))
}

/// Taps of one residue class of a transposed convolution's outputs, along one axis.
pub struct Residue {
    /// Index of the first kernel element.
    pub first: i64,
    /// Step in the kernel from one tap to the next.
    pub step: i64,
    /// Number of taps.
    pub taps: i64,
    /// Input index that output 0 reads at tap 0.
    pub start: i64,
    /// Decrement of the input index from one tap to the next.
    pub back: i64,
    /// Number of outputs in the residue class.
    pub outputs: i64,
}

/// Computes the taps of a residue class. Output `o = stride * q + residue` reads input `i` with kernel element `k` if
/// `i * stride - pad + k * dilation = o`.
pub fn residue(residue: i64, size: i64, kernel: i64, stride: i64, dilation: i64, pad: i64) -> Residue {
    let taps: Vec<i64> = (0..kernel).filter(|k| (residue + pad - k * dilation).rem_euclid(stride) == 0).collect();
    let first_tap = taps.first().copied().unwrap_or(0);
    let step = taps.get(1).map_or(1, |second_tap| second_tap - first_tap);
    Residue {
        first: first_tap,
        step,
        taps: taps.len() as i64,
        start: (residue + pad - first_tap * dilation).div_euclid(stride),
        back: step * dilation / stride,
        outputs: (size - residue + stride - 1) / stride,
    }
}

/// Returns the width of the zero border that an operator needs around its data, before and after each dimension.
pub fn border(ir: &RegionIr<'_>, op: &Op<'_>) -> Vec<(i64, i64)> {
    let data = ir.shape(op.inputs[0]);
    let mut border = vec![(0, 0); data.len()];
    let Some(axes) = spatial_axes(op.name) else { return border };
    let Some(layout) = layout(op, axes) else { return border };
    let out = ir.shape(op.outputs[0]);
    let weight = ir.shape(op.inputs[1]);
    let (strides, dilation) = (op.attrs().per_axis("strides", axes, 1), op.attrs().per_axis("dilation", axes, 1));
    for (i, (pad_before, _)) in op.attrs().padding(axes).into_iter().enumerate() {
        let d = layout.spatial[i];
        let kernel = weight[layout.kernel[i]];
        border[d] = if op.name.ends_with("conv2d_transpose") {
            let mut padding = (0, 0);
            for r in 0..strides[i] {
                let r = residue(r, out[d], kernel, strides[i], dilation[i], pad_before);
                let first_read = r.start - r.back * (r.taps - 1).max(0);
                let last_read = r.start + r.outputs - 1;
                padding = (padding.0.max(-first_read), padding.1.max(last_read - (data[d] - 1)));
            }
            padding
        } else {
            // The border after the data extends only to the end of the last window.
            let last_read = (out[d] - 1) * strides[i] + (kernel - 1) * dilation[i] - pad_before;
            (pad_before, (last_read - (data[d] - 1)).max(0))
        };
    }
    border
}
