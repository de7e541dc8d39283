//! Selection of the most sensitive layers, which are kept in float until the model is accurate enough.

use super::Quantizer;
use super::measure::{Accuracy, measure};
use super::rewrite::rewrite;
use super::roles::Roles;
use byoc::runtime::error::Failure;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the loss of the complete model: the drop in accuracy if it is known, otherwise 1 minus the cosine of the
/// outputs; infinite if neither is known.
fn loss(accuracy: &Accuracy) -> f64 {
    match (accuracy.correct, accuracy.cosine) {
        (Some((float, quantized_module)), _) => {
            (float as f64 - quantized_module as f64) / accuracy.samples.max(1) as f64
        }
        (None, Some(cosine)) => 1.0 - cosine,
        (None, None) => f64::INFINITY,
    }
}

/// Adds the most sensitive layers to `float_layers` until the loss of the model is at most `limit`, and returns the
/// sensitivity of each candidate layer, which is 1 minus the cosine of the outputs with only that layer quantized. The
/// result is empty if `float_layers` already meets the limit.
///
/// The number of layers to keep is found by bisection, assuming that keeping more layers never increases the loss. The
/// loss with the resulting number of layers has been measured, unless all layers are kept.
pub(super) fn keep_within(
    quantizer: &mut Quantizer<'_>,
    float_layers: &mut BTreeMap<usize, String>,
    limit: f64,
) -> Result<BTreeMap<usize, f64>, Failure> {
    let candidates: Vec<usize> = (0..quantizer.layers.len()).filter(|i| !float_layers.contains_key(i)).collect();
    // Observe, in a single pass, all values whose ranges the runs below need.
    let single_roles: Vec<Roles> = candidates.iter().map(|&layer| quantizer.roles(|i| i == layer)).collect();
    let all_roles = quantizer.roles(|i| !float_layers.contains_key(&i));
    let range_exprs: BTreeSet<_> =
        single_roles.iter().flat_map(|roles| roles.range_exprs.values().flatten()).copied().collect();
    quantizer.observe(&all_roles, &range_exprs.into_iter().collect::<Vec<_>>())?;

    if loss(&cost(quantizer, &all_roles)?) <= limit {
        return Ok(BTreeMap::new());
    }
    let mut sensitivities = BTreeMap::new();
    for (done_count, (&layer, roles)) in candidates.iter().zip(&single_roles).enumerate() {
        (quantizer.progress)(&format!("measuring the sensitivity of layer {} of {}", done_count + 1, candidates.len()));
        let cosine = cost(quantizer, roles)?.cosine;
        sensitivities.insert(layer, cosine.map_or(0.0, |cosine| 1.0 - cosine));
    }
    let mut order = candidates;
    order.sort_by(|a, b| sensitivities[b].total_cmp(&sensitivities[a]).then(a.cmp(b)));

    // Invariant: keeping `lower` layers does not meet the limit, and keeping `upper` layers does. The loss is 0 if all
    // layers are kept.
    let (mut lower, mut upper) = (0, order.len());
    while upper - lower > 1 {
        let midpoint = lower + (upper - lower) / 2;
        (quantizer.progress)(&format!("measuring with additional layers in float: {midpoint}"));
        let roles = quantizer.roles(|i| !float_layers.contains_key(&i) && !order[..midpoint].contains(&i));
        quantizer.observe(&roles, &[])?;
        if loss(&cost(quantizer, &roles)?) <= limit { upper = midpoint } else { lower = midpoint }
    }
    for &layer in &order[..upper] {
        float_layers.insert(layer, format!("sensitive: a loss of {:.2e} when quantized alone", sensitivities[&layer]));
    }
    Ok(sensitivities)
}

fn cost(quantizer: &Quantizer<'_>, roles: &Roles) -> Result<Accuracy, Failure> {
    let (_, parameters) = quantizer.parameters(roles)?;
    let quantized_module = rewrite(&quantizer.plan(roles, &parameters), &[])?;
    measure(quantizer.module, &quantized_module.module, &[], quantizer.labels, quantizer.runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_the_drop_in_accuracy_if_known() {
        let accuracy = Accuracy { correct: Some((90, 85)), cosine: Some(0.5), samples: 100, ..Accuracy::default() };
        assert!((loss(&accuracy) - 0.05).abs() < 1e-12);
        assert!((loss(&Accuracy { correct: None, ..accuracy }) - 0.5).abs() < 1e-12);
        assert_eq!(loss(&Accuracy::default()), f64::INFINITY);
    }
}
