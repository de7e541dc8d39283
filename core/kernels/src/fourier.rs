//! Fourier transforms in binary64 by the Cooley-Tukey algorithm, for lengths with any prime factors. A transform of
//! prime length takes as long as evaluating the definition.

use super::{Kernel, Offer, Spec, split};
use byoc_ir::cancel::Ticks;
use byoc_ir::tensor::{DType, Tensor, TensorView, TensorViewMut};

inventory::submit! { Offer { op: "signal.dft", make: make_dft } }
inventory::submit! { Offer { op: "signal.stft", make: make_stft } }

/// Maximum size of the workspace in bytes; larger transforms are left to the reference.
const MAX_WORKSPACE: usize = 1 << 28;

type Complex = [f64; 2];

fn multiply(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

fn add(a: Complex, b: Complex) -> Complex {
    [a[0] + b[0], a[1] + b[1]]
}

/// Plan for transforms of one length.
struct Plan {
    /// Prime factors of the length.
    factors: Vec<usize>,
    /// Powers of the primitive root of unity.
    roots: Vec<Complex>,
}

impl Plan {
    fn new(length: usize, is_inverse: bool) -> Plan {
        let direction = if is_inverse { std::f64::consts::TAU } else { -std::f64::consts::TAU };
        let root = |i: usize| {
            let (sin, cos) = (direction * i as f64 / length as f64).sin_cos();
            [cos, sin]
        };
        let (mut factors, mut rest, mut factor) = (Vec::new(), length, 2);
        while rest > 1 {
            if factor * factor > rest {
                factor = rest;
            }
            while rest.is_multiple_of(factor) {
                factors.push(factor);
                rest /= factor;
            }
            factor += 1;
        }
        Plan { factors, roots: (0..length).map(root).collect() }
    }

    fn len(&self) -> usize {
        self.roots.len()
    }

    /// Transforms the first half of `memory`, with the second half as scratch memory, and returns the half with the
    /// result.
    fn run<'m>(&self, memory: &'m mut [Complex]) -> &'m [Complex] {
        let length = self.len();
        let (mut from, mut to) = memory.split_at_mut(length);
        // `from` holds transforms of `done` elements each: transform i covers the elements i, i + length / done, ...
        let mut done = 1;
        for &factor in &self.factors {
            let count = length / (done * factor);
            let mut ticks = Ticks::every(factor);
            for i in 0..count {
                for j in 0..done {
                    if factor == 2 {
                        let (a, b) = (from[i * done + j], from[(i + count) * done + j]);
                        let b = multiply(b, self.roots[j * count]);
                        to[i * 2 * done + j] = add(a, b);
                        to[(i * 2 + 1) * done + j] = [a[0] - b[0], a[1] - b[1]];
                        continue;
                    }
                    for r in 0..factor {
                        if ticks.is_requested() {
                            return from;
                        }
                        let step = (j + r * done) * count;
                        let (mut sum, mut root) = ([0.0; 2], 0);
                        for q in 0..factor {
                            sum = add(sum, multiply(from[(i + q * count) * done + j], self.roots[root]));
                            root += step;
                            root = if root >= length { root - length } else { root };
                        }
                        to[(i * factor + r) * done + j] = sum;
                    }
                }
            }
            (from, to) = (to, from);
            done *= factor;
        }
        from
    }

    /// Returns the number of operations in a transform.
    fn work(&self) -> usize {
        self.len() * self.factors.iter().sum::<usize>()
    }

    /// Returns the size in bytes of the memory for `rows` transforms with results of `count` numbers each; `None` if it
    /// exceeds the maximum.
    fn workspace(&self, rows: usize, count: usize) -> Option<usize> {
        let row = 2 * self.len() + count;
        rows.checked_mul(row)?.checked_mul(size_of::<Complex>()).filter(|&size| size <= MAX_WORKSPACE)
    }

    /// Fills each row of the workspace with `fill`, and transforms it; the result of a row is its last `count` numbers.
    fn run_rows(&self, memory: &mut [Complex], count: usize, fill: impl Fn(usize, &mut [Complex]) + Sync) {
        let row_len = 2 * self.len() + count;
        let work = memory.len() / row_len.max(1) * self.work();
        split::for_each_chunk(memory, row_len, work, |row, memory| {
            let (memory, result) = memory.split_at_mut(2 * self.len());
            fill(row, &mut memory[..self.len()]);
            result.copy_from_slice(&self.run(memory)[..count]);
        });
    }
}

/// Returns the single integer of a constant.
fn integer(constant: Option<&Tensor>) -> Option<i64> {
    constant?.view().to_i64s()?.first().copied()
}

/// Transform along an axis.
struct Dft {
    plan: Plan,
    /// Number of blocks of rows.
    outer: usize,
    /// Dimension of the axis.
    size: usize,
    /// Number of rows per block.
    inner: usize,
    /// Length of a row of the result, in numbers.
    count: usize,
    /// Number of elements per number, in the data and in the result: 1 for real numbers, 2 for complex numbers.
    parts: [usize; 2],
    scale: f64,
}

