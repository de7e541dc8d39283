//! Random modules of quantized operators, whose integer results must match bit for bit.

use super::cases::{Case, ints_attr};
use byoc_ir::ir::{AttrValue, ExprId};
use byoc_ir::tensor::{DType, Tensor};

/// Returns true if the CPU supports these families. Without VNNI instructions, the backend leaves int8 convolutions and
/// matrix products to the host.
pub fn is_supported() -> bool {
    byoc_test_support::has_vnni()
}

/// Draws a tensor of integers over the full range of `dtype`, favoring its bounds.
fn bytes(c: &mut Case, dtype: DType, shape: &[usize]) -> Tensor {
    let ends = c.chance(4);
    let len: usize = shape.iter().product();
    let mut byte = || match c.int(0, if ends { 3 } else { 30 }) {
        0 => 0x7f,
        1 => 0x80,
        2 => 0xff,
        _ => c.int(0, 255) as u8,
    };
    let bytes: Vec<u8> = (0..len).map(|_| byte()).collect();
    Tensor::from_bytes(dtype, shape, &bytes).expect("expected one element per byte")
}

/// Draws int8 or uint8.
fn byte_type(c: &mut Case) -> DType {
    c.pick(&[DType::I8, DType::I8, DType::U8])
}

/// Draws a zero point of type `dtype`, most often 0.
fn zero_point(c: &mut Case, dtype: DType) -> i32 {
    let min_value = if dtype == DType::I8 { -128 } else { 0 };
    if c.chance(2) { 0 } else { min_value + c.int(0, 255) as i32 }
}

fn scalar(c: &mut Case, value: f32) -> ExprId {
    c.builder.constant(Tensor::scalar(value))
}

fn integer(c: &mut Case, value: i32) -> ExprId {
    c.builder.constant(Tensor::scalar(value))
}

/// Draws a scale near `magnitude`, sometimes a power of two.
fn scale(c: &mut Case, magnitude: f64) -> f32 {
    let value = magnitude * (0.3 + 2.0 * c.uniform());
    if c.chance(6) { 2f64.powi(value.log2().round() as i32) as f32 } else { value as f32 }
}

/// Draws scales near `magnitude`: a single per-tensor scale, or per-channel scales.
fn scales(c: &mut Case, magnitude: f64, channels: usize) -> ExprId {
    if c.chance(3) {
        let single_scale = scale(c, magnitude);
        return scalar(c, single_scale);
    }
    let values: Vec<f32> = (0..channels).map(|_| scale(c, magnitude)).collect();
    c.builder.constant(Tensor::from_slice(&[channels], &values))
}

fn str_attr(text: &str) -> AttrValue {
    AttrValue::Str(text.into())
}

fn dtype_attr(dtype: DType) -> AttrValue {
    str_attr(dtype.name())
}

/// Adds a per-channel requantization along `axis` for integers of magnitude `magnitude`.
fn requantize(c: &mut Case, x: ExprId, magnitude: f64, axis: usize, input_zero: i32, output_dtype: DType) -> ExprId {
    let channels = c.shape(x)[axis];
    let out = scale(c, 0.05);
    // The smallest output range leaves few distinct values; the largest makes most values saturate.
    let output_range = c.pick(&[1.0, 40.0, 60.0, 60.0, 120.0, 3e4]);
    let input_scales = scales(c, f64::from(out) * output_range / magnitude, channels);
    let (input_zero, out) = (integer(c, input_zero), scalar(c, out));
    let output_zero = zero_point(c, output_dtype);
    let output_zero = integer(c, output_zero);
    let mut attrs = vec![("axis", AttrValue::Int(axis as i64)), ("out_dtype", dtype_attr(output_dtype))];
    match c.pick(&["", "", "UPWARD", "TONEAREST", "TOEVEN"]) {
        "" => {}
        rounding => attrs.push(("rounding", str_attr(rounding))),
    }
    match c.pick(&["", "", "int64", "float32"]) {
        "" => {}
        compute => attrs.push(("compute_dtype", str_attr(compute))),
    }
    c.op("qnn.requantize", &[x, input_scales, input_zero, out, output_zero], &attrs)
}

