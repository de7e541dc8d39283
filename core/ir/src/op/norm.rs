//! Normalizations, softmax, dropout and prelu.

use super::elementwise::same_as_input;
use super::{AttrDef, AttrKind, Cost, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, Type};
use crate::op::facts::{ErrorModel, LayoutRule, Properties, elements_along_axis, reduced_elements, size_along};
use crate::tensor::{DType, TensorView, TensorViewMut};

const EPSILON: AttrDef = AttrDef::new(
    "epsilon",
    AttrKind::Float,
    Default::Float(1e-5),
    "constant added to the variance before the square root",
);
const CENTER: AttrDef = AttrDef::new("center", AttrKind::Bool, Default::Bool(true), "true if beta is added");
const SCALE: AttrDef =
    AttrDef::new("scale", AttrKind::Bool, Default::Bool(true), "true if the result is multiplied by gamma");

const fn axis(default: i64, doc: &'static str) -> AttrDef {
    AttrDef::new("axis", AttrKind::Int, Default::Int(default), doc)
}

operator! {
    name: "nn.batch_norm",
    doc: "(data - moving_mean) / sqrt(moving_var + epsilon) * gamma + beta along one axis, as at inference: \
          results 1 and 2 are the moving mean and variance, unchanged.",
    inputs: &["data", "gamma", "beta", "moving_mean", "moving_var"],
    attrs: &[axis(1, "axis of the channels"), EPSILON, CENTER, SCALE],
    pattern: OpPattern::OutEWiseFusable,
    relation: batch_relation,
    reference: Some(batch_reference),
    flops: |cost| cost.arg_len(0).saturating_mul(2),
    properties: Properties::EXACT.stable(reduced_elements),
}

operator! {
    name: "nn.layer_norm",
    doc: "(data - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and (biased) variance over one axis.",
    inputs: &["data", "gamma", "beta"],
    attrs: &[axis(-1, "normalized axis"), EPSILON, CENTER, SCALE],
    pattern: OpPattern::OutEWiseFusable,
    relation: channel_relation,
    reference: Some(|params, inputs, outputs| {
        normalize(&params, inputs, outputs, layer_sets(&params, inputs[0].shape));
        Ok(())
    }),
    flops: flops_per_element::<8>,
    properties: Properties::EXACT.error(ErrorModel::Moments(elements_along_axis, |params, inputs| {
        mean_sensitivity(params, inputs, layer_sets(params, inputs[0].shape))
    })),
}

operator! {
    name: "nn.instance_norm",
    doc: "(data - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and (biased) variance of each channel \
          of each batch item.",
    inputs: &["data", "gamma", "beta"],
    attrs: &[axis(1, "axis of the channels"), EPSILON, CENTER, SCALE],
    pattern: OpPattern::OutEWiseFusable,
    relation: channel_relation,
    reference: Some(|params, inputs, outputs| {
        normalize(&params, inputs, outputs, instance_sets(&params, inputs[0].shape));
        Ok(())
    }),
    flops: flops_per_element::<8>,
    properties: Properties::EXACT.error(ErrorModel::Moments(elements_of_group, |params, inputs| {
        mean_sensitivity(params, inputs, instance_sets(params, inputs[0].shape))
    })),
}

operator! {
    name: "nn.group_norm",
    doc: "(data - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and (biased) variance of each group of \
          channels of each batch item.",
    inputs: &["data", "gamma", "beta"],
    attrs: &[
        AttrDef::new("num_groups", AttrKind::Int, Default::Required, "number of channel groups"),
        axis(1, "axis of the channels"), EPSILON, CENTER, SCALE,
    ],
    pattern: OpPattern::OutEWiseFusable,
    relation: group_relation,
    reference: Some(|params, inputs, outputs| {
        normalize(&params, inputs, outputs, group_sets(&params, inputs[0].shape));
        Ok(())
    }),
    flops: flops_per_element::<8>,
    properties: Properties::EXACT.error(ErrorModel::Moments(elements_of_group, |params, inputs| {
        mean_sensitivity(params, inputs, group_sets(params, inputs[0].shape))
    })),
}

