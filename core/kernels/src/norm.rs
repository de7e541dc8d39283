//! Normalizations, softmax and prelu along contiguous lines, and softmax along any axis.

use super::dense::f32_shapes;
use super::pool::{largest_of, sum, sum_of_squares};
use super::simd::{exp, mul_add, multiversion};
use super::{Kernel, Offer, Spec, split};
use byoc_ir::op::norm::AxisView;
use byoc_ir::tensor::{Tensor, TensorView, TensorViewMut};

inventory::submit! { Offer { op: "nn.batch_norm", make: make_batch } }
inventory::submit! { Offer { op: "nn.layer_norm", make: make_layer } }
inventory::submit! { Offer { op: "nn.instance_norm", make: make_group } }
inventory::submit! { Offer { op: "nn.group_norm", make: make_group } }
inventory::submit! { Offer { op: "nn.softmax", make: |s| make_softmax(s, false) } }
inventory::submit! { Offer { op: "nn.log_softmax", make: |s| make_softmax(s, true) } }
inventory::submit! { Offer { op: "nn.prelu", make: make_prelu } }

/// Parameters common to batch, layer, instance and group normalization.
#[derive(Clone, Copy)]
struct Affine {
    epsilon: f32,
    scale: bool,
    center: bool,
}

impl Affine {
    fn new(spec: &Spec<'_>) -> Affine {
        let p = spec.params();
        Affine { epsilon: p.float("epsilon") as f32, scale: p.bool("scale"), center: p.bool("center") }
    }

    fn gamma(&self, gamma: &[f32], c: usize) -> f32 {
        if self.scale { gamma[c] } else { 1.0 }
    }

    fn beta(&self, beta: &[f32], c: usize) -> f32 {
        if self.center { beta[c] } else { 0.0 }
    }
}

struct BatchNorm {
    view: AxisView,
    affine: Affine,
    /// Factor and addend of every channel, if everything but the data is constant.
    coefficients: Option<Vec<f32>>,
}

fn make_batch(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let ([data, ..], _) = f32_shapes::<5>(spec)?;
    let mut kernel = BatchNorm {
        view: AxisView::new(&data, spec.params().int("axis")),
        affine: Affine::new(spec),
        coefficients: None,
    };
    let constants: Option<Vec<&Tensor>> = (1..5).map(|i| spec.constants.get(i).copied().flatten()).collect();
    if let Some(constants) = constants {
        let mut coefficients = vec![0.0; 2 * kernel.view.len];
        kernel.fold(&[0, 1, 2, 3].map(|i| constants[i].as_slice::<f32>()), &mut coefficients);
        kernel.coefficients = Some(coefficients);
    }
    Some(Box::new(kernel))
}

impl BatchNorm {
    /// Computes the factors of all channels, followed by their addends.
    fn fold(&self, [gamma, beta, mean, var]: &[&[f32]; 4], coefficients: &mut [f32]) {
        let (factors, addends) = coefficients.split_at_mut(self.view.len);
        for c in 0..self.view.len {
            factors[c] = self.affine.gamma(gamma, c) / (var[c] + self.affine.epsilon).sqrt();
            addends[c] = self.affine.beta(beta, c) - mean[c] * factors[c];
        }
    }

    fn apply(&self, coefficients: &[f32], out: &mut [f32]) {
        let AxisView { len, inner, .. } = self.view;
        let (factors, addends) = coefficients.split_at(len);
        let work = out.len() / 4;
        if inner == 1 {
            split::for_each_chunk(out, len, work, |_, row| scale_and_shift_each(row, factors, addends));
        } else {
            split::for_each_chunk(out, inner, work, |i, line| {
                scale_and_shift_line(line, factors[i % len], addends[i % len])
            });
        }
    }
}

impl Kernel for BatchNorm {
    fn workspace(&self) -> usize {
        if self.coefficients.is_some() { 0 } else { 8 * self.view.len }
    }

    fn in_place(&self) -> Option<usize> {
        self.coefficients.is_some().then_some(0)
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        outputs[0].data.copy_from_slice(inputs[0].data);
        if self.coefficients.is_some() {
            return self.run_in_place(&inputs[1..], outputs);
        }
        outputs[1].data.copy_from_slice(inputs[3].data);
        outputs[2].data.copy_from_slice(inputs[4].data);
        let coefficients = &mut split::scratch(workspace)[..2 * self.view.len];
        self.fold(&[1, 2, 3, 4].map(|i| inputs[i].as_slice::<f32>()), coefficients);
        self.apply(coefficients, outputs[0].as_mut_slice());
        Ok(())
    }

