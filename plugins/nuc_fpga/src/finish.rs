//! The integer work after a device call: what the operators after a sum compute, bit for bit.
//!
//! A value is one 32-bit integer on the way. Additions and casts wrap, as they do in the model. Scaling is in fixed
//! point: a factor is a 31-bit `multiplier` and a right `shift`, the product has 64 bits,
//!
//! ```text
//! p = value * multiplier
//! y = (p + 2^(shift - 1) - nudge) >> shift        nudge   UPWARD     0
//!                                                         TONEAREST  1 if p < 0
//!                                                         TOEVEN     1 if p >> shift is even
//! ```
//!
//! (halves go up, away from zero, to the even neighbour), which equals the formula with a left shift before the product (`qnn.requantize`, `fixed_point_multiply`: a power of two
//! `e` of the factor is `shift = 31 - e` here) in every bit, and never leaves 64 bits.

use byoc_plugin_api::{DType, Result, Services};
use serde::{Deserialize, Serialize};

/// The largest right shift: with more every product rounds to zero.
pub const MOST_SHIFT: u32 = 62;

/// Elements worked on at a time: they stay in the first cache.
const PIECE: usize = 1024;

/// An element type of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// 8 bits with a sign.
    Int8,
    /// 8 bits without a sign.
    Uint8,
    /// 32 bits with a sign.
    Int32,
}

impl Element {
    /// The type of that name on the boundary, if it is one of these.
    pub fn of(dtype: DType) -> Option<Element> {
        match dtype {
            DType::I8 => Some(Element::Int8),
            DType::U8 => Some(Element::Uint8),
            DType::I32 => Some(Element::Int32),
            _ => None,
        }
    }

    /// Bytes an element takes.
    pub fn size(self) -> usize {
        if self == Element::Int32 { 4 } else { 1 }
    }

    /// The smallest and the largest value.
    pub fn range(self) -> [i32; 2] {
        match self {
            Element::Int8 => [-128, 127],
            Element::Uint8 => [0, 255],
            Element::Int32 => [i32::MIN, i32::MAX],
        }
    }

    /// The type's name in C.
    pub fn c_name(self) -> &'static str {
        match self {
            Element::Int8 => "int8_t",
            Element::Uint8 => "uint8_t",
            Element::Int32 => "int32_t",
        }
    }
}

/// Where halves go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// Up.
    Upward,
    /// Away from zero.
    Tonearest,
    /// To the even neighbour.
    Toeven,
}

/// A factor in fixed point: `multiplier / 2^shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Factor(pub i32, pub u32);

/// One operator after the sum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Adds a constant of int32: one element per channel, or one for all.
    Bias {
        /// Its number.
        constant: usize,
        /// True if it has an element per channel.
        per_channel: bool,
    },
    /// Puts a value below or above the bounds on the bound.
    Clip {
        /// The lower bound.
        low: i32,
        /// The upper bound.
        high: i32,
    },
    /// Multiplies by a factor (one per channel, or one for all), saturates to 32 bits, adds the zero point, keeps within
    /// bounds.
    Requantize {
        /// The factors.
        factors: Vec<Factor>,
        /// Where halves go.
        rounding: Rounding,
        /// The zero point of the result.
        zero: i32,
        /// The bounds of the result.
        range: [i32; 2],
    },
    /// Multiplies by a factor; what does not fit into 32 bits wraps.
    FixedPoint {
        /// The factor.
        factor: Factor,
    },
    /// Takes the low bits as an element of that type.
    Cast {
        /// The type.
        to: Element,
    },
}

/// `value * factor`, rounded.
pub fn scale(value: i32, factor: Factor, rounding: Rounding) -> i64 {
    let Factor(multiplier, shift) = factor;
    let product = i64::from(value) * i64::from(multiplier);
    if shift == 0 {
        return product;
    }
    let nudge = match rounding {
        Rounding::Upward => 0,
        Rounding::Tonearest => i64::from(product < 0),
        Rounding::Toeven => 1 - ((product >> shift) & 1),
    };
    (product + (1i64 << (shift - 1)) - nudge) >> shift
}

impl Step {
    /// Does the step on the elements of one channel.
    fn apply(&self, values: &mut [i32], channel: usize, bias: &dyn Fn(usize) -> *const i32) {
        match self {
            Step::Bias { constant, per_channel } => {
                let at = if *per_channel { channel } else { 0 };
                // SAFETY: `Program::check` made sure that the constant has an element per channel, or one.
                let bias = unsafe { bias(*constant).add(at).read() };
                values.iter_mut().for_each(|v| *v = v.wrapping_add(bias));
            }
            Step::Clip { low, high } => values.iter_mut().for_each(|v| *v = (*v).max(*low).min(*high)),
            Step::Requantize { factors, rounding, zero, range } => {
                let factor = factors.get(channel).or(factors.first()).copied().unwrap_or(Factor(0, 1));
                let (zero, [low, high]) = (i64::from(*zero), range.map(i64::from));
                let end = |v: i64| (v.clamp(i32::MIN.into(), i32::MAX.into()) + zero).clamp(low, high) as i32;
                // One loop for each rounding: the choice is not made again for each element.
                match rounding {
                    Rounding::Upward => values.iter_mut().for_each(|v| *v = end(scale(*v, factor, Rounding::Upward))),
                    Rounding::Tonearest => {
                        values.iter_mut().for_each(|v| *v = end(scale(*v, factor, Rounding::Tonearest)));
                    }
                    Rounding::Toeven => values.iter_mut().for_each(|v| *v = end(scale(*v, factor, Rounding::Toeven))),
                }
            }
            Step::FixedPoint { factor } => {
                values.iter_mut().for_each(|v| *v = scale(*v, *factor, Rounding::Upward) as i32);
            }
            Step::Cast { to } => match to {
                Element::Int8 => values.iter_mut().for_each(|v| *v = i32::from(*v as i8)),
                Element::Uint8 => values.iter_mut().for_each(|v| *v = i32::from(*v as u8)),
                Element::Int32 => {}
            },
        }
    }
}

