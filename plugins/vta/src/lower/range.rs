//! Accumulator ranges, and shifts that rescale accumulators.
//!
//! `qnn.requantize` with a scale ratio of `2^-n` and halves rounded upward equals `(x + 2^(n-1)) >> n` if the addition
//! does not overflow. Per-channel ranges prove that it does not; they are known because weights and biases are
//! constant.

use byoc_vta_machine::isa::AluOp;

/// Minimum and maximum of an accumulator.
pub type Range = [i64; 2];

/// Range of int32.
pub const INT32: Range = [i32::MIN as i64, i32::MAX as i64];

/// Range of int8.
pub const INT8: Range = [i8::MIN as i64, i8::MAX as i64];

/// Maximum shift amount that all devices interpret alike.
pub const MAX_SHIFT: i64 = 15;

/// Operation on the accumulators of all channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelStep {
    /// Operation with one operand for all channels.
    Immediate(AluOp, i16),
    /// Operation with one operand per channel.
    Vector(AluOp, Vec<i32>),
}

/// Error in scaling accumulators by shifts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScaleError {
    /// An accumulator may overflow int32. Contains its maximum absolute value.
    Overflow(i64),
    /// The shifts of two channels differ by more than the device can shift. Contains the difference.
    Spread(i64),
}

fn saturating_range([low, high]: Range, add: i64, left_shift: i64) -> Option<Range> {
    let scale = |value: i64| value.checked_mul(1i64.checked_shl(left_shift as u32)?)?.checked_add(add);
    let range = [scale(low)?, scale(high)?];
    (range[0] >= INT32[0] && range[1] <= INT32[1]).then_some(range)
}

/// Returns the operations that scale the accumulators of each channel by `2^-shift`, with halves rounded upward.
///
/// # Errors
/// If an accumulator may overflow, or the shifts differ too much.
pub fn scale(ranges: &[Range], shifts: &[i64]) -> Result<Vec<ChannelStep>, ScaleError> {
    // A channel with a constant accumulator, such as one with zero weights, accepts any shift.
    let shift_if_varying = |(range, shift): (&Range, &i64)| (range[0] != range[1]).then_some(*shift);
    let varying_shifts: Vec<i64> = ranges.iter().zip(shifts).filter_map(shift_if_varying).collect();
    let (min, max) = match (varying_shifts.iter().min(), varying_shifts.iter().max()) {
        (Some(min), Some(max)) => (*min, *max),
        _ => (0, 0),
    };
    let has_constant = ranges.iter().any(|range| range[0] == range[1]);
    if min == max && min < 0 && !has_constant {
        return left_shifts(ranges, -min);
    }
    let left_shift = (-min).max(0);
    if left_shift > MAX_SHIFT {
        return Err(ScaleError::Spread(max - min));
    }
    let mut plan = Vec::with_capacity(ranges.len());
    for (range, shift) in ranges.iter().zip(shifts) {
        plan.push(channel_scale(*range, *shift, left_shift, max + left_shift)?);
    }
    let mut steps = Vec::new();
    if left_shift > 0 {
        steps.push(ChannelStep::Immediate(AluOp::Shr, -left_shift as i16));
    }
    let (addends, amounts): (Vec<i64>, Vec<i64>) = plan.into_iter().unzip();
    if addends.iter().any(|addend| *addend != 0) {
        steps.push(addition(&addends));
    }
    steps.extend(shifts_right(&amounts));
    Ok(steps)
}

