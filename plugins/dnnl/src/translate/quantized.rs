//! Translation of quantized operators: their parameters, which must be constants, and their stages.

use super::Translation;
use super::table::Row;
use crate::ir::{CompileError, Kind, Result, Val};
use crate::qnn::ratio::{Ratios, Rounding};
use crate::qnn::stage::{PerAxis, Stage, SumOperand, range};
use crate::shape::varying_axes;
use crate::sum_requirement::F32_EXACT_BOUND;
use byoc_plugin_api::{DType, RefusalCode, TensorRef};
use byoc_plugin_support::view::count;

/// Maximum magnitude of a zero point. Zero points of 8-bit data have 8 bits; with a zero point far outside that range,
/// every value saturates.
const MAX_ZERO_POINT: i32 = 1 << 15;

fn scheme_error(detail: impl Into<String>) -> CompileError {
    CompileError::new(RefusalCode::QuantScheme, detail)
}

pub fn dtype_error(detail: impl Into<String>) -> CompileError {
    CompileError::new(RefusalCode::UnsupportedDtype, detail)
}

pub fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8)
}

fn is_integer(dtype: DType) -> bool {
    is_byte(dtype) || dtype == DType::I32
}

impl Translation<'_> {
    /// Translates an operator with integer operands or results.
    pub fn quantized_values(&mut self, row: &Row) -> Result<Vec<Val>> {
        let x = self.inputs[0];
        let in_dtype = self.ir.get(x).dtype;
        let out_dtype = self.node.outputs[0].dtype;
        let single_value = |value: Val| Ok(vec![value]);
        match row.name {
            _ if row.is_quantized => (row.translate)(self),
            "cast"
                if (is_integer(in_dtype) || in_dtype == DType::F32)
                    && (is_integer(out_dtype) || out_dtype == DType::F32) =>
            {
                single_value(self.stage(Stage::Convert(out_dtype), out_dtype))
            }
            "nn.bias_add" | "add" if in_dtype == DType::I32 && out_dtype == DType::I32 => {
                single_value(self.integer_bias(row.name)?)
            }
            "nn.relu" if is_integer(in_dtype) && in_dtype == out_dtype => {
                single_value(self.stage(Stage::Clamp { low: 0, high: range(out_dtype).1 }, out_dtype))
            }
            "clip" if is_integer(in_dtype) && in_dtype == out_dtype => single_value(self.integer_clip(out_dtype)?),
            // The result has the element type of the data.
            _ if row.keeps_dtype
                && is_byte(in_dtype)
                && self.inputs.iter().all(|&x| self.ir.get(x).dtype == out_dtype) =>
            {
                (row.translate)(self)
            }
            "cast" => Err(dtype_error(format!(
                "expected a cast between float32, int32, int8 and uint8, found {in_dtype} to {out_dtype}"
            ))),
            _ => Err(dtype_error(format!("expected a float32 operand and result, found {in_dtype} and {out_dtype}"))),
        }
    }

    /// Adds a stage that reads the first operand.
    fn stage(&mut self, stage: Stage, dtype: DType) -> Val {
        let x = self.inputs[0];
        self.push_stage(x, stage, dtype)
    }

    /// Adds a stage that reads `x`.
    pub fn push_stage(&mut self, x: Val, stage: Stage, dtype: DType) -> Val {
        let shape = self.ir.shape(x).to_vec();
        self.ir.push_as(Kind::Stage(stage), &[x], shape, dtype)
    }

    /// Returns the constant operand `index`, which error messages call `name`.
    fn constant_operand(&self, index: usize, name: &str) -> Result<TensorRef<'_>> {
        let value = self.input(index)?;
        let constant = self.ir.constant(value);
        let reason = || {
            CompileError::new(RefusalCode::NotConstant, format!("{name}: expected a constant, found a runtime value"))
        };
        Ok(self.ir.constants[constant.ok_or_else(reason)?].tensor())
    }

    /// Returns the per-tensor or per-axis scales in operand `index`.
    fn scales(&self, index: usize, name: &str) -> Result<Vec<f32>> {
        let constant = self.constant_operand(index, name)?;
        if constant.dtype() != DType::F32 {
            return Err(dtype_error(format!("{name}: expected float32, found {}", constant.dtype())));
        }
        let values = constant.as_slice::<f32>().to_vec();
        match values.iter().find(|&&scale| !(scale.is_finite() && scale > 0.0)) {
            Some(scale) => Err(scheme_error(format!("{name}: expected a finite scale > 0, found {scale}"))),
            None if values.is_empty() => Err(scheme_error(format!("{name}: expected at least 1 value, found 0"))),
            None => Ok(values),
        }
    }

    /// Returns the per-tensor scale in operand `index`.
    pub fn scale(&self, index: usize, name: &str) -> Result<f32> {
        match self.scales(index, name)?[..] {
            [scale] => Ok(scale),
            ref values => Err(scheme_error(format!("{name}: expected 1 value, found {}", values.len()))),
        }
    }

    /// Returns the zero point in operand `index`: a single value, possibly repeated for each index along an axis.
    pub fn zero_point(&self, index: usize, name: &str) -> Result<i32> {
        let constant = self.constant_operand(index, name)?;
        if constant.dtype() != DType::I32 {
            return Err(dtype_error(format!("{name}: expected int32, found {}", constant.dtype())));
        }
        match constant.as_slice::<i32>() {
            [first_value, params @ ..] if params.iter().any(|param| param != first_value) => {
                let other_value = params.iter().find(|param| *param != first_value).unwrap_or(first_value);
                let detail =
                    format!("{name}: expected one value for all indices, found {first_value} and {other_value}");
                Err(scheme_error(detail))
            }
            [zero_point, ..] if (-MAX_ZERO_POINT..=MAX_ZERO_POINT).contains(zero_point) => Ok(*zero_point),
            [zero_point, ..] => {
                Err(scheme_error(format!("{name}: expected at most {MAX_ZERO_POINT} in magnitude, found {zero_point}")))
            }
            [] => Err(scheme_error(format!("{name}: expected at least 1 value, found 0"))),
        }
    }

    /// Returns the axis, given by attribute `key`, along which `values` parameters vary; 0 for a single parameter.
    fn parameter_axis(&self, key: &str, values: usize) -> Result<usize> {
        let shape = self.ir.shape(self.inputs[0]);
        if values == 1 {
            return Ok(0);
        }
        let axis = self.attrs.axis(key, -1, shape.len())?;
        if shape[axis] != values as i64 {
            return Err(scheme_error(format!(
                "expected 1 scale or {}, one per index of the axis, found {values}",
                shape[axis]
            )));
        }
        Ok(axis)
    }

    /// Returns the sum of the weights and the sum of their magnitudes for each output channel.
    fn weight_sums(&self, axis: usize) -> Result<Vec<(i32, i64)>> {
        let constant = self.constant_operand(1, "weight")?;
        if constant.dtype() != DType::I8 {
            let detail = format!("weight: expected int8, found {}", constant.dtype());
            return Err(dtype_error(detail));
        }
        let zero_points = self.constant_operand(3, "kernel zero point")?;
        if zero_points.dtype() != DType::I32 {
            return Err(scheme_error(format!("kernel zero point: expected int32, found {}", zero_points.dtype())));
        }
        if let Some(zero_point) = zero_points.as_slice::<i32>().iter().find(|&&zero_point| zero_point != 0) {
            return Err(scheme_error(format!("kernel zero point: expected 0, found {zero_point}")));
        }
        let shape = constant.shape();
        let (channels, channel_size) = (shape[axis], shape[axis + 1..].iter().product::<usize>().max(1));
        let mut channel_sums = vec![(0i32, 0i64); channels];
        for (run, weights) in constant.as_slice::<i8>().chunks(channel_size).enumerate() {
            let (sum, magnitude) = &mut channel_sums[run % channels];
            for &weight in weights {
                *sum = sum.wrapping_add(weight.into());
                *magnitude += i64::from(weight).abs();
            }
        }
        Ok(channel_sums)
    }

    /// Returns the data in the type that oneDNN accumulates exactly, its zero point, and a flag that is true if sums
    /// may reach 2^24.
    fn data(&mut self, data: Val, channel_sums: &[(i32, i64)]) -> Result<(Val, i32, bool)> {
        let dtype = self.ir.get(data).dtype;
        let zero = self.zero_point(2, "data zero point")?;
        let max_magnitude = channel_sums.iter().map(|(_, magnitude)| *magnitude).max().unwrap_or(0);
        let max_input = if dtype == DType::U8 { 255 } else { 128 };
        match dtype {
            DType::I8 | DType::U8 if max_magnitude * 255 > i64::from(i32::MAX) => {
                let detail = format!(
                    "int32 accumulator: expected magnitudes of at most {}, found up to {}",
                    i32::MAX,
                    max_magnitude * 255
                );
                Err(CompileError::new(RefusalCode::UnsupportedShape, detail))
            }
            DType::U8 => Ok((data, zero, max_magnitude * max_input >= F32_EXACT_BOUND)),
            DType::I8 if max_magnitude * max_input < F32_EXACT_BOUND => Ok((data, zero, false)),
            DType::I8 => {
                let rescaling = Stage::Rescale {
                    in_zero_point: 0,
                    ratios: Ratios::Same,
                    axis: 0,
                    rounding: Rounding::Up,
                    out_zero_point: 128,
                    out_dtype: DType::U8,
                };
                Ok((self.push_stage(data, rescaling, DType::U8), zero + 128, true))
            }
            other => Err(dtype_error(format!("data: expected int8 or uint8, found {other}"))),
        }
    }

    /// Adds an integer convolution or matrix product, and the correction for the data's zero point.
    fn integer_sum(&mut self, kind: Kind, operands: [Val; 2], shape: Vec<i64>, params: IntegerSum<'_>) -> Result<Val> {
        if self.node.outputs[0].dtype != DType::I32 {
            return Err(dtype_error(format!("expected int32 accumulators, found {}", self.node.outputs[0].dtype)));
        }
        let result = self.ir.push_as(kind, &operands, shape, DType::I32);
        if params.wide {
            self.ir.wide_sums.insert(result);
        }
        if params.zero == 0 {
            return Ok(result);
        }
        let values = params.sums.iter().map(|(sum, _)| sum.wrapping_mul(params.zero).wrapping_neg()).collect();
        Ok(self.push_stage(result, Stage::Offset(PerAxis { values, axis: params.axis }), DType::I32))
    }

    pub fn quantized_conv2d(&mut self) -> Result<Val> {
        let layout = self.attrs.text("kernel_layout");
        let axis = if layout.is_empty() { Some(0) } else { layout.find('O').filter(|&axis| axis < 4) };
        let rank = self.rank(self.input(1)?);
        let axis = axis.filter(|_| rank == 4).ok_or_else(|| {
            CompileError::new(
                RefusalCode::UnsupportedLayout,
                format!("kernel: expected rank 4 and a layout with O, found rank {rank} and layout \"{layout}\""),
            )
        })?;
        let channel_sums = self.weight_sums(axis)?;
        let convolution = self.convolution_parts(false)?;
        let (mut data, zero, may_exceed) = self.data(convolution.data, &channel_sums)?;
        let mut window = convolution.window;
        let has_padding = |pads: &[i64]| pads.iter().any(|&pad| pad > 0);
        if zero != 0 && (has_padding(&window.pad_before) || has_padding(&window.pad_after)) {
            let dtype = self.ir.get(data).dtype;
            let (low, high) = range(dtype);
            if !(low..=high).contains(&zero) {
                return Err(scheme_error(format!(
                    "data zero point: expected a value of type {dtype} for the padding, found {zero}"
                )));
            }
            let (mut shape, mut leading_padding) = (self.shape(data), vec![0; 4]);
            for axis in 0..2 {
                // Negative padding at the end, for elements that no window reads, is preserved.
                let (pad_before, pad_after) = (window.pad_before[axis], window.pad_after[axis].max(0));
                shape[2 + axis] += pad_before + pad_after;
                leading_padding[2 + axis] = pad_before;
                window.pad_before[axis] = 0;
                window.pad_after[axis] -= pad_after;
            }
            data = self.ir.push(Kind::PadBytes { pad_before: leading_padding, value: zero as u8 }, &[data], shape);
        }
        let kind = Kind::Conv { window, groups: convolution.groups, transposed: false };
        let params = IntegerSum { zero, sums: &channel_sums, axis: 1, wide: may_exceed };
        let result = self.integer_sum(kind, [data, convolution.weight], convolution.shape, params)?;
        self.convert_to_layout(result, &convolution.order, &convolution.out_layout)
    }

    pub fn quantized_dense(&mut self) -> Result<Val> {
        let (data, weight) = (self.inputs[0], self.input(1)?);
        let (mut shape, weight_shape) = (self.shape(data), self.shape(weight));
        if weight_shape.len() != 2 || shape.len() < 2 || shape[shape.len() - 1] != weight_shape[1] {
            let detail = format!("cannot multiply data of shape {shape:?} by a weight of shape {weight_shape:?}");
            return Err(CompileError::new(RefusalCode::UnsupportedShape, detail));
        }
        let channel_sums = self.weight_sums(0)?;
        let (data, zero, may_exceed) = self.data(data, &channel_sums)?;
        let axis = shape.len() - 1;
        shape[axis] = weight_shape[0];
        let kind = Kind::MatMul { transpose_a: false, transpose_b: true };
        self.integer_sum(kind, [data, weight], shape, IntegerSum { zero, sums: &channel_sums, axis, wide: may_exceed })
    }

    /// Translates the addition of an `int32` bias along one axis.
    fn integer_bias(&mut self, name: &str) -> Result<Val> {
        let is_swapped = name == "add" && self.ir.constant(self.inputs[0]).is_some();
        let (x, bias) = if is_swapped { (self.input(1)?, 0) } else { (self.inputs[0], 1) };
        let shape = self.shape(x);
        let bias_shape = self.shape(self.input(bias)?);
        let constant = self.constant_operand(bias, "bias")?;
        if constant.dtype() != DType::I32 {
            return Err(dtype_error(format!("bias: expected int32, found {}", constant.dtype())));
        }
        let values = constant.as_slice::<i32>().to_vec();
        let axis = match name {
            "nn.bias_add" => self.attrs.axis("axis", 1, shape.len())?,
            _ => {
                let leading_dims = shape.len().checked_sub(bias_shape.len());
                let position = bias_shape.iter().position(|&size| size != 1).unwrap_or(0);
                leading_dims
                    .map(|leading_dims| leading_dims + position)
                    .filter(|&axis| axis < shape.len())
                    .unwrap_or(usize::MAX)
            }
        };
        if values.len() != 1 && shape.get(axis) != Some(&(values.len() as i64)) {
            let detail = format!("bias: expected values along one axis of {shape:?}, found {bias_shape:?}");
            return Err(CompileError::new(RefusalCode::UnsupportedShape, detail));
        }
        Ok(self.push_stage(x, Stage::Offset(PerAxis { values, axis }), DType::I32))
    }

    fn integer_clip(&mut self, dtype: DType) -> Result<Val> {
        let (min, max) = range(dtype);
        let (low, high) = (self.attrs.float("a_min", f64::NEG_INFINITY), self.attrs.float("a_max", f64::INFINITY));
        let is_integer = |bound: f64| bound.is_infinite() || bound == bound.trunc();
        let overlaps_range = low <= high && low <= f64::from(max) && high >= f64::from(min);
        if !is_integer(low) || !is_integer(high) || !overlaps_range {
            let detail = format!("expected integer bounds that overlap the range of {dtype}, found {low} and {high}");
            return Err(CompileError::new(RefusalCode::UnsupportedAttr, detail));
        }
        let bound = |bound: f64| bound.clamp(min.into(), max.into()) as i32;
        Ok(self.stage(Stage::Clamp { low: bound(low), high: bound(high) }, dtype))
    }

    pub fn requantize(&mut self, in_dtype: DType, out_dtype: DType) -> Result<Val> {
        if !is_integer(in_dtype) || !is_integer(out_dtype) {
            return Err(dtype_error(format!("expected int8, uint8 or int32, found {in_dtype} to {out_dtype}")));
        }
        let scales = self.scales(1, "input scale")?;
        let in_zero_point = self.zero_point(2, "input zero point")?;
        let scale = self.scale(3, "output scale")?;
        let out_zero_point = self.zero_point(4, "output zero point")?;
        let axis = self.parameter_axis("axis", scales.len())?;
        let rounding = match self.attrs.text("rounding") {
            "" | "None" | "UPWARD" => Rounding::Up,
            "TONEAREST" => Rounding::Away,
            "TOEVEN" => Rounding::Even,
            other => {
                return Err(scheme_error(format!(
                    "attribute rounding: expected UPWARD, TONEAREST or TOEVEN, found {other}"
                )));
            }
        };
        let floats = match self.attrs.text("compute_dtype") {
            "" | "None" | "int64" => false,
            "float32" => true,
            other => {
                return Err(scheme_error(format!("attribute compute_dtype: expected int64 or float32, found {other}")));
            }
        };
        let ratios = Ratios::new(&scales, scale, floats);
        if let Ratios::Float(ratios) = &ratios
            && let Some(ratio) = ratios.iter().find(|ratio| !ratio.is_finite())
        {
            return Err(scheme_error(format!("ratio of the scales: expected a finite float32, found {ratio}")));
        }
        Ok(self.stage(Stage::Rescale { in_zero_point, ratios, axis, rounding, out_zero_point, out_dtype }, out_dtype))
    }

    pub fn quantize(&mut self, in_dtype: DType, out_dtype: DType) -> Result<Val> {
        if in_dtype != DType::F32 || !is_integer(out_dtype) {
            return Err(dtype_error(format!(
                "expected float32 to int8, uint8 or int32, found {in_dtype} to {out_dtype}"
            )));
        }
        let scale = self.scale(1, "output scale")?;
        let zero = self.zero_point(2, "output zero point")?;
        let rounding = match self.attrs.text("rounding") {
            "" | "TONEAREST" => Rounding::Away,
            "TOEVEN" => Rounding::Even,
            other => {
                return Err(scheme_error(format!("attribute rounding: expected TONEAREST or TOEVEN, found {other}")));
            }
        };
        Ok(self.stage(Stage::Quantize { scale, zero, rounding, out_dtype }, out_dtype))
    }

    pub fn dequantize(&mut self, in_dtype: DType, out_dtype: DType) -> Result<Val> {
        if !is_integer(in_dtype) || out_dtype != DType::F32 {
            return Err(dtype_error(format!(
                "expected int8, uint8 or int32 to float32, found {in_dtype} to {out_dtype}"
            )));
        }
        let scales = self.scales(1, "input scale")?;
        let zero = self.zero_point(2, "input zero point")?;
        let axis = self.parameter_axis("axis", scales.len())?;
        Ok(self.stage(Stage::Dequantize { zero, scale: PerAxis { values: scales, axis } }, out_dtype))
    }

    /// Returns the first two operands, which must have the 8-bit type of the result.
    fn byte_operands(&self, out_dtype: DType) -> Result<[Val; 2]> {
        let operands = [self.inputs[0], self.input(1)?];
        let dtypes = operands.map(|operand| self.ir.get(operand).dtype);
        if !is_byte(out_dtype) || dtypes != [out_dtype; 2] {
            return Err(dtype_error(format!(
                "operands and result: expected the same 8-bit type, found {}, {} and {out_dtype}",
                dtypes[0], dtypes[1]
            )));
        }
        Ok(operands)
    }

    /// Returns true if the first operand is broadcast to the second, and false if the second is broadcast to the first.
    /// The smaller operand may vary along one axis, and by image.
    fn is_first_broadcast(&self, operands: [Val; 2]) -> Result<bool> {
        let size = |operand: Val| (self.rank(operand), count(self.ir.shape(operand)));
        let is_first = size(operands[0]) < size(operands[1]);
        let [small, large] = if is_first { operands } else { [operands[1], operands[0]] };
        let (small_shape, shape) = (self.ir.shape(small), self.ir.shape(large));
        let mut sizes = shape.iter().rev().zip(small_shape.iter().rev());
        let agrees = sizes.all(|(size, small_size)| *small_size == 1 || small_size == size);
        let axes = varying_axes(small_shape, shape.len()).unwrap_or_default();
        if small_shape != shape && !(agrees && matches!(axes[..], [] | [_] | [0, _])) {
            let detail = format!(
                "expected operands of the same shape, or one that varies along one axis of each image, found \
                 {shape:?} and {small_shape:?}"
            );
            return Err(CompileError::new(RefusalCode::UnsupportedShape, detail));
        }
        Ok(is_first)
    }

    /// Multiplies two tensors, one of which may be broadcast.
    pub fn quantized_mul(&mut self, out_dtype: DType) -> Result<Val> {
        let mut operands = self.byte_operands(out_dtype)?;
        let mut zeros = [self.zero_point(3, "zero point of lhs")?, self.zero_point(5, "zero point of rhs")?];
        let factor = self.scale(2, "scale of lhs")? * self.scale(4, "scale of rhs")?;
        let (scale, out_zero_point) = (self.scale(6, "output scale")?, self.zero_point(7, "output zero point")?);
        if !factor.is_normal() {
            return Err(scheme_error(format!("product of the scales: expected a normal number, found {factor}")));
        }
        if self.is_first_broadcast(operands)? {
            operands.reverse();
            zeros.reverse();
        }
        let shape = self.shape(operands[0]);
        let product = Kind::Stage(Stage::Product { zeros });
        let product = self.ir.push_as(product, &operands, shape, DType::I32);
        let ratios = Ratios::new(&[factor], scale, false);
        let rounding = Rounding::Up;
        let rescale = Stage::Rescale { in_zero_point: 0, ratios, axis: 0, rounding, out_zero_point, out_dtype };
        Ok(self.push_stage(product, rescale, out_dtype))
    }

    /// Adds two tensors, one of which may be broadcast.
    pub fn quantized_add(&mut self, out_dtype: DType) -> Result<Val> {
        let mut tensors = self.byte_operands(out_dtype)?;
        let (scale, zero) = (self.scale(6, "output scale")?, self.zero_point(7, "output zero point")?);
        let rescale = |index: usize, name: &str| -> Result<_> {
            let in_scale = self.scale(index, &format!("scale of {name}"))?;
            let in_zero_point = self.zero_point(index + 1, &format!("zero point of {name}"))?;
            let is_rescaled = in_scale != scale || in_zero_point != zero;
            Ok(is_rescaled.then(|| SumOperand {
                in_zero_point,
                ratios: Ratios::new(&[in_scale], scale, false),
                out_zero_point: zero,
            }))
        };
        let mut operands = [rescale(2, "lhs")?, rescale(4, "rhs")?];
        if self.is_first_broadcast(tensors)? {
            tensors.reverse();
            operands.reverse();
        }
        let shape = self.shape(tensors[0]);
        Ok(self.ir.push_as(Kind::Stage(Stage::Sum { operands, zero, out_dtype }), &tensors, shape, out_dtype))
    }

    /// Computes a function of each byte: dequantized, computed in floats, quantized.
    pub fn quantized_function(&mut self, function: impl Fn(f32) -> f32) -> Result<Val> {
        let dtype = self.node.outputs[0].dtype;
        let in_dtype = self.ir.get(self.inputs[0]).dtype;
        if !is_byte(dtype) || in_dtype != dtype {
            return Err(dtype_error(format!(
                "operand and result: expected the same 8-bit type, found {in_dtype} and {dtype}"
            )));
        }
        let (scale, zero) = (self.scale(1, "scale")?, self.zero_point(2, "zero point")?);
        let (out_scale, out_zero) = (self.scale(3, "output scale")?, self.zero_point(4, "output zero point")?);
        let (low, high) = range(dtype);
        let entry = |bits: usize| {
            let x = if dtype == DType::I8 { i32::from(bits as u8 as i8) } else { bits as i32 };
            let y = (function((x - zero) as f32 * scale) / out_scale).round() + out_zero as f32;
            // NaN becomes 0.
            (y as i32).clamp(low, high)
        };
        Ok(self.stage(Stage::Lookup(Box::new(std::array::from_fn(entry))), dtype))
    }
}

/// Properties of an integer accumulation besides its operands.
struct IntegerSum<'a> {
    zero: i32,
    sums: &'a [(i32, i64)],
    /// Channel axis of the result.
    axis: usize,
    wide: bool,
}