/// Adds a ReLU, a clip, or nothing.
fn bounds(c: &mut Case, x: ExprId, dtype: DType) -> ExprId {
    match c.int(0, 3) {
        0 => c.op("nn.relu", &[x], &[]),
        1 => {
            let zero_offset = if dtype == DType::U8 { c.int(0, 60) as i64 } else { c.int(0, 100) as i64 - 120 };
            let upper_bound = c.int(60, 140) as i64;
            c.op(
                "clip",
                &[x],
                &[("a_min", AttrValue::Float(zero_offset as f64)), ("a_max", AttrValue::Float(upper_bound as f64))],
            )
        }
        _ => x,
    }
}

/// Returns a new input, or a constant, of the shape of `x` or of a shape that is broadcast to it.
fn second_operand(c: &mut Case, x: ExprId, dtype: DType) -> ExprId {
    let mut shape = c.shape(x);
    let rank = shape.len();
    match c.int(0, 5) {
        0 => shape.clear(),
        1 => shape = shape.split_off(rank - 1),
        2 if rank > 2 => shape[2..].fill(1),
        3 => {
            let axis = c.int(0, rank - 1);
            shape.iter_mut().enumerate().filter(|(i, _)| *i != axis).for_each(|(_, size)| *size = 1);
        }
        _ => {}
    }
    let value = bytes(c, dtype, &shape);
    if c.chance(3) { c.builder.constant(value) } else { c.input_of(value) }
}

/// Adds a quantized addition with a new operand, followed by [`bounds`].
fn add_residual(c: &mut Case, x: ExprId, dtype: DType) -> ExprId {
    let other = second_operand(c, x, dtype);
    let (own_scale, out_scale) = (scale(c, 0.05), scale(c, 0.08));
    let has_same_scale = c.chance(4);
    let other_scale = if has_same_scale { out_scale } else { scale(c, 0.05) };
    let out_zero = zero_point(c, dtype);
    let (own_zero, other_zero) = (zero_point(c, dtype), if has_same_scale { out_zero } else { zero_point(c, dtype) });
    let own_params = [scalar(c, own_scale), integer(c, own_zero)];
    let other_params = [scalar(c, other_scale), integer(c, other_zero)];
    let out = [scalar(c, out_scale), integer(c, out_zero)];
    let args = match c.chance(2) {
        true => [x, other, own_params[0], own_params[1], other_params[0], other_params[1], out[0], out[1]],
        false => [other, x, other_params[0], other_params[1], own_params[0], own_params[1], out[0], out[1]],
    };
    let sum = c.op("qnn.add", &args, &[]);
    bounds(c, sum, dtype)
}

/// Adds the post-ops of an accumulation: a bias, a requantization, [`bounds`], a residual, and sometimes a
/// dequantization.
fn post_ops(c: &mut Case, accumulator: ExprId, terms: usize, axis: usize) -> ExprId {
    let channels = c.shape(accumulator)[axis];
    let mut x = accumulator;
    if !c.chance(4) {
        let has_wraparound = c.chance(10);
        let max_sum = if has_wraparound { 1 << 31 } else { 20_000 };
        let values: Vec<i32> =
            (0..channels).map(|_| (c.int(0, 2 * max_sum - 1) as i64 - max_sum as i64) as i32).collect();
        if c.chance(3) {
            let rank = c.shape(x).len();
            let mut shape = vec![1; rank - axis];
            shape[0] = channels;
            let bias = c.builder.constant(Tensor::from_slice(&shape, &values));
            x = c.op("add", &[x, bias], &[]);
        } else {
            let bias = c.builder.constant(Tensor::from_slice(&[channels], &values));
            x = c.op("nn.bias_add", &[x, bias], &[("axis", AttrValue::Int(axis as i64))]);
        }
    }
    let magnitude = (terms as f64).sqrt() * 5500.0;
    if c.chance(8) {
        let input_scales = scales(c, 1e-3, channels);
        let zero = integer(c, 0);
        return c.op("qnn.dequantize", &[x, input_scales, zero], &[("axis", AttrValue::Int(axis as i64))]);
    }
    let output_dtype = if c.chance(12) { DType::I32 } else { byte_type(c) };
    let input_zero = if c.chance(12) { c.int(0, 60) as i32 - 30 } else { 0 };
    x = requantize(c, x, magnitude, axis, input_zero, output_dtype);
    x = bounds(c, x, if output_dtype == DType::I32 { DType::I8 } else { output_dtype });
    if output_dtype != DType::I32 && c.chance(3) {
        x = add_residual(c, x, output_dtype);
    }
    if output_dtype != DType::I32 && c.chance(6) {
        let (input_scales, zero) = (scales(c, 0.05, channels), zero_point(c, output_dtype));
        let zero = integer(c, zero);
        x = c.op("qnn.dequantize", &[x, input_scales, zero], &[("axis", AttrValue::Int(axis as i64))]);
    }
    x
}

