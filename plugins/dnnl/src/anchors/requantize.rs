//! Requantization in the primitive that accumulates: bias, scale, rounding, zero point and bounds as post-ops, so that
//! the `int32` sums never reach memory.
//!
//! A primitive computes its post-ops in floats and rounds their result to the type of its destination, with ties to
//! even. That is how a requantization in floats is defined, so the bits are the same as long as floats hold the sum and
//! the bias exactly, as they hold every integer below 2^24. (From there on, the sum of two rounded floats may differ in
//! its last bit from the rounded sum, which changes an 8-bit result only next to a tie; real results, which show that
//! bit, are then left to the `qnn` module.) The definition adds the zero point after rounding: the addition of
//! [`TO_INTEGER`] rounds first. A requantization in 64-bit fixed point is left to the `qnn` module.

use super::{Alternatives, Attr, Desc, OneDnnError, PrimitiveDesc, Selection};
use crate::fuse::Link;
use crate::ir::{EltwiseParams, Kind, Op, Result};
use crate::library::ffi;
use crate::lower::{BufferView, Chain, Lowering, PostOp};
use crate::pack::Packing;
use crate::qnn::Stage;
use crate::qnn::ratio::{Ratios, Rounding};
use crate::qnn::stage::{PerAxis, range};
use byoc_plugin_api::DType;
use byoc_plugin_support::view::View;

/// Summand after which a float of magnitude below 2^22 has no bits for fractions: 1.5 * 2^23.
const TO_INTEGER: f32 = 12_582_912.0;

/// Bound of biases: their sums with `int32` accumulators do not wrap, as the definition does.
const MAX_OFFSET: u32 = 1 << 30;

/// Stages that a primitive computes on its sums.
pub struct Requantization {
    /// Number of links.
    links: usize,
    post_ops: Vec<PostOp>,
}

impl Requantization {
    /// Returns the chain that the primitive computes.
    pub fn chain(&self) -> Chain {
        Chain { post_ops: self.post_ops.clone(), links: self.links, sum_into: None }
    }
}

/// Stages by what they do: `(x + offset) * factor`, rounded to an integer, plus `zero`, clamped to `bounds`.
struct Stages {
    links: usize,
    offset: Vec<i32>,
    factor: Vec<f32>,
    /// Zero point and bounds of an integer result.
    integer: Option<(i32, (i32, i32))>,
    dtype: DType,
}

impl Stages {
    /// Reads the longest prefix of a chain that a primitive computes on sums with the layout `view`, whose channels lie
    /// along `axis`.
    fn of(lowering: &Lowering<'_>, links: &[Link], axis: usize, view: View) -> Option<Stages> {
        let (channels, stride) = (view.shape[axis], view.strides[axis]);
        let (mut view, mut offset) = (Some(view), vec![0i32]);
        let mut found: Option<Stages> = None;
        for (index, link) in links.iter().enumerate() {
            let op = &lowering.ir.ops[link.op()];
            let layout = view.as_ref()?;
            let is_per_channel = |values: usize, axis: usize| {
                values == 1
                    || (layout.shape[axis], layout.strides[axis]) == (channels, stride) && values as i64 == channels
            };
            match (link, &op.kind, &mut found) {
                (Link::View(_), ..) => view = lowering.view_after(op, layout),
                (_, Kind::Stage(Stage::Offset(PerAxis { values, axis })), None)
                    if is_per_channel(values.len(), *axis) =>
                {
                    offset = combine(&offset, values, i32::wrapping_add);
                }
                (_, Kind::Stage(stage), None) => {
                    let (zero, factor, axis, integer) = parameters(stage)?;
                    if !is_per_channel(factor.len(), axis) {
                        return None;
                    }
                    let offset = combine(&offset, &[zero], i32::wrapping_sub);
                    let dtype = lowering.ir.get(op.output).dtype;
                    found = Some(Stages { links: index + 1, offset, factor, integer, dtype });
                }
                (_, Kind::Stage(Stage::Clamp { low, high }), Some(stages)) => {
                    let Some((_, bounds)) = &mut stages.integer else { break };
                    *bounds = (bounds.0.clamp(*low, *high), bounds.1.clamp(*low, *high));
                    stages.links = index + 1;
                }
                _ => break,
            }
        }
        found
    }

    /// Returns the functions that follow the multiplication.
    fn functions(&self) -> Vec<EltwiseParams> {
        let Some((zero, (low, high))) = self.integer else { return Vec::new() };
        let linear = |summand: f32| EltwiseParams::new(ffi::ELTWISE_LINEAR, 1.0, summand);
        let mut functions = Vec::new();
        if zero != 0 {
            functions.extend([linear(TO_INTEGER), linear(zero as f32 - TO_INTEGER)]);
        }
        if (low, high) != range(self.dtype) {
            functions.push(EltwiseParams::new(ffi::ELTWISE_CLIP, low as f32, high as f32));
        }
        functions
    }
}