operator! {
    name: "nn.l2_normalize",
    doc: "data / sqrt(max(sum of squares over the axes, eps)).",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("eps", AttrKind::Float, Default::Float(1e-10), "lower bound on the sum of squares"),
        AttrDef::new("axis", AttrKind::Ints, Default::Ints(&[]), "axes to sum over; all if empty"),
    ],
    pattern: OpPattern::OutEWiseFusable,
    relation: l2_relation,
    reference: Some(l2_reference),
    flops: flops_per_element::<3>,
    properties: Properties::EXACT.stable(elements_along_axes),
}

operator! {
    name: "nn.lrn",
    doc: "data / (bias + alpha / size * sum of squares over the nearest size channels)^beta.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("size", AttrKind::Int, Default::Int(5), "number of channels in the sum; odd"),
        axis(1, "axis of the channels"),
        AttrDef::new("bias", AttrKind::Float, Default::Float(2.0), "constant term of the denominator"),
        AttrDef::new("alpha", AttrKind::Float, Default::Float(1e-4), "factor of the sum of squares"),
        AttrDef::new("beta", AttrKind::Float, Default::Float(0.75), "exponent of the denominator"),
    ],
    pattern: OpPattern::OutEWiseFusable,
    relation: lrn_relation,
    reference: Some(lrn_reference),
    flops: |cost| cost.ret_len().saturating_mul(3 + 2 * cost.params.int("size").clamp(0, 1 << 30) as u64),
    properties: Properties::EXACT.stable(window_size),
}

operator! {
    name: "nn.dropout",
    doc: "Returns the data unchanged, as at inference; result 1 is the mask, all ones.",
    inputs: &["data"],
    attrs: &[AttrDef::new("rate", AttrKind::Float, Default::Float(0.5), "fraction of elements dropped in training")],
    relation: |r| Ok(Type::tuple([same_as_input(r)?, same_as_input(r)?])),
    reference: Some(dropout_reference),
}

operator! {
    name: "nn.prelu",
    doc: "x where x > 0, otherwise alpha * x, with one alpha per index on the axis.",
    inputs: &["data", "alpha"],
    attrs: &[axis(1, "axis of the channels")],
    pattern: OpPattern::Broadcast,
    relation: channel_relation,
    reference: Some(prelu_reference),
    flops: flops_per_element::<1>,
    properties: Properties::EXACT.layout(LayoutRule::Axis).ulps(1.0),
}

macro_rules! softmax {
    ($($name:literal $doc:literal $log:literal $error:ident;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["data"],
            attrs: &[axis(-1, "axis to sum over")],
            pattern: OpPattern::OutEWiseFusable,
            relation: axis_relation,
            reference: Some(|params, inputs, outputs| { softmax(params, inputs, outputs, $log); Ok(()) }),
            flops: flops_per_element::<5>,
            properties: Properties::EXACT.error(ErrorModel::$error(elements_along_axis)),
        }
    )*};
}

softmax! {
    "nn.softmax" "exp(x - max) / sum of exp(x - max) along one axis." false Stable;
    "nn.fast_softmax" "nn.softmax, for which Relay has a faster approximation." false Stable;
    "nn.log_softmax" "x - max - log(sum of exp(x - max)) along one axis." true Logarithm;
}

/// Returns the number of elements in one batch item, an upper bound on the size of a group.
fn elements_of_group(_: &Params<'_>, shapes: &[&[usize]], _: &[usize]) -> usize {
    shapes.first().map_or(0, |data| data.iter().skip(1).product())
}

fn elements_along_axes(params: &Params<'_>, shapes: &[&[usize]], _: &[usize]) -> usize {
    params.ints("axis").iter().map(|&axis| size_along(shapes, axis)).product()
}

