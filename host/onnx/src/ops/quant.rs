//! Quantized operators. Quantization is per-tensor, per-axis, or per-block along an axis. Per-tensor and per-axis
//! quantization is converted to operators of the QNN dialect, per-block quantization to plain arithmetic that follows
//! the operator definitions exactly.
//!
//! ONNX computes in float32 and rounds ties to even, so the created calls set `compute_dtype` and `rounding`.

use super::conv::{AutoPad, Windows, auto_pad, ints, kernel_sizes, spatial_dims, windows};
use super::elementwise::{cast_to, round_half_to_even};
use super::math;
use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::ir::{AttrValue, Attrs, Dim, ExprId};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("ConvInteger", 10, conv_integer),
    ("DequantizeLinear", 10, dequantize),
    ("DynamicQuantizeLinear", 11, |n| {
        let data = n.input(0)?;
        dynamic_quantize_of(n, data).map(Vec::from)
    }),
    ("MatMulInteger", 10, mat_mul_integer),
    ("QLinearConv", 10, |n| {
        let data = n.input(0)?;
        single_output(q_linear_conv_of(n, data)?)
    }),
    ("QLinearMatMul", 10, q_linear_mat_mul),
    ("QuantizeLinear", 10, quantize),
];

/// Reads a scale in the format required by the QNN dialect: a float32 scalar or vector.
pub(super) fn scale(n: &mut Node<'_, '_>, i: usize) -> Result<ExprId> {
    let value = n.input(i)?;
    let value = n.cast(value, DType::F32)?;
    parameter(n, value)
}

/// Reads a zero point in the format required by the QNN dialect: an int32 scalar or vector; 0 if absent. In the model,
/// a zero point has the element type of the quantized tensor, `data`.
pub(super) fn zero_point(n: &mut Node<'_, '_>, i: usize, data: DType) -> Result<ExprId> {
    let Some(value) = n.optional_input(i) else { return Ok(n.scalar(DType::I32, 0.0)) };
    let value_dtype = n.dtype(value)?;
    if value_dtype != data {
        return Err(n.invalid_node(format!(
            "input {i} (zero point): expected {data}, the type of the quantized tensor, found {value_dtype}"
        )));
    }
    let value = n.cast(value, DType::I32)?;
    parameter(n, value)
}

/// Reshapes a scale or zero point to a scalar if it has one element; otherwise it must be a vector.
fn parameter(n: &mut Node<'_, '_>, value: ExprId) -> Result<ExprId> {
    let shape = n.shape(value)?;
    match shape[..] {
        [1] => n.reshape(value, &[]),
        [] | [_] => Ok(value),
        _ => Err(n.invalid_node(format!(
            "scale or zero point: expected a scalar or a vector, found shape {:?}",
            shape.as_slice()
        ))),
    }
}

/// Reads the attribute `axis` for data with `rank` dimensions. Returns -1 for an out-of-range axis.
fn axis(n: &Node<'_, '_>, rank: usize) -> Result<i64> {
    let axis = n.int_attr("axis", 1)?;
    // The default may be out of range. The axis matters only for vectors, for which the type relation checks it.
    Ok(if (-(rank as i64)..rank as i64).contains(&axis) { axis } else { -1 })
}

/// Expands a per-block scale or zero point to the shape of `data`.
fn expand_blocks(n: &mut Node<'_, '_>, value: ExprId, data: ExprId, block: i64) -> Result<ExprId> {
    let (shape, data_dims) = (n.dims(value)?, n.dims(data)?);
    let axis = n.axis(n.int_attr("axis", 1)?, data_dims.len())?;
    let size = usize::try_from(block).ok().filter(|&size| size > 0);
    // Dimensions known only at run time are compared at run time.
    let agrees = |(i, (scale_dim, data_dim)): (usize, (&Dim, &Dim))| match (scale_dim.fixed(), data_dim.fixed()) {
        (Some(scale_dim), Some(data_dim)) if i == axis => size.is_some_and(|size| scale_dim == data_dim.div_ceil(size)),
        (Some(scale_dim), Some(data_dim)) => scale_dim == data_dim,
        _ => true,
    };
    if size.is_none() || shape.len() != data_dims.len() || !shape.iter().zip(&data_dims).enumerate().all(agrees) {
        let (value, data) = (n.ty(value)?, n.ty(data)?);
        return Err(n.invalid_node(format!(
            "scale or zero point: expected one element per block of {block} along axis {axis} of {data}, found {value}"
        )));
    }
    // A block may be longer than the axis.
    let size = data_dims[axis].fixed();
    let repeats = size.map_or(block, |size| block.min(size.max(1) as i64));
    let value = n.op("repeat", &[value], attrs![repeats: repeats, axis: axis as i64])?;
    match size {
        Some(size) => n.slice(value, axis, 0, size),
        None => n.slice_to(value, axis, &data_dims[axis]),
    }
}

