//! Elementwise operators on 8-bit integers with one operand: a table of all 256 results, and conversions from floats and
//! from `int32`.

use super::epilogue::{multiply_fixed_point, round_half_away};
use super::lookup;
use crate::simd::{low_byte, multiversion};
use crate::{Kernel, Offer, Spec, split};
use byoc_ir::ir::{Attrs, TensorType};
use byoc_ir::op::qnn::numerics::{Rescale, Rounding, range, rescale};
use byoc_ir::op::qnn::{PerAxis, requantization, rounding_of, scales};
use byoc_ir::op::{OpDef, Params, Reference};
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};

macro_rules! offer {
    ($make:ident: $($op:literal)*) => { $(inventory::submit! { Offer { op: $op, make: $make } })* };
}

offer! { make_table:
    "clip" "nn.relu" "nn.leaky_relu" "qnn.requantize" "qnn.dequantize" "qnn.tanh" "qnn.exp" "qnn.sqrt" "qnn.rsqrt"
    "qnn.erf" "qnn.sigmoid" "qnn.hardswish" "qnn.log" "qnn.abs" "qnn.leaky_relu"
}
offer! { make_quantize: "qnn.quantize" }
offer! { make_requantize: "qnn.requantize" }
offer! { make_bias: "nn.bias_add" }

/// Minimum number of elements for which a table pays off.
const MIN_TABLE_ELEMENTS: usize = 1024;

/// Elementwise operator, computed with a table of the 256 possible results.
struct Table {
    def: &'static OpDef,
    attrs: Attrs,
    reference: Reference,
    /// Element type of the result, one or four bytes.
    out: DType,
}

fn make_table(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let is_byte = |t: &TensorType| matches!(t.dtype, DType::I8 | DType::U8);
    let out = spec.outputs.first()?.dtype;
    // Each parameter has one element, so the axis does not matter.
    let is_per_tensor = spec.inputs[1..].iter().all(|t| t.len() == Some(1));
    let is_large = spec.inputs[0].len().is_some_and(|n| n >= MIN_TABLE_ELEMENTS);
    if !is_byte(&spec.inputs[0]) || !matches!(out.size(), 1 | 4) || !is_per_tensor || !is_large {
        return None;
    }
    Some(Box::new(Table { def: spec.def, attrs: spec.attrs.without("axis"), reference: spec.def.reference?, out }))
}

impl Kernel for Table {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let all: [u8; 256] = std::array::from_fn(|i| i as u8);
        let mut operands: smallvec::SmallVec<[TensorView<'_>; 5]> = inputs.into();
        operands[0] = TensorView { dtype: inputs[0].dtype, shape: &[256], data: &all };
        let mut table = [0u32; 256];
        let bytes = &mut bytemuck::cast_slice_mut::<u32, u8>(&mut table)[..256 * self.out.size()];
        let result = TensorViewMut { dtype: self.out, shape: &[256], data: bytes };
        (self.reference)(Params::new(self.def, &self.attrs), &operands, &mut [result])?;
        let x = inputs[0].data;
        if self.out.size() == 1 {
            let bytes: &[u8] = bytemuck::cast_slice(&table);
            if let Some(table) = bytes.first_chunk::<256>() {
                lookup::look_up_each(table, x, outputs[0].data);
            }
        } else {
            let out: &mut [u32] = bytemuck::cast_slice_mut(outputs[0].data);
            split::for_each_chunk(out, 4096, x.len(), |i, out| {
                out.iter_mut().zip(&x[i * 4096..]).for_each(|(out, x)| *out = table[usize::from(*x)]);
            });
        }
        Ok(())
    }
}

/// Quantization of floats to 8-bit integers, with one scale.
struct Quantize {
    rounding: Rounding,
    limits: (i64, i64),
}

fn make_quantize(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let is_per_tensor = spec.inputs[1..].iter().all(|t| t.len() == Some(1));
    let out = spec.outputs.first()?.dtype;
    if spec.inputs[0].dtype != DType::F32 || out.size() != 1 || !is_per_tensor {
        return None;
    }
    let rounding = rounding_of(&spec.params(), Rounding::ToNearest);
    Some(Box::new(Quantize { rounding, limits: range(out) }))
}

impl Kernel for Quantize {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let scale = inputs[1].as_slice::<f32>()[0];
        if !(scale.is_finite() && scale > 0.0) {
            return Err(format!("output_scale: expected a finite scale above 0, found {scale}"));
        }
        let zero = inputs[2].as_slice::<i32>()[0] as f32;
        let x = inputs[0].as_slice::<f32>();
        let (low, high) = (self.limits.0 as f32, self.limits.1 as f32);
        split::for_each_chunk(&mut *outputs[0].data, 4096, x.len(), |i, out| {
            quantize(&x[i * 4096..][..out.len()], out, scale, zero, (low, high), self.rounding);
        });
        Ok(())
    }
}

multiversion! {
    /// Computes round(x / scale) + zero point, within the limits.
    pub(super) fn quantize(x: &[f32], out: &mut [u8], scale: f32, zero: f32, limits: (f32, f32), rounding: Rounding) {
        match rounding {
            Rounding::ToEven => {
                for (out, x) in out.iter_mut().zip(x) {
                    *out = byte((x / scale).round_ties_even() + zero, limits);
                }
            }
            _ => {
                for (out, x) in out.iter_mut().zip(x) {
                    *out = byte(round_half_away(x / scale) + zero, limits);
                }
            }
        }
    }
}