/// Draws the operand zero points and scales for a convolution or matrix product whose data has the type `dtype`.
fn parameters(c: &mut Case, dtype: DType) -> [ExprId; 4] {
    let zero = zero_point(c, dtype);
    [integer(c, zero), integer(c, 0), scalar(c, 0.05), scalar(c, 0.01)]
}

struct Sizes {
    groups: usize,
    channels_per_group: usize,
    outputs_per_group: usize,
}

/// Adds a convolution of `x`, or of a new input if `x` is `None`.
fn convolve(c: &mut Case, x: Option<ExprId>, sizes: &Sizes, channels_last: bool) -> (ExprId, usize, usize) {
    let Sizes { groups, channels_per_group, outputs_per_group } = *sizes;
    let own_params = x.map(|x| c.shape(x));
    let mut data = own_params.clone().unwrap_or(vec![c.int(1, 2), groups * channels_per_group, 0, 0]);
    let (mut kernel, mut strides, mut dilation, mut padding) = (vec![], vec![], vec![], vec![0; 4]);
    for i in 0..2 {
        let size = if own_params.is_some() { data[2 + i] } else { usize::MAX };
        kernel.push(c.pick(&[1, 1, 2, 3, 3, 5]).min(size));
        strides.push(c.pick(&[1, 1, 2, 3]));
        dilation.push(if own_params.is_some() { 1 } else { c.pick(&[1, 1, 1, 2]) });
        let kernel_extent = (kernel[i] - 1) * dilation[i] + 1;
        padding[i] = c.int(0, kernel_extent - 1);
        padding[2 + i] = if c.chance(2) { padding[i] } else { c.int(0, kernel_extent - 1) };
        let min_size = kernel_extent.saturating_sub(padding[i] + padding[2 + i]).max(1);
        if own_params.is_none() {
            data[2 + i] = c.int(min_size, min_size + 9);
        }
    }
    let x = x.unwrap_or_else(|| {
        let dtype = byte_type(c);
        let shape = if channels_last { vec![data[0], data[2], data[3], data[1]] } else { data.clone() };
        let value = bytes(c, dtype, &shape);
        c.input_of(value)
    });
    let dtype = c.builder.module.ty(x).as_tensor().expect("expected a tensor").dtype;
    let [zero, kernel_zero, input_scales, kernel_scale] = parameters(c, dtype);
    let channels = groups * outputs_per_group;
    let shape = match channels_last {
        true => vec![kernel[0], kernel[1], channels_per_group, channels],
        false => vec![channels, channels_per_group, kernel[0], kernel[1]],
    };
    let weight = bytes(c, DType::I8, &shape);
    let weight = c.builder.constant(weight);
    let mut attrs = vec![
        ("strides", ints_attr(&strides)),
        ("padding", ints_attr(&padding)),
        ("dilation", ints_attr(&dilation)),
        ("groups", AttrValue::Int(groups as i64)),
        ("channels", AttrValue::Int(channels as i64)),
        ("kernel_size", ints_attr(&kernel)),
    ];
    if channels_last {
        attrs.push(("data_layout", str_attr("NHWC")));
        attrs.push(("kernel_layout", str_attr("HWIO")));
    }
    let accumulator = c.op("qnn.conv2d", &[x, weight, zero, kernel_zero, input_scales, kernel_scale], &attrs);
    (accumulator, channels_per_group * kernel[0] * kernel[1], if channels_last { 3 } else { 1 })
}

