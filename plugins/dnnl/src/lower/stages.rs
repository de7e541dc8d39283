//! Lowering of a [`Stage`] chain to epilogue operations: per-axis parameters are padded so that a block
//! can be read from any index, and adjacent clamps and offsets are merged.

use super::{BufferView, Lowering};
use crate::fuse::Link;
use crate::ir::{CompileError, Def, Kind, Op, Result, Val};
use crate::library::ffi;
use crate::plan::Operation;
use crate::qnn::epilogue::{
    AxisParam, Broadcast, Epilogue, EpilogueOp, FAST_BOUND, FixedPointScale, FloatScale, MAX_OTHERS, Operand,
};
use crate::qnn::ratio::{Fixed, Ratios, Rounding};
use crate::qnn::stage::{Stage, SumOperand, range};
use crate::shape::varying_axes;
use crate::translate::quantized::is_byte;
use byoc_plugin_api::{DType, RefusalCode};
use byoc_plugin_support::view::{View, count};

/// Memory layout of the axis along which parameters vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ParamAxis {
    /// Number of elements along the axis.
    size: usize,
    /// Stride of the axis, in elements.
    stride: usize,
}

/// Epilogue under construction.
struct EpilogueBuilder {
    /// Axis that all non-scalar parameters share.
    axis: Option<ParamAxis>,
    ops: Vec<EpilogueOp>,
    /// True if the operations so far produce floats.
    is_real: bool,
    /// Minimum and maximum of the integers so far, if they are few.
    range: Option<(i32, i32)>,
}

/// Magnitude of the integers up to which each product with a ratio is compared with the product with a float.
const MAX_CHECKED: i32 = 1 << 18;

/// Returns the minimum and the maximum of an 8-bit type.
fn byte_range(dtype: DType) -> Option<(i32, i32)> {
    is_byte(dtype).then(|| range(dtype))
}

fn unsupported_shape(detail: &str) -> CompileError {
    CompileError::new(RefusalCode::UnsupportedShape, detail)
}

impl Lowering<'_> {
    /// Adds one step for a stage and for the longest run of following links that fits in the same epilogue. Returns the
    /// number of links covered.
    pub fn stages(&mut self, op: &Op, links: &[Link]) -> Result<usize> {
        let mut x = self.placement(op.inputs[0]);
        if !x.view.is_packed() {
            x = self.in_order(&x, &x.view.order())?;
        }
        let dtype = self.dtype(&x);
        if op.inputs.get(1).is_some_and(|&other| !self.is_readable(other, &x.view)) {
            x = self.row_major(&x)?;
        }
        let mut view = View { offset: 0, ..x.view.clone() };
        let mut epilogue = EpilogueBuilder::new(dtype);
        let mut tensors = Vec::new();
        let (mut fused_links, mut last) = (None, (op.output, view.clone()));
        let first_link = Link::Stage { op: self.op_index(op), operand: op.inputs.get(1).copied() };
        for (i, link) in std::iter::once(&first_link).chain(links).enumerate() {
            let stage_op = &self.ir.ops[link.op()];
            match (link, &stage_op.kind) {
                (Link::Stage { operand: other, .. }, Kind::Stage(stage)) => {
                    let is_swapped =
                        matches!(other, Some(other) if *other == stage_op.inputs[0]) && stage_op.inputs.len() > 1;
                    if (other.is_some() && tensors.len() == MAX_OTHERS)
                        || other.is_some_and(|other| !self.is_readable(other, &view))
                        || !epilogue.add(stage, &view, is_swapped && i > 0)
                    {
                        break;
                    }
                    if let Some(other) = other {
                        let (tensor, broadcast) = self.operand_in_layout(*other, &view)?;
                        epilogue.set_operand(Operand { dtype: self.dtype(&tensor), broadcast });
                        tensors.push(tensor);
                    }
                    (fused_links, last) = (Some(i), (stage_op.output, view.clone()));
                }
                (_, Kind::Transpose(axes)) => view = view.permute(axes),
                (_, Kind::Reshape) => match view.reshape(self.ir.shape(stage_op.output)) {
                    Some(reshaped_view) => view = reshaped_view,
                    None => break,
                },
                _ => break,
            }
        }
        let fused_links = fused_links
            .ok_or_else(|| unsupported_shape("expected quantization parameters along one axis, found several axes"))?;
        let (value, view) = last;
        let result_dtype = self.ir.get(value).dtype;
        let elements = count(&view.shape) as usize;
        let result = BufferView { buffer: self.scratch_of(result_dtype, View::dense(&view.shape)).buffer, view };
        let axis = epilogue.axis.unwrap_or(ParamAxis { size: 1, stride: 1 });
        let kernel = Epilogue::new(elements, (axis.size, axis.stride), (dtype, result_dtype), epilogue.ops);
        let mut args = vec![(ffi::ARG_SRC, x)];
        args.extend(tensors.into_iter().enumerate().map(|(k, tensor)| (ffi::ARG_MULTIPLE_SRC + k as i32, tensor)));
        args.push((ffi::ARG_DST, result.clone()));
        self.handwritten_step(Operation::Epilogue(kernel), args, "integer stages")?;
        self.set_placement(value, result);
        Ok(fused_links)
    }

    fn op_index(&self, op: &Op) -> usize {
        match self.ir.get(op.output).def {
            Def::Op(op_index) => op_index,
            _ => usize::MAX,
        }
    }

    /// Returns true if an epilogue can read the operand `other` beside elements with the layout `view`.
    fn is_readable(&self, other: Val, view: &View) -> bool {
        let shape = self.ir.shape(other);
        shape == view.shape || broadcast(shape, view).is_some()
    }

    /// Returns the operand `other` in the layout of the packed `view`, copying it if necessary, and how it is broadcast.
    fn operand_in_layout(&mut self, other: Val, view: &View) -> Result<(BufferView, Option<Broadcast>)> {
        let other = self.placement(other);
        if other.view.same_layout(view) {
            return Ok((other, None));
        }
        if other.view.shape != view.shape {
            let broadcast = broadcast(&other.view.shape, view)
                .ok_or_else(|| unsupported_shape("expected an operand that varies along one axis of each image"))?;
            return Ok((self.row_major(&other)?, Some(broadcast)));
        }
        let other = self.in_order(&other, &view.order())?;
        if other.view.same_layout(view) {
            Ok((other, None))
        } else {
            let (expected, found) = (&view.strides, &other.view.strides);
            Err(unsupported_shape(&format!("operand: expected strides {expected:?}, found {found:?}")))
        }
    }
}