    fn run_in_place(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
        let coefficients = self.coefficients.as_ref().ok_or("expected constant statistics, found runtime values")?;
        outputs[1].data.copy_from_slice(inputs[2].data);
        outputs[2].data.copy_from_slice(inputs[3].data);
        self.apply(coefficients, outputs[0].as_mut_slice());
        Ok(())
    }
}

multiversion! {
    fn scale_and_shift_each(row: &mut [f32], factors: &[f32], addends: &[f32]) {
        for ((v, f), a) in row.iter_mut().zip(factors).zip(addends) {
            *v = mul_add::<FMA>(*v, *f, *a);
        }
    }

    fn scale_and_shift_line(line: &mut [f32], factor: f32, addend: f32) {
        for v in line {
            *v = mul_add::<FMA>(*v, factor, addend);
        }
    }

    /// Computes (v - mean) * factor + beta. The mean is subtracted first: if the factor is large, the difference of two
    /// separate products loses precision.
    fn normalize_line(line: &mut [f32], mean: f32, factor: f32, beta: f32) {
        for v in line {
            *v = mul_add::<FMA>(*v - mean, factor, beta);
        }
    }

    /// Computes (v - mean) * factor * gamma + beta.
    fn normalize_each(row: &mut [f32], mean: f32, factor: f32, gamma: &[f32], beta: &[f32]) {
        for ((v, g), b) in row.iter_mut().zip(gamma).zip(beta) {
            *v = mul_add::<FMA>((*v - mean) * factor, *g, *b);
        }
    }
}

/// Returns the mean, and 1 / sqrt(variance + epsilon).
fn statistics(x: &[f32], epsilon: f32) -> (f32, f32) {
    let mean = sum(x) / x.len() as f32;
    let variance = sum_of_squares(x, mean) / x.len() as f32;
    (mean, 1.0 / (variance + epsilon).sqrt())
}

struct LayerNorm {
    len: usize,
    affine: Affine,
}

fn make_layer(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let ([data, ..], _) = f32_shapes::<3>(spec)?;
    let view = AxisView::new(&data, spec.params().int("axis"));
    let affine = Affine::new(spec);
    (view.inner == 1 && affine.scale && affine.center)
        .then(|| Box::new(LayerNorm { len: view.len, affine }) as Box<dyn Kernel>)
}

impl Kernel for LayerNorm {
    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run_in_place(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
        let (gamma, beta) = (inputs[0].as_slice::<f32>(), inputs[1].as_slice::<f32>());
        let out = outputs[0].as_mut_slice::<f32>();
        let work = out.len();
        split::for_each_chunk(out, self.len, work, |_, row| {
            let (mean, factor) = statistics(row, self.affine.epsilon);
            normalize_each(row, mean, factor, gamma, beta);
        });
        Ok(())
    }
}

/// Group normalization; instance normalization has one channel per group.
struct GroupNorm {
    /// Number of channels in all groups together.
    channels: usize,
    channels_per_group: usize,
    /// Number of elements in a channel.
    inner: usize,
    affine: Affine,
}

fn make_group(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let ([data, ..], _) = f32_shapes::<3>(spec)?;
    let params = spec.params();
    let axis = params.int("axis");
    let view = AxisView::new(&data, axis);
    // A group is contiguous only if the channels are axis 1.
    if !(axis == 1 || axis == 1 - data.len() as i64) || view.len == 0 || view.inner == 0 {
        return None;
    }
    let groups = params.opt_int("num_groups").map_or(view.len, |g| g as usize);
    let channels_per_group = view.len / groups;
    Some(Box::new(GroupNorm { channels: view.len, channels_per_group, inner: view.inner, affine: Affine::new(spec) }))
}

impl Kernel for GroupNorm {
    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run_in_place(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
        let (gamma, beta) = (inputs[0].as_slice::<f32>(), inputs[1].as_slice::<f32>());
        let out = outputs[0].as_mut_slice::<f32>();
        let work = out.len();
        split::for_each_chunk(out, self.channels_per_group * self.inner, work, |i, group| {
            let (mean, factor) = statistics(group, self.affine.epsilon);
            for (j, line) in group.chunks_mut(self.inner).enumerate() {
                let c = (i * self.channels_per_group + j) % self.channels;
                let factor = factor * self.affine.gamma(gamma, c);
                normalize_line(line, mean, factor, self.affine.beta(beta, c));
            }
        });
        Ok(())
    }
}

struct Softmax {
    view: AxisView,
    is_log: bool,
}

fn make_softmax(spec: &Spec<'_>, is_log: bool) -> Option<Box<dyn Kernel>> {
    let ([data], _) = f32_shapes(spec)?;
    Some(Box::new(Softmax { view: AxisView::new(&data, spec.params().int("axis")), is_log }))
}

