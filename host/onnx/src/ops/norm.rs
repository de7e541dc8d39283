//! Normalization and softmax.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use crate::tensor;
use byoc_ir::ir::{AttrValue, Dim, ExprId};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("BatchNormalization", 7, batch_norm),
    ("GroupNormalization", 18, group_norm),
    ("Hardmax", 1, |n| {
        let data = n.input(0)?;
        let dims = n.dims(data)?;
        let axis = n.int_attr("axis", 1)?;
        let axis = if axis == dims.len() as i64 { dims.len() } else { n.axis(axis, dims.len())? };
        let matrix = n.flatten_at(&dims, axis)?;
        let flat = n.reshape_to(data, &matrix)?;
        let largest = hard_max(n, flat, 1)?;
        single_output(n.reshape_to(largest, &dims)?)
    }),
    ("Hardmax", 13, |n| {
        let data = n.input(0)?;
        let axis = n.axis(n.int_attr("axis", -1)?, n.rank(data)?)?;
        single_output(hard_max(n, data, axis)?)
    }),
    ("InstanceNormalization", 1, instance_norm),
    ("LRN", 1, lrn),
    // ONNX Runtime's optimizer emits this operator before opset 17, which adopted it.
    ("LayerNormalization", 1, layer_norm),
    ("LogSoftmax", 1, |n| softmax_flat(n, "nn.log_softmax")),
    ("LogSoftmax", 13, |n| softmax(n, "nn.log_softmax")),
    ("LpNormalization", 1, lp_norm),
    ("MeanVarianceNormalization", 9, mean_variance),
    ("RMSNormalization", 23, rms_norm),
    // ONNX Runtime's optimizer emits this operator in the standard domain.
    ("SimplifiedLayerNormalization", 1, rms_norm),
    ("Softmax", 1, |n| softmax_flat(n, "nn.softmax")),
    ("Softmax", 13, |n| softmax(n, "nn.softmax")),
];

/// Converts BatchNormalization in training mode: normalizes with the batch statistics, and also returns the updated
/// running statistics.
fn training_batch_norm(n: &mut Node<'_, '_>) -> Result<Outputs> {
    if n.opset < 14 {
        return Err(n.invalid_node("batch normalization in training mode is not supported before opset 14"));
    }
    let input = n.input(0)?;
    let data = n.widen(input)?;
    let (compute_dtype, dims) = (n.dtype(data)?, n.dims(data)?);
    if dims.len() < 2 {
        return Err(n.invalid_node(format!("expected data of rank 2 or more, found {}", n.ty(data)?)));
    }
    let axes: Vec<i64> = (0..dims.len() as i64).filter(|&axis| axis != 1).collect();
    let mean = n.op("mean", &[data], attrs![axis: AttrValue::from(axes.clone()), keepdims: true])?;
    let centered_data = n.op_without_attrs("subtract", &[data, mean])?;
    let square = n.op_without_attrs("multiply", &[centered_data, centered_data])?;
    let variance = n.op("mean", &[square], attrs![axis: AttrValue::from(axes.clone()), keepdims: true])?;
    let epsilon = n.float_attr("epsilon", 1e-5)?;
    let shifted_variance = n.with_scalar("add", variance, epsilon)?;
    let deviation = n.op_without_attrs("sqrt", &[shifted_variance])?;
    let normalized_data = n.op_without_attrs("divide", &[centered_data, deviation])?;
    let mut channel_shape = vec![1i64; dims.len()];
    channel_shape[1] = -1;
    let mut channel_parameter = |i: usize| {
        let value = n.input(i)?;
        let value = n.cast(value, compute_dtype)?;
        n.op("reshape", &[value], attrs![newshape: AttrValue::from(channel_shape.clone())])
    };
    let (scale, bias) = (channel_parameter(1)?, channel_parameter(2)?);
    let scaled_data = n.op_without_attrs("multiply", &[normalized_data, scale])?;
    let result = n.op_without_attrs("add", &[scaled_data, bias])?;
    let result = n.cast(result, n.dtype(input)?)?;
    let momentum = n.float_attr("momentum", 0.9)?;
    let mut running_average = |i: usize, batch_statistic: ExprId| {
        let batch_statistic = n.op("squeeze", &[batch_statistic], attrs![axis: AttrValue::from(axes.clone())])?;
        let running_value = n.input(i)?;
        let dtype = n.dtype(running_value)?;
        let running_value = n.cast(running_value, compute_dtype)?;
        let kept_part = n.with_scalar("multiply", running_value, momentum)?;
        let added_part = n.with_scalar("multiply", batch_statistic, 1.0 - momentum)?;
        let average = n.op_without_attrs("add", &[kept_part, added_part])?;
        n.cast(average, dtype)
    };
    let (mean, variance) = (running_average(3, mean)?, running_average(4, variance)?);
    Ok(vec![result, mean, variance])
}

