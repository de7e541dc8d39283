//! Calibration: value distributions in the float model, and channel means of the layer inputs.

use super::histogram::Histogram;
use super::layers::Layer;
use super::means::ChannelMeans;
use super::rewrite::with_observed_values;
use super::runs::Runs;
use byoc::runtime::error::Failure;
use byoc_ir::ir::{ExprId, Module};
use byoc_ir::tensor::DType;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Statistics of the values in the float model.
#[derive(Default)]
pub struct Statistics {
    /// Distribution of each observed value.
    pub histograms: BTreeMap<ExprId, Histogram>,
    /// Channel means of each layer's input, by layer index.
    pub means: BTreeMap<usize, ChannelMeans>,
}

/// Runs the float model over the calibration data and returns the histograms of the expressions `observed_exprs`, which
/// must be float32, and the input means of the layers with the indices `mean_layers`.
///
/// # Errors
/// If the model cannot be run.
pub fn statistics(
    module: &Module,
    observed_exprs: &[ExprId],
    layers: &[Layer],
    mean_layers: &[usize],
    runs: &Runs<'_>,
) -> Result<Statistics, Failure> {
    let inputs: Vec<ExprId> = mean_layers.iter().map(|&layer| layers[layer].input).collect();
    let observed_ids: BTreeSet<ExprId> = observed_exprs.iter().chain(&inputs).copied().collect();
    let observed_ids: Vec<ExprId> = observed_ids.into_iter().collect();
    let mut histograms: BTreeMap<_, _> = observed_exprs.iter().map(|&id| (id, Histogram::default())).collect();
    let mut means: Vec<_> =
        mean_layers.iter().map(|&layer| ChannelMeans::new(layers[layer].input_channel_axis)).collect();
    let model = with_observed_values(module, &observed_ids)?;
    runs.for_each(&[&model], |results| {
        let values = &results[0][results[0].len() - observed_ids.len()..];
        let values: BTreeMap<_, _> = observed_ids.iter().zip(values).collect();
        runs.pool.install(|| {
            histograms.par_iter_mut().for_each(|(id, histogram)| {
                let values = values[id];
                if values.dtype() == DType::F32 {
                    histogram.add(values.as_slice::<f32>());
                }
            });
            means.par_iter_mut().zip(&inputs).for_each(|(means, input)| means.add(values[input]));
        });
        Ok(())
    })?;
    Ok(Statistics { histograms, means: mean_layers.iter().copied().zip(means).collect() })
}