/// Clamps an integral value to the range of an 8-bit type and returns its bits; NaN yields 0.
#[inline(always)]
fn byte(value: f32, (low, high): (f32, f32)) -> u8 {
    let value = if value < low { low } else { value };
    let value = if value > high { high } else { value };
    low_byte(value)
}

/// Requantization of `int32` to 8-bit integers, with a single ratio or one ratio per index of an axis.
struct Requantize {
    factors: PerAxis<Rescale>,
    zero_point: i32,
    limits: (i64, i64),
}

fn make_requantize(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let params = spec.params();
    let constant = |i: usize| spec.constants.get(i).copied().flatten();
    let source_scales = scales(&params, 1, &constant(1)?.view()).ok()?;
    let result_scales = scales(&params, 3, &constant(3)?.view()).ok()?;
    let is_unshifted = constant(2)?.as_slice::<i32>().iter().all(|&zero| zero == 0);
    let zero_points = constant(4)?.as_slice::<i32>();
    let out = spec.outputs.first()?.dtype;
    let factors = requantization(&params, &source_scales, &result_scales);
    let is_finite = factors.iter().all(|factor| !matches!(factor, Rescale::Float(ratio, _) if !ratio.is_finite()));
    if spec.inputs[0].dtype != DType::I32 || out.size() != 1 || !is_unshifted || zero_points.len() != 1 || !is_finite {
        return None;
    }
    let factors = PerAxis::new(factors, &spec.inputs[0].shape()?, params.int("axis"));
    Some(Box::new(Requantize { factors, zero_point: zero_points[0], limits: range(out) }))
}

impl Kernel for Requantize {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let x = inputs[0].as_slice::<i32>();
        let out = &mut *outputs[0].data;
        // The elements of a chunk share one ratio. If the axis is the last, each element has its own ratio instead.
        let is_per_tensor = self.factors.values.len() == 1;
        let size = match (is_per_tensor, self.factors.inner) {
            (true, _) => 4096,
            (false, 1) => self.factors.values.len(),
            (false, inner) => inner,
        };
        let work = 2 * x.len();
        split::for_each_chunk(out, size, work, |i, out| {
            let x = &x[i * size..][..out.len()];
            if !is_per_tensor && self.factors.inner == 1 {
                for ((out, x), factor) in out.iter_mut().zip(x).zip(&self.factors.values) {
                    let value = rescale(*x, *factor, self.zero_point, self.limits);
                    *out = value as u8;
                }
            } else {
                line(
                    x,
                    out,
                    self.factors.values[if is_per_tensor { 0 } else { i % self.factors.values.len() }],
                    self.zero_point,
                    self.limits,
                );
            }
        });
        Ok(())
    }
}

multiversion! {
    /// Rescales integers, adds the zero point, and saturates the results.
    pub(super) fn line(x: &[i32], out: &mut [u8], factor: Rescale, zero_point: i32, limits: (i64, i64)) {
        let zero = i64::from(zero_point);
        match factor {
            Rescale::Same => {
                for (out, x) in out.iter_mut().zip(x) {
                    *out = (i64::from(*x) + zero).clamp(limits.0, limits.1) as u8;
                }
            }
            Rescale::Fixed(ratio, rounding) => {
                let (m, left_shift) = (i64::from(ratio.multiplier), i64::from(ratio.exponent.clamp(0, 32)));
                let right_shift = i64::from((-ratio.exponent).clamp(0, 32));
                for (out, x) in out.iter_mut().zip(x) {
                    let value = multiply_fixed_point(*x, m, left_shift, right_shift, rounding) + zero;
                    *out = value.clamp(limits.0, limits.1) as u8;
                }
            }
            Rescale::Float(ratio, rounding) => {
                let (zero, limits) = (zero_point as f32, (limits.0 as f32, limits.1 as f32));
                for (out, x) in out.iter_mut().zip(x) {
                    let real = *x as f32 * ratio;
                    let rounded_value = match rounding {
                        Rounding::ToEven => real.round_ties_even(),
                        Rounding::Upward => (real + 0.5).floor(),
                        Rounding::ToNearest => round_half_away(real),
                    };
                    *out = byte(rounded_value + zero, limits);
                }
            }
        }
    }
}

/// `int32` bias along one axis.
struct Bias {
    len: usize,
    inner: usize,
}

fn make_bias(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let shape = spec.inputs[0].shape()?;
    if spec.inputs[0].dtype != DType::I32 || shape.contains(&0) {
        return None;
    }
    let axis = spec.params().int("axis");
    let axis = if axis < 0 { axis + shape.len() as i64 } else { axis } as usize;
    Some(Box::new(Bias { len: shape[axis], inner: shape[axis + 1..].iter().product() }))
}

impl Kernel for Bias {
    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run_in_place(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
        let (bias, out) = (inputs[0].as_slice::<i32>(), outputs[0].as_mut_slice::<i32>());
        let work = out.len() / 4;
        if self.inner == 1 {
            split::for_each_chunk(out, self.len, work, |_, row| {
                row.iter_mut().zip(bias).for_each(|(o, b)| *o = o.wrapping_add(*b));
            });
        } else {
            split::for_each_chunk(out, self.inner, work, |i, line| {
                let bias = bias[i % self.len];
                line.iter_mut().for_each(|o| *o = o.wrapping_add(bias));
            });
        }
        Ok(())
    }
}
