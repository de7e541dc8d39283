//! Normalizations, softmax, dropout and prelu.

use super::super::call::{Call, Outputs, scalar, vector};
use super::super::proto_parts::{float, int};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::reduce::reduce;
use super::{Row, single};
use byoc_ir::ir::Dim;

pub const ROWS: &[Row] = &[
    ("nn.batch_norm", batch_norm),
    ("nn.dropout", |c| {
        let (x, dtype) = (c.arg(0)?, c.dtype(0)?);
        let shape = c.shape_of(&x);
        let mask = c.filled(&shape, &crate::tensor::from_f64s(dtype, &[1], &[1.0]))?;
        Ok(vec![x, mask])
    }),
    ("nn.fast_softmax", |c| softmax(c, "Softmax")),
    ("nn.group_norm", group_norm),
    ("nn.instance_norm", instance_norm),
    ("nn.l2_normalize", l2_normalize),
    ("nn.layer_norm", layer_norm),
    ("nn.log_softmax", |c| softmax(c, "LogSoftmax")),
    ("nn.lrn", lrn),
    ("nn.prelu", |c| {
        let (x, rank) = (c.arg(0)?, c.rank(0)?);
        let axis = c.axis("axis", rank)?;
        let slope = along(c, 1, axis, rank)?;
        single(c.apply("PRelu", &[&x, &slope]))
    }),
    ("nn.softmax", |c| softmax(c, "Softmax")),
];

fn softmax(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let (x, rank) = (c.arg(0)?, c.rank(0)?);
    if rank == 0 {
        return Err(Refusal::new("softmax of a scalar"));
    }
    // The last axis as the reader's default, whatever the rank.
    let axis = c.axis("axis", rank)?;
    single(c.node(op, &[x], vec![int("axis", axis)]))
}

/// Returns the vector argument `i` in a shape that broadcasts along an axis of `rank` dimensions.
pub fn along(c: &mut Call<'_, '_>, i: usize, axis: i64, rank: usize) -> Result<Operand> {
    let value = c.arg(i)?;
    let after: Vec<i64> = (1..(rank as i64 - axis)).collect();
    Ok(if after.is_empty() { value } else { c.unsqueeze(&value, &after) })
}

/// Returns argument `i`, or its neutral element if attribute `flag` says that it has no effect.
fn parameter(c: &Call<'_, '_>, i: usize, flag: &str, neutral: f64) -> Result<Operand> {
    if c.params.bool(flag) {
        return c.arg(i);
    }
    let ty = c.ty(i)?;
    let len = ty.dims.first().and_then(Dim::fixed).ok_or_else(|| Refusal::new("an unknown number of channels"))?;
    Ok(vector(ty.dtype, neutral, len))
}

fn batch_norm(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let rank = c.rank(0)?;
    let axis = c.axis("axis", rank)? as usize;
    let (gamma, beta) = (parameter(c, 1, "scale", 1.0)?, parameter(c, 2, "center", 0.0)?);
    let (x, mean, variance) = (c.arg(0)?, c.arg(3)?, c.arg(4)?);
    // The channels change places with the second axis.
    let mut axes: Vec<usize> = (0..rank).collect();
    if axis != 1 {
        if rank < 2 || axis == 0 {
            return Err(Refusal::new(format!("channels on axis {axis} of {rank}")));
        }
        axes.swap(1, axis);
    }
    let moved = c.transpose(&x, &axes);
    let epsilon = float("epsilon", c.params.float("epsilon"));
    let result = c.node("BatchNormalization", &[moved, gamma, beta, mean.clone(), variance.clone()], vec![epsilon]);
    Ok(vec![c.transpose(&result, &axes), mean, variance])
}

/// Writes (x - mean) / sqrt(variance + epsilon), with mean and variance over the last axis.
fn standardized(c: &mut Call<'_, '_>, x: &Operand, axis: i64) -> Result<Operand> {
    let dtype = c.dtype(0)?;
    let mean = reduce(c, "ReduceMean", x, &[axis], true);
    let centered = c.apply("Sub", &[x, &mean]);
    let square = c.apply("Mul", &[&centered, &centered]);
    let variance = reduce(c, "ReduceMean", &square, &[axis], true);
    let shifted = c.apply("Add", &[&variance, &scalar(dtype, c.params.float("epsilon"))]);
    let deviation = c.apply("Sqrt", &[&shifted]);
    Ok(c.apply("Div", &[&centered, &deviation]))
}

