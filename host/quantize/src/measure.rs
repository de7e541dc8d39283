//! Quantization cost: noise of each layer, and effect on the outputs.

use super::labels;
use super::rewrite::with_observed_values;
use super::runs::Runs;
use byoc::runtime::error::Failure;
use byoc_ir::ir::{ExprId, Module};
use byoc_ir::tensor::Tensor;

/// Comparison of the quantized model with the float model on the calibration data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Accuracy {
    /// Signal-to-noise ratio of each observed value, in decibels.
    pub signal_to_noise: Vec<Option<f64>>,
    /// Cosine similarity of the mean-centered first outputs of the two models, averaged over the samples; `None` if the
    /// first output is not a float tensor.
    pub cosine: Option<f64>,
    /// Number of samples classified correctly by the float model and by the quantized model.
    pub correct: Option<(usize, usize)>,
    /// Number of samples run.
    pub samples: usize,
}

/// Signal power and noise power, as sums of squares.
#[derive(Clone, Copy, Default)]
struct Power {
    signal: f64,
    noise: f64,
}

impl Power {
    fn add(&mut self, signal: &Tensor, with_noise: &Tensor) {
        for (&a, &b) in signal.as_slice::<f32>().iter().zip(with_noise.as_slice::<f32>()) {
            let (a, b) = (f64::from(a), f64::from(b));
            self.signal += a * a;
            self.noise += (a - b) * (a - b);
        }
    }

    /// Returns 10 * log10(signal / noise); infinite without noise, `None` for a zero signal with noise.
    fn decibels(self) -> Option<f64> {
        match (self.signal > 0.0, self.noise > 0.0) {
            (_, false) => Some(f64::INFINITY),
            (true, true) => Some(10.0 * (self.signal / self.noise).log10()),
            (false, true) => None,
        }
    }
}

/// Runs both models over the calibration data and compares their results. The additional results of `quantized_module`
/// must be the quantized counterparts of the values `observed_values` of the float model.
///
/// # Errors
/// If a model cannot be run.
pub fn measure(
    float: &Module,
    quantized_module: &Module,
    observed_values: &[ExprId],
    labels: Option<&[i64]>,
    runs: &Runs<'_>,
) -> Result<Accuracy, Failure> {
    let float = with_observed_values(float, observed_values)?;
    let mut powers = vec![Power::default(); observed_values.len()];
    let (mut cosines, mut rows) = (0.0, 0);
    let mut outputs = [Vec::new(), Vec::new()];
    runs.for_each(&[&float, quantized_module], |results| {
        let [a, b] = &results[..] else { return Ok(()) };
        let (first_a, first_b) = (a.len() - observed_values.len(), b.len() - observed_values.len());
        for ((power, a), b) in powers.iter_mut().zip(&a[first_a..]).zip(&b[first_b..]) {
            power.add(a, b);
        }
        if let (Some(a), Some(b)) = (a[..first_a].first(), b[..first_b].first())
            && a.dtype().is_float()
        {
            let (a, b) = (a.view().to_f64s(), b.view().to_f64s());
            let width = a.len() / rows_of(&results[0][0]).max(1);
            for (a, b) in a.chunks(width.max(1)).zip(b.chunks(width.max(1))) {
                cosines += cosine(a, b);
                rows += 1;
            }
            outputs[0].extend(a);
            outputs[1].extend(b);
        }
        Ok(())
    })?;
    let samples = runs.count();
    let labels = labels.map(|labels| &labels[..samples.min(labels.len())]);
    let correct =
        |labels: &[i64]| (labels::count_correct(&outputs[0], labels), labels::count_correct(&outputs[1], labels));
    Ok(Accuracy {
        signal_to_noise: powers.into_iter().map(Power::decibels).collect(),
        cosine: (rows > 0).then(|| cosines / rows as f64),
        correct: labels.filter(|labels| !labels.is_empty() && !outputs[0].is_empty()).map(correct),
        samples,
    })
}

/// Returns the number of samples in a result: its first dimension.
fn rows_of(result: &Tensor) -> usize {
    result.shape().first().copied().unwrap_or(1)
}

/// Returns the cosine similarity of two vectors after mean-centering; 1 if both are constant, 0 if only one is.
pub fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len().max(1) as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a - mean_a, b - mean_b);
        ab += a * b;
        aa += a * a;
        bb += b * b;
    }
    match (aa > 0.0, bb > 0.0) {
        (true, true) => ab / (aa * bb).sqrt(),
        (false, false) => 1.0,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosine_ignores_the_mean() {
        assert!((cosine(&[1.0, 2.0, 3.0], &[11.0, 12.0, 13.0]) - 1.0).abs() < 1e-12);
        assert!((cosine(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]) + 1.0).abs() < 1e-12);
        assert_eq!(cosine(&[5.0, 5.0], &[1.0, 2.0]), 0.0);
        assert_eq!(cosine(&[5.0, 5.0], &[1.0, 1.0]), 1.0);
    }

    #[test]
    fn hundredth_of_the_power_is_twenty_decibels() {
        let mut power = Power::default();
        power.add(&Tensor::from_slice(&[2], &[3.0f32, 4.0]), &Tensor::from_slice(&[2], &[3.3f32, 3.6]));
        assert!((power.decibels().unwrap() - 20.0).abs() < 1e-5);
        assert_eq!(Power { signal: 1.0, noise: 0.0 }.decibels(), Some(f64::INFINITY));
        assert_eq!(Power { signal: 0.0, noise: 1.0 }.decibels(), None);
    }
}