pub(super) fn batch_norm(n: &mut Node<'_, '_>) -> Result<Outputs> {
    if n.int_attr("training_mode", 0)? != 0 || (n.opset < 14 && (1..5).any(|i| n.has_output(i))) {
        return training_batch_norm(n);
    }
    let data = n.input(0)?;
    let dtype = n.dtype(data)?;
    let mut args = vec![data];
    for i in 1..5 {
        let value = n.input(i)?;
        args.push(n.cast(value, dtype)?);
    }
    let epsilon = n.float_attr("epsilon", 1e-5)?;
    let batch_norm_results = n.op("nn.batch_norm", &args, attrs![epsilon: epsilon])?;
    single_output(n.project(batch_norm_results, 0)?)
}

fn instance_norm(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let args = [n.input(0)?, n.input(1)?, n.input(2)?];
    let epsilon = n.float_attr("epsilon", 1e-5)?;
    single_output(n.op("nn.instance_norm", &args, attrs![axis: 1, epsilon: epsilon])?)
}

/// Converts GroupNormalization. Scale and bias are per-group before opset 21, and per-channel since opset 21.
fn group_norm(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let ty = n.ty(data)?;
    let groups = n.int_attr("num_groups", 0)?;
    // Since opset 21, the parameters are per-channel, so they determine the number of channels if the type of the data
    // does not.
    let parameter_channels = if n.opset < 21 { None } else { n.dims(n.input(1)?)?.first().and_then(Dim::fixed) };
    let Some(channels) = ty.dims.get(1).and_then(Dim::fixed).or(parameter_channels) else {
        return Err(n.unknown_dims_error(&ty));
    };
    if groups < 1 || channels % groups as usize != 0 {
        return Err(
            n.invalid_node(format!("attribute num_groups: expected a divisor of {channels} channels, found {groups}"))
        );
    }
    let mut args = vec![data];
    for i in 1..3 {
        let mut value = n.input(i)?;
        if n.opset < 21 {
            let repeats = channels as i64 / groups;
            value = n.op("repeat", &[value], attrs![repeats: repeats, axis: 0])?;
        }
        args.push(value);
    }
    let epsilon = n.float_attr("epsilon", 1e-5)?;
    // The statistics have the element type `stash_type`; only the result is rounded.
    let dtype = n.dtype(data)?;
    let stash_dtype = if n.opset < 21 { dtype } else { stash_type(n)? };
    let args = args.iter().map(|&arg| n.cast(arg, stash_dtype)).collect::<Result<Vec<_>>>()?;
    let normalized_data = n.op("nn.group_norm", &args, attrs![num_groups: groups, axis: 1, epsilon: epsilon])?;
    single_output(n.cast(normalized_data, dtype)?)
}

/// Converts LayerNormalization over `axis` and all later axes; several axes are merged by a reshape.
fn layer_norm(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, gamma, beta) = (n.input(0)?, n.input(1)?, n.optional_input(2));
    let rank = n.rank(data)?;
    let axis = n.axis(n.int_attr("axis", -1)?, rank)?;
    let epsilon = n.float_attr("epsilon", 1e-5)?;
    let mut outputs = vec![layer_norm_from(n, data, axis, [Some(gamma), beta], epsilon)?];
    if n.has_output(1) || n.has_output(2) {
        let axes = AttrValue::ints(axis as i64..rank as i64);
        let stash_dtype = stash_type(n)?;
        let data = n.cast(data, stash_dtype)?;
        let mean = n.op("mean", &[data], attrs![axis: axes.clone(), keepdims: true])?;
        let variance = n.op("variance", &[data, mean], attrs![axis: axes, keepdims: true])?;
        let shifted_variance = n.with_scalar("add", variance, epsilon)?;
        outputs.extend([mean, n.op_without_attrs("rsqrt", &[shifted_variance])?]);
    }
    Ok(outputs)
}

/// Applies layer normalization over the last axis.
pub(super) fn layer_norm_of(
    n: &mut Node<'_, '_>,
    data: ExprId,
    gamma: ExprId,
    beta: Option<ExprId>,
    epsilon: f64,
) -> Result<ExprId> {
    let rank = n.rank(data)?;
    layer_norm_from(n, data, rank - 1, [Some(gamma), beta], epsilon)
}