pub fn quantized_convolution(c: &mut Case) {
    c.tolerance = 0.0;
    let groups = c.pick(&[1, 1, 1, 2, 3]);
    let sizes = Sizes {
        groups,
        channels_per_group: c.pick(&[1, 2, 3, 4, 8, 16, 33]),
        outputs_per_group: c.pick(&[1, 2, 4, 5, 8, 16, 40]),
    };
    let is_channels_last = groups == 1 && c.chance(4);
    let (accumulator, terms, axis) = convolve(c, None, &sizes, is_channels_last);
    let result = post_ops(c, accumulator, terms, axis);
    c.set_result(result);
}

pub fn quantized_depthwise(c: &mut Case) {
    c.tolerance = 0.0;
    let sizes = Sizes {
        groups: c.pick(&[2, 3, 8, 16, 17, 32]),
        channels_per_group: 1,
        outputs_per_group: c.pick(&[1, 1, 1, 2]),
    };
    let (accumulator, terms, axis) = convolve(c, None, &sizes, false);
    let result = post_ops(c, accumulator, terms, axis);
    c.set_result(result);
}

fn product(c: &mut Case, x: ExprId, unit_count: usize, weight: Tensor) -> ExprId {
    let dtype = c.builder.module.ty(x).as_tensor().expect("expected a tensor").dtype;
    let [zero, kernel_zero, input_scales, kernel_scale] = parameters(c, dtype);
    let weight = c.builder.constant(weight);
    let attrs = [("units", AttrValue::Int(unit_count as i64))];
    c.op("qnn.dense", &[x, weight, zero, kernel_zero, input_scales, kernel_scale], &attrs)
}

pub fn quantized_dense(c: &mut Case) {
    c.tolerance = 0.0;
    let (rows, terms, unit_count) =
        (c.pick(&[1, 1, 2, 5, 17]), c.pick(&[1, 3, 7, 16, 64, 100]), c.pick(&[1, 2, 10, 16, 33, 64, 130]));
    let dtype = byte_type(c);
    let data = bytes(c, dtype, &[rows, terms]);
    let x = c.input_of(data);
    let weight = bytes(c, DType::I8, &[unit_count, terms]);
    let accumulator = product(c, x, unit_count, weight);
    let result = post_ops(c, accumulator, terms, 1);
    c.set_result(result);
}

/// Accumulators of at least 2^24, not all of which float32 can represent exactly.
pub fn quantized_large_accumulators(c: &mut Case) {
    c.tolerance = 0.0;
    let dtype = byte_type(c);
    // All data and weights are near one bound, which makes the accumulators large.
    let near_limit = |c: &mut Case, dtype: DType, shape: &[usize]| {
        let len: usize = shape.iter().product();
        let top = if dtype == DType::U8 { 255 } else { 127 };
        let values: Vec<u8> = (0..len).map(|_| (top - c.int(0, 6) as i32) as u8).collect();
        Tensor::from_bytes(dtype, shape, &values).expect("expected one element per byte")
    };
    if c.chance(2) {
        let (terms, unit_count) = (c.int(1100, 2100), c.pick(&[1, 7, 16, 40]));
        let (data, weight) = (near_limit(c, dtype, &[3, terms]), near_limit(c, DType::I8, &[unit_count, terms]));
        let x = c.input_of(data);
        let accumulator = product(c, x, unit_count, weight);
        c.set_result(accumulator);
        return;
    }
    let (channels, out, size) = (c.int(120, 260), c.pick(&[4, 8, 16, 24]), c.int(3, 6));
    let (data, weight) =
        (near_limit(c, dtype, &[1, channels, size, size]), near_limit(c, DType::I8, &[out, channels, 3, 3]));
    let x = c.input_of(data);
    let weight = c.builder.constant(weight);
    let [zero, kernel_zero, input_scales, kernel_scale] = parameters(c, dtype);
    let attrs = [
        ("padding", ints_attr(&[1, 1])),
        ("channels", AttrValue::Int(out as i64)),
        ("kernel_size", ints_attr(&[3, 3])),
    ];
    let accumulator = c.op("qnn.conv2d", &[x, weight, zero, kernel_zero, input_scales, kernel_scale], &attrs);
    c.set_result(accumulator);
}

/// Multiplies by a new operand.
fn multiply(c: &mut Case, x: ExprId, dtype: DType) -> ExprId {
    let other = second_operand(c, x, dtype);
    let operands = if c.chance(2) { [x, other] } else { [other, x] };
    let mut args = operands.to_vec();
    for magnitude in [0.03, 0.04, 0.06] {
        let (scale, zero) = (scale(c, magnitude), zero_point(c, dtype));
        args.extend([scalar(c, scale), integer(c, zero)]);
    }
    c.op("qnn.mul", &args, &[])
}