/// Returns the addend and the right shift of a channel, after the left shift by `left_shift` that all channels share.
/// `common_shift` is the right shift of a channel with a constant accumulator.
fn channel_scale(range: Range, shift: i64, left_shift: i64, common_shift: i64) -> Result<(i64, i64), ScaleError> {
    let magnitude = range[0].abs().max(range[1].abs());
    let overflow = ScaleError::Overflow(magnitude.saturating_mul(1 << left_shift));
    if range[0] == range[1] {
        // The addend is chosen so that the common shift turns the constant accumulator into the scaled constant.
        let result = if shift <= 0 {
            range[0].saturating_mul(1i64.checked_shl((-shift).min(40) as u32).unwrap_or(i64::MAX)).clamp(-256, 256)
        } else {
            (range[0] + (1i64 << (shift.min(40) - 1))) >> shift.min(40)
        };
        let amount = common_shift.clamp(0, 2 * MAX_SHIFT);
        let addend = (result.clamp(-256, 256) << amount.min(20)) - (range[0] << left_shift);
        return match i32::try_from(addend) {
            Ok(addend) => Ok((i64::from(addend), amount.min(20))),
            Err(_) => Err(overflow),
        };
    }
    let amount = shift + left_shift;
    if amount == 0 {
        return saturating_range(range, 0, left_shift).map(|_| (0, 0)).ok_or(overflow);
    }
    let half_unit = 1i64 << (amount - 1).min(40);
    if amount <= 2 * MAX_SHIFT {
        return saturating_range(range, half_unit, left_shift).map(|_| (half_unit, amount)).ok_or(overflow);
    }
    // A larger shift rounds the entire range to 0. So does the maximum shift after `-low` is added, if the range is
    // shorter than `limit`.
    let [low, high] = saturating_range(range, 0, left_shift).ok_or(overflow.clone())?;
    let limit = 1i64 << (2 * MAX_SHIFT);
    if low >= -half_unit && high < half_unit && high - low < limit {
        return Ok((-low, 2 * MAX_SHIFT));
    }
    Err(overflow)
}

/// Returns the operations that multiply by `2^left_shift` without overflow; products outside the int8 range stay
/// outside.
fn left_shifts(ranges: &[Range], left_shift: i64) -> Result<Vec<ChannelStep>, ScaleError> {
    // Every nonzero integer times 2^8 is outside the int8 range.
    let left_shift = left_shift.min(8);
    let mut steps = Vec::new();
    if ranges.iter().any(|range| saturating_range(*range, 0, left_shift).is_none()) {
        steps.extend([ChannelStep::Immediate(AluOp::Max, -256), ChannelStep::Immediate(AluOp::Min, 255)]);
    }
    steps.push(ChannelStep::Immediate(AluOp::Shr, -left_shift as i16));
    Ok(steps)
}

/// Returns the addition of one value per channel; an immediate if the values are equal and fit into 16 bits.
pub fn addition(addends: &[i64]) -> ChannelStep {
    let first_addend = addends.first().copied().unwrap_or(0);
    match i16::try_from(first_addend) {
        Ok(imm) if addends.iter().all(|addend| *addend == first_addend) => ChannelStep::Immediate(AluOp::Add, imm),
        _ => ChannelStep::Vector(AluOp::Add, addends.iter().map(|addend| *addend as i32).collect()),
    }
}

/// Returns right shifts by per-channel amounts of at most 30, in steps of at most 15. Equal amounts become immediates.
pub fn shifts_right(amounts: &[i64]) -> Vec<ChannelStep> {
    let (min, max) = (amounts.iter().min().copied().unwrap_or(0), amounts.iter().max().copied().unwrap_or(0));
    let immediate = |amount: i64| ChannelStep::Immediate(AluOp::Shr, amount as i16);
    if min == max {
        let halves = [max.min(MAX_SHIFT), max - max.min(MAX_SHIFT)];
        return halves.into_iter().filter(|amount| *amount > 0).map(immediate).collect();
    }
    let vector =
        |amounts: Vec<i64>| ChannelStep::Vector(AluOp::Shr, amounts.iter().map(|amount| *amount as i32).collect());
    let common_shift = max - MAX_SHIFT;
    if common_shift <= 0 {
        return vec![vector(amounts.to_vec())];
    }
    if min >= common_shift {
        return vec![immediate(common_shift), vector(amounts.iter().map(|amount| amount - common_shift).collect())];
    }
    let halves = amounts.iter().map(|amount| (*amount.min(&MAX_SHIFT), amount - amount.min(&MAX_SHIFT)));
    let (first_shifts, second_shifts): (Vec<i64>, Vec<i64>) = halves.unzip();
    vec![vector(first_shifts), vector(second_shifts)]
}