impl Kernel for Softmax {
    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        outputs[0].data.copy_from_slice(inputs[0].data);
        self.run_in_place(&[], outputs)
    }

    fn run_in_place(&self, _: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
        let AxisView { len, inner, .. } = self.view;
        let out = outputs[0].as_mut_slice::<f32>();
        let work = 2 * out.len();
        split::for_each_chunk(out, len * inner, work, |_, block| match (inner, self.is_log) {
            (1, false) => {
                let max = largest_of(block);
                let total = exp_each(block, max);
                scale_and_shift_line(block, 1.0 / total, 0.0);
            }
            (1, true) => {
                let max = largest_of(block);
                let total = sum_of_exp(block, max);
                subtract(block, max, total.ln());
            }
            _ => softmax_block(block, inner, self.is_log),
        });
        Ok(())
    }
}

/// Number of adjacent lines processed together if the axis is not the last.
const BLOCK_WIDTH: usize = 32;

multiversion! {
    /// Computes exp(v - max) in place, and returns the sum.
    fn exp_each(row: &mut [f32], max: f32) -> f32 {
        let mut accumulators = [0.0f32; BLOCK_WIDTH];
        let (blocks, tail) = row.as_chunks_mut::<BLOCK_WIDTH>();
        for values in blocks {
            for l in 0..BLOCK_WIDTH {
                values[l] = exp::<FMA>(values[l] - max);
                accumulators[l] += values[l];
            }
        }
        for (s, v) in accumulators.iter_mut().zip(tail) {
            *v = exp::<FMA>(*v - max);
            *s += *v;
        }
        accumulators.iter().sum()
    }

    /// Returns the sum of exp(v - max).
    fn sum_of_exp(row: &[f32], max: f32) -> f32 {
        let mut accumulators = [0.0f32; BLOCK_WIDTH];
        let (blocks, tail) = row.as_chunks::<BLOCK_WIDTH>();
        for values in blocks {
            for l in 0..BLOCK_WIDTH {
                accumulators[l] += exp::<FMA>(values[l] - max);
            }
        }
        for (s, v) in accumulators.iter_mut().zip(tail) {
            *s += exp::<FMA>(*v - max);
        }
        accumulators.iter().sum()
    }

    fn subtract(row: &mut [f32], a: f32, b: f32) {
        for v in row {
            *v = *v - a - b;
        }
    }

    /// Computes the softmax of each column of `block` in place. A row has `inner` elements.
    fn softmax_block(block: &mut [f32], inner: usize, is_log: bool) {
        for first in (0..inner).step_by(BLOCK_WIDTH) {
            let width = BLOCK_WIDTH.min(inner - first);
            let mut max = [f32::NEG_INFINITY; BLOCK_WIDTH];
            let mut total = [0.0f32; BLOCK_WIDTH];
            for row in block.chunks(inner) {
                for (m, v) in max.iter_mut().zip(&row[first..first + width]) {
                    *m = if *v > *m || v.is_nan() { *v } else { *m };
                }
            }
            for row in block.chunks(inner) {
                for ((t, m), v) in total.iter_mut().zip(&max).zip(&row[first..first + width]) {
                    *t += exp::<FMA>(*v - *m);
                }
            }
            for t in &mut total[..width] {
                *t = if is_log { t.ln() } else { 1.0 / *t };
            }
            for row in block.chunks_mut(inner) {
                for ((t, m), v) in total.iter().zip(&max).zip(&mut row[first..first + width]) {
                    *v = if is_log { *v - *m - *t } else { exp::<FMA>(*v - *m) * *t };
                }
            }
        }
    }

    fn leak(line: &mut [f32], alpha: f32) {
        for v in line {
            *v = if *v <= 0.0 { *v * alpha } else { *v };
        }
    }

    fn leak_each(row: &mut [f32], alpha: &[f32]) {
        for (v, a) in row.iter_mut().zip(alpha) {
            *v = if *v <= 0.0 { *v * *a } else { *v };
        }
    }
}

struct Prelu(AxisView);

fn make_prelu(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let ([data, _], _) = f32_shapes(spec)?;
    Some(Box::new(Prelu(AxisView::new(&data, spec.params().int("axis")))))
}

impl Kernel for Prelu {
    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run_in_place(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
        let AxisView { len, inner, .. } = self.0;
        let alpha = inputs[0].as_slice::<f32>();
        let out = outputs[0].as_mut_slice::<f32>();
        let work = out.len() / 4;
        if inner == 1 {
            split::for_each_chunk(out, len, work, |_, row| leak_each(row, alpha));
        } else {
            split::for_each_chunk(out, inner, work, |i, line| leak(line, alpha[i % len]));
        }
        Ok(())
    }
}