/// Computes (x - zero point) * scale.
pub(super) fn dequantize(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let x = n.input(0)?;
    let (dtype, zero_point_input, rank) = (n.dtype(x)?, n.input(1)?, n.rank(x)?);
    let out = n.dtype(zero_point_input)?;
    let block = n.int_attr("block_size", 0)?;
    let is_small = dtype.is_small_int() || dtype.is_small_float();
    // Relay's dequantization to float16 saturates, but ONNX requires overflow to infinity.
    if block == 0 && !is_small && out != DType::F16 {
        let (scale, zero) = (scale(n, 1)?, zero_point(n, 2, dtype)?);
        let attrs = attrs![axis: axis(n, rank)?, out_dtype: out];
        // The call is not folded, because passes use the integers of a quantized weight.
        return single_output(n.op_unfolded("qnn.dequantize", &[x, scale, zero], attrs)?);
    }
    let scale = expand(n, zero_point_input, x, block)?;
    if dtype.is_small_float() {
        // The zero point of a floating-point type is 0.
        let value = n.cast(x, out)?;
        let product = n.op_without_attrs("multiply", &[value, scale])?;
        return single_output(output(n, product)?);
    }
    let compute_dtype = if out == DType::F16 { DType::F32 } else { out };
    let scale = n.cast(scale, compute_dtype)?;
    let mut value = n.cast(x, DType::I32)?;
    if let Some(zero) = n.optional_input(2) {
        let zero = expand(n, zero, x, block)?;
        let zero = n.cast(zero, DType::I32)?;
        value = n.op_without_attrs("subtract", &[value, zero])?;
    }
    let value = n.cast(value, compute_dtype)?;
    let product = n.op_without_attrs("multiply", &[value, scale])?;
    let product = n.cast(product, out)?;
    single_output(output(n, product)?)
}

/// Casts the result of DequantizeLinear to the element type in the attribute `output_dtype`.
fn output(n: &mut Node<'_, '_>, value: ExprId) -> Result<ExprId> {
    match n.int_attr("output_dtype", 0)? {
        0 => Ok(value),
        number => {
            let dtype = crate::tensor::dtype(number as i32).ok_or_else(|| {
                n.invalid_node(format!("attribute output_dtype: unsupported element type number {number}"))
            })?;
            n.cast(value, dtype)
        }
    }
}

/// Expands a scale or zero point to a shape that broadcasts to `data`. `block` is the block size, or 0 for per-axis or
/// per-tensor parameters.
fn expand(n: &mut Node<'_, '_>, value: ExprId, data: ExprId, block: i64) -> Result<ExprId> {
    if block != 0 {
        return expand_blocks(n, value, data, block);
    }
    let value = parameter(n, value)?;
    let shape = n.shape(value)?;
    let [count] = shape[..] else { return Ok(value) };
    let rank = n.rank(data)?;
    let mut broadcast_shape = vec![1; rank];
    broadcast_shape[n.axis(n.int_attr("axis", 1)?, rank)?] = count;
    n.reshape(value, &broadcast_shape)
}

/// Returns the minimum and maximum of an integer type of at most 16 bits.
fn range(n: &Node<'_, '_>, dtype: DType) -> Result<(f64, f64)> {
    match dtype {
        DType::I8 => Ok((-128.0, 127.0)),
        DType::U8 => Ok((0.0, 255.0)),
        DType::I16 => Ok((-32768.0, 32767.0)),
        DType::U16 => Ok((0.0, 65535.0)),
        DType::I4 => Ok((-8.0, 7.0)),
        DType::U4 => Ok((0.0, 15.0)),
        DType::I2 => Ok((-2.0, 1.0)),
        DType::U2 => Ok((0.0, 3.0)),
        other => Err(n.invalid_node(format!("quantization to {other} is not supported"))),
    }
}

