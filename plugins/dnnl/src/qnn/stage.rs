//! What the operators behind sums of integers compute.

use super::ratio::{Ratios, Rounding};
use byoc_plugin_api::DType;

/// One value for all elements, or one for each place on an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Along<T> {
    /// One, or as many as the axis has places.
    pub values: Vec<T>,
    /// The axis; any where there is one value.
    pub axis: usize,
}

/// An operand of a sum, brought to the scale of the result: `round((x - zero_in) ratio) + zero_out`, halves up, saturated to
/// `int32`.
#[derive(Clone, Debug, PartialEq)]
pub struct Side {
    /// The zero point that it has.
    pub zero_in: i32,
    /// From its scale to that of the result.
    pub by: Ratios,
    /// The zero point of the result.
    pub zero_out: i32,
}

/// A function of each element.
#[derive(Clone, Debug, PartialEq)]
pub enum Stage {
    /// `int32`: the sum with these numbers, wrapping.
    Offset(Along<i32>),
    /// `round((x - zero_in) ratio) + zero_out`, saturated to the type of the result.
    Rescale {
        /// The zero point that it has.
        zero_in: i32,
        /// From its scale to that of the result.
        by: Ratios,
        /// The axis of the ratios.
        axis: usize,
        /// Halves.
        rounding: Rounding,
        /// The zero point of the result.
        zero_out: i32,
        /// The type of the result.
        to: DType,
    },
    /// Held between two integers.
    Clamp {
        /// The least.
        low: i32,
        /// The greatest.
        high: i32,
    },
    /// The sum with a second tensor, both brought to the scale of the result (`None`: they have it), less its zero point,
    /// saturated to the type of the result.
    Sum {
        /// Left and right.
        sides: [Option<Side>; 2],
        /// The zero point of the result.
        zero: i32,
        /// The type of the result.
        to: DType,
    },
    /// The real number: `(x - zero) scale`.
    Dequantize {
        /// The zero point.
        zero: i32,
        /// The scale.
        scale: Along<f32>,
    },
    /// From a real number: `round(x / scale) + zero`, saturated to the type of the result; NaN becomes 0.
    Quantize {
        /// The scale.
        scale: f32,
        /// The zero point.
        zero: i32,
        /// Halves.
        rounding: Rounding,
        /// The type of the result.
        to: DType,
    },
    /// `cast`: integers wrap; a real number becomes the integer toward zero, saturating, and NaN becomes 0.
    Convert(DType),
    /// A real number and one of these, added.
    RealAdd(Along<f32>),
    /// A real number and one of these, multiplied.
    RealMultiply(Along<f32>),
    /// A real number held between two.
    RealClamp {
        /// The least.
        low: f32,
        /// The greatest.
        high: f32,
    },
    /// The sum with a second tensor behind these stages, which take one number for all elements.
    RealSum(Vec<Stage>),
}

impl Stage {
    /// Returns true if it gives real numbers that a conversion to integers is on its way from: each step of them is rounded as
    /// it is written, so that none may be left to a library that takes two for one.
    pub fn is_exact_real(&self) -> bool {
        matches!(
            self,
            Stage::Convert(DType::F32)
                | Stage::RealAdd(_)
                | Stage::RealMultiply(_)
                | Stage::RealClamp { .. }
                | Stage::RealSum(_)
        )
    }
}

/// The least and the greatest value of an integer type.
pub fn range(dtype: DType) -> (i32, i32) {
    match dtype {
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::U8 => (0, u8::MAX.into()),
        _ => (i32::MIN, i32::MAX),
    }
}
