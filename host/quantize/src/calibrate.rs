//! Calibration: distributions of the values in the float model.

use super::histogram::Histogram;
use super::rewrite::observed;
use super::runs::Runs;
use byoc::error::Failure;
use byoc_ir::ir::{ExprId, Module};
use byoc_ir::tensor::DType;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Runs the float model over the calibration data and returns the histograms of the expressions `wanted`, which must be
/// float32.
///
/// # Errors
/// When the model cannot be run.
pub fn histograms(module: &Module, wanted: &[ExprId], runs: &Runs<'_>) -> Result<BTreeMap<ExprId, Histogram>, Failure> {
    let mut histograms = vec![Histogram::default(); wanted.len()];
    let shown = observed(module, wanted)?;
    runs.each(&[&shown], |results| {
        let values = &results[0][results[0].len() - wanted.len()..];
        runs.pool.install(|| {
            histograms.par_iter_mut().zip(values).for_each(|(histogram, values)| {
                if values.dtype() == DType::F32 {
                    histogram.add(values.as_slice::<f32>());
                }
            });
        });
        Ok(())
    })?;
    Ok(wanted.iter().copied().zip(histograms).collect())
}