fn window_size(params: &Params<'_>, _: &[&[usize]], _: &[usize]) -> usize {
    params.int("size").max(1) as usize
}

fn flops_per_element<const N: u64>(cost: &Cost<'_>) -> u64 {
    cost.ret_len().saturating_mul(N)
}

/// Checks that each argument but the data is a vector along the axis in attribute `axis`. Returns the element type of
/// the data, its dimensions, and the dimension of that axis.
fn channels(relation: &Relation<'_>) -> Result<(DType, Vec<Dim>, Dim), Box<Diagnostic>> {
    let data = relation.tensor(0)?;
    let axis = relation.axis(relation.params.int("axis"), data.dims.len())?;
    let mut dim = data.dims[axis].clone();
    for i in 1..relation.args.len() {
        let name = relation.def.inputs[i];
        let ty = relation.tensor(i)?;
        if ty.dims.len() != 1 {
            return Err(relation.mismatch(format!("{name}: expected 1 dimension, found {}", ty.dims.len())));
        }
        dim = relation.same_dim(&format!("data and {name}"), &dim, &ty.dims[0])?;
        relation.same_dtype(data.dtype, ty.dtype)?;
    }
    let mut dims = data.dims.to_vec();
    dims[axis] = dim.clone();
    Ok((data.dtype, dims, dim))
}

fn channel_relation(relation: &Relation<'_>) -> TypeResult {
    let (dtype, dims, _) = channels(relation)?;
    Ok(Type::tensor_of(dtype, dims))
}

fn batch_relation(relation: &Relation<'_>) -> TypeResult {
    let (dtype, dims, channel) = channels(relation)?;
    let statistic = Type::tensor_of(dtype, [channel]);
    Ok(Type::tuple([Type::tensor_of(dtype, dims), statistic.clone(), statistic]))
}

fn group_relation(relation: &Relation<'_>) -> TypeResult {
    let (dtype, dims, channel) = channels(relation)?;
    let groups = relation.params.int("num_groups");
    let is_divisible = |n: usize| groups >= 1 && n.is_multiple_of(groups as usize);
    if groups < 1 || channel.fixed().is_some_and(|n| !is_divisible(n)) {
        return Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("num_groups: expected a divisor of {channel} channels, found {groups}"),
        ));
    }
    Ok(Type::tensor_of(dtype, dims))
}

fn axis_relation(relation: &Relation<'_>) -> TypeResult {
    relation.axis(relation.params.int("axis"), relation.tensor(0)?.dims.len())?;
    same_as_input(relation)
}

fn l2_relation(relation: &Relation<'_>) -> TypeResult {
    let rank = relation.tensor(0)?.dims.len();
    for axis in relation.params.ints("axis") {
        relation.axis(axis, rank)?;
    }
    same_as_input(relation)
}

fn lrn_relation(relation: &Relation<'_>) -> TypeResult {
    let size = relation.params.int("size");
    if size < 1 || size % 2 == 0 {
        return Err(
            relation.error(codes::types::BAD_ATTRIBUTE, format!("size: expected an odd number >= 1, found {size}"))
        );
    }
    axis_relation(relation)
}

/// Shape split at one axis: the dimensions before the axis, its own dimension, and the dimensions after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisView {
    /// Product of the dimensions before the axis.
    pub outer: usize,
    /// Dimension of the axis.
    pub len: usize,
    /// Product of the dimensions after the axis: the stride along the axis.
    pub inner: usize,
}

impl AxisView {
    /// Creates the view of an axis that the type relation accepted; a negative axis counts from the end.
    pub fn new(shape: &[usize], axis: i64) -> AxisView {
        let axis = if axis < 0 { axis + shape.len() as i64 } else { axis } as usize;
        AxisView { outer: shape[..axis].iter().product(), len: shape[axis], inner: shape[axis + 1..].iter().product() }
    }

    /// Returns the index of element `i` on the axis.
    pub fn channel(&self, i: usize) -> usize {
        i / self.inner % self.len
    }

