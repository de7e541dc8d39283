//! Support vector machines (`ai.onnx.ml`).

use super::ml::{check_count, class_labels, floats_like, labels_of, post_transform, table, unsupported};
use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::ir::ExprId;
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[("SVMClassifier", 1, classifier), ("SVMRegressor", 1, regressor)];

/// Returns the value of the kernel function for each row of the data and each support vector.
fn kernel(n: &mut Node<'_, '_>, data: ExprId, supports: usize) -> Result<ExprId> {
    let vectors = n.floats_attr("support_vectors")?.unwrap_or_default();
    if vectors.is_empty() || !vectors.len().is_multiple_of(supports) {
        let message =
            format!("attribute support_vectors: expected {supports} vectors, found {} numbers", vectors.len());
        return Err(n.invalid_node(message));
    }
    let vectors = floats_like(n, &vectors, &[supports, vectors.len() / supports], data)?;
    let parameters = n.floats_attr("kernel_params")?.unwrap_or_default();
    let parameter = |i: usize| parameters.get(i).copied().unwrap_or(0.0);
    let (gamma, offset, degree) = (parameter(0), parameter(1), parameter(2));
    let kernel = n.str_attr("kernel_type", "LINEAR")?;
    if kernel == "RBF" {
        let data = n.op("expand_dims", &[data], attrs![axis: 1])?;
        let difference = n.op_without_attrs("subtract", &[data, vectors])?;
        let squares = n.op_without_attrs("multiply", &[difference, difference])?;
        let distance = n.op("sum", &[squares], attrs![axis: [2]])?;
        let exponent = n.with_scalar("multiply", distance, -gamma)?;
        return n.op_without_attrs("exp", &[exponent]);
    }
    let product = n.op("nn.dense", &[data, vectors], attrs![units: supports as i64])?;
    if kernel == "LINEAR" {
        return Ok(product);
    }
    let scaled = n.with_scalar("multiply", product, gamma)?;
    let shifted = n.with_scalar("add", scaled, offset)?;
    match kernel.as_str() {
        "POLY" => n.with_scalar("power", shifted, degree),
        "SIGMOID" => n.op_without_attrs("tanh", &[shifted]),
        other => Err(
            n.invalid_node(format!("attribute kernel_type: expected LINEAR, POLY, RBF or SIGMOID, found \"{other}\""))
        ),
    }
}

fn regressor(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let data = n.cast(data, DType::F32)?;
    let coefficients = n.floats_attr("coefficients")?.unwrap_or_default();
    let rho = n.floats_attr("rho")?.and_then(|rho| rho.first().copied()).unwrap_or(0.0);
    let supports = n.int_attr("n_supports", 0)?;
    let score = if supports > 0 {
        let supports = supports as usize;
        check_count(n, "coefficients", coefficients.len(), supports)?;
        let kernel = kernel(n, data, supports)?;
        let weight = floats_like(n, &coefficients, &[1, supports], data)?;
        n.op("nn.dense", &[kernel, weight], attrs![units: 1i64])?
    } else {
        let weight = floats_like(n, &coefficients, &[1, coefficients.len()], data)?;
        n.op("nn.dense", &[data, weight], attrs![units: 1i64])?
    };
    let score = n.with_scalar("add", score, rho)?;
    if n.int_attr("one_class", 0)? != 0 {
        let is_inside = n.with_scalar("greater", score, 0.0)?;
        let (inside, outside) = (n.scalar(DType::F32, 1.0), n.scalar(DType::F32, -1.0));
        return single_output(n.op_without_attrs("where", &[is_inside, inside, outside])?);
    }
    let transform = n.str_attr("post_transform", "NONE")?;
    single_output(post_transform(n, score, &transform)?)
}

