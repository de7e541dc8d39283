//! Quantized concatenation and quantized average pooling.

use super::Translation;
use super::quantized::{dtype_error, is_byte};
use crate::ir::{Kind, Result, Val};
use crate::library::ffi;
use crate::qnn::ratio::{Ratios, Rounding};
use crate::qnn::{IntAvgPool, Stage};
use byoc_plugin_api::DType;

impl Translation<'_> {
    /// Concatenates tensors, all requantized to the scale of the result.
    pub fn quantized_concat(&mut self, out_dtype: DType) -> Result<Val> {
        // Tuples are flattened: the tensors, their scales, their zero points, then the output's scale and zero point.
        let count = self.inputs.len().saturating_sub(2) / 3;
        if count == 0 || self.inputs.len() != 3 * count + 2 || !is_byte(out_dtype) {
            return Err(dtype_error(format!(
                "expected 3n + 2 operands for n parts and an int8 or uint8 result, found {} and {out_dtype}",
                self.inputs.len()
            )));
        }
        let (scale, out_zero_point) =
            (self.scale(3 * count, "output scale")?, self.zero_point(3 * count + 1, "output zero point")?);
        let mut rescaled_operands = Vec::with_capacity(count);
        for index in 0..count {
            let x = self.inputs[index];
            if self.ir.get(x).dtype != out_dtype {
                return Err(dtype_error(format!("part {index}: expected {out_dtype}, found {}", self.ir.get(x).dtype)));
            }
            let in_scale = self.scale(count + index, &format!("scale of part {index}"))?;
            let in_zero_point = self.zero_point(2 * count + index, &format!("zero point of part {index}"))?;
            rescaled_operands.push(match in_scale == scale && in_zero_point == out_zero_point {
                true => x,
                false => {
                    let ratios = Ratios::new(&[in_scale], scale, false);
                    let stage = Stage::Rescale {
                        in_zero_point,
                        ratios,
                        axis: 0,
                        rounding: Rounding::Up,
                        out_zero_point,
                        out_dtype,
                    };
                    self.push_stage(x, stage, out_dtype)
                }
            });
        }
        let axis = self.attrs.axis("axis", 0, self.rank(rescaled_operands[0]))?;
        self.concat(&rescaled_operands, axis)
    }

    /// Adds an average pooling with float results, followed by their quantization to 8 bits.
    pub fn avg_pool(&mut self, in_dtype: DType, out_dtype: DType) -> Result<Val> {
        if !is_byte(in_dtype) || in_dtype != out_dtype {
            return Err(dtype_error(format!(
                "operand and result: expected the same 8-bit type, found {in_dtype} and {out_dtype}"
            )));
        }
        let (scale, zero) = (self.scale(1, "input scale")?, self.zero_point(2, "input zero point")?);
        let (out_scale, out_zero_point) = (self.scale(3, "output scale")?, self.zero_point(4, "output zero point")?);
        let includes_padding = self.attrs.flag("count_include_pad", false);
        let alg = if includes_padding { ffi::POOLING_AVG_INCLUDE_PADDING } else { ffi::POOLING_AVG_EXCLUDE_PADDING };
        let float_result = self.pool_with(alg, DType::F32, |window| {
            Kind::IntAvgPool(IntAvgPool { window, includes_padding, zero, scale })
        })?;
        let stage = Stage::Quantize { scale: out_scale, zero: out_zero_point, rounding: Rounding::Away, out_dtype };
        Ok(self.push_stage(float_result, stage, out_dtype))
    }
}
