//! Lowers the operators of the QNN dialect to plain Relay with bit-identical results: subtraction of zero points,
//! products, fixed-point requantization, clipping. Intermediate values that may not fit `int32` are computed in `int64`
//! and clipped, because the dialect saturates where plain operators wrap.
//!
//! Requantization needs constant scales; a call with non-constant scales is left unchanged.

use crate::analysis::scope::rewritable_exprs;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{AttrValue, Attrs, Call, ExprId, Module};
use byoc_ir::op::qnn::numerics::{Rescale, Rounding, range};
use byoc_ir::op::qnn::{default_requantization, real_operator, requantization};
use byoc_ir::op::{self, OpDef, Params};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::{Builder, Rebuild};

type Result<T, E = Box<Diagnostic>> = std::result::Result<T, E>;

const INT32: (i64, i64) = (i32::MIN as i64, i32::MAX as i64);

/// Lowers every QNN operator call with constant scales.
///
/// # Errors
/// If the rebuilt module is ill-typed, which indicates a bug in this pass.
pub fn qnn_canonicalize(module: &Module) -> Result<Module> {
    let is_rewritable = rewritable_exprs(module);
    Rebuild::run(module, |rebuild, id, expr| {
        let Some((operator, call)) = expr.as_op_call() else { return Ok(None) };
        let def = op::get(operator);
        if !def.name.starts_with("qnn.") || !is_rewritable[id] {
            return Ok(None);
        }
        let args: Vec<ExprId> = call.args.iter().map(|&arg| rebuild.get(arg)).collect();
        Emitter { builder: &mut rebuild.new, def, call, args }.operator()
    })
}

/// Call that is being lowered.
struct Emitter<'a> {
    builder: &'a mut Builder,
    def: &'static OpDef,
    call: &'a Call,
    /// Arguments in the new module.
    args: Vec<ExprId>,
}

/// Scale and zero point. If they are vectors, they vary along `axis`.
#[derive(Clone, Copy)]
struct Quantization {
    scale: ExprId,
    zero_point: ExprId,
    axis: i64,
}

impl<'a> Emitter<'a> {
    fn operator(mut self) -> Result<Option<ExprId>> {
        let params = self.params();
        let axis = params.int("axis");
        let quantization_at =
            |emit: &Self, i: usize, axis| Quantization { scale: emit.args[i], zero_point: emit.args[i + 1], axis };
        let data = self.args[0];
        Ok(Some(match self.def.name {
            "qnn.quantize" => {
                let rounding = Rounding::parse(&params.string("rounding")).unwrap_or(Rounding::ToNearest);
                let dtype = params.dtype("out_dtype").unwrap_or(DType::I8);
                self.quantize(data, quantization_at(&self, 1, axis), dtype, rounding)?
            }
            "qnn.dequantize" => {
                let is_half = params.dtype("out_dtype") == Some(DType::F16);
                let real = self.dequantize(data, quantization_at(&self, 1, axis))?;
                match is_half {
                    true => {
                        let limit = f64::from(half::f16::MAX);
                        let real = self.clip(real, -limit, limit)?;
                        self.cast(real, DType::F16)?
                    }
                    false => real,
                }
            }
            "qnn.requantize" => {
                let (Some(source_scales), Some(result_scales)) = (self.floats(1), self.floats(3)) else {
                    return Ok(None);
                };
                let factors = requantization(&params, &source_scales, &result_scales);
                let t = self.difference(data, self.args[2], axis)?;
                let dtype = params.dtype("out_dtype").unwrap_or(DType::I8);
                self.rescale(t, &factors, quantization_at(&self, 3, axis), dtype)?
            }
            "qnn.conv2d" => self.contraction("nn.conv2d")?,
            "qnn.conv2d_transpose" => self.contraction("nn.conv2d_transpose")?,
            "qnn.dense" => self.contraction("nn.dense")?,
            "qnn.batch_matmul" => self.contraction("nn.batch_matmul")?,
            "qnn.add" | "qnn.subtract" => return self.sum(),
            "qnn.mul" => return self.product(),
            "qnn.concatenate" => return self.concatenate(),
            "qnn.contrib_dynamic_quantize" => self.dynamic_quantize(data)?,
            // Its steps are no operators, and its product is not theirs.
            "qnn.lstm" => return Ok(None),
            "qnn.avg_pool2d" => {
                let t = self.difference(data, self.args[2], -1)?;
                let real = self.cast(t, DType::F32)?;
                let mean = self.builder.op("nn.avg_pool2d", &[real], self.call.attrs.clone())?;
                let scale = self.broadcast_along(self.args[1], mean, -1)?;
                let mean = self.op_without_attrs("multiply", &[mean, scale])?;
                self.quantize(mean, quantization_at(&self, 3, -1), self.dtype(data), Rounding::ToNearest)?
            }
            name => {
                let x = self.dequantize(data, quantization_at(&self, 1, -1))?;
                let y = match real_operator(name) {
                    Some(real) => self.builder.op(real.name, &[x], self.call.attrs.clone())?,
                    None => self.hard_swish(x)?,
                };
                self.quantize(y, quantization_at(&self, 3, -1), self.dtype(data), Rounding::ToNearest)?
            }
        }))
    }

