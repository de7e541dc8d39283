//! Quantized operators. Most of them dequantize their operands, compute in float32, and quantize the result.

use super::{Node, Outputs, Result, Row, attrs, math, single_output};
use crate::ops::pool::{Kind, pool_of};
use crate::ops::quant::{integer_matmul, quantize_ratio, requantize, scale, zero_point};
use byoc_ir::ir::ExprId;
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("DynamicQuantizeMatMul", 1, dynamic_quantize_matmul),
    ("MatMulIntegerToFloat", 1, |n| {
        let operands = [n.input(0)?, n.input(1)?];
        let scales = [n.input(2)?, n.input(3)?];
        single_output(matmul_to_float(n, operands, [4, 5], scales, 6)?)
    }),
    ("MatMulNBits", 1, matmul_n_bits),
    ("QGemm", 1, q_gemm),
    ("QLinearAdd", 1, |n| binary(n, "add")),
    ("QLinearAveragePool", 1, |n| {
        let real_data = dequantize_input(n, 0)?;
        let result =
            apply_channels_first(n, real_data, |n, data| pool_of(n, data, Kind::Average).map(|outputs| outputs[0]))?;
        quantize_result(n, result, 3)
    }),
    ("QLinearConcat", 1, |n| {
        let operands = (2..n.input_count()).step_by(3).map(|i| dequantize_input(n, i)).collect::<Result<Vec<_>>>()?;
        let Some(&first_operand) = operands.first() else {
            return Err(n.invalid_node("expected at least one tensor, found none"));
        };
        let axis = n.axis(n.int_attr("axis", 0)?, n.rank(first_operand)?)?;
        let concatenation = n.concatenate(&operands, axis as i64)?;
        quantize_result(n, concatenation, 0)
    }),
    ("QLinearGlobalAveragePool", 1, |n| {
        let real_data = dequantize_input(n, 0)?;
        let result = apply_channels_first(n, real_data, |n, data| {
            let rank = n.rank(data)? as i64;
            n.op("mean", &[data], attrs![axis: byoc_ir::ir::AttrValue::ints(2..rank), keepdims: true])
        })?;
        quantize_result(n, result, 3)
    }),
    ("QLinearLeakyRelu", 1, |n| {
        let (real_data, alpha) = (dequantize_input(n, 0)?, n.float_attr("alpha", 0.01)?);
        let result = n.op("nn.leaky_relu", &[real_data], attrs![alpha: alpha])?;
        quantize_result(n, result, 3)
    }),
    ("QLinearMul", 1, |n| binary(n, "multiply")),
    ("QLinearSigmoid", 1, |n| {
        let real_data = dequantize_input(n, 0)?;
        let result = n.op_without_attrs("sigmoid", &[real_data])?;
        quantize_result(n, result, 3)
    }),
    ("QLinearSoftmax", 1, |n| {
        let real_data = dequantize_input(n, 0)?;
        let dims = n.dims(real_data)?;
        let axis = n.axis(n.int_attr("axis", -1)?, dims.len())?;
        // Before opset 13, softmax normalizes over `axis` and all later axes together.
        if n.int_attr("opset", 13)? < 13 && axis + 1 < dims.len() {
            let matrix = n.flatten_at(&dims, axis)?;
            let flat = n.reshape_to(real_data, &matrix)?;
            let softmax = n.op("nn.softmax", &[flat], attrs![axis: -1])?;
            let result = n.reshape_to(softmax, &dims)?;
            return quantize_result(n, result, 3);
        }
        let result = n.op("nn.softmax", &[real_data], attrs![axis: axis as i64])?;
        quantize_result(n, result, 3)
    }),
    ("QLinearWhere", 1, |n| {
        let (condition, a, b) = (n.input(0)?, dequantize_input(n, 1)?, dequantize_input(n, 4)?);
        let result = n.op_without_attrs("where", &[condition, a, b])?;
        quantize_result(n, result, 7)
    }),
];

/// Dequantizes the tensor at input `i`; the next two inputs are its scale and zero point.
fn dequantize_input(n: &mut Node<'_, '_>, i: usize) -> Result<ExprId> {
    let data = n.input(i)?;
    let dtype = n.dtype(data)?;
    let (scale, zero_point) = (scale(n, i + 1)?, zero_point(n, i + 2, dtype)?);
    n.op("qnn.dequantize", &[data, scale, zero_point], attrs![axis: -1, out_dtype: DType::F32])
}

