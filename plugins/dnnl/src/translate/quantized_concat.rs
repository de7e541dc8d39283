//! Quantized operators with several inputs or window elements: concatenation and average pooling.

use super::Translation;
use super::quantized::{is_byte, wrong_dtype};
use crate::library::ffi;
use crate::program::{Kind, Taken, Val};
use crate::qnn::ratio::{Ratios, Rounding};
use crate::qnn::{Mean, Stage};
use byoc_plugin_api::DType;

impl Translation<'_> {
    /// Concatenates tensors, all rescaled to the scale of the result.
    pub fn joined(&mut self, to: DType) -> Taken<Val> {
        // Tuples come flattened: the tensors, their scales, their zero points, then the output's scale and zero point.
        let count = self.inputs.len().saturating_sub(2) / 3;
        if count == 0 || self.inputs.len() != 3 * count + 2 || !is_byte(to) {
            return Err(wrong_dtype(format!(
                "expected 3 n + 2 operands with an int8 or uint8 result, found {} with {to}",
                self.inputs.len()
            )));
        }
        let (scale, zero_out) =
            (self.scale(3 * count, "the output's scale")?, self.zero_point(3 * count + 1, "the output's zero point")?);
        let mut parts = Vec::with_capacity(count);
        for part in 0..count {
            let x = self.inputs[part];
            if self.p.get(x).dtype != to {
                return Err(wrong_dtype(format!("part {part}: expected {to}, found {}", self.p.get(x).dtype)));
            }
            let from = self.scale(count + part, &format!("the scale of part {part}"))?;
            let zero_in = self.zero_point(2 * count + part, &format!("the zero point of part {part}"))?;
            parts.push(match from == scale && zero_in == zero_out {
                true => x,
                false => {
                    let by = Ratios::new(&[from], scale, false);
                    let stage = Stage::Rescale { zero_in, by, axis: 0, rounding: Rounding::Up, zero_out, to };
                    self.behind(x, stage, to)
                }
            });
        }
        let axis = self.attrs.axis("axis", 0, self.rank(parts[0]))?;
        self.concat(&parts, axis)
    }

    /// Adds an average pooling with real results, and their quantization to bytes.
    pub fn mean(&mut self, from: DType, to: DType) -> Taken<Val> {
        if !is_byte(from) || from != to {
            return Err(wrong_dtype(format!("expected int8 or uint8 throughout, found {from} to {to}")));
        }
        let (scale, zero) = (self.scale(1, "the input's scale")?, self.zero_point(2, "the input's zero point")?);
        let (scale_out, zero_out) =
            (self.scale(3, "the output's scale")?, self.zero_point(4, "the output's zero point")?);
        let padded = self.attrs.flag("count_include_pad", false);
        let alg = if padded { ffi::POOLING_AVG_INCLUDE_PADDING } else { ffi::POOLING_AVG_EXCLUDE_PADDING };
        let real = self.pool_by(alg, DType::F32, |window| Kind::Mean(Mean { window, padded, zero, scale }))?;
        let stage = Stage::Quantize { scale: scale_out, zero: zero_out, rounding: Rounding::Away, to };
        Ok(self.behind(real, stage, to))
    }
}
