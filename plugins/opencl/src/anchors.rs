//! Operators that have kernels of their own, by kind.

/// Kind of an operator that is not elementwise.
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
}

/// Operators by name.
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
];

/// Returns the kind of an operator; `None` if it has no kernel of its own.
pub fn anchor(name: &str) -> Option<Anchor> {
    ANCHORS.iter().find(|entry| entry.0 == name).map(|entry| entry.1)
}
