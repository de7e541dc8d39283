//! Loss functions.

use super::index::integers;
use super::scalar::Writer;
use super::walk::{for_each_index, offset, strides};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::codes;
use crate::ir::Type;
use crate::op::facts::{Properties, elements_of};
use crate::tensor::{TensorView, TensorViewMut};

operator! {
    name: "nn.nll_loss",
    doc: "Negative log likelihood of the target classes: -weights[t] * predictions[n, t, ..] for each target t, where \
          predictions is (n, classes, ..) or (classes); 0 for targets of ignore_index. reduction \"sum\" adds the \
          results, \"mean\" divides their sum by the sum of their weights.",
    inputs: &["predictions", "targets", "weights"],
    attrs: &[
        AttrDef::new("reduction", AttrKind::Str, Default::Str("mean"), "\"mean\", \"sum\" or \"none\""),
        AttrDef::new("ignore_index", AttrKind::Int, Default::Required, "target without a loss"),
    ],
    pattern: OpPattern::OutEWiseFusable,
    relation: nll_type,
    reference: Some(nll_loss),
    flops: |cost| 2 * cost.arg_len(1),
    properties: Properties::EXACT.stable(elements_of::<1>),
}

fn nll_type(relation: &Relation<'_>) -> TypeResult {
    let [predictions, targets, weights] = [relation.tensor(0)?, relation.tensor(1)?, relation.tensor(2)?];
    let dtype = relation.same_dtype(predictions.dtype, weights.dtype)?;
    if !dtype.is_float() || !targets.dtype.is_int() {
        let [predictions, targets] = [&relation.args[0], &relation.args[1]];
        return Err(
            relation.mismatch(format!("expected floats and integer targets, found {predictions} and {targets}"))
        );
    }
    let is_matching = weights.dims.len() == 1 && predictions.dims.len() == targets.dims.len() + 1;
    if !is_matching {
        let [a, b, c] = [0, 1, 2].map(|i| &relation.args[i]);
        return Err(relation.mismatch(format!(
            "expected predictions with an axis of classes more than targets and a vector of weights, found {a}, {b} and {c}"
        )));
    }
    let class_axis = 1.min(targets.dims.len());
    relation.same_dim("classes and weights", &predictions.dims[class_axis], &weights.dims[0])?;
    let others = predictions.dims.iter().enumerate().filter(|&(axis, _)| axis != class_axis);
    for ((axis, a), b) in others.zip(&targets.dims) {
        relation.same_dim(&format!("axis {axis} of predictions and targets"), a, b)?;
    }
    match relation.params.string("reduction").as_str() {
        "none" => Ok(Type::tensor_of(dtype, targets.dims.iter().cloned())),
        "mean" | "sum" => Ok(Type::scalar(dtype)),
        other => {
            let message = format!("reduction: expected \"mean\", \"sum\" or \"none\", found \"{other}\"");
            Err(relation.error(codes::types::BAD_ATTRIBUTE, message))
        }
    }
}

fn nll_loss(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (predictions, weights) = (inputs[0].to_f64s(), inputs[2].to_f64s());
    let (targets, ignored) = (integers(&inputs[1], "targets")?, params.int("ignore_index"));
    let class_axis = 1.min(inputs[1].shape.len());
    let strides = strides(inputs[0].shape);
    let mut rest = strides.clone();
    let class_stride = rest.remove(class_axis);
    let (mut losses, mut weight_sum, mut error) = (Vec::with_capacity(targets.len()), 0.0, None);
    for_each_index(inputs[1].shape, |index| {
        let target = targets[losses.len()];
        let class = usize::try_from(target).ok().filter(|&class| class < weights.len());
        let loss = match class {
            _ if target == ignored => 0.0,
            Some(class) => {
                weight_sum += weights[class];
                -predictions[offset(index, &rest) + class * class_stride] * weights[class]
            }
            None => {
                error.get_or_insert(format!("targets: expected classes >= 0 and < {}, found {target}", weights.len()));
                0.0
            }
        };
        losses.push(loss);
    });
    if let Some(error) = error {
        return Err(error);
    }
    let total: f64 = losses.iter().sum();
    let mut out = Writer::new(&mut outputs[0]);
    match params.string("reduction").as_str() {
        "none" => out.store(losses),
        "sum" => out.set_float(0, total),
        _ => out.set_float(0, total / weight_sum),
    }
    Ok(())
}

macro_rules! cross_entropies {
    ($($name:literal, $doc:literal, $f:expr;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["x", "y"],
            relation: cross_entropy_type,
            reference: Some(|_, inputs, outputs| {
                let rows = inputs[0].shape[0] as f64;
                let total: f64 = inputs[0].f64s().zip(inputs[1].f64s()).map($f).sum();
                Writer::new(&mut outputs[0]).set_float(0, -total / rows);
                Ok(())
            }),
            flops: |cost| 2 * cost.arg_len(0),
            properties: Properties::EXACT.stable(elements_of::<0>),
        }
    )*};
}

cross_entropies! {
    "nn.cross_entropy", "-sum(log(x) * y) / rows, for probabilities x and targets y, one row each.",
        |(x, y): (f64, f64)| x.ln() * y;
    "nn.cross_entropy_with_logits", "-sum(x * y) / rows, for logarithms of probabilities x and targets y, one row each.",
        |(x, y): (f64, f64)| x * y;
}

fn cross_entropy_type(relation: &Relation<'_>) -> TypeResult {
    let (x, y) = (relation.tensor(0)?, relation.tensor(1)?);
    let dtype = relation.same_dtype(x.dtype, y.dtype)?;
    if x.dims.len() != 2 || y.dims.len() != 2 || !dtype.is_float() {
        let [x, y] = [&relation.args[0], &relation.args[1]];
        return Err(relation.mismatch(format!("expected matrices of floats, found {x} and {y}")));
    }
    for (axis, (a, b)) in x.dims.iter().zip(&y.dims).enumerate() {
        relation.same_dim(&format!("axis {axis}"), a, b)?;
    }
    Ok(Type::scalar(dtype))
}