/// Quantizes the result with the scale at input `i` and the zero point at input `i + 1`. Plain arithmetic is used,
/// because the integer operators of the QNN dialect round each operand.
fn quantize_result(n: &mut Node<'_, '_>, value: ExprId, i: usize) -> Result<Outputs> {
    // Without a zero point, the result has the element type of the quantized data.
    let dtype = match n.optional_input(i + 1) {
        Some(zero_point) => n.dtype(zero_point)?,
        None => n.dtype(n.input(0)?)?,
    };
    let (scale, zero_point) = (scale(n, i)?, zero_point(n, i + 1, dtype)?);
    let ratio = n.op_without_attrs("divide", &[value, scale])?;
    single_output(quantize_ratio(n, ratio, Some(zero_point), dtype)?)
}

fn binary(n: &mut Node<'_, '_>, op: &str) -> Result<Outputs> {
    let operands = [dequantize_input(n, 0)?, dequantize_input(n, 3)?];
    let result = n.op_without_attrs(op, &operands)?;
    quantize_result(n, result, 6)
}

/// Applies a function that expects the channels on axis 1. If the attribute `channels_last` is set, the data is
/// transposed to channels-first order, and the result is transposed back.
fn apply_channels_first(
    n: &mut Node<'_, '_>,
    data: ExprId,
    function: impl FnOnce(&mut Node<'_, '_>, ExprId) -> Result<ExprId>,
) -> Result<ExprId> {
    if n.int_attr("channels_last", 0)? == 0 {
        return function(n, data);
    }
    let rank = n.rank(data)?;
    let channels_first_axes: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let channels_last_axes: Vec<usize> = std::iter::once(0).chain(2..rank).chain([1]).collect();
    let channels_first_data = n.transpose(data, &channels_first_axes)?;
    let result = function(n, channels_first_data)?;
    n.transpose(result, &channels_last_axes)
}

/// Multiplies integer matrices, and dequantizes the accumulators to float32. `bias` is the index of the optional bias
/// input.
fn matmul_to_float(
    n: &mut Node<'_, '_>,
    operands: [ExprId; 2],
    zero_at: [usize; 2],
    scales: [ExprId; 2],
    bias: usize,
) -> Result<ExprId> {
    let one = n.scalar(DType::F32, 1.0);
    let accumulator = integer_matmul(n, operands, zero_at, [one, one])?;
    let float_value = n.cast(accumulator, DType::F32)?;
    let factor = n.op_without_attrs("multiply", &scales)?;
    let product = n.op_without_attrs("multiply", &[float_value, factor])?;
    match n.optional_input(bias) {
        Some(bias) => n.op_without_attrs("add", &[product, bias]),
        None => Ok(product),
    }
}

/// Converts DynamicQuantizeMatMul: quantizes the first operand to uint8 over its value range, and multiplies it by the
/// second.
fn dynamic_quantize_matmul(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let dynamic_outputs = crate::ops::quant::dynamic_quantize(n)?;
    let [data, data_scale, data_zero] = dynamic_outputs[..] else {
        return Err(n.invalid_node(format!("quantized data: expected 3 results, found {}", dynamic_outputs.len())));
    };
    let weight = n.input(1)?;
    let dtype = n.dtype(weight)?;
    let (zero_point, weight_zero) = (n.cast(data_zero, DType::I32)?, zero_point(n, 3, dtype)?);
    let data = n.cast(data, DType::I32)?;
    let data = n.op_without_attrs("subtract", &[data, zero_point])?;
    let weight = n.cast(weight, DType::I32)?;
    let weight = n.op_without_attrs("subtract", &[weight, weight_zero])?;
    let accumulator = math::matmul(n, data, weight, None)?;
    let float_value = n.cast(accumulator, DType::F32)?;
    let factor = n.op_without_attrs("multiply", &[data_scale, n.input(2)?])?;
    let product = n.op_without_attrs("multiply", &[float_value, factor])?;
    single_output(match n.optional_input(4) {
        Some(bias) => n.op_without_attrs("add", &[product, bias])?,
        None => product,
    })
}

