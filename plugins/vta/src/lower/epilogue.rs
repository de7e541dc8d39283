//! Epilogues: device operations on accumulators for the operators that follow a convolution, a dense layer or a pooling
//! layer, or that read a tensor directly.

use super::layer::ChannelAxis;
use super::range::{self, ChannelStep, INT8, INT32, MAX_SHIFT, Range, ScaleError, addition, shifts_right};
use super::{HINTS, NodeStep, WidenedTensor};
use byoc_plugin_api::{DType, RefusalCode};
use byoc_plugin_support::operands::elements;
use byoc_plugin_support::refusal::{CompileError, refuse, refuse_with_hint};
use byoc_plugin_support::region::{Op, RegionIr, Val};
use byoc_vta_machine::isa::AluOp;
use std::collections::BTreeMap;

/// Epilogue under construction, with the resulting accumulator ranges.
pub struct Epilogue {
    /// Operations on the accumulators.
    pub steps: Vec<NodeStep>,
    /// Accumulator ranges before each operation.
    ranges_before: Vec<Vec<Range>>,
    /// Number of output channels; 1 for a tensor that is read element by element.
    channels: usize,
    axis: ChannelAxis,
    /// Accumulator range of each channel.
    ranges: Vec<Range>,
    /// Element type of the value in the model.
    dtype: DType,
}

impl Epilogue {
    /// Creates an empty epilogue for accumulators with these per-channel ranges.
    pub fn new(channels: usize, axis: ChannelAxis, ranges: Vec<Range>, dtype: DType) -> Epilogue {
        Epilogue { steps: Vec::new(), ranges_before: Vec::new(), channels, axis, ranges, dtype }
    }

    /// Creates an empty epilogue for the elements of an int8 tensor; `dtype` is their type in the model.
    pub fn of_tensor(dtype: DType) -> Epilogue {
        Epilogue::new(1, ChannelAxis::None, vec![INT8], dtype)
    }

