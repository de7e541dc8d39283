//! Lowering of a chain of [`Stage`]s to the steps of a loop: parameters along an axis become rows that can be read from
//! any index, and adjacent bounds and sums are merged.

use super::{Lowering, Placed};
use crate::fuse::Link;
use crate::library::ffi;
use crate::plan::Work;
use crate::program::{Def, Kind, Op, Reason, Taken, Val};
use crate::qnn::finish::{Do, Finish, Fixing, MOST_OTHERS, Row, Scaling};
use crate::qnn::ratio::{Fixed, Ratios, Rounding};
use crate::qnn::stage::{Side, Stage, range};
use crate::view::{View, count};
use byoc_plugin_api::{DType, RefusalCode};

/// Axis in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Places {
    /// Size of the axis.
    count: usize,
    /// Stride of the axis, in elements.
    inner: usize,
}

/// Steps under construction.
struct Chain {
    /// Axis of all parameters that are not scalars.
    places: Option<Places>,
    steps: Vec<Do>,
    /// True if the steps so far yield floats.
    real: bool,
}

fn wrong(what: &str) -> Reason {
    Reason::new(RefusalCode::UnsupportedShape, what)
}

impl Lowering<'_> {
    /// Adds one step for a stage and the following ones, as long as their parameters share one axis. Returns the number
    /// of links taken.
    pub fn stages(&mut self, op: &Op, links: &[Link]) -> Taken<usize> {
        let mut x = self.at(op.inputs[0]);
        if !x.view.is_packed() {
            x = self.in_order(&x, &x.view.order())?;
        }
        let from = self.dtype(&x);
        let mut view = View { offset: 0, ..x.view.clone() };
        let mut chain = Chain { places: None, steps: Vec::new(), real: from == DType::F32 };
        let mut tensors = Vec::new();
        let (mut done, mut last) = (None, (op.output, view.clone()));
        let first = Link::Stage { op: self.number(op), other: op.inputs.get(1).copied() };
        for (i, link) in std::iter::once(&first).chain(links).enumerate() {
            let own = &self.program.ops[link.op()];
            match (link, &own.kind) {
                (Link::Stage { other, .. }, Kind::Stage(stage)) => {
                    let swapped = matches!(other, Some(other) if *other == own.inputs[0]) && own.inputs.len() > 1;
                    if (other.is_some() && tensors.len() == MOST_OTHERS) || !chain.add(stage, &view, swapped && i > 0) {
                        break;
                    }
                    if let Some(other) = other {
                        let tensor = self.beside(*other, &view)?;
                        chain.beside(self.dtype(&tensor));
                        tensors.push(tensor);
                    }
                    (done, last) = (Some(i), (own.output, view.clone()));
                }
                (_, Kind::Transpose(axes)) => view = view.permute(axes),
                (_, Kind::Reshape) => match view.reshape(self.program.shape(own.output)) {
                    Some(reshaped) => view = reshaped,
                    None => break,
                },
                _ => break,
            }
        }
        let done = done.ok_or_else(|| wrong("parameters that do not match an axis"))?;
        let (value, view) = last;
        let to = self.program.get(value).dtype;
        let elements = count(&view.shape) as usize;
        let result = Placed { buffer: self.scratch_of(to, View::dense(&view.shape)).buffer, view };
        let places = chain.places.unwrap_or(Places { count: 1, inner: 1 });
        let finish = Finish::new(elements, (places.count, places.inner), (from, to), chain.steps);
        let mut args = vec![(ffi::ARG_SRC, x)];
        args.extend(tensors.into_iter().enumerate().map(|(k, tensor)| (ffi::ARG_MULTIPLE_SRC + k as i32, tensor)));
        args.push((ffi::ARG_DST, result.clone()));
        self.own_step(Work::Finish(finish), args, "integer stages")?;
        self.put(value, result);
        Ok(done)
    }

    fn number(&self, op: &Op) -> usize {
        match self.program.get(op.output).def {
            Def::Op(number) => number,
            _ => usize::MAX,
        }
    }

    /// Returns a tensor whose elements are in the memory order of a packed view of its shape.
    fn beside(&mut self, other: Val, view: &View) -> Taken<Placed> {
        let other = self.at(other);
        if other.view.same_layout(view) {
            return Ok(other);
        }
        let other = self.in_order(&other, &view.order())?;
        if other.view.same_layout(view) {
            Ok(other)
        } else {
            Err(wrong("expected an operand in the same memory order"))
        }
    }
}

