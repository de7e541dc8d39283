//! Quantized operators. Most of them dequantize their operands, compute in float32, and quantize the result.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use crate::ops::pool::{Kind, pool_of};
use crate::ops::quant::{self, dynamic_matmul, integer_matmul, requantize, scale, zero_point};
use crate::ops::recurrent;
use byoc_ir::ir::ExprId;
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("DequantizeLinear", 1, quant::dequantize),
    ("DynamicQuantizeLSTM", 1, recurrent::dynamic_quantize_lstm),
    ("DynamicQuantizeMatMul", 1, dynamic_quantize_matmul),
    ("MatMulIntegerToFloat", 1, |n| {
        let operands = [n.input(0)?, n.input(1)?];
        let scales = [n.input(2)?, n.input(3)?];
        single_output(matmul_to_float(n, operands, [4, 5], scales, 6)?)
    }),
    ("NhwcMaxPool", 1, |n| {
        let data = n.input(0)?;
        single_output(apply_channels_first(n, data, |n, data| pool_of(n, data, Kind::Max).map(|outputs| outputs[0]))?)
    }),
    ("QGemm", 1, q_gemm),
    ("QLinearAdd", 1, |n| binary(n, "add")),
    ("QLinearAveragePool", 1, |n| {
        let real_data = dequantize_input(n, 0)?;
        let result =
            apply_in_layout(n, real_data, |n, data| pool_of(n, data, Kind::Average).map(|outputs| outputs[0]))?;
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
    ("QLinearConv", 1, |n| {
        let data = n.input(0)?;
        single_output(apply_in_layout(n, data, quant::q_linear_conv_of)?)
    }),
    ("QLinearGlobalAveragePool", 1, |n| {
        let real_data = dequantize_input(n, 0)?;
        let result = apply_in_layout(n, real_data, |n, data| {
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
    ("QuantizeLinear", 1, quant::quantize),
];

/// Dequantizes the tensor at input `i`; the next two inputs are its scale and zero point.
fn dequantize_input(n: &mut Node<'_, '_>, i: usize) -> Result<ExprId> {
    let data = n.input(i)?;
    let dtype = n.dtype(data)?;
    let (scale, zero_point) = (scale(n, i + 1)?, zero_point(n, i + 2, dtype)?);
    n.op("qnn.dequantize", &[data, scale, zero_point], attrs![axis: -1, out_dtype: DType::F32])
}

/// Quantizes the result with the scale at input `i` and the zero point at input `i + 1`. The operators before it stay in
/// float32, because the integer operators of the QNN dialect round each operand.
fn quantize_result(n: &mut Node<'_, '_>, value: ExprId, i: usize) -> Result<Outputs> {
    // Without a zero point, the result has the element type of the quantized data.
    let dtype = match n.optional_input(i + 1) {
        Some(zero_point) => n.dtype(zero_point)?,
        None => n.dtype(n.input(0)?)?,
    };
    let (scale, zero_point) = (scale(n, i)?, zero_point(n, i + 1, dtype)?);
    let attrs = attrs![axis: -1, out_dtype: dtype, rounding: "TOEVEN", compute_dtype: "float32"];
    single_output(n.op("qnn.quantize", &[value, scale, zero_point], attrs)?)
}

fn binary(n: &mut Node<'_, '_>, op: &str) -> Result<Outputs> {
    let operands = [dequantize_input(n, 0)?, dequantize_input(n, 3)?];
    let result = n.op_without_attrs(op, &operands)?;
    quantize_result(n, result, 6)
}

/// Applies a function that expects the channels on axis 1, to data in the layout that the attribute `channels_last`
/// selects.
fn apply_in_layout(
    n: &mut Node<'_, '_>,
    data: ExprId,
    function: impl FnOnce(&mut Node<'_, '_>, ExprId) -> Result<ExprId>,
) -> Result<ExprId> {
    match n.int_attr("channels_last", 0)? {
        0 => function(n, data),
        _ => apply_channels_first(n, data, function),
    }
}

/// Applies a function that expects the channels on axis 1 to data whose channels are on the last axis. The result has
/// the same layout as the data.
fn apply_channels_first(
    n: &mut Node<'_, '_>,
    data: ExprId,
    function: impl FnOnce(&mut Node<'_, '_>, ExprId) -> Result<ExprId>,
) -> Result<ExprId> {
    let rank = n.rank(data)?;
    if rank < 3 {
        return Err(n.invalid_node(format!("expected data of rank 3 or more, found {}", n.ty(data)?)));
    }
    let channels_first_axes: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let channels_last_axes: Vec<usize> = std::iter::once(0).chain(2..rank).chain([1]).collect();
    let channels_first_data = n.transpose(data, &channels_first_axes)?;
    let result = function(n, channels_first_data)?;
    n.transpose(result, &channels_last_axes)
}

/// Multiplies integer matrices, and dequantizes the accumulators to float32. `bias` is the index of the optional bias
/// input.
pub(super) fn matmul_to_float(
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
    let (data, weight, weight_scale) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let weight_zero = zero_point(n, 3, n.dtype(weight)?)?;
    let product = dynamic_matmul(n, data, [weight, weight_zero, weight_scale])?;
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