/// Returns how an operand of the shape `shape` is broadcast to the packed `view`; `None` if it varies along several
/// axes.
fn broadcast(shape: &[i64], view: &View) -> Option<Broadcast> {
    let elements = count(&view.shape) as usize;
    let along = |axis: usize, image: usize| Broadcast {
        image,
        len: view.shape[axis] as usize,
        stride: view.strides[axis] as usize,
    };
    match varying_axes(shape, view.shape.len())?[..] {
        [] => Some(Broadcast { image: elements, len: 1, stride: elements }),
        [axis] => Some(along(axis, elements)),
        // Images are the outermost axis.
        [0, axis] if view.strides[0] == count(&view.shape[1..]) => Some(along(axis, view.strides[0] as usize)),
        _ => None,
    }
}

impl EpilogueBuilder {
    /// Creates an epilogue of elements of this type.
    fn new(dtype: DType) -> EpilogueBuilder {
        EpilogueBuilder { axis: None, ops: Vec::new(), is_real: dtype == DType::F32, range: byte_range(dtype) }
    }

    /// Adds a stage on elements with layout `view`. Returns false if its parameters vary along a different axis than
    /// the parameters of earlier stages.
    fn add(&mut self, stage: &Stage, view: &View, is_swapped: bool) -> bool {
        let axis_values = match stage {
            Stage::Offset(per_axis) => (per_axis.values.len(), per_axis.axis),
            Stage::Dequantize { scale, .. } => (scale.values.len(), scale.axis),
            Stage::RealAdd(per_axis) | Stage::RealMultiply(per_axis) => (per_axis.values.len(), per_axis.axis),
            Stage::Rescale { ratios: Ratios::Fixed(ratios), axis, .. } => (ratios.len(), *axis),
            Stage::Rescale { ratios: Ratios::Float(ratios), axis, .. } => (ratios.len(), *axis),
            _ => (1, 0),
        };
        if axis_values.0 != 1 {
            let axis = ParamAxis { size: axis_values.0, stride: view.strides[axis_values.1] as usize };
            if *self.axis.get_or_insert(axis) != axis {
                return false;
            }
        }
        let known_range = self.range.take();
        match stage {
            Stage::Offset(per_axis) => match self.ops.last_mut() {
                Some(EpilogueOp::Offset(previous)) => previous.add(&per_axis.values),
                _ => self.ops.push(EpilogueOp::Offset(AxisParam::new(&per_axis.values))),
            },
            Stage::Rescale { in_zero_point, ratios, rounding, out_zero_point, out_dtype, .. } => {
                self.subtract_zero_point(*in_zero_point);
                let (low, high) = range(*out_dtype);
                let (zero, to_bytes) = (*out_zero_point, *out_dtype != DType::I32);
                let step = match ratios {
                    Ratios::Float(ratios) => EpilogueOp::Float(FloatScale {
                        ratios: AxisParam::new(ratios),
                        rounding: *rounding,
                        zero,
                        low,
                        high,
                    }),
                    Ratios::Fixed(ratios)
                        if let Some(scale) = known_range.and_then(|range| {
                            float_scale(ratios, *rounding, range, (*in_zero_point, zero), (low, high))
                        }) =>
                    {
                        EpilogueOp::Float(scale)
                    }
                    Ratios::Fixed(ratios) => {
                        // A bias that precedes the requantization is added in the same operation.
                        let offsets = self.ops.pop_if(|step| matches!(step, EpilogueOp::Offset(_)));
                        let offsets =
                            if let Some(EpilogueOp::Offset(offsets)) = offsets { Some(offsets) } else { None };
                        EpilogueOp::FixedPoint(fixed_point_scale(offsets, ratios, *rounding, zero, to_bytes), low, high)
                    }
                    Ratios::Same => EpilogueOp::AddZeroPoint { zero, low, high },
                };
                self.ops.push(step);
                self.range = byte_range(*out_dtype);
            }
            Stage::Clamp { low, high } => {
                self.clamp(*low, *high);
                self.range = known_range;
            }
            Stage::Lookup(table) => {
                self.range = table.iter().min().copied().zip(table.iter().max().copied());
                self.ops.push(EpilogueOp::Lookup(table.clone()));
            }
            Stage::Sum { operands, zero, out_dtype } => {
                let rescales =
                    operands.each_ref().map(|operand| operand.as_ref().map(|o| OperandRescale::of(o, *out_dtype)));
                let narrow = rescales.iter().flatten().all(OperandRescale::is_narrow);
                let [left, right] = rescales;
                let (own_rescale, other) = if is_swapped { (right, left) } else { (left, right) };
                if let Some(own_rescale) = own_rescale {
                    self.subtract_zero_point(own_rescale.in_zero_point);
                    self.ops.push(own_rescale.step);
                }
                let other = match other {
                    Some(OperandRescale { in_zero_point, step }) => {
                        let subtract = (in_zero_point != 0).then_some(EpilogueOp::SubtractZeroPoint(in_zero_point));
                        subtract.into_iter().chain([step]).collect()
                    }
                    None => Vec::new(),
                };
                let (low, high) = range(*out_dtype);
                let operand = Operand { dtype: *out_dtype, broadcast: None };
                self.ops.push(EpilogueOp::Sum { operand_ops: other, operand, zero: *zero, low, high, narrow });
                self.range = byte_range(*out_dtype);
            }
            Stage::Product { zeros } => {
                let [x_zero, y_zero] = if is_swapped { [zeros[1], zeros[0]] } else { *zeros };
                let operand = Operand { dtype: DType::I8, broadcast: None };
                self.ops.push(EpilogueOp::Product { operand, zeros: [x_zero, y_zero] });
                // Differences of bytes and their zero points.
                let bound = |zero: i32| zero.saturating_abs().saturating_add(256);
                let bound = bound(x_zero).saturating_mul(bound(y_zero));
                self.range = (bound <= MAX_CHECKED).then_some((-bound, bound));
            }
            Stage::Dequantize { zero, scale } => {
                self.subtract_zero_point(*zero);
                self.ops.push(EpilogueOp::Dequantize(AxisParam::new(&scale.values)));
                self.is_real = true;
            }
            Stage::Quantize { scale, zero, rounding, out_dtype } => {
                let (low, high) = range(*out_dtype);
                self.ops.push(EpilogueOp::Quantize { scale: *scale, zero: *zero, rounding: *rounding, low, high });
                self.is_real = false;
                self.range = byte_range(*out_dtype);
            }
            Stage::Convert(out_dtype) => {
                let converts_to_real = *out_dtype == DType::F32;
                match (self.is_real, converts_to_real) {
                    (true, true) => {}
                    (false, true) => self.ops.push(EpilogueOp::ToReal),
                    (true, false) => {
                        let (low, high) = range(*out_dtype);
                        self.ops.push(EpilogueOp::ToInteger { low, high });
                    }
                    (false, false) => self.ops.push(EpilogueOp::Wrap(*out_dtype)),
                }
                self.is_real = converts_to_real;
            }
            Stage::RealAdd(per_axis) => self.ops.push(EpilogueOp::RealAdd(AxisParam::new(&per_axis.values))),
            Stage::RealMultiply(per_axis) => self.ops.push(EpilogueOp::RealMultiply(AxisParam::new(&per_axis.values))),
            Stage::RealClamp { low, high } => self.ops.push(EpilogueOp::RealClamp { low: *low, high: *high }),
            Stage::RealSum(stages) => {
                let is_converted = matches!(stages.first(), Some(Stage::Convert(_) | Stage::Dequantize { .. }));
                let mut inner_builder = EpilogueBuilder::new(if is_converted { DType::I32 } else { DType::F32 });
                if !stages.iter().all(|stage| inner_builder.add(stage, view, false)) || inner_builder.axis.is_some() {
                    return false;
                }
                let operand = Operand { dtype: DType::F32, broadcast: None };
                self.ops.push(EpilogueOp::RealSum { operand_ops: inner_builder.ops, operand });
            }
        }
        true
    }