/// Returns the zero point of a stage's operand, its factors with their axis, and the zero point and the bounds of an
/// integer result. Returns `None` if a primitive does not compute the stage exactly.
#[allow(clippy::type_complexity)]
fn parameters(stage: &Stage) -> Option<(i32, Vec<f32>, usize, Option<(i32, (i32, i32))>)> {
    match stage {
        Stage::Rescale {
            in_zero_point,
            ratios: Ratios::Float(ratios),
            axis,
            rounding: Rounding::Even,
            out_zero_point,
            out_dtype: out_dtype @ (DType::I8 | DType::U8),
        } => Some((*in_zero_point, ratios.clone(), *axis, Some((*out_zero_point, range(*out_dtype))))),
        Stage::Dequantize { zero, scale } => Some((*zero, scale.values.clone(), scale.axis, None)),
        _ => None,
    }
}

/// Combines two per-tensor or per-axis parameters.
fn combine(a: &[i32], b: &[i32], function: impl Fn(i32, i32) -> i32) -> Vec<i32> {
    let len = a.len().max(b.len());
    a.iter().cycle().zip(b.iter().cycle()).take(len).map(|(a, b)| function(*a, *b)).collect()
}

impl Lowering<'_> {
    /// Returns the alternatives of an integer accumulation that requantizes its sums itself; `None` if its chain has
    /// other stages, or if the library must compute the sums alone. `channels` holds the axis of the output channels and
    /// the layout of the sums.
    pub(super) fn requantized<'a>(
        &mut self,
        op: &Op,
        links: &'a [Link],
        (axis, view): (usize, View),
        weights: &BufferView,
        sums: &Alternatives<'_>,
    ) -> Result<Option<Alternatives<'a>>> {
        if self.ir.get(op.output).dtype != DType::I32 || !self.is_constant(weights) {
            return Ok(None);
        }
        let exec_shape = sums.targets[0].view().shape.clone();
        let exec_axis = if axis == 1 { 1 } else { exec_shape.len() - 1 };
        let Some(stages) = Stages::of(self, links, axis, view) else { return Ok(None) };
        let is_exact = stages.offset.iter().all(|&offset| (offset as f32) as i32 == offset)
            && !self.ir.wide_sums.contains(&op.output);
        let is_bounded = stages.offset.iter().all(|offset| offset.unsigned_abs() < MAX_OFFSET);
        if !is_bounded || stages.integer.is_none() && !is_exact {
            return Ok(None);
        }
        let mut per_channel = |values: Vec<f32>| -> Result<Option<BufferView>> {
            let mut shape = vec![1; exec_shape.len()];
            shape[exec_axis] = values.len() as i64;
            let buffer = self.pack_as(weights, Packing::Values(values))?;
            Ok(buffer.map(|buffer| BufferView { buffer, view: View::dense(&shape) }))
        };
        let channels = exec_shape[exec_axis] as usize;
        let has_bias = stages.offset.iter().any(|&offset| offset != 0);
        let offsets = stages.offset.iter().cycle().take(channels).map(|&offset| offset as f32).collect();
        let bias = if has_bias { per_channel(offsets)? } else { None };
        let Some(factor) = per_channel(stages.factor.clone())? else { return Ok(None) };
        let mut post_ops = vec![PostOp::Binary(ffi::BINARY_MUL, factor)];
        post_ops.extend(stages.functions().into_iter().map(PostOp::Eltwise));
        Ok(Some(Alternatives {
            bias: bias.map(|bias| (0, bias)),
            requantization: Some(Requantization { links: stages.links, post_ops }),
            ..Alternatives::new(
                &links[..stages.links],
                sums.sources.clone(),
                sums.targets.clone(),
                sums.dim_map.clone(),
                stages.dtype,
            )
        }))
    }

    /// Returns the choice among `preferred`, or else among `others`.
    pub(super) fn select_first(
        &mut self,
        preferred: Option<&Alternatives<'_>>,
        others: &Alternatives<'_>,
        make: &dyn Fn(&[Desc], &Desc, &Attr, bool) -> Result<PrimitiveDesc, OneDnnError>,
    ) -> Result<Selection> {
        match preferred.map(|alternatives| self.select(alternatives, make)) {
            Some(Ok(selection)) => Ok(selection),
            _ => self.select(others, make),
        }
    }
}
