//! Epilogue of a device call: computes the operators that follow a layer, bit-exact with the model.
//!
//! Intermediate values are 32-bit integers. Additions and casts wrap, as in the model. Scaling is in fixed point: a
//! factor consists of a 31-bit `multiplier` and a right `shift`, and the product has 64 bits,
//!
//! ```text
//! p = value * multiplier
//! y = (p + 2^(shift - 1) - nudge) >> shift        nudge   UPWARD     0
//!                                                         TONEAREST  1 if p < 0
//!                                                         TOEVEN     1 if p >> shift is even
//! ```
//!
//! which rounds ties up, away from zero, or to even. The result is bit-exact with the formula of `qnn.requantize` and
//! `fixed_point_multiply`, which shifts left before the multiplication (exponent `e` of the factor corresponds to
//! `shift = 31 - e` here), and `p` never overflows 64 bits.

use byoc_plugin_api::{DType, Result, Services};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum right shift; beyond it every product rounds to zero.
pub const MAX_SHIFT: u32 = 62;

/// Number of elements processed at a time, which fit into the L1 cache.
const BLOCK: usize = 1024;

/// Element type of a tensor in a command list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// Signed 8-bit integer.
    Int8,
    /// Unsigned 8-bit integer.
    Uint8,
    /// Signed 32-bit integer.
    Int32,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Element::Int8 => "int8",
            Element::Uint8 => "uint8",
            Element::Int32 => "int32",
        })
    }
}

impl Element {
    /// Converts an element type of the plugin API; `None` if the type is unsupported.
    pub fn of(dtype: DType) -> Option<Element> {
        match dtype {
            DType::I8 => Some(Element::Int8),
            DType::U8 => Some(Element::Uint8),
            DType::I32 => Some(Element::Int32),
            _ => None,
        }
    }

    /// Returns the size of an element in bytes.
    pub fn size(self) -> usize {
        if self == Element::Int32 { 4 } else { 1 }
    }

    /// Returns the minimum and maximum value.
    pub fn range(self) -> [i32; 2] {
        match self {
            Element::Int8 => [-128, 127],
            Element::Uint8 => [0, 255],
            Element::Int32 => [i32::MIN, i32::MAX],
        }
    }

    /// Returns the C name of the type.
    pub fn c_name(self) -> &'static str {
        match self {
            Element::Int8 => "int8_t",
            Element::Uint8 => "uint8_t",
            Element::Int32 => "int32_t",
        }
    }
}

/// Rounding of ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// Toward positive infinity.
    Upward,
    /// Away from zero.
    Tonearest,
    /// To even.
    Toeven,
}

/// Fixed-point factor: `multiplier / 2^shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Factor(pub i32, pub u32);

/// Epilogue operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum EpilogueOp {
    /// Adds an int32 constant with one element, or one element per channel.
    Bias {
        constant: usize,
        /// True if the constant has one element per channel.
        per_channel: bool,
    },
    /// Clamps to a range.
    Clip {
        /// Lower bound.
        low: i32,
        /// Upper bound.
        high: i32,
    },
    /// Multiplies by a common or per-channel factor, saturates to 32 bits, adds the zero point and clamps.
    Requantize {
        /// Common factor, or one factor per channel.
        factors: Vec<Factor>,
        /// Rounding of the product.
        rounding: Rounding,
        /// Zero point of the result.
        zero: i32,
        /// Minimum and maximum of the result.
        range: [i32; 2],
    },
    /// Multiplies by a factor; 32-bit overflow wraps.
    FixedPoint { factor: Factor },
    /// Truncates to an element type; overflow wraps.
    Cast {
        /// Element type of the result.
        to: Element,
    },
}

/// Returns the rounded product `value * factor`.
pub fn scale(value: i32, factor: Factor, rounding: Rounding) -> i64 {
    let Factor(multiplier, shift) = factor;
    let product = i64::from(value) * i64::from(multiplier);
    if shift == 0 {
        return product;
    }
    let tie_term = match rounding {
        Rounding::Upward => 0,
        Rounding::Tonearest => i64::from(product < 0),
        Rounding::Toeven => 1 - ((product >> shift) & 1),
    };
    (product + (1i64 << (shift - 1)) - tie_term) >> shift
}

impl EpilogueOp {
    /// Applies the operation to elements of one channel.
    fn apply(&self, values: &mut [i32], channel: usize, bias: &dyn Fn(usize) -> *const i32) {
        match self {
            EpilogueOp::Bias { constant, per_channel } => {
                let index = if *per_channel { channel } else { 0 };
                // SAFETY: `CommandList::check` ensures that the constant has one element, or one per channel.
                let bias = unsafe { bias(*constant).add(index).read() };
                values.iter_mut().for_each(|v| *v = v.wrapping_add(bias));
            }
            EpilogueOp::Clip { low, high } => values.iter_mut().for_each(|v| *v = (*v).max(*low).min(*high)),
            EpilogueOp::Requantize { factors, rounding, zero, range } => {
                let factor = factors.get(channel).or(factors.first()).copied().unwrap_or(Factor(0, 1));
                let (zero, [low, high]) = (i64::from(*zero), range.map(i64::from));
                let end = |v: i64| (v.clamp(i32::MIN.into(), i32::MAX.into()) + zero).clamp(low, high) as i32;
                // A separate loop for each rounding keeps the branch out of the loops.
                match rounding {
                    Rounding::Upward => values.iter_mut().for_each(|v| *v = end(scale(*v, factor, Rounding::Upward))),
                    Rounding::Tonearest => {
                        values.iter_mut().for_each(|v| *v = end(scale(*v, factor, Rounding::Tonearest)));
                    }
                    Rounding::Toeven => values.iter_mut().for_each(|v| *v = end(scale(*v, factor, Rounding::Toeven))),
                }
            }
            EpilogueOp::FixedPoint { factor } => {
                values.iter_mut().for_each(|v| *v = scale(*v, *factor, Rounding::Upward) as i32);
            }
            EpilogueOp::Cast { to } => match to {
                Element::Int8 => values.iter_mut().for_each(|v| *v = i32::from(*v as i8)),
                Element::Uint8 => values.iter_mut().for_each(|v| *v = i32::from(*v as u8)),
                Element::Int32 => {}
            },
        }
    }
}

