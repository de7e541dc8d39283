//! Selection of the most sensitive layers, which are kept in float until the model is accurate enough.

use super::Quantizer;
use super::measure::{Measured, measure};
use super::rewrite::rewrite;
use super::roles::Roles;
use byoc::runtime::error::Failure;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the loss of the complete model: the drop in accuracy if it is known, otherwise 1 minus the cosine of the
/// outputs; infinite if neither is known.
fn loss(measured: &Measured) -> f64 {
    match (measured.correct, measured.cosine) {
        (Some((float, quantized)), _) => (float as f64 - quantized as f64) / measured.samples.max(1) as f64,
        (None, Some(cosine)) => 1.0 - cosine,
        (None, None) => f64::INFINITY,
    }
}

/// Adds the most sensitive layers to `kept` until the loss of the model is at most `limit`, and returns the sensitivity
/// of each candidate layer, which is 1 minus the cosine of the outputs with only that layer quantized. The result is
/// empty if `kept` already meets the limit.
///
/// The number of layers to keep is found by bisection, assuming that keeping more layers never increases the loss. The
/// loss at the number found has been measured, unless all layers are kept.
pub(super) fn keep_within(
    quantizer: &mut Quantizer<'_>,
    kept: &mut BTreeMap<usize, String>,
    limit: f64,
) -> Result<BTreeMap<usize, f64>, Failure> {
    let candidates: Vec<usize> = (0..quantizer.layers.len()).filter(|i| !kept.contains_key(i)).collect();
    // Observe, in a single pass, all values whose ranges the runs below need.
    let alone: Vec<Roles> = candidates.iter().map(|&layer| quantizer.roles(|i| i == layer)).collect();
    let together = quantizer.roles(|i| !kept.contains_key(&i));
    let ranged: BTreeSet<_> = alone.iter().flat_map(|roles| roles.ranged.values().flatten()).copied().collect();
    quantizer.observe(&together, &ranged.into_iter().collect::<Vec<_>>())?;

    if loss(&cost(quantizer, &together)?) <= limit {
        return Ok(BTreeMap::new());
    }
    let mut sensitivities = BTreeMap::new();
    for (done, (&layer, roles)) in candidates.iter().zip(&alone).enumerate() {
        (quantizer.progress)(&format!("measuring layer {} of {} alone", done + 1, candidates.len()));
        let cosine = cost(quantizer, roles)?.cosine;
        sensitivities.insert(layer, cosine.map_or(0.0, |cosine| 1.0 - cosine));
    }
    let mut order = candidates;
    order.sort_by(|a, b| sensitivities[b].total_cmp(&sensitivities[a]).then(a.cmp(b)));

    // Invariant: keeping `low` layers does not meet the limit, and keeping `high` layers does. The loss is 0 if all
    // layers are kept.
    let (mut low, mut high) = (0, order.len());
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        (quantizer.progress)(&format!("measuring with {middle} more layers in float"));
        let roles = quantizer.roles(|i| !kept.contains_key(&i) && !order[..middle].contains(&i));
        quantizer.observe(&roles, &[])?;
        if loss(&cost(quantizer, &roles)?) <= limit { high = middle } else { low = middle }
    }
    for &layer in &order[..high] {
        kept.insert(layer, format!("sensitive: a loss of {:.2e} when quantized alone", sensitivities[&layer]));
    }
    Ok(sensitivities)
}

fn cost(quantizer: &Quantizer<'_>, roles: &Roles) -> Result<Measured, Failure> {
    let (_, parameters) = quantizer.parameters(roles)?;
    let quantized = rewrite(&quantizer.plan(roles, &parameters), &[])?;
    measure(quantizer.module, &quantized.module, &[], quantizer.labels, quantizer.runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_the_drop_in_accuracy_if_known() {
        let measured = Measured { correct: Some((90, 85)), cosine: Some(0.5), samples: 100, ..Measured::default() };
        assert!((loss(&measured) - 0.05).abs() < 1e-12);
        assert!((loss(&Measured { correct: None, ..measured }) - 0.5).abs() < 1e-12);
        assert_eq!(loss(&Measured::default()), f64::INFINITY);
    }
}