/// Decides between each pair of classes, and predicts the class with the most decisions in its favor.
fn classifier(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let labels = class_labels(n, "classlabels_ints", "classlabels_strings")?;
    let classes = labels.len();
    let supports_per_class = n.ints_attr("vectors_per_class")?.unwrap_or_default();
    if supports_per_class.is_empty() {
        return Err(unsupported(n, "support vector machine without support vectors", "export it as LinearClassifier"));
    }
    if n.floats_attr("prob_a")?.is_some_and(|parameters| !parameters.is_empty()) {
        return Err(unsupported(n, "probabilities", "export the classifier without probabilities"));
    }
    check_count(n, "vectors_per_class", supports_per_class.len(), classes)?;
    let counts: Option<Vec<usize>> = supports_per_class.iter().map(|&count| usize::try_from(count).ok()).collect();
    let counts = counts.ok_or_else(|| n.invalid_node("attribute vectors_per_class: expected integers >= 0"))?;
    let supports = counts.iter().fold(0usize, |sum, &count| sum.saturating_add(count));
    let pairs = classes * (classes - 1) / 2;
    let coefficients = n.floats_attr("coefficients")?.unwrap_or_default();
    check_count(n, "coefficients", coefficients.len(), (classes - 1).saturating_mul(supports))?;
    let rho = n.floats_attr("rho")?.unwrap_or_default();
    check_count(n, "rho", rho.len(), pairs)?;
    if pairs == 0 || supports == 0 {
        return Err(n.invalid_node("expected at least two classes and a support vector"));
    }
    let class_of: Vec<usize> =
        counts.iter().enumerate().flat_map(|(class, &count)| std::iter::repeat_n(class, count)).collect();
    let data = n.input(0)?;
    let data = n.cast(data, DType::F32)?;
    let kernel = kernel(n, data, supports)?;
    // For each pair of classes: a row of weights, the class favored by a positive score, and the class favored by any
    // other score.
    let (mut weights, mut positive, mut negative) = (table(pairs, supports, 0.0)?, Vec::new(), Vec::new());
    let mut rows = weights.chunks_exact_mut(supports);
    for first in 0..classes {
        for (second, row) in (first + 1..classes).zip(&mut rows) {
            for (support, (weight, &class)) in row.iter_mut().zip(&class_of).enumerate() {
                if class == first {
                    *weight = coefficients[(second - 1) * supports + support];
                } else if class == second {
                    *weight = coefficients[first * supports + support];
                }
            }
            positive.push(first);
            negative.push(second);
        }
    }
    let weights = floats_like(n, &weights, &[pairs, supports], data)?;
    let product = n.op("nn.dense", &[kernel, weights], attrs![units: pairs as i64])?;
    let rho = floats_like(n, &rho, &[pairs], data)?;
    let scores = n.op_without_attrs("add", &[product, rho])?;
    let is_positive = n.with_scalar("greater", scores, 0.0)?;
    let is_positive = n.cast(is_positive, DType::F32)?;
    let difference = n.with_scalar("subtract", is_positive, 1.0)?;
    let is_negative = n.op_without_attrs("negative", &[difference])?;
    let mut votes = Vec::with_capacity(2);
    for (decisions, favored) in [(is_positive, positive), (is_negative, negative)] {
        let mut favors = table(classes, pairs, 0.0)?;
        favored.iter().enumerate().for_each(|(pair, class)| favors[class * pairs + pair] = 1.0);
        let favors = floats_like(n, &favors, &[classes, pairs], data)?;
        votes.push(n.op("nn.dense", &[decisions, favors], attrs![units: classes as i64])?);
    }
    let votes = n.op_without_attrs("add", &votes)?;
    let class = n.op("argmax", &[votes], attrs![axis: [1]])?;
    let scores = if classes == 2 {
        let negative_scores = n.op_without_attrs("negative", &[scores])?;
        n.concatenate(&[negative_scores, scores], 1)?
    } else {
        scores
    };
    let transform = n.str_attr("post_transform", "NONE")?;
    let scores = post_transform(n, scores, &transform)?;
    Ok(vec![labels_of(n, &labels, class)?, scores])
}
