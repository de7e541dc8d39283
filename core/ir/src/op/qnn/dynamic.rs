//! Quantization over the range of the values that a run has, and products that are converted to real numbers again.
//! These operators are not part of Relay: quantizers write them for networks whose ranges nobody has measured.

use super::fused::{accumulate_conv, accumulate_dense, check_operands};
use super::params::{Kind, check_parameter_type};
use super::{Arity, AttrDef, Evaluation, OpPattern, Relation};
use crate::diag::Diagnostic;
use crate::ir::{Dim, Type};
use crate::op::scalar::Writer;
use crate::op::{conv, dense};
use crate::tensor::{DType, TensorView, TensorViewMut};

/// Numbers quantized to uint8 over their range, extended to contain 0, as `DynamicQuantizeLinear` of ONNX does.
pub struct Quantized {
    /// Integers.
    pub values: Vec<u8>,
    /// Scale: 0 if all numbers are 0.
    pub scale: f32,
    /// Zero point.
    pub zero_point: u8,
}

impl Quantized {
    /// Quantizes numbers; those that are no numbers become 0.
    pub fn new(numbers: &[f64]) -> Quantized {
        let (min, max) = numbers.iter().fold((0f32, 0f32), |(min, max), &x| (min.min(x as f32), max.max(x as f32)));
        let (scale, zero_point) = Quantized::parameters(min, max);
        let integer = |x: f64| ((x as f32 / scale).round_ties_even() + f32::from(zero_point)).clamp(0.0, 255.0) as u8;
        Quantized { values: numbers.iter().map(|&x| integer(x)).collect(), scale, zero_point }
    }

    /// Returns the scale and the zero point for a range that contains 0.
    pub fn parameters(min: f32, max: f32) -> (f32, u8) {
        let scale = (max - min) / 255.0;
        // Without a range, the quotient is not a number, and the cast gives 0.
        (scale, (-min / scale).clamp(0.0, 255.0).round_ties_even() as u8)
    }
}

operator! {
    name: "qnn.contrib_dynamic_quantize",
    doc: "Quantizes to uint8 over the range of the values, extended to contain 0. The results are the integers \
          clip(round(data / scale) + zero_point, 0, 255), scale = (max - min) / 255, and zero_point = \
          clip(round(-min / scale), 0, 255) as uint8, computed in float32; halves are rounded to the even integer. \
          NaN becomes 0.",
    inputs: &["data"],
    relation: |relation| {
        let data = relation.tensor(0)?;
        if data.dtype != DType::F32 {
            return Err(relation.mismatch(format!("data: expected float32, found {}", data.dtype)));
        }
        let integers = Type::tensor_of(DType::U8, data.dims.iter().cloned());
        Ok(Type::tuple([integers, Type::tensor(DType::F32, &[]), Type::tensor(DType::U8, &[])]))
    },
    reference: Some(|_, inputs, outputs| {
        let quantized = Quantized::new(&inputs[0].to_f64s());
        let [integers, scale, zero_point] = outputs else { return Err("expected three results".into()) };
        Writer::new(integers).store(quantized.values.into_iter().map(f64::from));
        Writer::new(scale).set_float(0, f64::from(quantized.scale));
        Writer::new(zero_point).set_int(0, i128::from(quantized.zero_point));
        Ok(())
    }),
    flops: |cost| 6 * cost.args.first().and_then(Type::as_tensor).and_then(|data| data.len()).unwrap_or(0) as u64,
}

const INPUTS: &[&str] = &["data", "weight", "bias", "input_zero_point", "kernel_zero_point", "scale"];

operator! {
    name: "qnn.contrib_conv2d_dequantize",
    doc: "scale * qnn.conv2d(data, weight) + bias in float32, of int32 accumulators; scale is a scalar or has one \
          element for each output channel, as bias has.",
    arity: Arity::exactly(6),
    inputs: INPUTS,
    attrs: &conv::attrs_2d(OUT_DTYPE),
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| {
        let ty = conv::conv_relation::<2>(relation)?;
        check(relation, relation.params.string("kernel_layout").find('O').unwrap_or(0))?;
        Ok(ty)
    },
    reference: Some(|params, inputs, outputs| {
        let (accumulators, channel) = accumulate_conv(&params, inputs, outputs);
        dequantize(inputs, outputs, &accumulators, channel)
    }),
    flops: conv::conv_flops::<2>,
}

operator! {
    name: "qnn.contrib_dense_dequantize",
    doc: "scale * qnn.dense(data, weight) + bias in float32, of int32 accumulators; scale is a scalar or has one \
          element for each unit, as bias has.",
    arity: Arity::exactly(6),
    inputs: INPUTS,
    attrs: &[dense::UNITS, OUT_DTYPE],
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| {
        let ty = dense::matmul_relation(relation)?;
        check(relation, 0)?;
        Ok(ty)
    },
    reference: Some(|params, inputs, outputs| {
        let accumulators = accumulate_dense(&params, inputs, outputs);
        dequantize(inputs, outputs, &accumulators, 1)
    }),
    flops: dense::flops,
}

const OUT_DTYPE: AttrDef = AttrDef::new("out_dtype", super::AttrKind::DType, super::Default::Str("float32"), "float32");

/// Checks element types, zero points, scale and bias; `axis` of the weight holds the output channels.
fn check(relation: &Relation<'_>, axis: usize) -> Result<(), Box<Diagnostic>> {
    let channels: Dim = check_operands(relation, axis, DType::F32)?;
    // A scale that a run determines may be 0.
    check_parameter_type(relation, 5, Kind::Scale, Some(&channels))?;
    match relation.params.dtype("out_dtype") {
        Some(DType::F32) => Ok(()),
        _ => Err(relation.mismatch("out_dtype: expected float32".to_owned())),
    }
}

/// Scales the accumulators and adds the bias; consecutive channels are `inner` elements apart.
fn dequantize(
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
    accumulators: &[i64],
    inner: usize,
) -> Evaluation {
    let [bias, scales] = [2, 5].map(|i| inputs[i].as_slice::<f32>());
    let real = |(i, &sum): (usize, &i64)| {
        let channel = i / inner % bias.len();
        let scale = scales[if scales.len() == 1 { 0 } else { channel }];
        f64::from(sum as i32 as f32 * scale + bias[channel])
    };
    Writer::new(&mut outputs[0]).store(accumulators.iter().enumerate().map(real));
    Ok(())
}