/// Computes saturate(round(x / scale) + zero point), with ties rounded to even.
pub(super) fn quantize(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (mut x, scale_input) = (n.input(0)?, n.input(1)?);
    let target_dtype = match n.optional_input(2) {
        Some(zero) => n.dtype(zero)?,
        None => match n.int_attr("output_dtype", 0)? {
            0 => DType::U8,
            number => crate::tensor::dtype(number as i32).ok_or_else(|| {
                n.invalid_node(format!("attribute output_dtype: unsupported element type number {number}"))
            })?,
        },
    };
    let block = n.int_attr("block_size", 0)?;
    if target_dtype.is_small_float() {
        let scale = expand(n, scale_input, x, block)?;
        let dtype = n.dtype(scale)?;
        let float_value = n.cast(x, dtype)?;
        let ratio = n.op_without_attrs("divide", &[float_value, scale])?;
        return single_output(cast_to(n, ratio, target_dtype)?);
    }
    range(n, target_dtype)?;
    if block == 0 && !target_dtype.is_small_int() {
        if n.dtype(x)? != DType::F16 {
            x = n.cast(x, DType::F32)?;
        }
        let rank = n.rank(x)?;
        let (scale, zero) = (scale(n, 1)?, zero_point(n, 2, target_dtype)?);
        let attrs = attrs![axis: axis(n, rank)?, out_dtype: target_dtype, rounding: "TOEVEN"];
        return single_output(n.op("qnn.quantize", &[x, scale, zero], attrs)?);
    }
    let scale = expand(n, scale_input, x, block)?;
    let dtype = n.dtype(scale)?;
    let x_real = n.cast(x, dtype)?;
    let ratio = n.op_without_attrs("divide", &[x_real, scale])?;
    let zero = match n.optional_input(2) {
        Some(zero) => Some(expand(n, zero, x, block)?),
        None => None,
    };
    single_output(quantize_ratio(n, ratio, zero, target_dtype)?)
}

/// Computes saturate(round(ratio) + zero point) as an integer type of at most 16 bits, with ties rounded to even.
pub(super) fn quantize_ratio(
    n: &mut Node<'_, '_>,
    ratio: ExprId,
    zero: Option<ExprId>,
    target_dtype: DType,
) -> Result<ExprId> {
    let (min, max) = range(n, target_dtype)?;
    let mut value = round_half_to_even(n, ratio)?;
    if let Some(zero) = zero {
        let zero = n.cast(zero, n.dtype(ratio)?)?;
        value = n.op_without_attrs("add", &[value, zero])?;
    }
    let value = n.op("clip", &[value], attrs![a_min: min, a_max: max])?;
    n.cast(value, target_dtype)
}

/// Quantizes `x` to uint8 over the range of its values, extended to contain 0. Returns the integers, their scale and
/// their zero point.
fn dynamic_quantize_of(n: &mut Node<'_, '_>, x: ExprId) -> Result<[ExprId; 3]> {
    let x = n.cast(x, DType::F32)?;
    let results = n.op_without_attrs("qnn.contrib_dynamic_quantize", &[x])?;
    Ok([n.project(results, 0)?, n.project(results, 1)?, n.project(results, 2)?])
}

/// Quantizes a matrix to uint8 over the range of its values, multiplies it by a matrix of integers with a zero point, a
/// scalar or a vector along its columns, and dequantizes the product with both scales.
pub(super) fn dynamic_matmul(
    n: &mut Node<'_, '_>,
    data: ExprId,
    [weight, weight_zero, weight_scale]: [ExprId; 3],
) -> Result<ExprId> {
    let [data, data_scale, data_zero] = dynamic_quantize_of(n, data)?;
    let zero_point = n.cast(data_zero, DType::I32)?;
    let accumulator = if n.rank(weight)? == 2 {
        let one = n.scalar(DType::F32, 1.0);
        math::matmul(n, data, weight, Some([zero_point, weight_zero, one, one]))?
    } else {
        let data = subtract_zero_point(n, data, zero_point, 0)?;
        let weight = subtract_zero_point(n, weight, weight_zero, 0)?;
        math::matmul(n, data, weight, None)?
    };
    let float_value = n.cast(accumulator, DType::F32)?;
    let factor = n.op_without_attrs("multiply", &[data_scale, weight_scale])?;
    n.op_without_attrs("multiply", &[float_value, factor])
}

/// Operands of an integer convolution: data and weight, their zero points and scales.
struct Convolution {
    data: ExprId,
    weight: ExprId,
    zero_points: [ExprId; 2],
    scales: [ExprId; 2],
}

