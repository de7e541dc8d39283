//! Roles of convolution and pooling dimensions, and windows along spatial axes.

use byoc_plugin_support::region::Op;

/// Indices of the dimensions in layouts such as `NCHW` and `OIHW`.
pub struct Layout {
    /// Batch dimension of the data.
    pub n: usize,
    /// Channel dimension of the data.
    pub c: usize,
    /// Spatial dimensions of the data, outermost first.
    pub spatial: Vec<usize>,
    /// Output channel dimension of the weight.
    pub out: usize,
    /// Input channel dimension of the weight.
    pub input: usize,
    /// Spatial dimensions of the weight.
    pub kernel: Vec<usize>,
}

/// Parses the layout attributes of a convolution; `None` if a layout is unsupported.
pub fn layout(op: &Op<'_>, axes: usize) -> Option<Layout> {
    let letters = &["H", "W"][2 - axes..];
    let find = |text: &str, letter: &str| text.find(letter).filter(|_| text.len() == axes + 2);
    let (data, weight) = (op.attrs().text("data_layout"), op.attrs().text("kernel_layout"));
    if !["", data].contains(&op.attrs().text("out_layout")) {
        return None;
    }
    Some(Layout {
        n: find(data, "N")?,
        c: find(data, "C")?,
        spatial: letters.iter().map(|letter| find(data, letter)).collect::<Option<_>>()?,
        out: find(weight, "O")?,
        input: find(weight, "I")?,
        kernel: letters.iter().map(|letter| find(weight, letter)).collect::<Option<_>>()?,
    })
}

/// Returns the number of spatial axes of a convolution; `None` for other operators.
pub fn spatial_axes(name: &str) -> Option<usize> {
    match name {
        "nn.conv1d" => Some(1),
        "nn.conv2d" => Some(2),
        _ => None,
    }
}

/// Window along one spatial axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Number of window elements.
    pub taps: i64,
    /// Distance between adjacent windows.
    pub stride: i64,
    /// Distance between adjacent window elements.
    pub dilation: i64,
    /// Padding before and after.
    pub pad: (i64, i64),
    /// Extent of the data along the axis.
    pub size: i64,
    /// Number of windows.
    pub outputs: i64,
    /// Stride of the data along the axis in memory.
    pub step: i64,
}

impl Axis {
    /// Tests whether all windows are inside the data.
    pub fn is_inside(&self) -> bool {
        self.pad.0 <= 0 && (self.outputs - 1) * self.stride - self.pad.0 + (self.taps - 1) * self.dilation < self.size
    }
}