/// Applies layer normalization over `axis` and all later axes, which are merged by a reshape.
fn layer_norm_from(
    n: &mut Node<'_, '_>,
    data: ExprId,
    axis: usize,
    parameters: [Option<ExprId>; 2],
    epsilon: f64,
) -> Result<ExprId> {
    let (dims, dtype) = (n.dims(data)?, n.dtype(data)?);
    let inner_dims = dims[axis..].to_vec();
    let width = Dim::product(&inner_dims).ok_or_else(|| n.product_error(&inner_dims))?;
    let mut vectors = Vec::with_capacity(2);
    for (parameter, default) in parameters.into_iter().zip([1.0, 0.0]) {
        let mut value = match parameter {
            Some(value) => n.cast(value, dtype)?,
            None => n.scalar(dtype, default),
        };
        if n.dims(value)? != inner_dims {
            value = n.broadcast_to(value, &inner_dims)?;
        }
        vectors.push(n.reshape_to(value, std::slice::from_ref(&width))?);
    }
    let mut flat_dims = dims[..axis].to_vec();
    flat_dims.push(width);
    let flat = n.reshape_to(data, &flat_dims)?;
    let normalized_data = n.op("nn.layer_norm", &[flat, vectors[0], vectors[1]], attrs![axis: -1, epsilon: epsilon])?;
    n.reshape_to(normalized_data, &dims)
}

fn lrn(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let (alpha, beta, bias) = (n.float_attr("alpha", 0.0001)?, n.float_attr("beta", 0.75)?, n.float_attr("bias", 1.0)?);
    let size = n.int_attr("size", 0)?;
    single_output(n.op("nn.lrn", &[data], attrs![size: size, axis: 1, bias: bias, alpha: alpha, beta: beta])?)
}

/// Computes data / (sum |data|^p)^(1/p) along an axis.
fn lp_norm(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let axis = n.axis(n.int_attr("axis", -1)?, n.rank(data)?)? as i64;
    let reduce_attrs = attrs![axis: [axis], keepdims: true];
    let norm = match n.int_attr("p", 2)? {
        1 => {
            let size = n.op_without_attrs("abs", &[data])?;
            n.op("sum", &[size], reduce_attrs)?
        }
        2 => {
            let square = n.op_without_attrs("multiply", &[data, data])?;
            let sum = n.op("sum", &[square], reduce_attrs)?;
            n.op_without_attrs("sqrt", &[sum])?
        }
        other => return Err(n.invalid_node(format!("attribute p: expected 1 or 2, found {other}"))),
    };
    // A zero norm is replaced with 1, so that the result is zero as well.
    let is_zero = n.with_scalar("equal", norm, 0.0)?;
    let one_value = n.scalar(n.dtype(data)?, 1.0);
    let divisor = n.op_without_attrs("where", &[is_zero, one_value, norm])?;
    single_output(n.op_without_attrs("divide", &[data, divisor])?)
}