    fn params(&self) -> Params<'a> {
        Params::new(self.def, &self.call.attrs)
    }

    // Building blocks of the lowerings.

    fn op_without_attrs(&mut self, name: &str, args: &[ExprId]) -> Result<ExprId> {
        self.builder.op(name, args, Attrs::none())
    }

    fn dtype(&self, value: ExprId) -> DType {
        self.builder.module.ty(value).as_tensor().map_or(DType::F32, |t| t.dtype)
    }

    fn rank(&self, value: ExprId) -> usize {
        self.builder.module.ty(value).as_tensor().map_or(0, |t| t.dims.len())
    }

    fn cast(&mut self, value: ExprId, dtype: DType) -> Result<ExprId> {
        if self.dtype(value) == dtype {
            return Ok(value);
        }
        let attrs = Attrs::new([("dtype", dtype.into())]);
        // Constants are cast here: zero points are usually constants, and later steps check for constants.
        if let (Some(tensor), Some(cast)) = (self.constant(value), op::lookup("cast"))
            && let Ok(cast) = op::evaluate(cast, &attrs, &[op::Value::Tensor(tensor.clone())], 1 << 20)
            && let [tensor] = &cast[..]
        {
            return Ok(self.builder.constant(tensor.clone()));
        }
        self.builder.op("cast", &[value], attrs)
    }

    fn clip(&mut self, value: ExprId, low: f64, high: f64) -> Result<ExprId> {
        self.builder.op("clip", &[value], Attrs::new([("a_min", low.into()), ("a_max", high.into())]))
    }

    fn clip_to(&mut self, value: ExprId, (low, high): (i64, i64)) -> Result<ExprId> {
        self.clip(value, low as f64, high as f64)
    }

    fn float(&mut self, value: f32) -> ExprId {
        self.builder.constant(Tensor::scalar(value))
    }

    fn constant(&self, value: ExprId) -> Option<&Tensor> {
        self.builder.module.expr(value).as_constant().map(|t| &**t)
    }

    /// Returns the elements of the scale in argument `i`, if the scale is a constant.
    fn floats(&self, i: usize) -> Option<Vec<f32>> {
        self.constant(self.args[i]).map(|t| t.as_slice::<f32>().to_vec())
    }

    /// Returns the maximum magnitude of the elements of a zero point, if the zero point is a constant.
    fn max_magnitude(&self, zero_point: ExprId) -> Option<u32> {
        self.constant(zero_point)?.as_slice::<i32>().iter().map(|v| v.unsigned_abs()).max()
    }

    /// Reshapes a scalar, or a vector along `axis`, so that it broadcasts against `data`.
    fn broadcast_along(&mut self, value: ExprId, data: ExprId, axis: i64) -> Result<ExprId> {
        let (rank, is_one) = (self.rank(data) as i64, self.has_one_element(value));
        if self.rank(value) == 0 {
            return Ok(value);
        }
        if is_one {
            return self.op_without_attrs("squeeze", &[value]);
        }
        let trailing = rank - 1 - if axis < 0 { axis + rank } else { axis };
        if trailing == 0 {
            return Ok(value);
        }
        self.builder.op("expand_dims", &[value], Attrs::new([("axis", 1.into()), ("num_newaxis", trailing.into())]))
    }

    fn has_one_element(&self, value: ExprId) -> bool {
        self.builder.module.ty(value).as_tensor().is_some_and(|t| t.len() == Some(1))
    }

    /// Creates a scalar constant if all values are equal, otherwise a vector along `axis` of `data`.
    fn integers(&mut self, values: &[i64], data: ExprId, axis: i64) -> Result<ExprId> {
        let first = values.first().copied().unwrap_or(0);
        let tensor = match values.iter().all(|&v| v == first) {
            true => Tensor::scalar(first),
            false => Tensor::from_slice(&[values.len()], values),
        };
        let constant = self.builder.constant(tensor);
        self.broadcast_along(constant, data, axis)
    }

    /// Builds `data - zero_point` in `int32`, with saturation.
    fn difference(&mut self, data: ExprId, zero_point: ExprId, axis: i64) -> Result<ExprId> {
        let magnitude = self.max_magnitude(zero_point);
        let is_narrow = self.dtype(data).size() <= 2;
        if magnitude == Some(0) {
            return self.cast(data, DType::I32);
        }
        if is_narrow && magnitude.is_some_and(|magnitude| magnitude <= 1 << 30) {
            let data = self.cast(data, DType::I32)?;
            let zero_point = self.broadcast_along(zero_point, data, axis)?;
            return self.op_without_attrs("subtract", &[data, zero_point]);
        }
        let widened = self.cast(data, DType::I64)?;
        let zero_point = self.cast(zero_point, DType::I64)?;
        let zero_point = self.broadcast_along(zero_point, data, axis)?;
        let widened = self.op_without_attrs("subtract", &[widened, zero_point])?;
        let widened = self.clip_to(widened, INT32)?;
        self.cast(widened, DType::I32)
    }

    fn dequantize(&mut self, data: ExprId, quantization: Quantization) -> Result<ExprId> {
        let t = self.difference(data, quantization.zero_point, quantization.axis)?;
        let real = self.cast(t, DType::F32)?;
        let scale = self.broadcast_along(quantization.scale, data, quantization.axis)?;
        self.op_without_attrs("multiply", &[real, scale])
    }

    fn quantize(
        &mut self,
        data: ExprId,
        quantization: Quantization,
        dtype: DType,
        rounding: Rounding,
    ) -> Result<ExprId> {
        let real = self.cast(data, DType::F32)?;
        let scale = self.broadcast_along(quantization.scale, data, quantization.axis)?;
        let ratio = self.op_without_attrs("divide", &[real, scale])?;
        let integer = self.round(ratio, rounding)?;
        self.add_zero_point(integer, quantization, dtype)
    }

    /// Adds the zero point to integral float32 values and converts the sums to an integer type, with saturation.
    fn add_zero_point(&mut self, integer: ExprId, quantization: Quantization, dtype: DType) -> Result<ExprId> {
        let mut value = integer;
        if self.max_magnitude(quantization.zero_point) != Some(0) {
            let zero_point = self.cast(quantization.zero_point, DType::F32)?;
            let zero_point = self.broadcast_along(zero_point, integer, quantization.axis)?;
            value = self.op_without_attrs("add", &[value, zero_point])?;
        }
        let value = self.clip_to(value, range(dtype))?;
        self.cast(value, dtype)
    }

    fn round(&mut self, real: ExprId, rounding: Rounding) -> Result<ExprId> {
        let half = self.float(0.5);
        match rounding {
            Rounding::ToNearest => self.op_without_attrs("round", &[real]),
            Rounding::Upward => {
                let shifted = self.op_without_attrs("add", &[real, half])?;
                self.op_without_attrs("floor", &[shifted])
            }
            Rounding::ToEven => {
                let truncated = self.op_without_attrs("trunc", &[real])?;
                let fraction = self.op_without_attrs("subtract", &[real, truncated])?;
                let size = self.op_without_attrs("abs", &[fraction])?;
                let tie = self.op_without_attrs("equal", &[size, half])?;
                let half_value = self.op_without_attrs("multiply", &[real, half])?;
                let half_value = self.op_without_attrs("round", &[half_value])?;
                let even = self.op_without_attrs("add", &[half_value, half_value])?;
                let nearest = self.op_without_attrs("round", &[real])?;
                self.op_without_attrs("where", &[tie, even, nearest])
            }
        }
    }

    /// Multiplies the `int32` value `t` by the ratios of the scales, and adds the zero point. The result saturates to
    /// `dtype`.
    fn rescale(&mut self, t: ExprId, factors: &[Rescale], quantization: Quantization, dtype: DType) -> Result<ExprId> {
        let axis = quantization.axis;
        let rescaled = match factors.first() {
            None | Some(Rescale::Same) => t,
            Some(Rescale::Float(_, rounding)) => {
                let ratios: Vec<f32> =
                    factors.iter().map(|r| if let Rescale::Float(m, _) = r { *m } else { 1.0 }).collect();
                let shape: &[usize] = if ratios.len() == 1 { &[] } else { &[ratios.len()] };
                let ratio = self.builder.constant(Tensor::from_slice(shape, &ratios));
                let ratio = self.broadcast_along(ratio, t, axis)?;
                let real = self.cast(t, DType::F32)?;
                let real = self.op_without_attrs("multiply", &[real, ratio])?;
                let integer = self.round(real, *rounding)?;
                return self.add_zero_point(integer, quantization, dtype);
            }
            Some(Rescale::Fixed(_, rounding)) => self.multiply(t, factors, *rounding, axis)?,
        };
        let limits = range(dtype);
        if self.max_magnitude(quantization.zero_point) == Some(0) {
            if limits == INT32 && self.dtype(rescaled) == DType::I32 {
                return Ok(rescaled);
            }
            let value = self.clip_to(rescaled, limits)?;
            return self.cast(value, dtype);
        }
        let widened = self.cast(rescaled, DType::I64)?;
        let zero_point = self.cast(quantization.zero_point, DType::I64)?;
        let zero_point = self.broadcast_along(zero_point, t, axis)?;
        let widened = self.op_without_attrs("add", &[widened, zero_point])?;
        let widened = self.clip_to(widened, limits)?;
        self.cast(widened, dtype)
    }

    /// Multiplies `t` by fixed-point ratios and clips the product to the range of `int32`.
    fn multiply(&mut self, t: ExprId, factors: &[Rescale], rounding: Rounding, axis: i64) -> Result<ExprId> {
        let ratio = |factor: &Rescale| match factor {
            Rescale::Fixed(ratio, _) => (i64::from(ratio.multiplier), i64::from(ratio.exponent)),
            _ => (1 << 30, 1),
        };
        let ratios: Vec<(i64, i64)> = factors.iter().map(ratio).collect();
        if rounding == Rounding::Upward && ratios.iter().all(|(_, e)| (-31..=31).contains(e)) {
            return self.fixed_point_multiply(t, &ratios, axis);
        }
        let map_ratios = |f: &dyn Fn(i64, i64) -> i64| ratios.iter().map(|&(m, e)| f(m, e)).collect::<Vec<i64>>();
        let mut widened = self.cast(t, DType::I64)?;
        // Shifts to the left. A shifted operand of 2^32 or more makes the product exceed int32 for any multiplier, so
        // the operand is clipped there, and the product fits 64 bits.
        let left_shifts = map_ratios(&|_, e| e.clamp(0, 32));
        if left_shifts.iter().any(|&n| n > 0) {
            let bounds: Vec<i64> = left_shifts.iter().map(|n| 1 << (32 - n)).collect();
            let high = self.integers(&bounds, t, axis)?;
            let low = self.integers(&bounds.iter().map(|b| -b).collect::<Vec<_>>(), t, axis)?;
            widened = self.op_without_attrs("minimum", &[widened, high])?;
            widened = self.op_without_attrs("maximum", &[widened, low])?;
            let power = self.integers(&left_shifts.iter().map(|&n| 1 << n).collect::<Vec<_>>(), t, axis)?;
            widened = self.op_without_attrs("multiply", &[widened, power])?;
        }
        let multiplier = self.integers(&map_ratios(&|m, _| m), t, axis)?;
        let product = self.op_without_attrs("multiply", &[widened, multiplier])?;
        // Shifts to the right. A shift by more than the maximum also produces 0, so the shift is clamped.
        let right_shifts = map_ratios(&|_, e| (-e).clamp(0, 32));
        let shift = self.integers(&right_shifts.iter().map(|r| 31 + r).collect::<Vec<_>>(), t, axis)?;
        let half = self.integers(&right_shifts.iter().map(|r| 1 << (30 + r)).collect::<Vec<_>>(), t, axis)?;
        let one = self.builder.constant(Tensor::scalar(1i64));
        let adjusted = match rounding {
            Rounding::Upward => self.op_without_attrs("add", &[product, half])?,
            Rounding::ToNearest => {
                let zero = self.builder.constant(Tensor::scalar(0i64));
                let negative = self.op_without_attrs("less", &[product, zero])?;
                let negative = self.cast(negative, DType::I64)?;
                let adjusted = self.op_without_attrs("add", &[product, half])?;
                self.op_without_attrs("subtract", &[adjusted, negative])?
            }
            Rounding::ToEven => {
                let floor = self.op_without_attrs("right_shift", &[product, shift])?;
                let parity = self.op_without_attrs("bitwise_and", &[floor, one])?;
                let half_minus_one = self.op_without_attrs("subtract", &[half, one])?;
                let adjusted = self.op_without_attrs("add", &[product, half_minus_one])?;
                self.op_without_attrs("add", &[adjusted, parity])?
            }
        };
        let scaled = self.op_without_attrs("right_shift", &[adjusted, shift])?;
        self.clip_to(scaled, INT32)
    }

    /// Multiplies `t` by fixed-point ratios, with Relay's operators for fixed-point products.
    fn fixed_point_multiply(&mut self, t: ExprId, ratios: &[(i64, i64)], axis: i64) -> Result<ExprId> {
        if let [(multiplier, exponent)] = *ratios {
            let attrs = Attrs::new([("multiplier", multiplier.into()), ("shift", exponent.into())]);
            return self.builder.op("fixed_point_multiply", &[t], attrs);
        }
        let mut vector = |f: &dyn Fn(i64, i64) -> i64| {
            let values: Vec<i32> = ratios.iter().map(|&(m, e)| f(m, e) as i32).collect();
            self.builder.constant(Tensor::from_slice(&[values.len()], &values))
        };
        let args = [t, vector(&|m, _| m), vector(&|_, e| e.max(0)), vector(&|_, e| (-e).max(0))];
        let attrs = Attrs::new([
            ("is_lshift_required", AttrValue::from(ratios.iter().any(|r| r.1 > 0))),
            ("is_rshift_required", AttrValue::from(ratios.iter().any(|r| r.1 < 0))),
            ("axes", AttrValue::from([axis])),
        ]);
        self.builder.op("fixed_point_multiply_per_axis", &args, attrs)
    }

    // Lowerings of the operators.

    /// Applies the operator `name` to the operands minus their zero points. The differences are computed in `int16` if
    /// they fit, otherwise in the accumulator type, where they may wrap as the accumulators do.
    fn contraction(&mut self, name: &str) -> Result<ExprId> {
        let out = self.params().dtype("out_dtype").unwrap_or(DType::I32);
        let layout = self.params().string("kernel_layout");
        let channels = layout.find('O').unwrap_or(0) as i64;
        let mut operands = [self.args[0], self.args[1]];
        let max_magnitudes = [self.max_magnitude(self.args[2]), self.max_magnitude(self.args[3])];
        if max_magnitudes != [Some(0), Some(0)] {
            let is_byte = |i: usize| self.dtype(self.args[i]).size() == 1;
            let is_small = max_magnitudes.iter().all(|r| r.is_some_and(|magnitude| magnitude <= 1 << 14));
            let dtype = if is_small && is_byte(0) && is_byte(1) { DType::I16 } else { out };
            for (i, axis) in [(0, -1), (1, channels)] {
                let data = self.cast(self.args[i], dtype)?;
                operands[i] = data;
                if max_magnitudes[i] != Some(0) {
                    let zero_point = self.cast(self.args[2 + i], dtype)?;
                    let zero_point = self.broadcast_along(zero_point, data, axis)?;
                    operands[i] = self.op_without_attrs("subtract", &[data, zero_point])?;
                }
            }
        }
        self.builder.op(name, &operands, self.call.attrs.with("out_dtype", out))
    }

    /// Quantizes to uint8 over the range of the values, extended to contain 0.
    fn dynamic_quantize(&mut self, data: ExprId) -> Result<ExprId> {
        let (zero, width) = (self.float(0.0), self.float(255.0));
        let mut bound = |reduce: &str, with_zero: &str| {
            let bound = self.op_without_attrs(reduce, &[data])?;
            self.op_without_attrs(with_zero, &[bound, zero])
        };
        let (max, min) = (bound("max", "maximum")?, bound("min", "minimum")?);
        let range = self.op_without_attrs("subtract", &[max, min])?;
        let scale = self.op_without_attrs("divide", &[range, width])?;
        let distance = self.op_without_attrs("subtract", &[zero, min])?;
        let position = self.op_without_attrs("divide", &[distance, scale])?;
        let position = self.clip(position, 0.0, 255.0)?;
        let zero_point = self.round(position, Rounding::ToEven)?;
        let ratio = self.op_without_attrs("divide", &[data, scale])?;
        let integer = self.round(ratio, Rounding::ToEven)?;
        let integer = self.op_without_attrs("add", &[integer, zero_point])?;
        let integer = self.clip(integer, 0.0, 255.0)?;
        let results = [self.cast(integer, DType::U8)?, scale, self.cast(zero_point, DType::U8)?];
        self.builder.tuple(&results)
    }

    fn sum(mut self) -> Result<Option<ExprId>> {
        let Some(result_scales) = self.floats(6) else { return Ok(None) };
        let dtype = self.dtype(self.args[0]);
        let mut sides = [self.args[0], self.args[1]];
        for (side, attr) in ["lhs_axis", "rhs_axis"].into_iter().enumerate() {
            let Some(source_scales) = self.floats(2 + 2 * side) else { return Ok(None) };
            let (zero_point, to_zero_point) = (self.args[3 + 2 * side], self.args[7]);
            let factors = default_requantization(&source_scales, &result_scales);
            let has_same_zero_point = zero_point == to_zero_point
                || match (self.constant(zero_point), self.constant(to_zero_point)) {
                    (Some(a), Some(b)) => a.as_slice::<i32>().iter().all(|v| *v == b.as_slice::<i32>()[0]),
                    _ => false,
                };
            if factors.iter().all(|factor| *factor == Rescale::Same) && has_same_zero_point {
                continue;
            }
            let axis = self.params().int(attr);
            let t = self.difference(sides[side], zero_point, axis)?;
            let result = Quantization { scale: self.args[6], zero_point: to_zero_point, axis };
            sides[side] = self.rescale(t, &factors, result, DType::I32)?;
        }
        let [lhs, rhs] = sides;
        let (lhs, rhs) = (self.cast(lhs, DType::I64)?, self.cast(rhs, DType::I64)?);
        let (first, second) = if self.def.name == "qnn.add" { ("add", "subtract") } else { ("subtract", "add") };
        let mut value = self.op_without_attrs(first, &[lhs, rhs])?;
        if self.max_magnitude(self.args[7]) != Some(0) {
            let zero_point = self.cast(self.args[7], DType::I64)?;
            let zero_point = self.broadcast_along(zero_point, value, -1)?;
            value = self.op_without_attrs(second, &[value, zero_point])?;
        }
        let value = self.clip_to(value, range(dtype))?;
        self.cast(value, dtype).map(Some)
    }

    fn product(mut self) -> Result<Option<ExprId>> {
        let (Some(lhs), Some(rhs), Some(result_scales)) = (self.floats(2), self.floats(4), self.floats(6)) else {
            return Ok(None);
        };
        let product_scale = lhs[0] * rhs[0];
        if !(product_scale.is_finite() && product_scale > 0.0) {
            return Ok(None);
        }
        let dtype = self.dtype(self.args[0]);
        let mut sides = [self.args[0], self.args[1]];
        for (side, value) in sides.iter_mut().enumerate() {
            let centered = self.difference(self.args[side], self.args[3 + 2 * side], -1)?;
            *value = self.cast(centered, DType::I64)?;
        }
        let product = self.op_without_attrs("multiply", &sides)?;
        let product = self.clip_to(product, INT32)?;
        let product = self.cast(product, DType::I32)?;
        let factors = default_requantization(&[product_scale], &result_scales);
        let result = Quantization { scale: self.args[6], zero_point: self.args[7], axis: -1 };
        self.rescale(product, &factors, result, dtype).map(Some)
    }

    fn concatenate(mut self) -> Result<Option<ExprId>> {
        let fields = |emit: &mut Self, i: usize| -> Result<Vec<ExprId>> {
            let tuple = emit.args[i];
            if let byoc_ir::ir::Expr::Tuple(fields) = emit.builder.module.expr(tuple) {
                return Ok(fields.to_vec());
            }
            let count = emit.builder.module.ty(tuple).as_tuple().map_or(0, <[_]>::len);
            (0..count as u32).map(|field| emit.builder.project(tuple, field)).collect()
        };
        let Some(result_scales) = self.floats(3) else { return Ok(None) };
        let (data, scales, zero_points) = (fields(&mut self, 0)?, fields(&mut self, 1)?, fields(&mut self, 2)?);
        let scale_value = |&scale: &ExprId| self.constant(scale).map(|t| t.as_slice::<f32>()[0]);
        let Some(source_scales) = scales.iter().map(scale_value).collect::<Option<Vec<f32>>>() else { return Ok(None) };
        if source_scales.iter().any(|s| !(s.is_finite() && *s > 0.0)) {
            return Ok(None);
        }
        let mut parts = Vec::with_capacity(data.len());
        for ((&x, &zero_point), source_scale) in data.iter().zip(&zero_points).zip(source_scales) {
            let t = self.difference(x, zero_point, -1)?;
            let target = Quantization { scale: self.args[3], zero_point: self.args[4], axis: -1 };
            parts.push(self.rescale(
                t,
                &default_requantization(&[source_scale], &result_scales),
                target,
                self.dtype(x),
            )?);
        }
        let tuple = self.builder.tuple(&parts)?;
        self.builder.op("concatenate", &[tuple], self.call.attrs.clone()).map(Some)
    }

    /// Builds `x * clip(x + 3, 0, 6) / 6`.
    fn hard_swish(&mut self, x: ExprId) -> Result<ExprId> {
        let (three, six) = (self.float(3.0), self.float(6.0));
        let shifted = self.op_without_attrs("add", &[x, three])?;
        let clamped = self.clip(shifted, 0.0, 6.0)?;
        let product = self.op_without_attrs("multiply", &[x, clamped])?;
        self.op_without_attrs("divide", &[product, six])
    }
}
