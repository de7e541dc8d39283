//! Loss functions of models exported in training mode.

use super::{Node, Result, Row, attrs, single_output};
use byoc_ir::ir::{Attrs, ExprId};

pub const ROWS: &[Row] = &[
    ("NegativeLogLikelihoodLoss", 12, |n| {
        let log_probabilities = n.input(0)?;
        single_output(negative_log_likelihood(n, log_probabilities)?)
    }),
    ("SoftmaxCrossEntropyLoss", 12, |n| {
        let scores = n.input(0)?;
        let log_probabilities = n.op("nn.log_softmax", &[scores], attrs![axis: 1])?;
        Ok(vec![negative_log_likelihood(n, log_probabilities)?, log_probabilities])
    }),
];

/// Computes -weight\[target\] * log_probabilities\[n, target, ...\], ignores targets equal to `ignore_index`, and
/// reduces the losses. The mean is weighted.
fn negative_log_likelihood(n: &mut Node<'_, '_>, log_probabilities: ExprId) -> Result<ExprId> {
    let target = n.input(1)?;
    let dtype = n.dtype(log_probabilities)?;
    let reduction = n.str_attr("reduction", "mean")?;
    let zero = n.scalar(dtype, 0.0);
    let (mut index, mut valid_mask) = (target, None);
    if n.has("ignore_index") {
        let ignored_class = n.int_attr("ignore_index", 0)?;
        let is_valid = n.with_scalar("not_equal", target, ignored_class as f64)?;
        let first_class = n.scalar(n.dtype(target)?, 0.0);
        // An ignored target may be out of range, so it is replaced with the first class.
        index = n.op_without_attrs("where", &[is_valid, target, first_class])?;
        valid_mask = Some(is_valid);
    }
    let column = n.op("expand_dims", &[index], attrs![axis: 1])?;
    let target_log_probability = n.op("gather", &[log_probabilities, column], attrs![axis: 1])?;
    let target_log_probability = n.op("squeeze", &[target_log_probability], attrs![axis: [1]])?;
    let mut loss = n.op_without_attrs("negative", &[target_log_probability])?;
    let mut weights = None;
    if let Some(weight) = n.optional_input(2) {
        let element_weights = n.op("take", &[weight, index], attrs![axis: 0])?;
        loss = n.op_without_attrs("multiply", &[loss, element_weights])?;
        weights = Some(element_weights);
    }
    if let Some(valid_mask) = valid_mask {
        loss = n.op_without_attrs("where", &[valid_mask, loss, zero])?;
        let element_weights = match weights {
            Some(weights) => n.op_without_attrs("where", &[valid_mask, weights, zero])?,
            None => n.cast(valid_mask, dtype)?,
        };
        weights = Some(element_weights);
    }
    match reduction.as_str() {
        "none" => Ok(loss),
        "sum" => n.op("sum", &[loss], Attrs::none()),
        "mean" => match weights {
            None => n.op("mean", &[loss], Attrs::none()),
            Some(weights) => {
                let loss_sum = n.op("sum", &[loss], Attrs::none())?;
                let weight = n.op("sum", &[weights], Attrs::none())?;
                n.op_without_attrs("divide", &[loss_sum, weight])
            }
        },
        other => Err(n.invalid_node(format!("attribute reduction: expected none, sum or mean, found \"{other}\""))),
    }
}