/// Applies a function of one byte.
fn apply_function(c: &mut Case, x: ExprId, dtype: DType) -> ExprId {
    let name = c.pick(&["abs", "erf", "exp", "hardswish", "leaky_relu", "log", "rsqrt", "sigmoid", "sqrt", "tanh"]);
    let mut args = vec![x];
    for magnitude in [0.03, 0.02] {
        let (scale, zero) = (scale(c, magnitude), zero_point(c, dtype));
        args.extend([scalar(c, scale), integer(c, zero)]);
    }
    c.op(&format!("qnn.{name}"), &args, &[])
}

/// Adds a new input of the same shape in floats, as ONNX defines the sum of quantized tensors.
fn add_in_floats(c: &mut Case, x: ExprId, dtype: DType) -> ExprId {
    let other = bytes(c, dtype, &c.shape(x));
    let other = c.input_of(other);
    let [a, b] = [x, other].map(|value| {
        let (scale, zero) = (scale(c, 0.05), zero_point(c, dtype));
        let (scale, zero) = (scalar(c, scale), integer(c, zero));
        c.op("qnn.dequantize", &[value, scale, zero], &[])
    });
    let sum = c.op("add", &[a, b], &[]);
    let (scale, zero) = (scale(c, 0.08), zero_point(c, dtype));
    let attrs =
        [("out_dtype", dtype_attr(dtype)), ("rounding", str_attr("TOEVEN")), ("compute_dtype", str_attr("float32"))];
    let (scale, zero) = (scalar(c, scale), integer(c, zero));
    c.op("qnn.quantize", &[sum, scale, zero], &attrs)
}

/// Chains without convolutions or matrix products: quantization, requantization, additions, and dequantization.
pub fn quantized_elementwise(c: &mut Case) {
    c.tolerance = 0.0;
    let rank = c.int(1, 4);
    let shape: Vec<usize> = (0..rank).map(|_| c.int(1, 9)).collect();
    let len: usize = shape.iter().product();
    let dtype = byte_type(c);
    let mut x = if c.chance(2) {
        let value = bytes(c, dtype, &shape);
        c.input_of(value)
    } else {
        let mut values: Vec<f32> = (0..len).map(|_| (c.uniform() * 40.0 - 20.0) as f32).collect();
        // Special values: ties, infinities, NaN, -0 and a value that saturates.
        let special_values = [0.5, -0.5, 2.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e30];
        if c.chance(2) {
            let position = c.int(0, len - 1);
            values[position] = c.pick(&special_values);
        }
        let value = c.input_of(Tensor::from_slice(&shape, &values));
        let (output_dtype, zero) = (if c.chance(3) { 1.0 } else { scale(c, 0.1) }, zero_point(c, dtype));
        let (output_dtype, zero) = (scalar(c, output_dtype), integer(c, zero));
        let mut attrs = vec![("out_dtype", dtype_attr(dtype))];
        if c.chance(2) {
            attrs.push(("rounding", str_attr("TOEVEN")));
        }
        c.op("qnn.quantize", &[value, output_dtype, zero], &attrs)
    };
    let mut own_params = dtype;
    for _ in 0..c.int(1, 4) {
        x = match c.int(0, 6) {
            6 => {
                let first = c.int(0, rank - 1);
                let axes: Vec<usize> = (0..rank).rev().map(|axis| (axis + first) % rank).collect();
                c.op("transpose", &[x], &[("axes", ints_attr(&axes))])
            }
            5 => apply_function(c, x, own_params),
            0 => add_residual(c, x, own_params),
            3 => multiply(c, x, own_params),
            4 => add_in_floats(c, x, own_params),
            1 => {
                let (axis, zero) = (c.int(0, rank - 1), zero_point(c, own_params));
                own_params = byte_type(c);
                requantize(c, x, 100.0, axis, zero, own_params)
            }
            _ => bounds(c, x, own_params),
        };
    }
    if c.chance(2) {
        let axis = c.int(0, rank - 1);
        let size = c.shape(x)[axis];
        let (input_scales, zero) = (scales(c, 0.05, size), zero_point(c, own_params));
        let zero = integer(c, zero);
        x = c.op("qnn.dequantize", &[x, input_scales, zero], &[("axis", AttrValue::Int(axis as i64))]);
    }
    c.set_result(x);
}