/// The bytes of a result, which tasks write in parts.
#[derive(Clone, Copy)]
pub struct Target(pub *mut u8);

// SAFETY: tasks write parts that do not overlap.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    /// The elements of a result of int32. A method, so that a task takes the whole and not the bare pointer.
    pub fn sums(self) -> *mut i32 {
        self.0.cast()
    }

    /// Writes elements from number `at` on.
    ///
    /// # Safety
    /// The memory holds them, is aligned to them, and nobody else touches them meanwhile.
    unsafe fn write(self, element: Element, at: usize, values: &[i32]) {
        macro_rules! store {
            ($ty:ty) => {{
                // SAFETY: the caller's contract.
                let to = unsafe { std::slice::from_raw_parts_mut(self.0.cast::<$ty>().add(at), values.len()) };
                for (to, &value) in to.iter_mut().zip(values) {
                    *to = value as $ty;
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

/// Does the steps on every sum. `bias` gives the elements of a constant.
///
/// # Errors
/// Where a task panicked.
///
/// # Safety
/// `out` holds as many elements as there are sums, apart from them, and nobody else touches it meanwhile; what `bias`
/// gives is as [`Step::Bias`] says.
pub unsafe fn run(
    services: &Services,
    steps: &[Step],
    element: Element,
    [outer, channels, inner]: [usize; 3],
    sums: &[i32],
    out: Target,
    bias: &(dyn Fn(usize) -> *const i32 + Sync),
) -> Result<()> {
    let rows = outer * channels;
    let tasks = (services.num_threads() * 4).min(sums.len() / PIECE + 1).min(rows.max(1));
    services.parallel_for(tasks, |task| {
        let mut piece = [0i32; PIECE];
        for row in rows * task / tasks..rows * (task + 1) / tasks {
            for start in (0..inner).step_by(PIECE) {
                let at = row * inner + start;
                let piece = &mut piece[..PIECE.min(inner - start)];
                piece.copy_from_slice(&sums[at..at + piece.len()]);
                steps.iter().for_each(|step| step.apply(piece, row % channels, &|i| bias(i)));
                // SAFETY: rows belong to one task each, and `out` holds all of them.
                unsafe { out.write(element, at, piece) };
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formula of the operators, with the left shift before the product, in 128 bits.
    fn wide(value: i32, multiplier: i32, exponent: i32, rounding: Rounding) -> i128 {
        let (left, right) = (exponent.max(0), (-exponent).max(0));
        let y = (i128::from(value) << left) * i128::from(multiplier);
        let shift = 31 + right;
        let nudge = match rounding {
            Rounding::Upward => 0,
            Rounding::Tonearest => i128::from(y < 0),
            Rounding::Toeven => 1 - ((y >> shift) & 1),
        };
        (y + (1i128 << (30 + right)) - nudge) >> (31 + right)
    }

    #[test]
    fn a_right_shift_alone_gives_the_bits_of_shifts_on_both_sides() {
        let values = [0, 1, -1, 2, -2, 3, -3, 127, -128, 12_345, -12_345, i32::MAX, i32::MIN, i32::MIN + 1, 1 << 30];
        let multipliers = [0, 1 << 30, (1 << 30) + 1, i32::MAX, i32::MAX - 1, 1_518_500_250];
        for exponent in -31..=31 {
            for value in values {
                for multiplier in multipliers {
                    for rounding in [Rounding::Upward, Rounding::Tonearest, Rounding::Toeven] {
                        let got = scale(value, Factor(multiplier, (31 - exponent) as u32), rounding);
                        let wanted = wide(value, multiplier, exponent, rounding);
                        assert_eq!(i128::from(got), wanted, "{value} {multiplier} {exponent} {rounding:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn halves_go_up_away_from_zero_or_to_the_even_neighbour() {
        // A half: 2^30 / 2^31.
        let half = Factor(1 << 30, 31);
        let round = |rounding| [-3, -1, 1, 3].map(|v| scale(v, half, rounding));
        assert_eq!(round(Rounding::Upward), [-1, 0, 1, 2]);
        assert_eq!(round(Rounding::Tonearest), [-2, -1, 1, 2]);
        assert_eq!(round(Rounding::Toeven), [-2, 0, 0, 2]);
    }
}