    /// Appends an operator that reads `tail`, the value so far. Returns false if the device has no such operation.
    ///
    /// # Errors
    /// If the device has the operation but does not support the attributes or operands.
    pub fn append(
        &mut self,
        ir: &RegionIr<'_>,
        op: &Op<'_>,
        tail: Val,
        widened: &BTreeMap<Val, WidenedTensor>,
    ) -> Result<bool, CompileError> {
        let supported_names = [
            "nn.bias_add",
            "add",
            "nn.relu",
            "clip",
            "cast",
            "qnn.requantize",
            "qnn.add",
            "right_shift",
            "left_shift",
            "fixed_point_multiply",
            "annotation.stop_fusion",
        ];
        if !supported_names.contains(&op.name) {
            return Ok(false);
        }
        let result = ir.val(op.outputs[0]);
        let operand = &ir.val(tail).shape;
        if result.shape != *operand {
            let detail =
                format!("{}: expected a result of the operand's shape {operand:?}, found {:?}", op.name, result.shape);
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
        let count = op.inputs.iter().filter(|input| **input == tail).count();
        if count != 1 && op.name != "qnn.add" {
            let detail = format!("{}: expected exactly 1 operand to be the sum, found {count}", op.name);
            return refuse(RefusalCode::UnsupportedOp, detail);
        }
        match op.name {
            "nn.bias_add" => self.add_constant(ir, op, tail)?,
            "add" => {
                let addend = other_operand(op, tail);
                match widened.get(&addend) {
                    Some(widened) => self.add_tensor(widened.clone()),
                    None => self.add_constant(ir, op, tail)?,
                }
            }
            "nn.relu" => self.clamp([0, INT32[1]])?,
            "clip" => self.clip(op)?,
            "cast" => self.cast(result.dtype)?,
            "qnn.requantize" => self.requantize(ir, op, tail, result.dtype)?,
            "qnn.add" => self.quantized_add(ir, op, tail)?,
            "right_shift" | "left_shift" => self.shift(ir, op, tail)?,
            "fixed_point_multiply" => self.fixed_point(op)?,
            _ => {}
        }
        self.dtype = result.dtype;
        Ok(true)
    }

    /// Appends an operation with an immediate operand.
    pub fn push_immediate(&mut self, op: AluOp, imm: i16) {
        self.push(ChannelStep::Immediate(op, imm));
    }

    /// Appends an operation; merges it into the previous operation if the effect is the same.
    fn push(&mut self, step: ChannelStep) {
        use ChannelStep::{Immediate, Vector};
        let channels = self.channels;
        let ranges_before = self.ranges.clone();
        let operand = |step: &ChannelStep, channel: usize| match step {
            Immediate(op, imm) => (*op, i64::from(*imm)),
            Vector(op, operands) => (*op, operands.get(channel).copied().unwrap_or(0).into()),
        };
        for (channel, range) in self.ranges.iter_mut().enumerate() {
            let (op, operand) = operand(&step, channel);
            *range = range::propagate(op, *range, operand);
        }
        let combined_step = match (self.steps.last(), &step) {
            // Wrapping additions are associative.
            (Some(NodeStep::Channel(last_step)), Immediate(AluOp::Add, _) | Vector(AluOp::Add, _))
                if operand(last_step, 0).0 == AluOp::Add =>
            {
                let sum = |channel| operand(last_step, channel).1 + operand(&step, channel).1;
                let totals: Vec<i64> = (0..channels).map(|channel| i64::from(sum(channel) as i32)).collect();
                let combined_step = addition(&totals);
                // Vector operands require a channel axis.
                (channels > 1 || matches!(combined_step, Immediate(..)) || self.axis != ChannelAxis::None)
                    .then_some(combined_step)
            }
            _ => None,
        };
        match (combined_step, self.steps.last_mut()) {
            (Some(combined_step), Some(last_step)) => *last_step = NodeStep::Channel(combined_step),
            _ => {
                self.steps.push(NodeStep::Channel(step));
                self.ranges_before.push(ranges_before);
            }
        }
    }

    /// Scales the clamped result of a shift by a further `2^-shift`. One longer shift with adjusted bounds is
    /// equivalent to both, because rounding down twice equals rounding down once, and clamping commutes with shifts.
    /// Returns false if the previous operations have a different form or the longer shift does not fit.
    fn scale_bounded(&mut self, shift: i64) -> bool {
        let immediate_of = |step: &NodeStep| match step {
            NodeStep::Channel(ChannelStep::Immediate(op, imm)) => Some((*op, i64::from(*imm))),
            _ => None,
        };
        let is_bound =
            |step: &&NodeStep| immediate_of(step).is_some_and(|(op, _)| matches!(op, AluOp::Max | AluOp::Min));
        let is_shift = |step: &&NodeStep| match step {
            NodeStep::Channel(ChannelStep::Immediate(AluOp::Shr, amount)) => *amount > 0,
            NodeStep::Channel(ChannelStep::Vector(AluOp::Shr, _)) => true,
            _ => false,
        };
        let bounds = self.steps.iter().rev().take_while(is_bound).count();
        let shifts = self.steps.iter().rev().skip(bounds).take_while(is_shift).count();
        let end = self.steps.len() - bounds - shifts;
        if shifts == 0 || !(1..=MAX_SHIFT).contains(&shift) {
            return false;
        }
        let values = |step: &NodeStep| match step {
            NodeStep::Channel(ChannelStep::Immediate(_, imm)) => vec![i64::from(*imm); self.channels],
            NodeStep::Channel(ChannelStep::Vector(_, values)) => values.iter().map(|value| i64::from(*value)).collect(),
            NodeStep::Add(_) => Vec::new(),
        };
        let is_addition = |step: &NodeStep| match step {
            NodeStep::Channel(ChannelStep::Immediate(op, _) | ChannelStep::Vector(op, _)) => *op == AluOp::Add,
            NodeStep::Add(_) => false,
        };
        let first_step = end - usize::from(end > 0 && is_addition(&self.steps[end - 1]));
        let mut addends = vec![0i64; self.channels];
        if first_step < end {
            addends = values(&self.steps[first_step]);
        }
        let mut amounts = vec![0i64; self.channels];
        for step in &self.steps[end..end + shifts] {
            amounts.iter_mut().zip(values(step)).for_each(|(amount, step_amount)| *amount += step_amount);
        }
        let half_unit = 1i64 << (shift - 1);
        for (addend, amount) in addends.iter_mut().zip(&amounts) {
            *addend += half_unit << amount;
        }
        amounts.iter_mut().for_each(|amount| *amount += shift);
        let ranges = self.ranges_before[first_step].clone();
        let is_in_range = ranges.iter().zip(&addends).all(|(range, addend)| {
            i32::try_from(*addend).is_ok() && range[0] + addend >= INT32[0] && range[1] + addend <= INT32[1]
        });
        let sum = addition(&addends);
        let is_vector = matches!(sum, ChannelStep::Vector(..)) && self.axis == ChannelAxis::None;
        if !is_in_range || is_vector || amounts.iter().any(|amount| *amount > 2 * MAX_SHIFT) {
            return false;
        }
        let bounds: Vec<(AluOp, i64)> = self.steps[end + shifts..].iter().filter_map(immediate_of).collect();
        self.steps.truncate(first_step);
        self.ranges_before.truncate(first_step);
        self.ranges = ranges;
        self.push(sum);
        shifts_right(&amounts).into_iter().for_each(|step| self.push(step));
        for (op, bound) in bounds {
            // The bounds are 16-bit immediates, so they fit after the shift too.
            self.push_immediate(op, ((bound + half_unit) >> shift) as i16);
        }
        true
    }

    /// Clamps the accumulators if they may be out of range. Consecutive clamps are merged into one pair of bounds.
    fn clamp(&mut self, [low, high]: Range) -> Result<(), CompileError> {
        let (min, max) = (self.min(), self.max());
        let mut bounds = [(AluOp::Max, low, min < low), (AluOp::Min, high, max > high)];
        for (op, bound, is_needed) in &mut bounds {
            if !*is_needed {
                continue;
            }
            let Ok(imm) = i16::try_from(*bound) else {
                let detail = format!("clip: expected bounds from -32768 to 32767, found {bound}");
                return refuse(RefusalCode::UnsupportedAttr, detail);
            };
            if !self.tighten(*op, imm) {
                self.push(ChannelStep::Immediate(*op, imm));
            }
        }
        Ok(())
    }

    /// Tightens an earlier bound that is followed only by other bounds. Returns false if there is none, or if the
    /// bounds do not commute.
    fn tighten(&mut self, op: AluOp, imm: i16) -> bool {
        let bounds = self
            .steps
            .iter()
            .rev()
            .take_while(|step| matches!(step, NodeStep::Channel(ChannelStep::Immediate(AluOp::Max | AluOp::Min, _))))
            .count();
        let first_bound = self.steps.len() - bounds;
        let existing_bound = self.steps[first_bound..].iter_mut().find_map(|step| match step {
            NodeStep::Channel(ChannelStep::Immediate(existing_op, bound)) if *existing_op == op => Some(bound),
            _ => None,
        });
        let crosses = |range: &Range| {
            let imm = i64::from(imm);
            if op == AluOp::Max { imm > range[1] } else { imm < range[0] }
        };
        // Bounds that leave a single value do not commute.
        let Some(bound) = existing_bound.filter(|_| !self.ranges.iter().any(crosses)) else { return false };
        *bound = if op == AluOp::Max { (*bound).max(imm) } else { (*bound).min(imm) };
        for range in &mut self.ranges {
            *range = range::propagate(op, *range, i64::from(imm));
        }
        true
    }

    fn min(&self) -> i64 {
        self.ranges.iter().map(|range| range[0]).min().unwrap_or(0)
    }

    fn max(&self) -> i64 {
        self.ranges.iter().map(|range| range[1]).max().unwrap_or(0)
    }

    fn add_tensor(&mut self, addend: WidenedTensor) {
        let range = addend.steps.iter().fold(INT8, |range, (op, imm)| range::propagate(*op, range, i64::from(*imm)));
        self.ranges_before.push(self.ranges.clone());
        for sum_range in &mut self.ranges {
            let sum = [sum_range[0] + range[0], sum_range[1] + range[1]];
            *sum_range = if sum[0] < INT32[0] || sum[1] > INT32[1] { INT32 } else { sum };
        }
        self.steps.push(NodeStep::Add(addend));
    }

    fn add_constant(&mut self, ir: &RegionIr<'_>, op: &Op<'_>, tail: Val) -> Result<(), CompileError> {
        if self.dtype != DType::I32 {
            let detail = format!("{}: expected an addition in int32, found {}", op.name, self.dtype);
            return refuse(RefusalCode::UnsupportedDtype, detail);
        }
        let values = self.per_channel(ir, op, tail, "addend")?;
        let addends: Vec<i64> = values.into_iter().map(i64::from).collect();
        let step = addition(&addends);
        if self.axis == ChannelAxis::None && matches!(step, ChannelStep::Vector(..)) {
            let detail = format!("addend: expected a value from -32768 to 32767, found {}", addends[0]);
            return refuse(RefusalCode::UnsupportedOp, detail);
        }
        self.push(step);
        Ok(())
    }

    /// Returns a constant operand as one value per channel.
    fn per_channel(&self, ir: &RegionIr<'_>, op: &Op<'_>, tail: Val, name: &str) -> Result<Vec<i32>, CompileError> {
        let input = usize::from(op.inputs.first() == Some(&tail));
        let values = elements(ir, op, input, DType::I32, name, |t| t.as_slice::<i32>().to_vec())?;
        let (rank, shape) = (ir.val(tail).shape.len(), &ir.val(op.inputs[input]).shape);
        let axis = self.axis.index(rank);
        let is_per_channel = if op.name == "nn.bias_add" {
            axis.is_some() && op.attrs().axis("axis", 1, rank) == axis && input == 1
        } else {
            // Broadcasting aligns shapes at the last dimension; every dimension except the channel axis must be 1.
            shape.len() <= rank
                && shape.iter().rev().enumerate().all(|(i, &dim)| dim == 1 || rank.checked_sub(i + 1) == axis)
        };
        if !is_per_channel || !(values.len() == 1 || values.len() == self.channels) {
            let detail = format!("{name}: expected one value per channel, or one for all, found {shape:?}");
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
        Ok(if values.len() == 1 { vec![values[0]; self.channels] } else { values })
    }

    fn clip(&mut self, op: &Op<'_>) -> Result<(), CompileError> {
        let (low, high) = (op.node.float("a_min").unwrap_or(f64::NAN), op.node.float("a_max").unwrap_or(f64::NAN));
        if low.is_nan() || high.is_nan() || low > high {
            let detail = format!("clip: expected a_min <= a_max, found {low} and {high}");
            return refuse(RefusalCode::UnsupportedAttr, detail);
        }
        // For integer operands, `clip` truncates fractional bounds.
        let truncate = |bound: f64| bound.trunc().clamp(INT32[0] as f64, INT32[1] as f64) as i64;
        self.clamp([truncate(low), truncate(high)])
    }

    fn cast(&self, target_dtype: DType) -> Result<(), CompileError> {
        match (self.dtype, target_dtype) {
            (DType::I32 | DType::I8, DType::I32) => Ok(()),
            (DType::I32 | DType::I8, DType::I8) if self.min() >= INT8[0] && self.max() <= INT8[1] => Ok(()),
            (DType::I32, DType::I8) => {
                let detail = format!("cast: expected values in the int8 range, found {} to {}", self.min(), self.max());
                refuse_with_hint(RefusalCode::UnsupportedOp, detail, "clip the values before the cast")
            }
            (in_dtype, out_dtype) => refuse(
                RefusalCode::UnsupportedDtype,
                format!("cast: expected int32 to int8, found {in_dtype} to {out_dtype}"),
            ),
        }
    }

    fn shift(&mut self, ir: &RegionIr<'_>, op: &Op<'_>, tail: Val) -> Result<(), CompileError> {
        if op.inputs.first() != Some(&tail) {
            let detail = format!("{}: expected the sum as the shifted operand, found it as the shift amount", op.name);
            return refuse(RefusalCode::UnsupportedOp, detail);
        }
        if self.dtype != DType::I32 {
            let detail = format!("{}: expected an int32 sum, found {}", op.name, self.dtype);
            return refuse(RefusalCode::UnsupportedOp, detail);
        }
        let amounts = self.per_channel(ir, op, tail, "amount")?;
        let limit = if op.name == "left_shift" { MAX_SHIFT } else { 2 * MAX_SHIFT };
        if let Some(amount) = amounts.iter().find(|amount| !(0..=limit).contains(&i64::from(**amount))) {
            let detail = format!("{}: expected amounts from 0 to {limit}, found {amount}", op.name);
            return refuse(RefusalCode::UnsupportedAttr, detail);
        }
        let amounts: Vec<i64> = amounts.into_iter().map(i64::from).collect();
        if op.name == "right_shift" {
            shifts_right(&amounts).into_iter().for_each(|step| self.push(step));
            return Ok(());
        }
        if let Some(amount) = amounts.iter().find(|amount| **amount != amounts[0]) {
            return refuse(
                RefusalCode::UnsupportedAttr,
                format!("left_shift: expected one amount for all channels, found {} and {amount}", amounts[0]),
            );
        }
        if amounts[0] > 0 {
            self.push_immediate(AluOp::Shr, -amounts[0] as i16);
        }
        Ok(())
    }

    /// Scales the accumulators of each channel by `2^-shift`.
    fn scale(&mut self, shifts: &[i64]) -> Result<(), CompileError> {
        if self.axis == ChannelAxis::None && self.channels == 1 && shifts[0] > MAX_SHIFT {
            let detail = format!("shift: expected at most {MAX_SHIFT} for a tensor, found {}", shifts[0]);
            return refuse(RefusalCode::QuantScheme, detail);
        }
        match range::scale(&self.ranges, shifts) {
            Ok(steps) => {
                steps.into_iter().for_each(|step| self.push(step));
                Ok(())
            }
            Err(ScaleError::Overflow(max)) => {
                let detail = format!("expected rescaled sums < 2^31 including rounding, found up to {max}");
                refuse(RefusalCode::ResourceLimit, detail)
            }
            Err(ScaleError::Spread(bits)) => {
                let detail =
                    format!("expected channel scales within a factor of 2^{MAX_SHIFT}, found a factor of 2^{bits}");
                refuse(RefusalCode::QuantScheme, detail)
            }
        }
    }

    fn requantize(&mut self, ir: &RegionIr<'_>, op: &Op<'_>, tail: Val, out_dtype: DType) -> Result<(), CompileError> {
        if op.inputs.first() != Some(&tail) {
            let detail = "qnn.requantize: expected the sum as the data, found it as another operand";
            return refuse(RefusalCode::UnsupportedDtype, detail);
        }
        if out_dtype != DType::I8 {
            let detail = format!("qnn.requantize: expected an int8 result, found {out_dtype}");
            return refuse(RefusalCode::UnsupportedDtype, detail);
        }
        for (input, name) in [(2, "input"), (4, "output")] {
            HINTS.check_zero_point(ir, op, input, &format!("{name} zero point of qnn.requantize"))?;
        }
        let rounding = op.attrs().text("rounding");
        if !matches!(rounding, "" | "None" | "UPWARD") {
            let detail = format!("rounding of qnn.requantize: expected UPWARD, found {rounding}");
            return refuse_with_hint(RefusalCode::UnsupportedAttr, detail, "set rounding=\"UPWARD\"");
        }
        let compute_dtype = op.attrs().text("compute_dtype");
        if !matches!(compute_dtype, "" | "None" | "int64") {
            let detail = format!("compute_dtype of qnn.requantize: expected int64, found {compute_dtype}");
            return refuse_with_hint(RefusalCode::UnsupportedAttr, detail, "set compute_dtype=\"int64\"");
        }
        let input = scales(ir, op, 1, "input scale of qnn.requantize")?;
        let output = scales(ir, op, 3, "output scale of qnn.requantize")?;
        let rank = ir.val(tail).shape.len();
        let axis = op.attrs().axis("axis", -1, rank);
        if input.len() != 1 && (axis != self.axis.index(rank) || input.len() != self.channels) {
            let detail = format!(
                "qnn.requantize: expected 1 input scale, or {} along the channel axis, found {}",
                self.channels,
                input.len()
            );
            return refuse(RefusalCode::QuantScheme, detail);
        }
        let &[output] = &output[..] else {
            return refuse(
                RefusalCode::QuantScheme,
                format!("qnn.requantize: expected 1 output scale, found {}", output.len()),
            );
        };
        let shifts = input.iter().map(|input| shift_of(*input, output)).collect::<Result<Vec<i64>, _>>()?;
        let shifts = if shifts.len() == 1 { vec![shifts[0]; self.channels] } else { shifts };
        self.scale(&shifts)?;
        self.clamp(INT8)
    }

    fn fixed_point(&mut self, op: &Op<'_>) -> Result<(), CompileError> {
        let multiplier = op.node.int("multiplier").unwrap_or(0);
        let shift = op.node.int("shift").unwrap_or(0);
        if multiplier <= 0 || multiplier.count_ones() != 1 || !(-31..=31).contains(&shift) {
            let detail = format!(
                "fixed_point_multiply: expected a power of two and a shift in [-31, 31], found {multiplier} and {shift}"
            );
            return refuse_with_hint(RefusalCode::QuantScheme, detail, HINTS.scheme);
        }
        // The factor is multiplier * 2^(shift - 31).
        let shift = 31 - shift - i64::from(multiplier.trailing_zeros());
        if shift < 0 {
            let detail = format!("fixed_point_multiply: expected a factor of at most 1, found 2^{}", -shift);
            return refuse(RefusalCode::QuantScheme, detail);
        }
        self.scale(&vec![shift; self.channels])
    }

    fn quantized_add(&mut self, ir: &RegionIr<'_>, op: &Op<'_>, tail: Val) -> Result<(), CompileError> {
        let [lhs, rhs, ..] = op.inputs[..] else {
            let detail = format!("qnn.add: expected at least 2 operands, found {}", op.inputs.len());
            return refuse(RefusalCode::UnsupportedOp, detail);
        };
        for value in [lhs, rhs] {
            let (dtype, shape) = (ir.val(value).dtype, &ir.val(value).shape);
            if dtype != DType::I8 {
                return refuse(RefusalCode::UnsupportedDtype, format!("qnn.add: expected int8, found {dtype}"));
            }
            if *shape != ir.val(op.outputs[0]).shape {
                return refuse(
                    RefusalCode::UnsupportedShape,
                    format!("qnn.add: expected operands with the shape of the result, found {shape:?}"),
                );
            }
        }
        for (input, name) in [(3, "lhs"), (5, "rhs"), (7, "output")] {
            HINTS.check_zero_point(ir, op, input, &format!("{name} zero point of qnn.add"))?;
        }
        let scale_of = |input: usize, name: &str| {
            let scales = scales(ir, op, input, &format!("{name} scale of qnn.add"))?;
            match scales[..] {
                [scale] => Ok(scale),
                _ => {
                    let detail = format!("qnn.add: expected 1 {name} scale, found {}", scales.len());
                    refuse(RefusalCode::QuantScheme, detail)
                }
            }
        };
        let (lhs_scale, rhs_scale, sum_scale) = (scale_of(2, "lhs")?, scale_of(4, "rhs")?, scale_of(6, "output")?);
        let (own_scale, other_scale, tensor) =
            if lhs == tail { (lhs_scale, rhs_scale, rhs) } else { (rhs_scale, lhs_scale, lhs) };
        // A shift of 9 scales every int8 value to 0.
        let shift = |scale: f32| -> Result<i64, CompileError> {
            let shift = shift_of(scale, sum_scale)?.min(9);
            if shift < -MAX_SHIFT {
                let detail = format!(
                    "qnn.add: expected a ratio of operand to output scale <= 2^{MAX_SHIFT}, found 2^{}",
                    -shift
                );
                return refuse(RefusalCode::QuantScheme, detail);
            }
            Ok(shift)
        };
        let own_shift = shift(own_scale)?;
        if own_shift < 0 {
            self.push_immediate(AluOp::Shr, own_shift as i16);
        } else if !self.scale_bounded(own_shift) {
            self.scale(&vec![own_shift; self.channels])?;
        }
        let steps = match shift(other_scale)? {
            0 => Vec::new(),
            negative @ ..0 => vec![(AluOp::Shr, negative as i16)],
            positive => vec![(AluOp::Add, 1 << (positive - 1)), (AluOp::Shr, positive as i16)],
        };
        self.add_tensor(WidenedTensor { tensor, steps });
        self.clamp(INT8)
    }
}

/// Returns the operand of an addition other than `tail`.
fn other_operand(op: &Op<'_>, tail: Val) -> Val {
    op.inputs.iter().copied().find(|input| *input != tail).unwrap_or(tail)
}

fn scales(ir: &RegionIr<'_>, op: &Op<'_>, input: usize, name: &str) -> Result<Vec<f32>, CompileError> {
    let scales = elements(ir, op, input, DType::F32, name, |t| t.as_slice::<f32>().to_vec())?;
    match scales.iter().find(|scale| !(scale.is_finite() && **scale > 0.0)) {
        Some(scale) => refuse(RefusalCode::QuantScheme, format!("{name}: expected a finite scale > 0, found {scale}")),
        None => Ok(scales),
    }
}

/// Returns `n` if the ratio of two scales is `2^-n`.
fn shift_of(input: f32, output: f32) -> Result<i64, CompileError> {
    let ratio = f64::from(input) / f64::from(output);
    // A quotient of binary32 numbers is a normal binary64 number, so its exponent field is exact.
    if ratio.to_bits() & ((1 << 52) - 1) != 0 {
        let detail = format!("scale ratio: expected a power of two, found {ratio}");
        return refuse_with_hint(RefusalCode::QuantScheme, detail, HINTS.scheme);
    }
    Ok(1023 - (ratio.to_bits() >> 52) as i64)
}
