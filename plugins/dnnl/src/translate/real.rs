//! Float arithmetic between an integer accumulation and the conversion back to 8 bits, if the model spells it out:
//! `cast` to floats, a bias, factors, bounds, a residual, and `cast` back.
//!
//! The last cast truncates, so one additional or omitted rounding before that cast can change the integer. The library
//! may fuse a multiplication and an addition into one operation; here each operation is rounded as written.

use super::Translation;
use crate::ir::{Kind, Result, Val};
use crate::qnn::stage::{PerAxis, Stage};
use byoc_plugin_api::DType;

impl Translation<'_> {
    /// Translates an operator on floats that were converted from integers by [`Stage::Convert`] or
    /// [`Stage::Dequantize`]. Returns `None` if this
    /// module does not support the operator.
    pub fn exact_real(&mut self, name: &str) -> Result<Option<Val>> {
        let shape = self.ir.shape(self.inputs[0]).to_vec();
        let stage = match (name, self.inputs) {
            ("nn.relu", &[x]) if self.is_exact(x) => (x, Stage::RealClamp { low: 0.0, high: f32::INFINITY }),
            ("clip", &[x]) if self.is_exact(x) => {
                let low = self.attrs.float("a_min", f64::NEG_INFINITY) as f32;
                let high = self.attrs.float("a_max", f64::INFINITY) as f32;
                (x, Stage::RealClamp { low, high })
            }
            ("add", &[x, y]) if self.is_exact(x) && self.is_exact(y) && shape == self.ir.shape(y) => {
                let (operand, stages) = self.trace_stages(y);
                let sum = self.ir.push(Kind::Stage(Stage::RealSum(stages)), &[x, operand], shape);
                return Ok(Some(sum));
            }
            ("add" | "multiply" | "nn.bias_add", &[a, b]) => {
                let (x, constant) = if self.is_exact(a) { (a, b) } else { (b, a) };
                if !self.is_exact(x) {
                    return Ok(None);
                }
                let axis = match name {
                    "nn.bias_add" => Some(self.attrs.axis("axis", 1, shape.len())?),
                    _ => None,
                };
                let Some(per_axis) = self.constant_per_axis(x, constant, axis) else { return Ok(None) };
                (x, if name == "multiply" { Stage::RealMultiply(per_axis) } else { Stage::RealAdd(per_axis) })
            }
            _ => return Ok(None),
        };
        let (x, stage) = stage;
        Ok(Some(self.push_stage(x, stage, DType::F32)))
    }

    fn is_exact(&self, value: Val) -> bool {
        let op = self.ir.producer(value);
        op.is_some_and(|op| matches!(&op.kind, Kind::Stage(stage) if stage.is_exact_real()))
    }

    /// Returns the values of the constant `operand`, if they vary along at most one axis of `x`.
    fn constant_per_axis(&self, x: Val, operand: Val, axis: Option<usize>) -> Option<PerAxis<f32>> {
        let constant = &self.ir.constants[self.ir.constant(operand)?];
        if constant.dtype() != DType::F32 {
            return None;
        }
        let (shape, operand_shape) = (self.ir.shape(x), self.ir.shape(operand));
        let values = constant.tensor().as_slice::<f32>().to_vec();
        let leading_dims = shape.len().checked_sub(operand_shape.len())?;
        let axis_index = axis.unwrap_or(leading_dims + operand_shape.iter().position(|&size| size != 1).unwrap_or(0));
        let is_valid = values.len() == 1 || shape.get(axis_index) == Some(&(values.len() as i64));
        is_valid.then_some(PerAxis { values, axis: axis_index })
    }

    /// Traces `value` back through stages with scalar parameters to a conversion from integers. Returns the converted
    /// tensor and the stages, or `value` and no stages.
    fn trace_stages(&self, value: Val) -> (Val, Vec<Stage>) {
        let (mut current, mut stages) = (value, Vec::new());
        while let Some(op) = self.ir.producer(current) {
            match &op.kind {
                Kind::Stage(stage @ (Stage::Convert(DType::F32) | Stage::Dequantize { .. })) if stage.is_uniform() => {
                    stages.push(stage.clone());
                    stages.reverse();
                    return (op.inputs[0], stages);
                }
                Kind::Stage(stage @ (Stage::RealMultiply(_) | Stage::RealAdd(_))) if stage.is_uniform() => {
                    stages.push(stage.clone());
                    current = op.inputs[0];
                }
                _ => break,
            }
        }
        (value, Vec::new())
    }
}