/// Computes (data - mean) / (standard deviation + 1e-9).
fn mean_variance(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let input = n.input(0)?;
    let data = n.widen(input)?;
    let axes = n.ints_attr("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let reduce_attrs = attrs![axis: axes, keepdims: true];
    let mean = n.op("mean", &[data], reduce_attrs.clone())?;
    let variance = n.op("variance", &[data, mean], reduce_attrs)?;
    let deviation = n.op_without_attrs("sqrt", &[variance])?;
    let shifted_deviation = n.with_scalar("add", deviation, 1e-9)?;
    let centered_data = n.op_without_attrs("subtract", &[data, mean])?;
    let normalized_data = n.op_without_attrs("divide", &[centered_data, shifted_deviation])?;
    single_output(n.cast(normalized_data, n.dtype(input)?)?)
}

fn softmax(n: &mut Node<'_, '_>, op: &str) -> Result<Outputs> {
    let data = n.input(0)?;
    let axis = n.axis(n.int_attr("axis", -1)?, n.rank(data)?)?;
    single_output(n.op(op, &[data], attrs![axis: relative_axis(axis, n.rank(data)?)])?)
}

/// Converts Softmax before opset 13: the data is flattened at `axis` to a matrix, and each row is normalized.
fn softmax_flat(n: &mut Node<'_, '_>, op: &str) -> Result<Outputs> {
    let data = n.input(0)?;
    let dims = n.dims(data)?;
    let axis = n.int_attr("axis", 1)?;
    let axis = if axis == dims.len() as i64 { dims.len() } else { n.axis(axis, dims.len())? };
    if axis + 1 == dims.len() {
        return single_output(n.op(op, &[data], attrs![axis: -1])?);
    }
    let matrix = n.flatten_at(&dims, axis)?;
    let flat = n.reshape_to(data, &matrix)?;
    let normalized_data = n.op(op, &[flat], attrs![axis: -1])?;
    single_output(n.reshape_to(normalized_data, &dims)?)
}

/// Returns 1 at the first maximum along an axis, and 0 elsewhere.
fn hard_max(n: &mut Node<'_, '_>, data: ExprId, axis: usize) -> Result<ExprId> {
    let (dtype, dims) = (n.dtype(data)?, n.dims(data)?);
    if dims.iter().any(|dim| dim.fixed() == Some(0)) {
        return Ok(data);
    }
    if let Some(depth) = dims[axis].fixed() {
        let index = n.op("argmax", &[data], attrs![axis: [axis as i64]])?;
        let (one_value, zero_value) = (n.scalar(dtype, 1.0), n.scalar(dtype, 0.0));
        return n.op(
            "one_hot",
            &[index, one_value, zero_value],
            attrs![depth: depth as i64, axis: axis as i64, dtype: dtype],
        );
    }
    let index = n.op("argmax", &[data], attrs![axis: [axis as i64], keepdims: true])?;
    let positions = n.indices_along(data, axis)?;
    let index = n.cast(index, DType::I64)?;
    let is_maximum = n.op_without_attrs("equal", &[positions, index])?;
    n.cast(is_maximum, dtype)
}

/// Computes scale * data / sqrt(mean(data^2) + epsilon), with the mean over `axis` and all later axes, in the element
/// type `stash_type`.
fn rms_norm(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, scale) = (n.input(0)?, n.input(1)?);
    let axis = n.axis(n.int_attr("axis", -1)?, n.rank(data)?)?;
    let (epsilon, stash_dtype) = (n.float_attr("epsilon", 1e-5)?, stash_type(n)?);
    let [normalized_data, reciprocal] = rms_norm_from(n, data, scale, axis, epsilon, stash_dtype)?;
    Ok(if n.has_output(1) { vec![normalized_data, reciprocal] } else { vec![normalized_data] })
}

/// Normalizes by the root mean square over the last axis.
pub(super) fn rms_norm_of(n: &mut Node<'_, '_>, data: ExprId, scale: ExprId, epsilon: f64) -> Result<ExprId> {
    let rank = n.rank(data)?;
    let [normalized_data, _] = rms_norm_from(n, data, scale, rank - 1, epsilon, DType::F32)?;
    Ok(normalized_data)
}

/// Returns the normalized data, and the reciprocal of the root mean square.
fn rms_norm_from(
    n: &mut Node<'_, '_>,
    data: ExprId,
    scale: ExprId,
    axis: usize,
    epsilon: f64,
    stash_dtype: DType,
) -> Result<[ExprId; 2]> {
    let (dtype, rank) = (n.dtype(data)?, n.rank(data)?);
    let widened_data = n.cast(data, stash_dtype)?;
    let square = n.op_without_attrs("multiply", &[widened_data, widened_data])?;
    let reduce_attrs = attrs![axis: AttrValue::ints(axis as i64..rank as i64), keepdims: true];
    let mean = n.op("mean", &[square], reduce_attrs)?;
    let shifted_mean = n.with_scalar("add", mean, epsilon)?;
    let root = n.op_without_attrs("sqrt", &[shifted_mean])?;
    let normalized_data = n.op_without_attrs("divide", &[widened_data, root])?;
    let normalized_data = n.cast(normalized_data, dtype)?;
    let scale = n.cast(scale, dtype)?;
    let one = n.scalar(stash_dtype, 1.0);
    let reciprocal = n.op_without_attrs("divide", &[one, root])?;
    Ok([n.op_without_attrs("multiply", &[normalized_data, scale])?, reciprocal])
}

/// Returns the element type of the statistics of a normalization, float32 by default.
fn stash_type(n: &Node<'_, '_>) -> Result<DType> {
    let dtype_number = i32::try_from(n.int_attr("stash_type", 1)?).unwrap_or(0);
    tensor::dtype(dtype_number)
        .ok_or_else(|| n.invalid_node(format!("attribute stash_type: expected an element type, found {dtype_number}")))
}

/// Returns `axis`, or -1 for the last axis. The value -1 is the default, and the value that patterns match.
fn relative_axis(axis: usize, rank: usize) -> i64 {
    if axis + 1 == rank { -1 } else { axis as i64 }
}
