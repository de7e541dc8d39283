//! Operators: what each one computes, and where its operands lie. One table per kind.

pub mod anchors;
pub mod check;
pub mod elementwise;
pub mod layout;
pub mod quantized;
pub mod resize;
pub mod views;

/// Pattern table of backends that generate loop nests. Fusion within a region does not depend on it; the patterns keep
/// operators together when several backends share a model.
pub const PATTERNS: &str = "\
conv2d_bias_relu: nn.relu(nn.bias_add(nn.conv2d(*, const), const) | add(nn.conv2d(*, const), const))
conv2d_bias_clip: clip(nn.bias_add(nn.conv2d(*, const), const) | add(nn.conv2d(*, const), const))
conv2d_bias: nn.bias_add(nn.conv2d(*, const), const) | add(nn.conv2d(*, const), const)
dense_bias_relu: nn.relu(nn.bias_add(nn.dense(*, const), const) | add(nn.dense(*, const), const))
dense_bias: nn.bias_add(nn.dense(*, const), const) | add(nn.dense(*, const), const)
";