    /// Iterates over the lines along the axis, each as the offsets of its elements.
    fn lines(self) -> impl Iterator<Item = Vec<usize>> {
        let line = move |o: usize, i: usize| (0..self.len).map(|a| (o * self.len + a) * self.inner + i).collect();
        let mut ticks = Ticks::every(4 * self.len);
        let lines = (0..self.outer).flat_map(move |o| (0..self.inner).map(move |i| line(o, i)));
        lines.take_while(move |_| !ticks.is_requested())
    }
}

fn write(values: &[f64], out: &mut TensorViewMut<'_>) {
    <f64 as super::sum::Sum>::store(values, out);
}

fn batch_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let view = AxisView::new(inputs[0].shape, params.int("axis"));
    let (scale, center, epsilon) = (params.bool("scale"), params.bool("center"), params.float("epsilon"));
    let [mut x, gamma, beta, mean, var] = [0, 1, 2, 3, 4].map(|i| inputs[i].to_f64s());
    for (i, value) in x.iter_mut().enumerate() {
        let c = view.channel(i);
        *value = (*value - mean[c]) / (var[c] + epsilon).sqrt();
        *value = *value * if scale { gamma[c] } else { 1.0 } + if center { beta[c] } else { 0.0 };
    }
    write(&x, &mut outputs[0]);
    write(&mean, &mut outputs[1]);
    write(&var, &mut outputs[2]);
    Ok(())
}

/// Returns the mean and the (biased) variance of a set of elements.
fn moments(x: &[f64], set: &[usize]) -> (f64, f64) {
    let n = set.len() as f64;
    let mean = set.iter().map(|&i| x[i]).sum::<f64>() / n;
    (mean, set.iter().map(|&i| (x[i] - mean) * (x[i] - mean)).sum::<f64>() / n)
}

/// Normalizes each set of elements by its own mean and variance, then applies gamma and beta per channel.
fn normalize(
    params: &Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
    sets: impl Iterator<Item = Vec<usize>>,
) {
    let view = AxisView::new(inputs[0].shape, params.int("axis"));
    let (scale, center, epsilon) = (params.bool("scale"), params.bool("center"), params.float("epsilon"));
    let [mut x, gamma, beta] = [0, 1, 2].map(|i| inputs[i].to_f64s());
    for set in sets {
        let (mean, variance) = moments(&x, &set);
        for i in set {
            let c = view.channel(i);
            let value = (x[i] - mean) / (variance + epsilon).sqrt();
            x[i] = value * if scale { gamma[c] } else { 1.0 } + if center { beta[c] } else { 0.0 };
        }
    }
    write(&x, &mut outputs[0]);
}