/// Small network: a chain of convolutions with pooling between them, and a dense layer at the end.
pub fn quantized_blocks(c: &mut Case) {
    c.tolerance = 0.0;
    let first = Sizes { groups: 1, channels_per_group: c.pick(&[1, 3, 8]), outputs_per_group: c.pick(&[4, 8, 16]) };
    let (accumulator, terms, _) = convolve(c, None, &first, false);
    let dtype = byte_type(c);
    let x = requantize(c, accumulator, (terms as f64).sqrt() * 5500.0, 1, 0, dtype);
    let mut x = bounds(c, x, dtype);
    let shape = c.shape(x);
    if shape[2] > 1 && shape[3] > 1 && c.chance(2) {
        let attrs =
            [("pool_size", ints_attr(&[2, 2])), ("strides", ints_attr(&[2, 2])), ("padding", ints_attr(&[0, 0]))];
        x = c.op("nn.max_pool2d", &[x], &attrs);
    }
    let channels = c.shape(x)[1];
    let sizes = match c.chance(2) {
        true => Sizes { groups: channels, channels_per_group: 1, outputs_per_group: 1 },
        false => Sizes { groups: 1, channels_per_group: channels, outputs_per_group: c.pick(&[4, 8, 12]) },
    };
    let (accumulator, terms, _) = convolve(c, Some(x), &sizes, false);
    let x = requantize(c, accumulator, (terms as f64).sqrt() * 5500.0, 1, 0, dtype);
    let x = match c.int(0, 3) {
        0 => add_residual(c, x, dtype),
        1 => multiply(c, x, dtype),
        2 => apply_function(c, x, dtype),
        _ => add_in_floats(c, x, dtype),
    };
    let x = c.op("nn.batch_flatten", &[x], &[]);
    let terms = c.shape(x)[1];
    let weight = bytes(c, DType::I8, &[6, terms]);
    let accumulator = product(c, x, 6, weight);
    let result = post_ops(c, accumulator, terms, 1);
    c.set_result(result);
}

/// Average and max pooling, and concatenations of tensors with different scales.
pub fn quantized_pools_and_joins(c: &mut Case) {
    c.tolerance = 0.0;
    let dtype = byte_type(c);
    let mut shape = vec![c.int(1, 2), c.pick(&[1, 3, 8, 64, 70]), c.int(1, 9), c.int(1, 9)];
    let value = bytes(c, dtype, &shape);
    let mut x = c.input_of(value);
    if c.chance(2) {
        let axis = c.int(0, 3);
        let mut values = vec![x];
        for _ in 0..c.int(1, 2) {
            shape[axis] = c.int(1, 6);
            let value = bytes(c, dtype, &shape);
            values.push(c.input_of(value));
        }
        let out = scale(c, 0.07);
        let (mut input_scales, mut zeros) = (vec![], vec![]);
        let out_zero = zero_point(c, dtype);
        for _ in &values {
            let has_same_scale = c.chance(3);
            let (own_params, zero) =
                if has_same_scale { (out, out_zero) } else { (scale(c, 0.06), zero_point(c, dtype)) };
            input_scales.push(scalar(c, own_params));
            zeros.push(integer(c, zero));
        }
        let tuple = |c: &mut Case, fields: &[ExprId]| c.builder.tuple(fields).expect("expected a tuple");
        let (data, input_scales, zeros) = (tuple(c, &values), tuple(c, &input_scales), tuple(c, &zeros));
        let (out, out_zero) = (scalar(c, out), integer(c, out_zero));
        let attrs = [("axis", AttrValue::Int(axis as i64))];
        x = c.op("qnn.concatenate", &[data, input_scales, zeros, out, out_zero], &attrs);
    }
    let shape = c.shape(x);
    if c.chance(4) {
        c.set_result(x);
        return;
    }
    let (mut kernel, mut strides, mut padding) = (vec![], vec![], vec![0; 4]);
    for i in 0..2 {
        let is_whole = c.chance(4);
        kernel.push(if is_whole { shape[2 + i] } else { c.int(1, shape[2 + i].min(4)) });
        strides.push(c.pick(&[1, 1, 2, 3]));
        padding[i] = c.int(0, kernel[i] - 1);
        padding[2 + i] = c.int(0, kernel[i] - 1);
    }
    let mut attrs =
        vec![("pool_size", ints_attr(&kernel)), ("strides", ints_attr(&strides)), ("padding", ints_attr(&padding))];
    x = if c.chance(3) {
        c.op("nn.max_pool2d", &[x], &attrs)
    } else {
        attrs.push(("count_include_pad", AttrValue::Bool(c.chance(2))));
        let (input_scales, output_dtype) = (scale(c, 0.05), scale(c, 0.04));
        let zeros = [zero_point(c, dtype), zero_point(c, dtype)];
        let args = [x, scalar(c, input_scales), integer(c, zeros[0]), scalar(c, output_dtype), integer(c, zeros[1])];
        c.op("qnn.avg_pool2d", &args, &attrs)
    };
    let x = bounds(c, x, dtype);
    c.set_result(x);
}