/// Memory of a result, in which tasks write disjoint parts.
#[derive(Clone, Copy)]
pub struct Target(pub *mut u8);

// SAFETY: tasks write disjoint parts, as the callers of `write` and `sums` guarantee.
unsafe impl Send for Target {}
// SAFETY: tasks write disjoint parts, as the callers of `write` and `sums` guarantee.
unsafe impl Sync for Target {}

impl Target {
    /// Returns a pointer to the elements of an int32 result. Because this is a method, a closure captures the `Target`,
    /// which is `Send`, and not the raw pointer in it, which is not.
    pub fn sums(self) -> *mut i32 {
        self.0.cast()
    }

    /// Writes elements, beginning at index `offset`.
    ///
    /// # Safety
    /// The memory must contain these elements and be aligned for them. Nothing else may access them during the call.
    unsafe fn write(self, element: Element, offset: usize, values: &[i32]) {
        macro_rules! store {
            ($ty:ty) => {{
                // SAFETY: the caller guarantees bounds, alignment and exclusive access.
                let target = unsafe { std::slice::from_raw_parts_mut(self.0.cast::<$ty>().add(offset), values.len()) };
                for (slot, &value) in target.iter_mut().zip(values) {
                    *slot = value as $ty;
                }
            }};
        }
        match element {
            Element::Int8 => store!(i8),
            Element::Uint8 => store!(u8),
            Element::Int32 => store!(i32),
        }
    }
}

/// Applies the operations to every accumulator. `bias` returns a pointer to the elements of a constant.
///
/// # Errors
/// If a task panics.
///
/// # Safety
/// `out` must have one element per accumulator, not overlap `accumulators`, and not be accessed by anything else during
/// the call. `bias` must return a pointer to the elements that [`EpilogueOp::Bias`] reads.
pub unsafe fn run(
    services: &Services,
    steps: &[EpilogueOp],
    element: Element,
    [outer, channels, inner]: [usize; 3],
    accumulators: &[i32],
    out: Target,
    bias: &(dyn Fn(usize) -> *const i32 + Sync),
) -> Result<()> {
    let rows = outer * channels;
    let tasks = (services.num_threads() * 4).min(accumulators.len() / BLOCK + 1).min(rows.max(1));
    services.parallel_for(tasks, |task| {
        let mut block = [0i32; BLOCK];
        for row in rows * task / tasks..rows * (task + 1) / tasks {
            for start in (0..inner).step_by(BLOCK) {
                let offset = row * inner + start;
                let block = &mut block[..BLOCK.min(inner - start)];
                block.copy_from_slice(&accumulators[offset..offset + block.len()]);
                steps.iter().for_each(|step| step.apply(block, row % channels, &|i| bias(i)));
                // SAFETY: each row belongs to one task, and the caller guarantees that `out` contains all rows.
                unsafe { out.write(element, offset, block) };
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates the formula of the operators, with the left shift before the multiplication, in 128 bits.
    fn formula(value: i32, multiplier: i32, exponent: i32, rounding: Rounding) -> i128 {
        let (left_shift, right) = (exponent.max(0), (-exponent).max(0));
        let y = (i128::from(value) << left_shift) * i128::from(multiplier);
        let shift = 31 + right;
        let tie_term = match rounding {
            Rounding::Upward => 0,
            Rounding::Tonearest => i128::from(y < 0),
            Rounding::Toeven => 1 - ((y >> shift) & 1),
        };
        (y + (1i128 << (30 + right)) - tie_term) >> (31 + right)
    }

    #[test]
    fn right_shift_alone_equals_shifts_on_both_sides() {
        let values = [0, 1, -1, 2, -2, 3, -3, 127, -128, 12_345, -12_345, i32::MAX, i32::MIN, i32::MIN + 1, 1 << 30];
        let multipliers = [0, 1 << 30, (1 << 30) + 1, i32::MAX, i32::MAX - 1, 1_518_500_250];
        for exponent in -31..=31 {
            for value in values {
                for multiplier in multipliers {
                    for rounding in [Rounding::Upward, Rounding::Tonearest, Rounding::Toeven] {
                        let actual = scale(value, Factor(multiplier, (31 - exponent) as u32), rounding);
                        let expected = formula(value, multiplier, exponent, rounding);
                        assert_eq!(i128::from(actual), expected, "{value} {multiplier} {exponent} {rounding:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn rounds_halves_up_away_from_zero_or_to_even() {
        // The factor is one half: 2^30 / 2^31.
        let one_half = Factor(1 << 30, 31);
        let round = |rounding| [-3, -1, 1, 3].map(|v| scale(v, one_half, rounding));
        assert_eq!(round(Rounding::Upward), [-1, 0, 1, 2]);
        assert_eq!(round(Rounding::Tonearest), [-2, -1, 1, 2]);
        assert_eq!(round(Rounding::Toeven), [-2, 0, 0, 2]);
    }
}