/// Computes alpha * A * B + C on integers. The result is float32 if the node has no output scale.
fn q_gemm(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let mut operands = [n.input(0)?, n.input(3)?];
    for (value, attribute) in operands.iter_mut().zip(["transA", "transB"]) {
        if n.int_attr(attribute, 0)? != 0 {
            *value = n.transpose(*value, &[1, 0])?;
        }
    }
    let unit_scale = n.scalar(DType::F32, 1.0);
    let mut product = integer_matmul(n, operands, [2, 5], [unit_scale, unit_scale])?;
    if let Some(bias) = n.optional_input(6) {
        product = n.op_without_attrs("add", &[product, bias])?;
    }
    let scales = [scale(n, 1)?, scale(n, 4)?];
    let factor = n.op_without_attrs("multiply", &scales)?;
    let factor = n.with_scalar("multiply", factor, n.float_attr("alpha", 1.0)?)?;
    if n.optional_input(7).is_some() {
        return single_output(requantize(n, product, factor, 7, -1)?);
    }
    let float_value = n.cast(product, DType::F32)?;
    single_output(n.op_without_attrs("multiply", &[float_value, factor])?)
}

/// Multiplies by a transposed, block-quantized matrix. Its 2-bit, 4-bit or 8-bit elements are packed into bytes, with
/// the first element in the lowest bits.
fn matmul_n_bits(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, packed_weight, scales) = (n.input(0)?, n.input(1)?, n.input(2)?);
    if n.optional_input(4).is_some() {
        return Err(n.invalid_node("input 4 (g_idx) is not supported"));
    }
    let dtype = n.dtype(data)?;
    let positive = |name: &str, default: i64| -> Result<usize> {
        let value = n.int_attr(name, default)?;
        let count = usize::try_from(value).ok().filter(|count| (1..1 << 31).contains(count));
        count.ok_or_else(|| n.invalid_node(format!("attribute {name}: expected an integer >= 1, found {value}")))
    };
    let (rows, columns, bits, block) =
        (positive("K", 0)?, positive("N", 0)?, positive("bits", 4)?, positive("block_size", 32)?);
    if ![2, 4, 8].contains(&bits) {
        return Err(n.invalid_node(format!("attribute bits: expected 2, 4 or 8, found {bits}")));
    }
    let blocks = rows.div_ceil(block);
    let integers = unpack(n, packed_weight, bits)?;
    let integers = n.reshape(integers, &[columns, blocks, block])?;
    let float_value = n.cast(integers, dtype)?;
    let zero_point = match n.optional_input(3) {
        None => n.scalar(dtype, f64::from(1u8 << (bits - 1))),
        Some(zero_point) if n.dtype(zero_point)? == DType::U8 => {
            let elements_per_byte = 8 / bits;
            let bytes = blocks.div_ceil(elements_per_byte);
            let zero_point = n.reshape(zero_point, &[columns, bytes])?;
            let zero_point = unpack(n, zero_point, bits)?;
            let zero_point = n.reshape(zero_point, &[columns, bytes * elements_per_byte])?;
            let zero_point = n.slice(zero_point, 1, 0, blocks)?;
            let zero_point = n.cast(zero_point, dtype)?;
            n.reshape(zero_point, &[columns, blocks, 1])?
        }
        Some(zero_point) => {
            let zero_point = n.cast(zero_point, dtype)?;
            n.reshape(zero_point, &[columns, blocks, 1])?
        }
    };
    let scales = n.cast(scales, dtype)?;
    let scales = n.reshape(scales, &[columns, blocks, 1])?;
    let difference = n.op_without_attrs("subtract", &[float_value, zero_point])?;
    let weight = n.op_without_attrs("multiply", &[difference, scales])?;
    let weight = n.reshape(weight, &[columns, blocks * block])?;
    let weight = n.slice(weight, 1, 0, rows)?;
    let product = n.op("nn.dense", &[data, weight], attrs![units: columns as i64])?;
    single_output(match n.optional_input(5) {
        Some(bias) => n.op_without_attrs("add", &[product, bias])?,
        None => product,
    })
}

/// Unpacks bytes into `bits`-bit integers along a new last axis.
fn unpack(n: &mut Node<'_, '_>, bytes: ExprId, bits: usize) -> Result<ExprId> {
    let mut fields = Vec::with_capacity(8 / bits);
    for i in 0..8 / bits {
        let shifted_bytes = n.with_scalar("right_shift", bytes, (i * bits) as f64)?;
        let mask = f64::from((1u16 << bits) - 1);
        fields.push(n.with_scalar("bitwise_and", shifted_bytes, mask)?);
    }
    let fields = n.tuple(&fields)?;
    n.op("stack", &[fields], attrs![axis: -1])
}