/// Creates a convolution that returns `int32` accumulators.
fn convolve(n: &mut Node<'_, '_>, convolution: &Convolution) -> Result<ExprId> {
    let spatial = spatial_dims(n, convolution.data)?;
    let axes = spatial.len();
    let shape = n.shape(convolution.weight)?;
    if shape.len() != axes + 2 {
        return Err(
            n.invalid_node(format!("expected a weight with {axes} spatial axes, found shape {:?}", shape.as_slice()))
        );
    }
    if axes == 1 && spatial[0].fixed().is_some() {
        return convolve_row(n, convolution);
    }
    let kernel = kernel_sizes(n, &n.ty(convolution.weight)?.dims)?;
    // Padding elements equal the zero point; data padded at run time is first shifted to a zero point of 0.
    let has_open_padding = spatial.iter().any(|dim| dim.fixed().is_none()) && auto_pad(n)? != AutoPad::Not;
    let data = if has_open_padding {
        subtract_zero_point(n, convolution.data, convolution.zero_points[0], 0)?
    } else {
        convolution.data
    };
    let Windows { data, geometry } = windows(n, data, kernel, &spatial, 0.0)?;
    let attrs = attrs![
        strides: ints(&geometry.strides),
        padding: geometry.padding(),
        dilation: ints(&geometry.dilations),
        groups: n.int_attr("group", 1)?,
        channels: shape[0] as i64,
        kernel_size: ints(&geometry.kernel),
        out_dtype: "int32",
    ];
    if axes == 2 && !has_open_padding {
        let args = [
            data,
            convolution.weight,
            convolution.zero_points[0],
            convolution.zero_points[1],
            convolution.scales[0],
            convolution.scales[1],
        ];
        return n.op("qnn.conv2d", &args, attrs);
    }
    // The QNN dialect has only 2D convolutions. For others, the zero points are subtracted before a plain convolution.
    let data = if has_open_padding { data } else { subtract_zero_point(n, data, convolution.zero_points[0], 0)? };
    let weight = subtract_zero_point(n, convolution.weight, convolution.zero_points[1], axes + 1)?;
    n.op(["nn.conv1d", "nn.conv2d", "nn.conv3d"][axes - 1], &[data, weight], attrs)
}

/// Creates a convolution over one axis as one over images with a single row.
fn convolve_row(n: &mut Node<'_, '_>, convolution: &Convolution) -> Result<ExprId> {
    let spatial = spatial_dims(n, convolution.data)?;
    let kernel = kernel_sizes(n, &n.ty(convolution.weight)?.dims)?;
    let Windows { data, geometry } = windows(n, convolution.data, kernel, &spatial, 0.0)?;
    let row = |value: usize, sizes: &[usize]| ints(&[&[value], sizes].concat());
    let attrs = attrs![
        strides: row(1, &geometry.strides),
        padding: AttrValue::ints([0, geometry.begin[0], 0, geometry.end[0]]),
        dilation: row(1, &geometry.dilations),
        groups: n.int_attr("group", 1)?,
        channels: n.shape(convolution.weight)?[0] as i64,
        kernel_size: row(1, &geometry.kernel),
        out_dtype: "int32",
    ];
    let with_row = |n: &mut Node<'_, '_>, value: ExprId| n.op("expand_dims", &[value], attrs![axis: 2]);
    let [zero_points, scales] = [convolution.zero_points, convolution.scales];
    let operands = [with_row(n, data)?, with_row(n, convolution.weight)?];
    let args = [&operands[..], &zero_points, &scales].concat();
    let result = n.op("qnn.conv2d", &args, attrs)?;
    n.op("squeeze", &[result], attrs![axis: AttrValue::ints([2])])
}

/// Computes value - zero point in int32. A zero-point vector is extended by `trailing_axes` axes of dimension 1.
fn subtract_zero_point(
    n: &mut Node<'_, '_>,
    value: ExprId,
    zero_point: ExprId,
    trailing_axes: usize,
) -> Result<ExprId> {
    let value = n.cast(value, DType::I32)?;
    let mut shape = n.shape(zero_point)?.to_vec();
    if let [size] = shape[..] {
        shape = [vec![size], vec![1; trailing_axes]].concat();
    }
    let zero_point = n.reshape(zero_point, &shape)?;
    n.op_without_attrs("subtract", &[value, zero_point])
}

fn conv_integer(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, weight) = (n.input(0)?, n.input(1)?);
    let zero_points = [zero_point(n, 2, n.dtype(data)?)?, zero_point(n, 3, n.dtype(weight)?)?];
    let scales = [n.scalar(DType::F32, 1.0), n.scalar(DType::F32, 1.0)];
    single_output(convolve(n, &Convolution { data, weight, zero_points, scales })?)
}

