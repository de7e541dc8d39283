//! Requirements of int8 devices on a quantized layer.

use crate::operands::elements;
use crate::refusal::{CompileError, refuse, refuse_with_hint};
use crate::region::{Op, RegionIr};
use byoc_plugin_api::{DType, Quantization, RefusalCode};

/// Returns the quantization scheme of int8 devices: zero points of 0, a scale per output channel for weights, and
/// accumulators and biases in int32.
pub fn quantization(power_of_two: bool) -> Quantization {
    Quantization {
        activation: "int8".into(),
        weight: "int8".into(),
        accumulator: "int32".into(),
        symmetric: true,
        per_channel: true,
        power_of_two,
    }
}

/// Hints of a refusal: how a user gets a model that the device takes.
#[derive(Clone, Copy, Debug)]
pub struct Hints {
    /// For a floating-point model.
    pub quantize: &'static str,
    /// For a model in another quantization scheme.
    pub scheme: &'static str,
}

impl Hints {
    /// Checks the element types of a convolution or dense layer, int8 operands and an int32 result, and the zero points
    /// of a QNN operator.
    ///
    /// # Errors
    /// If an element type or a zero point is different, or a zero point is not constant.
    pub fn check_layer(&self, ir: &RegionIr<'_>, op: &Op<'_>) -> Result<(), CompileError> {
        for (i, &input) in op.inputs.iter().take(2).enumerate() {
            let dtype = ir.val(input).dtype;
            if dtype != DType::I8 {
                let hint = if dtype.is_float() { self.quantize } else { self.scheme };
                let detail = format!("input {i}: expected int8, found {dtype}");
                return refuse_with_hint(RefusalCode::UnsupportedDtype, detail, hint);
            }
        }
        let dtype = ir.val(op.outputs[0]).dtype;
        if dtype != DType::I32 {
            let detail = format!("result: expected int32, found {dtype}");
            return refuse_with_hint(RefusalCode::UnsupportedDtype, detail, "set out_dtype=\"int32\"");
        }
        if op.name.starts_with("qnn.") {
            self.check_zero_point(ir, op, 2, "input zero point")?;
            self.check_zero_point(ir, op, 3, "kernel zero point")?;
        }
        Ok(())
    }

    /// Checks that the zero point at operand `input` is 0.
    ///
    /// # Errors
    /// If it is not, or is not constant.
    pub fn check_zero_point(
        &self,
        ir: &RegionIr<'_>,
        op: &Op<'_>,
        input: usize,
        name: &str,
    ) -> Result<(), CompileError> {
        let zeros = elements(ir, op, input, DType::I32, name, |t| t.as_slice::<i32>().to_vec())?;
        match zeros.iter().find(|zero| **zero != 0) {
            Some(zero) => {
                refuse_with_hint(RefusalCode::QuantScheme, format!("{name}: expected 0, found {zero}"), self.scheme)
            }
            None => Ok(()),
        }
    }
}

/// Checks that an operator has exactly one result, as every operator of such devices does.
///
/// # Errors
/// If it has none or several.
pub fn check_single_result(op: &Op<'_>) -> Result<(), CompileError> {
    match op.outputs.len() {
        1 => Ok(()),
        n => refuse(RefusalCode::UnsupportedOp, format!("{}: expected 1 result, found {n}", op.name)),
    }
}
