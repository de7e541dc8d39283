//! Anchor operators: operators with a dedicated loop nest.

/// Kind of an anchor operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Convolutions and transposed convolutions.
    Convolution,
    /// Dense layers and matrix products.
    MatrixProduct,
    /// Max and average pooling.
    Pool,
    /// Row-wise normalizations: softmax, log-softmax, layer normalization.
    Normalize,
    /// Sums, means and extremes over axes.
    Reduce,
    /// `take`, `gather`.
    Gather,
    /// `nn.pad`.
    Pad,
    /// Image resizing.
    Resize,
    /// `concatenate`.
    Concatenate,
}

/// Anchor operators by name.
pub const ANCHORS: &[(&str, Anchor)] = &[
    ("nn.conv2d", Anchor::Convolution),
    ("nn.conv1d", Anchor::Convolution),
    ("nn.conv2d_transpose", Anchor::Convolution),
    ("nn.dense", Anchor::MatrixProduct),
    ("nn.matmul", Anchor::MatrixProduct),
    ("nn.batch_matmul", Anchor::MatrixProduct),
    ("nn.max_pool2d", Anchor::Pool),
    ("nn.avg_pool2d", Anchor::Pool),
    ("nn.max_pool1d", Anchor::Pool),
    ("nn.avg_pool1d", Anchor::Pool),
    ("nn.global_avg_pool2d", Anchor::Pool),
    ("nn.global_max_pool2d", Anchor::Pool),
    ("nn.adaptive_avg_pool2d", Anchor::Pool),
    ("nn.adaptive_max_pool2d", Anchor::Pool),
    ("nn.softmax", Anchor::Normalize),
    ("nn.log_softmax", Anchor::Normalize),
    ("nn.layer_norm", Anchor::Normalize),
    ("sum", Anchor::Reduce),
    ("mean", Anchor::Reduce),
    ("max", Anchor::Reduce),
    ("min", Anchor::Reduce),
    ("prod", Anchor::Reduce),
    ("take", Anchor::Gather),
    ("gather", Anchor::Gather),
    ("nn.pad", Anchor::Pad),
    ("image.resize2d", Anchor::Resize),
    ("nn.upsampling", Anchor::Resize),
    ("concatenate", Anchor::Concatenate),
];

/// Operators that are anchors only in programs, by name.
const PROGRAM_ANCHORS: &[(&str, Anchor)] = &[
    ("qnn.conv2d", Anchor::Convolution),
    ("qnn.conv2d_transpose", Anchor::Convolution),
    ("qnn.dense", Anchor::MatrixProduct),
    ("qnn.batch_matmul", Anchor::MatrixProduct),
    ("qnn.avg_pool2d", Anchor::Pool),
    ("stack", Anchor::Concatenate),
];

/// Returns the kind of an operator in a program; `None` if it is not an anchor.
pub fn program_anchor(name: &str) -> Option<Anchor> {
    anchor(name).or_else(|| PROGRAM_ANCHORS.iter().find(|entry| entry.0 == name).map(|entry| entry.1))
}

/// Returns the kind of an operator; `None` if it is not an anchor.
pub fn anchor(name: &str) -> Option<Anchor> {
    ANCHORS.iter().find(|entry| entry.0 == name).map(|entry| entry.1)
}