/// Returns the range of an accumulator after an operation.
pub fn propagate(op: AluOp, [low, high]: Range, operand: i64) -> Range {
    let range = match op {
        AluOp::Min => [low.min(operand), high.min(operand)],
        AluOp::Max => [low.max(operand), high.max(operand)],
        AluOp::Add => [low + operand, high + operand],
        AluOp::Mul => return INT32,
        AluOp::Shr if operand < 0 => [low << -operand, high << -operand],
        AluOp::Shr => [low >> operand, high >> operand],
    };
    // A value that wraps may be any int32.
    if range[0] < INT32[0] || range[1] > INT32[1] { INT32 } else { range }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies operations to a channel's accumulator, as the device does.
    fn apply(steps: &[ChannelStep], channel: usize, value: i64) -> i64 {
        let value = i32::try_from(value).unwrap();
        i64::from(steps.iter().fold(value, |value, step| {
            let (op, operand) = match step {
                ChannelStep::Immediate(op, imm) => (*op, i32::from(*imm)),
                ChannelStep::Vector(op, operands) => (*op, operands[channel]),
            };
            match op {
                AluOp::Add => value.checked_add(operand).expect("the operations do not overflow"),
                AluOp::Max => value.max(operand),
                AluOp::Min => value.min(operand),
                AluOp::Shr if operand < 0 => value.checked_mul(1 << -operand).expect("the operations do not overflow"),
                AluOp::Shr => {
                    assert!(operand <= 15);
                    value >> operand
                }
                AluOp::Mul => unreachable!(),
            }
        }))
    }

    /// Computes the reference result, clipped to int8.
    fn reference(value: i64, shift: i64) -> i64 {
        let value = i128::from(value);
        let product = if shift <= 0 { value << -shift } else { (value + (1i128 << (shift - 1))) >> shift };
        product.clamp(-128, 127) as i64
    }

    fn check(ranges: &[Range], shifts: &[i64]) {
        let steps = scale(ranges, shifts).unwrap_or_else(|error| panic!("{ranges:?} {shifts:?}: {error:?}"));
        for (channel, (range, shift)) in ranges.iter().zip(shifts).enumerate() {
            let samples = [-(1i64 << 20), -1000, -129, -128, -2, -1, 0, 1, 2, 127, 128, 999, 1 << 20];
            let ends = [range[0], range[0] + 1, range[1] - 1, range[1]];
            for value in samples.into_iter().chain(ends).filter(|value| (range[0]..=range[1]).contains(value)) {
                let actual = apply(&steps, channel, value).clamp(-128, 127);
                assert_eq!(actual, reference(value, *shift), "{value} by {shift}: {steps:?}");
            }
        }
    }

    #[test]
    fn scales_by_equal_shifts() {
        for shift in -12..=34 {
            check(&[[-100_000, 90_000]], &[shift]);
            check(&[[-100_000, 90_000], [-5, 7]], &[shift, shift]);
        }
        check(&[[-(1 << 30), (1 << 30) - 1]], &[30]);
        check(&[INT32], &[-20]);
        assert!(matches!(scale(&[INT32], &[3]), Err(ScaleError::Overflow(_))));
    }

    #[test]
    fn scales_by_a_shift_per_channel() {
        check(&[[-1000, 1000], [-100_000, 3], [0, 9]], &[3, 9, 12]);
        check(&[[-1000, 1000], [-100_000, 3], [0, 9]], &[17, 19, 30]);
        check(&[[-1000, 1000], [-100_000, 3], [0, 9]], &[2, 9, 30]);
        check(&[[-1000, 1000], [-1000, 3], [0, 9]], &[-4, 0, 5]);
        check(&[[-1000, 1000], [-1000, 3], [0, 9]], &[33, 5, 40]);
    }

    #[test]
    fn channels_with_a_constant_sum_take_any_shift() {
        check(&[[-1000, 1000], [0, 0], [70, 70], [-9, -9]], &[7, -60, 3, -5]);
        check(&[[5, 5]], &[1]);
        check(&[[0, 0]], &[60]);
        check(&[[-1_000_000, 1_000_000], [-123_456, -123_456]], &[18, 9]);
    }
}
