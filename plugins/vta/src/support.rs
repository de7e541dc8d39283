//! Patterns and operators of the description.

/// Supported single operators. Convolutions and dense layers return int32; elementwise operators and pooling accept
/// int8 within a region.
pub const OPERATORS: &[&str] =
    &["qnn.conv2d", "nn.conv2d", "qnn.dense", "nn.dense", "qnn.add", "nn.max_pool2d", "nn.relu", "clip"];

/// Pattern table: a convolution or dense layer with its epilogue, with and without the addition of a second tensor. A
/// module without the QNN dialect, such as the output of TVM's `relay.quantize`, has additions, shifts and casts
/// instead of requantization.
pub const PATTERNS: &str = "\
conv2d_add: let sum = qnn.conv2d(*, *, const, const, const, const) | nn.conv2d(*, *);
    let biased = nn.bias_add(sum, const) | add(sum, const) | add(const, sum) | sum;
    let int8 = qnn.requantize(biased ? nn.relu ? clip, const, const, const, const) ? nn.relu ? clip ? cast;
    qnn.add(int8, *, const, const, const, const, const, const) ? nn.relu ? clip
        | qnn.add(*, int8, const, const, const, const, const, const) ? nn.relu ? clip
conv2d_requantize: let sum = qnn.conv2d(*, *, const, const, const, const) | nn.conv2d(*, *);
    let biased = nn.bias_add(sum, const) | add(sum, const) | add(const, sum) | sum;
    qnn.requantize(biased ? nn.relu ? clip, const, const, const, const) ? nn.relu ? clip ? cast
conv2d_shift_add: let sum = nn.conv2d(*, *);
    let biased = nn.bias_add(sum, const) | add(sum, const) | add(const, sum) | sum;
    let rounded = add(biased ? nn.relu, const) | add(const, biased ? nn.relu) | biased ? nn.relu;
    let int32 = right_shift(rounded, const) | left_shift(rounded, const);
    let other = cast(*) | left_shift(cast(*), const) | right_shift(cast(*), const) | right_shift(add(cast(*), const), const);
    let both = add(int32 ? clip, other) | add(other, int32 ? clip);
    cast(clip(both ? nn.relu)) | cast(nn.relu(clip(both)))
conv2d_shift: let sum = nn.conv2d(*, *);
    let biased = nn.bias_add(sum, const) | add(sum, const) | add(const, sum) | sum;
    let rounded = add(biased ? nn.relu, const) | add(const, biased ? nn.relu) | biased ? nn.relu;
    let int32 = right_shift(rounded, const) | left_shift(rounded, const);
    cast(clip(int32 ? nn.relu)) | cast(nn.relu(clip(int32)))
conv2d_scale: let sum = qnn.conv2d(*, *, const, const, const, const) | nn.conv2d(*, *);
    let biased = nn.bias_add(sum, const) | add(sum, const) | add(const, sum) | sum;
    cast(clip(fixed_point_multiply(biased ? nn.relu ? clip) ? nn.relu)) | cast(nn.relu(clip(fixed_point_multiply(biased ? nn.relu ? clip))))
conv2d_bias: let sum = qnn.conv2d(*, *, const, const, const, const) | nn.conv2d(*, *);
    (nn.bias_add(sum, const) | add(sum, const) | add(const, sum)) ? nn.relu ? clip | nn.relu(sum) ? clip
dense_requantize: let sum = qnn.dense(*, *, const, const, const, const) | nn.dense(*, *);
    let biased = nn.bias_add(sum, const) | add(sum, const) | add(const, sum) | sum;
    qnn.requantize(biased ? nn.relu ? clip, const, const, const, const) ? nn.relu ? clip ? cast
dense_shift: let sum = nn.dense(*, *);
    let biased = nn.bias_add(sum, const) | add(sum, const) | add(const, sum) | sum;
    let rounded = add(biased ? nn.relu, const) | add(const, biased ? nn.relu) | biased ? nn.relu;
    let int32 = right_shift(rounded, const) | left_shift(rounded, const);
    cast(clip(int32 ? nn.relu)) | cast(nn.relu(clip(int32)))
dense_scale: let sum = qnn.dense(*, *, const, const, const, const) | nn.dense(*, *);
    let biased = nn.bias_add(sum, const) | add(sum, const) | add(const, sum) | sum;
    cast(clip(fixed_point_multiply(biased ? nn.relu ? clip) ? nn.relu))
dense_bias: let sum = qnn.dense(*, *, const, const, const, const) | nn.dense(*, *);
    (nn.bias_add(sum, const) | add(sum, const) | add(const, sum)) ? nn.relu ? clip | nn.relu(sum) ? clip
add: qnn.add(*, *, const, const, const, const, const, const) ? nn.relu ? clip
";