/// Draws a factor or an addend: a scalar, or per-channel values along `axis`.
fn scalar_or_per_channel(c: &mut Case, x: ExprId, axis: usize, magnitude: f64) -> ExprId {
    let shape = c.shape(x);
    if c.chance(2) {
        let single_scale = scale(c, magnitude);
        return scalar(c, single_scale);
    }
    let values: Vec<f32> = (0..shape[axis]).map(|_| scale(c, magnitude)).collect();
    let mut broadcast_shape = vec![1; shape.len() - axis];
    broadcast_shape[0] = shape[axis];
    c.builder.constant(Tensor::from_slice(&broadcast_shape, &values))
}

/// Post-ops expressed in floating point, with a truncating conversion at the end.
pub fn quantized_float_post_ops(c: &mut Case) {
    c.tolerance = 0.0;
    let (accumulator, terms, axis) = if c.chance(3) {
        let (rows, terms, unit_count) = (c.int(1, 5), c.int(1, 80), c.pick(&[1, 10, 64]));
        let dtype = byte_type(c);
        let data = bytes(c, dtype, &[rows, terms]);
        let x = c.input_of(data);
        let weight = bytes(c, DType::I8, &[unit_count, terms]);
        (product(c, x, unit_count, weight), terms, 1)
    } else {
        let sizes =
            Sizes { groups: c.pick(&[1, 1, 2]), channels_per_group: c.int(1, 9), outputs_per_group: c.int(1, 20) };
        convolve(c, None, &sizes, false)
    };
    let float_attrs = [("dtype", str_attr("float32"))];
    let mut x = c.op("cast", &[accumulator], &float_attrs);
    if c.chance(2) {
        let bias = scalar_or_per_channel(c, x, axis, 900.0);
        let args = if c.chance(2) { [x, bias] } else { [bias, x] };
        x = c.op("add", &args, &[]);
    }
    let factor = scalar_or_per_channel(c, x, axis, 150.0 / ((terms as f64).sqrt() * 5500.0));
    x = c.op("multiply", &[x, factor], &[]);
    x = c.op("clip", &[x], &[("a_min", AttrValue::Float(0.0)), ("a_max", AttrValue::Float(255.0))]);
    if c.chance(2) {
        let factor = scale(c, 0.6);
        let factor = scalar(c, factor);
        x = c.op("multiply", &[x, factor], &[]);
    }
    if c.chance(2) {
        let (dtype, shape) = (byte_type(c), c.shape(x));
        let other = bytes(c, dtype, &shape);
        let other = c.input_of(other);
        let other = c.op("cast", &[other], &float_attrs);
        let factor = scale(c, 0.4);
        let factor = scalar(c, factor);
        let other = c.op("multiply", &[factor, other], &[]);
        let args = if c.chance(4) { [other, x] } else { [x, other] };
        x = c.op("add", &args, &[]);
    }
    if c.chance(2) {
        let zero = scale(c, 7.0);
        let zero = scalar(c, zero);
        x = c.op("add", &[x, zero], &[]);
    }
    let output_dtype = byte_type(c);
    let x = c.op("cast", &[x], &[("dtype", dtype_attr(output_dtype))]);
    c.set_result(x);
}
