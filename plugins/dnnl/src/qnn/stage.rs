//! Semantics of the operators that follow an integer accumulation.

use super::ratio::{Ratios, Rounding};
use byoc_plugin_api::DType;

/// Per-tensor or per-axis parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct PerAxis<T> {
    /// Single value, or one value per index along the axis.
    pub values: Vec<T>,
    /// Axis along which the values vary; unused for a single value.
    pub axis: usize,
}

/// Operand of a sum, requantized to the scale of the result: `round((x - in_zero_point) * ratio) + out_zero_point`,
/// with ties rounded up, saturated to `int32`.
#[derive(Clone, Debug, PartialEq)]
pub struct SumOperand {
    /// Zero point of the operand.
    pub in_zero_point: i32,
    /// Ratio of the operand's scale to the result's scale.
    pub ratios: Ratios,
    /// Zero point of the result.
    pub out_zero_point: i32,
}

/// Elementwise operator after an integer accumulation.
#[derive(Clone, Debug, PartialEq)]
pub enum Stage {
    /// Adds a parameter to `int32` values, wrapping.
    Offset(PerAxis<i32>),
    /// Requantization: `round((x - in_zero_point) * ratio) + out_zero_point`, saturated to the type of the result.
    Rescale {
        /// Zero point of the operand.
        in_zero_point: i32,
        /// Ratio of the operand's scale to the result's scale.
        ratios: Ratios,
        /// Axis of the ratios.
        axis: usize,
        /// Rounding of ties.
        rounding: Rounding,
        /// Zero point of the result.
        out_zero_point: i32,
        /// Type of the result.
        out_dtype: DType,
    },
    /// Clamps integers to `[low, high]`.
    Clamp { low: i32, high: i32 },
    /// Entry of a table for each byte, whose bits are the index.
    Lookup(Box<[i32; 256]>),
    /// Sum with a second tensor, which may be broadcast. Operands are requantized to the result's scale; an operand that
    /// is `None` already has that scale. The result's zero point is subtracted, and the sum is saturated to the result's
    /// type.
    Sum {
        /// Left and right operands.
        operands: [Option<SumOperand>; 2],
        /// Zero point of the result.
        zero: i32,
        /// Type of the result.
        out_dtype: DType,
    },
    /// Product of two tensors of bytes, `(x - zeros[0]) * (y - zeros[1])`, in `int32`. The second tensor may be broadcast.
    Product {
        /// Zero points of the operands.
        zeros: [i32; 2],
    },
    /// Dequantization: `(x - zero) * scale`, as a float.
    Dequantize {
        /// Zero point of the operand.
        zero: i32,
        /// Scale of the operand.
        scale: PerAxis<f32>,
    },
    /// Quantization: `round(x / scale) + zero`, saturated to the type of the result; NaN becomes 0.
    Quantize {
        /// Scale of the result.
        scale: f32,
        /// Zero point of the result.
        zero: i32,
        /// Rounding of ties.
        rounding: Rounding,
        /// Type of the result.
        out_dtype: DType,
    },
    /// `cast`: integers wrap; floats are truncated toward zero and saturate, and NaN becomes 0.
    Convert(DType),
    /// Adds a scalar or per-channel operand to floats.
    RealAdd(PerAxis<f32>),
    /// Multiplies floats by a scalar or per-channel operand.
    RealMultiply(PerAxis<f32>),
    /// Clamps floats to `[low, high]`.
    RealClamp { low: f32, high: f32 },
    /// Float sum with a second tensor. These stages, all with scalar parameters, are first applied to the second
    /// tensor.
    RealSum(Vec<Stage>),
}

impl Stage {
    /// Returns true if the stage's parameters do not vary along an axis.
    pub fn is_uniform(&self) -> bool {
        match self {
            Stage::Dequantize { scale: parameter, .. } | Stage::RealAdd(parameter) | Stage::RealMultiply(parameter) => {
                parameter.values.len() == 1
            }
            _ => true,
        }
    }

    /// Returns true if the stage produces floats that are later converted back to integers. Each such operation must be
    /// rounded as written, so it is not left to the library, which may fuse two operations.
    pub fn is_exact_real(&self) -> bool {
        matches!(
            self,
            Stage::Convert(DType::F32)
                | Stage::Dequantize { .. }
                | Stage::RealAdd(_)
                | Stage::RealMultiply(_)
                | Stage::RealClamp { .. }
                | Stage::RealSum(_)
        )
    }
}

/// Returns the minimum and the maximum of an integer type.
pub fn range(dtype: DType) -> (i32, i32) {
    match dtype {
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::U8 => (0, u8::MAX.into()),
        _ => (i32::MIN, i32::MAX),
    }
}