    /// Sets the second operand of the last operation.
    fn set_operand(&mut self, second_operand: Operand) {
        if let Some(
            EpilogueOp::RealSum { operand, .. } | EpilogueOp::Sum { operand, .. } | EpilogueOp::Product { operand, .. },
        ) = self.ops.last_mut()
        {
            *operand = second_operand;
        }
    }

    fn subtract_zero_point(&mut self, zero: i32) {
        if zero != 0 {
            self.ops.push(EpilogueOp::SubtractZeroPoint(zero));
        }
    }

    /// Adds a clamp. If the previous operation already clamps, its bounds are tightened instead.
    fn clamp(&mut self, min: i32, max: i32) {
        match self.ops.last_mut() {
            Some(
                EpilogueOp::FixedPoint(_, low, high)
                | EpilogueOp::Float(FloatScale { low, high, .. })
                | EpilogueOp::AddZeroPoint { low, high, .. }
                | EpilogueOp::Sum { low, high, .. }
                | EpilogueOp::ToInteger { low, high }
                | EpilogueOp::Quantize { low, high, .. },
            ) => {
                *low = (*low).clamp(min, max);
                *high = (*high).clamp(min, max);
            }
            _ => self.ops.push(EpilogueOp::Clamp { low: min, high: max }),
        }
    }
}