fn make_dft(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let (params, constant) = (spec.params(), |i: usize| integer(spec.constants.get(i).copied().flatten()));
    let (shape, result) = (spec.inputs[0].shape()?, spec.outputs[0].shape()?);
    let (length, axis) = (usize::try_from(constant(1)?).ok()?, constant(2)?);
    let axis = axis.rem_euclid(shape.len() as i64) as usize;
    if spec.inputs[0].dtype != DType::F32 || axis + 1 >= shape.len() || shape.contains(&0) {
        return None;
    }
    let (is_inverse, count) = (params.bool("inverse"), result[axis]);
    let length = match length {
        0 if is_inverse || !params.bool("onesided") => count,
        0 => shape[axis],
        length => length,
    };
    let kernel = Dft {
        plan: Plan::new(Some(length).filter(|&length| length < MAX_WORKSPACE / 32)?, is_inverse),
        outer: shape[..axis].iter().product(),
        size: shape[axis],
        inner: shape[axis + 1..shape.len() - 1].iter().product(),
        count,
        parts: [*shape.last()?, *result.last()?],
        scale: if is_inverse { 1.0 / length as f64 } else { 1.0 },
    };
    kernel.plan.workspace(kernel.outer * kernel.inner, count)?;
    Some(Box::new(kernel))
}

impl Dft {
    /// Returns element `n` of a row of the data.
    fn sample(&self, data: &[f32], row: usize, n: usize) -> Complex {
        if n >= self.size {
            return [0.0; 2];
        }
        let at = ((row / self.inner * self.size + n) * self.inner + row % self.inner) * self.parts[0];
        [f64::from(data[at]), if self.parts[0] == 2 { f64::from(data[at + 1]) } else { 0.0 }]
    }
}

impl Kernel for Dft {
    fn workspace(&self) -> usize {
        self.plan.workspace(self.outer * self.inner, self.count).unwrap_or(0)
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let data = inputs[0].as_slice::<f32>();
        let memory: &mut [Complex] = bytemuck::cast_slice_mut(&mut workspace[..self.workspace()]);
        let length = self.plan.len();
        self.plan.run_rows(memory, self.count, |row, out| {
            for (n, out) in out.iter_mut().enumerate() {
                // The upper half of a real signal's spectrum is the conjugate of the lower half.
                *out = if self.parts[1] == 1 && n > length / 2 {
                    let [real, imaginary] = self.sample(data, row, length - n);
                    [real, -imaginary]
                } else {
                    self.sample(data, row, n)
                };
            }
        });
        let (memory, row_len, parts) = (&*memory, 2 * length + self.count, self.parts[1]);
        let out = outputs[0].as_mut_slice::<f32>();
        let work = out.len();
        split::for_each_chunk(out, self.count * self.inner * parts, work, |block, out| {
            for (i, out) in out.chunks_exact_mut(parts).enumerate() {
                let (k, row) = (i / self.inner, block * self.inner + i % self.inner);
                let number = memory[row * row_len + 2 * length + k];
                out.iter_mut().zip(number).for_each(|(out, part)| *out = (part * self.scale) as f32);
            }
        });
        Ok(())
    }
}

/// Short-time Fourier transform: transforms of the windows of each signal.
struct Stft {
    plan: Plan,
    signals: usize,
    /// Length of a signal, in numbers.
    length: usize,
    /// Elements per number: 1 for real numbers, 2 for complex numbers.
    parts: usize,
    frames: usize,
    /// Number of frequencies in the result.
    count: usize,
}

fn make_stft(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let (signal, window, result) = (spec.inputs[0].shape()?, spec.inputs[2].shape()?, spec.outputs[0].shape()?);
    let are_floats = [&spec.inputs[0], &spec.inputs[2], &spec.outputs[0]].iter().all(|ty| ty.dtype == DType::F32);
    if !are_floats || !matches!(spec.inputs[1].dtype, DType::I32 | DType::I64) || window[0] >= MAX_WORKSPACE / 32 {
        return None;
    }
    let kernel = Stft {
        plan: Plan::new(window[0], false),
        signals: signal[0],
        length: signal[1],
        parts: signal[2],
        frames: result[1],
        count: result[2],
    };
    kernel.plan.workspace(kernel.signals.checked_mul(kernel.frames)?, kernel.count)?;
    Some(Box::new(kernel))
}

impl Kernel for Stft {
    fn workspace(&self) -> usize {
        self.plan.workspace(self.signals * self.frames, self.count).unwrap_or(0)
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let (signal, window) = (inputs[0].as_slice::<f32>(), inputs[2].as_slice::<f32>());
        let step = match inputs[1].dtype {
            DType::I32 => inputs[1].as_slice::<i32>().first().map(|&step| i64::from(step)),
            _ => inputs[1].as_slice::<i64>().first().copied(),
        };
        let step = step.and_then(|step| usize::try_from(step).ok()).ok_or("frame_step: expected an integer > 0")?;
        let last = (self.frames.max(1) - 1).checked_mul(step).and_then(|last| last.checked_add(window.len()));
        if last.is_none_or(|last| last > self.length) {
            return Err(format!("frame_step: expected {} frames in {} elements", self.frames, self.length));
        }
        let memory: &mut [Complex] = bytemuck::cast_slice_mut(&mut workspace[..self.workspace()]);
        self.plan.run_rows(memory, self.count, |row, out| {
            let first = row / self.frames * self.length + row % self.frames * step;
            for (n, (out, &factor)) in out.iter_mut().zip(window).enumerate() {
                let at = (first + n) * self.parts;
                let imaginary = if self.parts == 2 { f64::from(signal[at + 1]) } else { 0.0 };
                *out = [f64::from(signal[at]) * f64::from(factor), imaginary * f64::from(factor)];
            }
        });
        let (memory, row_len) = (&*memory, 2 * self.plan.len() + self.count);
        let out = outputs[0].as_mut_slice::<f32>();
        let work = out.len();
        split::for_each_chunk(out, self.count * 2, work, |row, out| {
            let numbers = &memory[row * row_len + 2 * self.plan.len()..][..self.count];
            for (out, number) in out.chunks_exact_mut(2).zip(numbers) {
                out.iter_mut().zip(number).for_each(|(out, part)| *out = *part as f32);
            }
        });
        Ok(())
    }
}