/// Requantizes accumulators to the scale and zero point of the output. The result has the element type of the zero
/// point.
pub(super) fn requantize(
    n: &mut Node<'_, '_>,
    accumulator: ExprId,
    input_scale: ExprId,
    output_rank: usize,
    axis: i64,
) -> Result<ExprId> {
    let out = match n.optional_input(output_rank + 1) {
        Some(zero) => n.dtype(zero)?,
        None => return Err(n.invalid_node(format!("input {} is missing", output_rank + 1))),
    };
    range(n, out)?;
    let (scale, zero) = (scale(n, output_rank)?, zero_point(n, output_rank + 1, out)?);
    let none = n.scalar(DType::I32, 0.0);
    n.op("qnn.requantize", &[accumulator, input_scale, none, scale, zero], requantize_attrs(axis, out))
}

fn requantize_attrs(axis: i64, out: DType) -> Attrs {
    attrs![axis: axis, rounding: "TOEVEN", compute_dtype: "float32", out_dtype: out]
}

/// Converts QLinearConv for data with the channels on axis 1.
pub(super) fn q_linear_conv_of(n: &mut Node<'_, '_>, data: ExprId) -> Result<ExprId> {
    let weight = n.input(3)?;
    let scales = [scale(n, 1)?, scale(n, 4)?];
    let zero_points = [zero_point(n, 2, n.dtype(data)?)?, zero_point(n, 5, n.dtype(weight)?)?];
    let mut accumulator = convolve(n, &Convolution { data, weight, zero_points, scales })?;
    if let Some(bias) = n.optional_input(8) {
        accumulator = n.op("nn.bias_add", &[accumulator, bias], attrs![axis: 1])?;
    }
    let input_scale = n.op_without_attrs("multiply", &scales)?;
    requantize(n, accumulator, input_scale, 6, 1)
}

/// Creates a matrix product that returns `int32` accumulators. Zero points become arguments of a QNN operator, unless
/// they vary along the rows of the first operand or the columns of several second operands: those are subtracted first.
pub(super) fn integer_matmul(
    n: &mut Node<'_, '_>,
    operands: [ExprId; 2],
    zero_at: [usize; 2],
    scales: [ExprId; 2],
) -> Result<ExprId> {
    let mut zeros = Vec::new();
    let mut is_plain = false;
    for (i, index) in zero_at.into_iter().enumerate() {
        let dtype = n.dtype(operands[i])?;
        let zero = match n.optional_input(index) {
            Some(zero) if n.shape(zero)?.len() > 1 => n.cast(zero, DType::I32)?,
            _ => zero_point(n, index, dtype)?,
        };
        // A product has a zero point for each column of a single second matrix, and otherwise one for each operand.
        let rank = n.shape(zero)?.len();
        let is_per_column = i == 1 && rank == 1 && n.rank(operands[1])? == 2;
        is_plain |= rank > 0 && !is_per_column;
        zeros.push(zero);
    }
    let is_single_matrix = n.rank(operands[1])? == 2;
    let are_possible = n.shape(scales[0])?.is_empty() && (n.shape(scales[1])?.is_empty() || is_single_matrix);
    if !is_plain && are_possible {
        return math::matmul(n, operands[0], operands[1], Some([zeros[0], zeros[1], scales[0], scales[1]]));
    }
    let data = subtract_zero_point(n, operands[0], zeros[0], 1)?;
    let weight = subtract_zero_point(n, operands[1], zeros[1], 0)?;
    math::matmul(n, data, weight, None)
}

fn mat_mul_integer(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let scales = [n.scalar(DType::F32, 1.0), n.scalar(DType::F32, 1.0)];
    let operands = [n.input(0)?, n.input(1)?];
    single_output(integer_matmul(n, operands, [2, 3], scales)?)
}

fn q_linear_mat_mul(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let scales = [scale(n, 1)?, scale(n, 4)?];
    let operands = [n.input(0)?, n.input(3)?];
    let accumulator = integer_matmul(n, operands, [2, 5], scales)?;
    if !n.shape(scales[0])?.is_empty() {
        return Err(n.invalid_node("a per-row scale of the first operand is not supported"));
    }
    let input_scale = n.op_without_attrs("multiply", &scales)?;
    single_output(requantize(n, accumulator, input_scale, 6, -1)?)
}