/// Operations that requantize a sum operand to the result's scale.
struct OperandRescale {
    in_zero_point: i32,
    step: EpilogueOp,
}

impl OperandRescale {
    /// Returns the operations on an operand of bytes.
    fn of(operand: &SumOperand, dtype: DType) -> OperandRescale {
        let (low, high) = range(DType::I32);
        let fast_bounds = (-FAST_BOUND, FAST_BOUND);
        let zeros = (operand.in_zero_point, operand.out_zero_point);
        let step = match &operand.ratios {
            Ratios::Fixed(ratios)
                if let Some(scale) = float_scale(ratios, Rounding::Up, range(dtype), zeros, fast_bounds) =>
            {
                EpilogueOp::Float(scale)
            }
            Ratios::Fixed(ratios) => EpilogueOp::FixedPoint(
                fixed_point_scale(None, ratios, Rounding::Up, operand.out_zero_point, false),
                low,
                high,
            ),
            _ => EpilogueOp::AddZeroPoint { zero: operand.out_zero_point, low, high },
        };
        OperandRescale { in_zero_point: operand.in_zero_point, step }
    }

    /// Returns true if the results are below 2^29 in magnitude.
    fn is_narrow(&self) -> bool {
        matches!(self.step, EpilogueOp::Float(_) | EpilogueOp::AddZeroPoint { .. })
    }
}

/// Returns a float scale that has the same result as a fixed-point ratio for every integer between `min` and `max`:
/// vectors of floats hold twice as many elements as vectors of 64-bit products. The zero points are those of the
/// integers and of the result.
fn float_scale(
    ratios: &[Fixed],
    rounding: Rounding,
    (min, max): (i32, i32),
    (in_zero, zero): (i32, i32),
    (low, high): (i32, i32),
) -> Option<FloatScale> {
    let (&[ratio], Rounding::Up) = (ratios, rounding) else { return None };
    let ratio = ratio.equivalent_float(min.saturating_sub(in_zero), max.saturating_sub(in_zero))?;
    Some(FloatScale { ratios: AxisParam::new(&[ratio]), rounding, zero, low, high })
}

fn fixed_point_scale(
    offsets: Option<AxisParam<i32>>,
    ratios: &[Fixed],
    rounding: Rounding,
    zero: i32,
    bytes: bool,
) -> FixedPointScale {
    // Exponents are clamped to [-32, 32]: a larger exponent overflows `int32` for every nonzero value, and a smaller
    // exponent makes every result 0.
    let left_shifts: Vec<i64> = ratios.iter().map(|ratio| i64::from(ratio.exponent.clamp(0, 32))).collect();
    let shifts: Vec<i32> = ratios.iter().map(|ratio| 31 + (-ratio.exponent).clamp(0, 32)).collect();
    let multipliers: Vec<i32> = ratios.iter().map(|ratio| ratio.multiplier).collect();
    let has_left_shift = left_shifts.iter().any(|&left_shift| left_shift > 0);
    FixedPointScale {
        offsets: offsets.unwrap_or_else(|| AxisParam::new(&[0])),
        multipliers: AxisParam::new(&multipliers),
        left_shifts: has_left_shift.then(|| AxisParam::new(&left_shifts)),
        shifts: AxisParam::new(&shifts),
        rounding,
        zero,
        bytes,
    }
}