/// Returns the change in each element of the result of [`normalize`] per unit of relative error in the mean. The error
/// of a mean is relative to the mean of the magnitudes.
fn mean_sensitivity(
    params: &Params<'_>,
    inputs: &[TensorView<'_>],
    sets: impl Iterator<Item = Vec<usize>>,
) -> Vec<f64> {
    let view = AxisView::new(inputs[0].shape, params.int("axis"));
    let (scale, epsilon) = (params.bool("scale"), params.float("epsilon"));
    let (x, gamma) = (inputs[0].to_f64s(), inputs[1].to_f64s());
    let mut changes = vec![0.0; x.len()];
    for set in sets {
        let (_, variance) = moments(&x, &set);
        let mean_magnitude = set.iter().map(|&i| x[i].abs()).sum::<f64>() / set.len() as f64;
        for i in set {
            let factor = if scale { gamma[view.channel(i)].abs() } else { 1.0 };
            changes[i] = mean_magnitude * factor / (variance + epsilon).sqrt();
        }
    }
    changes
}

fn layer_sets(params: &Params<'_>, shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    AxisView::new(shape, params.int("axis")).lines()
}

fn instance_sets(params: &Params<'_>, shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let axis = params.int("axis");
    elements_by_group(shape, axis, AxisView::new(shape, axis).len)
}

fn group_sets(params: &Params<'_>, shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    elements_by_group(shape, params.int("axis"), params.int("num_groups") as usize)
}

/// Groups the elements by batch item (axis 0) and by group of channels.
fn elements_by_group(shape: &[usize], axis: i64, groups: usize) -> impl Iterator<Item = Vec<usize>> + use<> {
    let view = AxisView::new(shape, axis);
    let batch = if axis == 0 || axis == -(shape.len() as i64) { 1 } else { shape[0] };
    let total: usize = shape.iter().product();
    let channels_per_group = (view.len / groups).max(1);
    let mut sets = vec![Vec::new(); batch * groups];
    for i in 0..total {
        sets[i / (total / batch) * groups + view.channel(i) / channels_per_group].push(i);
    }
    sets.into_iter()
}

fn l2_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let shape = inputs[0].shape;
    let rank = shape.len() as i64;
    let axes: Vec<i64> = params.ints("axis").iter().map(|&a| if a < 0 { a + rank } else { a }).collect();
    let is_summed = |axis: usize| axes.is_empty() || axes.contains(&(axis as i64));
    let mut x = inputs[0].to_f64s();
    // Elements that share a sum have the same index on every axis that is not reduced.
    let group_index = |mut i: usize| {
        let mut index = 0;
        let mut step = 1;
        for axis in (0..shape.len()).rev() {
            if !is_summed(axis) {
                index += i % shape[axis] * step;
                step *= shape[axis];
            }
            i /= shape[axis];
        }
        index
    };
    let mut square_sums = vec![0.0; x.len()];
    for (i, value) in x.iter().enumerate() {
        square_sums[group_index(i)] += value * value;
    }
    for (i, value) in x.iter_mut().enumerate() {
        *value /= square_sums[group_index(i)].max(params.float("eps")).sqrt();
    }
    write(&x, &mut outputs[0]);
    Ok(())
}

fn lrn_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let size = params.int("size") as usize;
    let (bias, alpha, beta) = (params.float("bias"), params.float("alpha"), params.float("beta"));
    let x = inputs[0].to_f64s();
    let mut y = vec![0.0; x.len()];
    for line in AxisView::new(inputs[0].shape, params.int("axis")).lines() {
        let mut ticks = Ticks::every(size.min(line.len()));
        for c in 0..line.len() {
            if ticks.is_requested() {
                break;
            }
            let window = &line[c.saturating_sub(size / 2)..(c + size / 2 + 1).min(line.len())];
            let sum: f64 = window.iter().map(|&i| x[i] * x[i]).sum();
            y[line[c]] = x[line[c]] / (bias + alpha / size as f64 * sum).powf(beta);
        }
    }
    write(&y, &mut outputs[0]);
    Ok(())
}

fn dropout_reference(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    outputs[0].data.copy_from_slice(inputs[0].data);
    write(&vec![1.0; inputs[0].len()], &mut outputs[1]);
    Ok(())
}

fn prelu_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let view = AxisView::new(inputs[0].shape, params.int("axis"));
    let (mut x, alpha) = (inputs[0].to_f64s(), inputs[1].to_f64s());
    for (i, value) in x.iter_mut().enumerate() {
        if *value <= 0.0 {
            *value *= alpha[view.channel(i)];
        }
    }
    write(&x, &mut outputs[0]);
    Ok(())
}

fn softmax(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], is_log: bool) {
    let mut x = inputs[0].to_f64s();
    for line in AxisView::new(inputs[0].shape, params.int("axis")).lines() {
        let max = line.iter().map(|&i| x[i]).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = line.iter().map(|&i| (x[i] - max).exp()).sum();
        for i in line {
            let shifted_value = x[i] - max;
            x[i] = if is_log { shifted_value - sum.ln() } else { shifted_value.exp() / sum };
        }
    }
    write(&x, &mut outputs[0]);
}
