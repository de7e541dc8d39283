//! How convolutions lie over their data: which dimension is which, which taps meet which elements, and how wide a border of zeros
//! that takes.

use crate::program::{Op, Program};

/// Which dimension is which, from layouts such as `NCHW` and `OIHW`.
pub struct Layout {
    /// Of the data: the samples.
    pub n: usize,
    /// Of the data: the channels.
    pub c: usize,
    /// Of the data: depth, height and width, as many as there are.
    pub spatial: Vec<usize>,
    /// Of the weight: the channels of the result.
    pub out: usize,
    /// Of the weight: the channels of the data.
    pub input: usize,
    /// Of the weight: as `spatial`.
    pub kernel: Vec<usize>,
}

/// The dimensions of data and weight; `None` for a layout with other letters.
pub fn layout(op: &Op<'_>, axes: usize) -> Option<Layout> {
    let letters = &["D", "H", "W"][3 - axes..];
    let find = |text: &str, letter: &str| text.find(letter).filter(|_| text.len() == axes + 2);
    let (data, weight) = (op.text("data_layout"), op.text("kernel_layout"));
    Some(Layout {
        n: find(data, "N")?,
        c: find(data, "C")?,
        spatial: letters.iter().map(|l| find(data, l)).collect::<Option<_>>()?,
        out: find(weight, "O")?,
        input: find(weight, "I")?,
        kernel: letters.iter().map(|l| find(weight, l)).collect::<Option<_>>()?,
    })
}

/// The number of spatial axes of a convolution; `None` for another operator.
pub fn spatial_axes(name: &str) -> Option<usize> {
    match name {
        "nn.conv1d" => Some(1),
        "nn.conv2d" | "nn.conv2d_transpose" => Some(2),
        _ => None,
    }
}

/// Returns true if the layouts of a convolution are known here.
pub fn layout_is_known(op: &Op<'_>) -> bool {
    spatial_axes(op.name).is_some_and(|axes| layout(op, axes).is_some())
        && ["", op.text("data_layout")].contains(&op.text("out_layout"))
}

/// The taps of one residue of a transposed convolution, along one axis.
pub struct Residue {
    /// The first kernel element.
    pub first: i64,
    /// Kernel elements from one tap to the next.
    pub step: i64,
    /// Number of taps.
    pub taps: i64,
    /// The input element of output 0 and tap 0.
    pub start: i64,
    /// Input elements back from one tap to the next.
    pub back: i64,
    /// The outputs of this residue.
    pub outputs: i64,
}

/// Output `o = stride * q + residue` takes input `i` by kernel element `k` where `i * stride - pad + k * dilation = o`.
pub fn residue(residue: i64, size: i64, kernel: i64, stride: i64, dilation: i64, pad: i64) -> Residue {
    let takes: Vec<i64> = (0..kernel).filter(|k| (residue + pad - k * dilation).rem_euclid(stride) == 0).collect();
    let first = takes.first().copied().unwrap_or(0);
    let step = takes.get(1).map_or(1, |second| second - first);
    Residue {
        first,
        step,
        taps: takes.len() as i64,
        start: (residue + pad - first * dilation).div_euclid(stride),
        back: step * dilation / stride,
        outputs: (size - residue + stride - 1) / stride,
    }
}

/// The border of zeros that an operator wants around its data, by dimension.
pub fn border(program: &Program<'_>, op: &Op<'_>) -> Vec<(i64, i64)> {
    let data = program.shape(op.inputs[0]);
    let mut border = vec![(0, 0); data.len()];
    let Some(axes) = spatial_axes(op.name) else { return border };
    let Some(layout) = layout(op, axes) else { return border };
    let out = program.shape(op.outputs[0]);
    let weight = program.shape(op.inputs[1]);
    let (strides, dilation) = (op.per_axis("strides", axes, 1), op.per_axis("dilation", axes, 1));
    for (i, (before, _)) in op.padding(axes).into_iter().enumerate() {
        let d = layout.spatial[i];
        let kernel = weight[layout.kernel[i]];
        border[d] = if op.name == "nn.conv2d_transpose" {
            let mut wanted = (0, 0);
            for r in 0..strides[i] {
                let r = residue(r, out[d], kernel, strides[i], dilation[i], before);
                let least = r.start - r.back * (r.taps - 1).max(0);
                let most = r.start + r.outputs - 1;
                wanted = (wanted.0.max(-least), wanted.1.max(most - (data[d] - 1)));
            }
            wanted
        } else {
            // Only as far as the last window reaches.
            let reach = (out[d] - 1) * strides[i] + (kernel - 1) * dilation[i] - before;
            (before, (reach - (data[d] - 1)).max(0))
        };
    }
    border
}
