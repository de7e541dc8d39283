//! Anchors: operators with dedicated kernels, by kind.

/// Kind of a non-elementwise operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Convolution,
    MatrixProduct,
    Pool,
    /// Softmax and normalization over rows.
    Normalize,
    Reduce,
    Concatenate,
    Take,
    Resize,
}

/// Anchor kinds by operator name.
pub const ANCHORS: &[(&str, Anchor)] = &[
    ("nn.conv2d", Anchor::Convolution),
    ("nn.conv1d", Anchor::Convolution),
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
    ("concatenate", Anchor::Concatenate),
    ("take", Anchor::Take),
    ("image.resize2d", Anchor::Resize),
    ("nn.upsampling", Anchor::Resize),
];

/// Returns the anchor kind of an operator; `None` if the operator has no dedicated kernel.
pub fn anchor(name: &str) -> Option<Anchor> {
    ANCHORS.iter().find(|entry| entry.0 == name).map(|entry| entry.1)
}