fn layer_norm(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let rank = c.rank(0)?;
    let (x, axis) = (c.arg(0)?, c.axis("axis", rank)?);
    if axis + 1 == rank as i64 && c.w.opset >= 17 {
        let gamma = parameter(c, 1, "scale", 1.0)?;
        let beta = if c.params.bool("center") { c.arg(2)? } else { Operand::Absent };
        let attrs = vec![int("axis", -1), float("epsilon", c.params.float("epsilon"))];
        return single(c.node("LayerNormalization", &[x, gamma, beta], attrs));
    }
    let result = standardized(c, &x, axis)?;
    single(with_scale_and_center(c, result, axis, rank)?)
}

/// Multiplies by argument 1 and adds argument 2, along an axis, where the attributes say so.
fn with_scale_and_center(c: &mut Call<'_, '_>, mut result: Operand, axis: i64, rank: usize) -> Result<Operand> {
    if c.params.bool("scale") {
        let gamma = along(c, 1, axis, rank)?;
        result = c.apply("Mul", &[&result, &gamma]);
    }
    if c.params.bool("center") {
        let beta = along(c, 2, axis, rank)?;
        result = c.apply("Add", &[&result, &beta]);
    }
    Ok(result)
}

fn instance_norm(c: &mut Call<'_, '_>) -> Result<Outputs> {
    if c.axis("axis", c.rank(0)?)? != 1 {
        return Err(Refusal::new("channels that are not the second axis"));
    }
    let (x, gamma, beta) = (c.arg(0)?, parameter(c, 1, "scale", 1.0)?, parameter(c, 2, "center", 0.0)?);
    let attrs = vec![float("epsilon", c.params.float("epsilon"))];
    single(c.node("InstanceNormalization", &[x, gamma, beta], attrs))
}

/// Writes a group normalization; before operator set 21 as the normalization of instances whose channels are the groups.
fn group_norm(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (rank, groups, dtype) = (c.rank(0)?, c.params.int("num_groups"), c.dtype(0)?);
    let axis = c.axis("axis", rank)?;
    if axis != 1 {
        return Err(Refusal::new("channels that are not the second axis"));
    }
    let x = c.arg(0)?;
    let epsilon = float("epsilon", c.params.float("epsilon"));
    if c.w.opset >= 21 {
        let (gamma, beta) = (parameter(c, 1, "scale", 1.0)?, parameter(c, 2, "center", 0.0)?);
        return single(c.node("GroupNormalization", &[x, gamma, beta], vec![epsilon, int("num_groups", groups)]));
    }
    let count = usize::try_from(groups).map_err(|_| Refusal::new(format!("{groups} groups")))?;
    let grouped = c.reshape_copying(&x, &[0, groups, -1]);
    let (ones, zeros) = (vector(dtype, 1.0, count), vector(dtype, 0.0, count));
    let normalized = c.node("InstanceNormalization", &[grouped, ones, zeros], vec![epsilon]);
    let shape = c.shape_of(&x);
    let result = c.apply("Reshape", &[&normalized, &shape]);
    single(with_scale_and_center(c, result, axis, rank)?)
}

fn l2_normalize(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (x, dtype, rank) = (c.arg(0)?, c.dtype(0)?, c.rank(0)?);
    let mut axes = c.params.ints("axis");
    if axes.is_empty() {
        axes = (0..rank as i64).collect();
    }
    let square = c.apply("Mul", &[&x, &x]);
    let sum = reduce(c, "ReduceSum", &square, &axes, true);
    let bounded = c.apply("Max", &[&sum, &scalar(dtype, c.params.float("eps"))]);
    let norm = c.apply("Sqrt", &[&bounded]);
    single(c.apply("Div", &[&x, &norm]))
}

fn lrn(c: &mut Call<'_, '_>) -> Result<Outputs> {
    if c.axis("axis", c.rank(0)?)? != 1 {
        return Err(Refusal::new("channels that are not the second axis"));
    }
    let x = c.arg(0)?;
    let attrs = vec![
        float("alpha", c.params.float("alpha")),
        float("beta", c.params.float("beta")),
        float("bias", c.params.float("bias")),
        int("size", c.params.int("size")),
    ];
    single(c.node("LRN", &[x], attrs))
}