impl Chain {
    /// Adds a stage on elements of this layout, if its parameters share the axis of the others; returns false
    /// otherwise.
    fn add(&mut self, stage: &Stage, view: &View, swapped: bool) -> bool {
        let along = match stage {
            Stage::Offset(along) => (along.values.len(), along.axis),
            Stage::Dequantize { scale, .. } => (scale.values.len(), scale.axis),
            Stage::RealAdd(along) | Stage::RealMultiply(along) => (along.values.len(), along.axis),
            Stage::Rescale { by: Ratios::Fixed(ratios), axis, .. } => (ratios.len(), *axis),
            Stage::Rescale { by: Ratios::Float(ratios), axis, .. } => (ratios.len(), *axis),
            _ => (1, 0),
        };
        if along.0 != 1 {
            let places = Places { count: along.0, inner: view.strides[along.1] as usize };
            if *self.places.get_or_insert(places) != places {
                return false;
            }
        }
        match stage {
            Stage::Offset(along) => match self.steps.last_mut() {
                Some(Do::Offset(before)) => before.add(&along.values),
                _ => self.steps.push(Do::Offset(Row::new(&along.values))),
            },
            Stage::Rescale { zero_in, by, rounding, zero_out, to, .. } => {
                self.less(*zero_in);
                let (low, high) = range(*to);
                let (zero, to_bytes) = (*zero_out, *to != DType::I32);
                let step = match by {
                    Ratios::Float(ratios) => {
                        Do::Float(Scaling { ratios: Row::new(ratios), rounding: *rounding, zero, low, high })
                    }
                    Ratios::Fixed(ratios) => {
                        // A bias before the requantization is added in the same step.
                        let offsets = self.steps.pop_if(|step| matches!(step, Do::Offset(_)));
                        let offsets = if let Some(Do::Offset(offsets)) = offsets { Some(offsets) } else { None };
                        Do::Fixed(fixing(offsets, ratios, *rounding, zero, to_bytes), low, high)
                    }
                    Ratios::Same => Do::Move { zero, low, high },
                };
                self.steps.push(step);
            }
            Stage::Clamp { low, high } => self.clamp(*low, *high),
            Stage::Sum { sides, zero, to } => {
                let [left, right] = sides.each_ref().map(|side| side.as_ref().map(Operand::of));
                let (own, other) = if swapped { (right, left) } else { (left, right) };
                if let Some(own) = own {
                    self.less(own.zero_in);
                    self.steps.push(own.step);
                }
                let other = match other {
                    Some(Operand { zero_in, step }) => {
                        let less = (zero_in != 0).then_some(Do::Less(zero_in));
                        less.into_iter().chain([step]).collect()
                    }
                    None => Vec::new(),
                };
                let (low, high) = range(*to);
                self.steps.push(Do::Sum { other, from: *to, zero: *zero, low, high });
            }
            Stage::Dequantize { zero, scale } => {
                self.less(*zero);
                self.steps.push(Do::Real(Row::new(&scale.values)));
                self.real = true;
            }
            Stage::Quantize { scale, zero, rounding, to } => {
                let (low, high) = range(*to);
                self.steps.push(Do::Quantize { scale: *scale, zero: *zero, rounding: *rounding, low, high });
                self.real = false;
            }
            Stage::Convert(to) => {
                let to_real = *to == DType::F32;
                match (self.real, to_real) {
                    (true, true) => {}
                    (false, true) => self.steps.push(Do::ToReal),
                    (true, false) => {
                        let (low, high) = range(*to);
                        self.steps.push(Do::ToInteger { low, high });
                    }
                    (false, false) => self.steps.push(Do::Wrap(*to)),
                }
                self.real = to_real;
            }
            Stage::RealAdd(along) => self.steps.push(Do::RealAdd(Row::new(&along.values))),
            Stage::RealMultiply(along) => self.steps.push(Do::RealMultiply(Row::new(&along.values))),
            Stage::RealClamp { low, high } => self.steps.push(Do::RealClamp { low: *low, high: *high }),
            Stage::RealSum(other) => {
                let first = matches!(other.first(), Some(Stage::Convert(_)));
                let mut inner = Chain { places: None, steps: Vec::new(), real: !first };
                if !other.iter().all(|stage| inner.add(stage, view, false)) || inner.places.is_some() {
                    return false;
                }
                self.steps.push(Do::RealSum { other: inner.steps, from: DType::F32 });
            }
        }
        true
    }

    /// Sets the element type of the second tensor of the last step.
    fn beside(&mut self, dtype: DType) {
        if let Some(Do::RealSum { from, .. } | Do::Sum { from, .. }) = self.steps.last_mut() {
            *from = dtype;
        }
    }

    fn less(&mut self, zero: i32) {
        if zero != 0 {
            self.steps.push(Do::Less(zero));
        }
    }

    /// Clamps; bounds of the previous step are tightened instead of adding a step.
    fn clamp(&mut self, least: i32, greatest: i32) {
        match self.steps.last_mut() {
            Some(
                Do::Fixed(_, low, high)
                | Do::Float(Scaling { low, high, .. })
                | Do::Move { low, high, .. }
                | Do::Sum { low, high, .. }
                | Do::ToInteger { low, high }
                | Do::Quantize { low, high, .. },
            ) => {
                *low = (*low).clamp(least, greatest);
                *high = (*high).clamp(least, greatest);
            }
            _ => self.steps.push(Do::Clamp { low: least, high: greatest }),
        }
    }
}

/// Rescaling of an operand to the scale of the result.
struct Operand {
    zero_in: i32,
    step: Do,
}

impl Operand {
    fn of(side: &Side) -> Operand {
        let (low, high) = range(DType::I32);
        let step = match &side.by {
            Ratios::Fixed(ratios) => Do::Fixed(fixing(None, ratios, Rounding::Up, side.zero_out, false), low, high),
            _ => Do::Move { zero: side.zero_out, low, high },
        };
        Operand { zero_in: side.zero_in, step }
    }
}

fn fixing(offsets: Option<Row<i32>>, ratios: &[Fixed], rounding: Rounding, zero: i32, bytes: bool) -> Fixing {
    // Exponents are clamped to 32 in either direction: beyond that, every nonzero number exceeds `int32`, or every
    // result is 0.
    let left: Vec<i64> = ratios.iter().map(|ratio| i64::from(ratio.exponent.clamp(0, 32))).collect();
    let shifts: Vec<i32> = ratios.iter().map(|ratio| 31 + (-ratio.exponent).clamp(0, 32)).collect();
    let multipliers: Vec<i32> = ratios.iter().map(|ratio| ratio.multiplier).collect();
    let grows = left.iter().any(|&left| left > 0);
    Fixing {
        offsets: offsets.unwrap_or_else(|| Row::new(&[0])),
        multipliers: Row::new(&multipliers),
        left: grows.then(|| Row::new(&left)),
        shifts: Row::new(&shifts),
        rounding,
        zero,
        bytes,
    }
}
