//! Patterns and operators of the description.

/// Supported single operators, which return int32 accumulators.
pub const OPERATORS: &[&str] = &["qnn.conv2d", "nn.conv2d", "qnn.dense", "nn.dense"];

/// Pattern table: a convolution or dense layer with its epilogue. A quantized model requantizes the accumulators, with
/// an activation before or after; a module without the QNN dialect has a fixed-point multiplication instead.
pub const PATTERNS: &str = "\
conv2d_requantize: let sum = qnn.conv2d(*, *, const, const, const, const) | nn.conv2d(*, *);
    let biased = nn.bias_add(sum, const) | add(sum, const) | add(const, sum) | sum;
    qnn.requantize(biased ? nn.relu ? clip, const, const, const, const) ? nn.relu ? clip ? cast
conv2d_scale: let sum = qnn.conv2d(*, *, const, const, const, const) | nn.conv2d(*, *);
    let biased = nn.bias_add(sum, const) | add(sum, const) | add(const, sum) | sum;
    fixed_point_multiply(biased ? nn.relu ? clip) ? nn.relu ? clip ? cast
conv2d_bias: let sum = qnn.conv2d(*, *, const, const, const, const) | nn.conv2d(*, *);
    (nn.bias_add(sum, const) | add(sum, const) | add(const, sum)) ? nn.relu ? clip ? cast
conv2d_activation: let sum = qnn.conv2d(*, *, const, const, const, const) | nn.conv2d(*, *);
    nn.relu(sum) ? clip ? cast | clip(sum) ? cast
dense_requantize: let sum = qnn.dense(*, *, const, const, const, const) | nn.dense(*, *);
    let biased = nn.bias_add(sum, const) | add(sum, const) | add(const, sum) | sum;
    qnn.requantize(biased ? nn.relu ? clip, const, const, const, const) ? nn.relu ? clip ? cast
dense_scale: let sum = qnn.dense(*, *, const, const, const, const) | nn.dense(*, *);
    let biased = nn.bias_add(sum, const) | add(sum, const) | add(const, sum) | sum;
    fixed_point_multiply(biased ? nn.relu ? clip) ? nn.relu ? clip ? cast
dense_bias: let sum = qnn.dense(*, *, const, const, const, const) | nn.dense(*, *);
    (nn.bias_add(sum, const) | add(sum, const) | add(const, sum)) ? nn.relu ? clip ? cast
dense_activation: let sum = qnn.dense(*, *, const, const, const, const) | nn.dense(*, *);
    nn.relu(sum) ? clip ? cast | clip(sum) ? cast
";
